"""Insert normalization layers and skip connections into an existing model."""

import copy
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names
from gatdiag.remedies.applied import Applied, add_mixin, check_not_generated, remove_mixin, unwrap_model

_SLOT = "inserted"


class Skip(nn.Module):
    """A skip connection: adds the input of a layer to its output, X + scale f(X).

    Args:
        scale: Factor of the layer's output. 0 < scale < 1 keeps gradients from exploding in deep residual networks.

    Example:
        >>> import torch
        >>> Skip(scale=0.5)(torch.ones(2), torch.zeros(2))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, output: Tensor, x: Tensor) -> Tensor:
        """Add the input x of a layer to its output.

        Raises:
            ModelError: The shapes differ, or one is not a tensor.
        """
        shapes = [tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__ for value in (x, output)]
        if not isinstance(shapes[0], tuple) or shapes[0] != shapes[1]:
            raise ModelError(
                f"Expected a layer whose input and output have the same shape for a skip connection, got {shapes[0]} "
                f"and {shapes[1]}: insert it after layers that keep the width"
            )
        return x + (output if self.scale == 1.0 else self.scale * output)

    def extra_repr(self) -> str:
        """The scale if it is not 1."""
        return "" if self.scale == 1.0 else f"scale={self.scale}"


class _InsertionMixin:
    """Mixin of a layer with modules inserted after it."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)  # type: ignore[misc]
        first, *others = output if isinstance(output, tuple) else (output,)
        for inserted in getattr(self, _SLOT):
            first = _call_inserted(inserted, first, _find_input(args, kwargs, first))
        return (first, *others) if others else first


def _call_inserted(inserted: nn.Module, output: Any, x: Any) -> Any:
    if isinstance(output, dict):
        inputs = x if isinstance(x, dict) else {}
        return {key: _call_inserted(inserted, value, inputs.get(key)) for key, value in output.items()}
    return inserted(output, x) if isinstance(inserted, Skip) else inserted(output)


def insert_after_(model: nn.Module, pattern: str, module: nn.Module) -> Applied:
    """Insert a copy of a module after each layer whose name matches a pattern, in place.

    The layers keep their names; the inserted module is ``NAME.inserted.0``. Existing optimizers do not have its
    parameters: create them afterwards, or use ``optimizer.add_param_group``.

    - `torch_geometric.nn.PairNorm()`, ``PairNorm(scale_individually=True)``: keeps rows apart, sum_i ||x_i - mean||^2 =
      N s^2, against oversmoothing.
    - `torch_geometric.nn.LayerNorm(64, mode="node")`, `nn.LayerNorm(64)`: rows of mean 0 and variance 1. PyG's norms
      that work per graph treat all rows as one graph.
    - `Skip()`: a skip connection, against vanishing gradients; the layer must keep the width.

    If a layer returns a dict, with one tensor for each node type (`HeteroConv`), the module is applied to each tensor.

    Args:
        model: Any module.
        pattern: Name of a layer as in ``named_modules()``, with the wildcards ``*``, ``?`` and ``[...]``:
            ``"convs.*"``. Submodules of a matching layer are not considered.
        module: The module to insert; each layer gets a copy, on the layer's device and with its dtype.

    Returns:
        The changed layers, which can be undone.

    Raises:
        InputError: No layer matches, or `module` is not a module.
        ModelError: A layer already has a module of this class inserted, or is scripted or traced. Nothing was changed.
            Widths that do not match raise an error in the forward pass.

    Source:
        PairNorm: Zhao & Akoglu, ICLR 2020. Skip connections against oversmoothing: Park et al., arXiv 2506.04653.

    Example:
        >>> from torch_geometric.nn import GCNConv, PairNorm, Sequential
        >>> model = Sequential("x, edges", [(GCNConv(4, 4), "x, edges -> x"), (GCNConv(4, 2), "x, edges -> x")])
        >>> print(insert_after_(model, "module_0", PairNorm()))
        insert_after:
          module_0: PairNorm() inserted after it
    """
    user = unwrap_model(model)
    if not isinstance(pattern, str) or not isinstance(module, nn.Module):
        raise InputError(
            "Expected the name of a layer, such as 'convs.*', and a torch.nn.Module to insert, got "
            f"{type(pattern).__name__} and {type(module).__name__}"
        )
    applied = Applied("insert_after")
    with applied.undo_on_error():
        for name, layer in _match_layers(user, pattern).items():
            _check_can_insert(name, layer, module)
            _insert_(applied, name, layer, module)
            if _is_in_fused_layer(user, name):
                handle = layer.register_forward_pre_hook(_run_unfused)
                applied.add_change(name, "its encoder layer runs unfused", handle.remove)
        return applied


def _is_in_fused_layer(model: nn.Module, name: str) -> bool:
    """Whether a layer of torch that is around this one leaves it out in evaluation, where it is one kernel."""
    parts = name.split(".")
    above = (model.get_submodule(".".join(parts[:count])) for count in range(len(parts)))
    return any(isinstance(module, nn.TransformerEncoderLayer) for module in above)


def _run_unfused(module: nn.Module, args: Any) -> None:
    """Does nothing: torch runs an encoder layer as one kernel only if no layer in it has a hook."""


def _match_layers(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """Name -> module of the outermost layers whose names match."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if name and fnmatchcase(name, pattern) and not any(name.startswith(f"{above}.") for above in found):
            found[name] = module
    if not found:
        names = [name for name, _ in model.named_children()]
        raise InputError(f"Expected the name of a layer, got {pattern!r}; the model has {join_names(names, 8)}")
    return found


def _insert_(applied: Applied, name: str, layer: nn.Module, module: nn.Module) -> None:
    inserted = copy.deepcopy(module)
    like = next((tensor for tensor in layer.parameters() if tensor.is_floating_point()), None)
    if like is not None:
        inserted.to(device=like.device, dtype=like.dtype)

    def remove() -> None:
        left = [other for other in getattr(layer, _SLOT, ()) if other is not inserted]
        if left:
            layer.add_module(_SLOT, nn.ModuleList(left).train(layer.training))
            return
        remove_mixin(layer, _InsertionMixin)
        if hasattr(layer, _SLOT):
            delattr(layer, _SLOT)

    applied.add_change(name, f"{module} inserted after it", remove)
    modules = nn.ModuleList([*getattr(layer, _SLOT, ()), inserted])
    layer.add_module(_SLOT, modules.train(layer.training))
    add_mixin(layer, _InsertionMixin)


def _check_can_insert(name: str, layer: nn.Module, module: nn.Module) -> None:
    check_not_generated(name, layer)
    if isinstance(layer, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        raise InputError(f"{name} is a container: insert after its layers instead, such as '{name}.*' or '{name}.0'")
    if any(type(other) is type(module) for other in getattr(layer, _SLOT, ())):
        raise ModelError(f"{name} already has a {type(module).__name__} inserted after it: undo that first")


def _find_input(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """The first argument of a layer or the one named x; that of the targets if it is a pair.

    If its shape is not that of the output, the first argument whose shape is, as some layers take the edges first.
    """
    x = args[0] if args else kwargs.get("x", next(iter(kwargs.values())))
    x = x[-1] if isinstance(x, tuple | list) else x
    shape = getattr(output, "shape", None)
    if shape is None or getattr(x, "shape", None) == shape:
        return x
    return next((one for one in (*args, *kwargs.values()) if getattr(one, "shape", None) == shape), x)

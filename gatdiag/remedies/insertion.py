"""Normalization layers and skip connections, put into a model that exists and taken out again."""

import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names
from gatdiag.remedies.applied import Applied, module_of, put_on, refuse_scripted, take_off

_SLOT = "inserted"


class Skip(nn.Module):
    """A skip connection: adds what went into a layer to what came out of it, X + scale f(X).

    Args:
        scale: Factor of the layer's own output. 0 < scale < 1 tames gradients that expand in deep residual networks.

    Example:
        >>> import torch
        >>> Skip(scale=0.5)(torch.ones(2), torch.zeros(2))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """The sum.

        Raises:
            ModelError: The shapes differ, or one is no tensor.
        """
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (given, output)]
        if not isinstance(shapes[0], tuple) or shapes[0] != shapes[1]:
            raise ModelError(
                f"A skip connection adds a layer's input to its output, and their shapes are {shapes[0]} and "
                f"{shapes[1]}: insert it after layers that keep the width"
            )
        return given + (output if self.scale == 1.0 else self.scale * output)

    def extra_repr(self) -> str:
        """The scale, where it is not 1."""
        return "" if self.scale == 1.0 else f"scale={self.scale}"


class _Extended:
    """A layer whose output goes through the modules that were inserted after it, in their order."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)  # type: ignore[misc]
        first, *others = output if isinstance(output, tuple) else (output,)
        for inserted in getattr(self, _SLOT):
            first = _through(inserted, first, _input(args, kwargs))
        return (first, *others) if others else first


def _through(inserted: nn.Module, output: Any, given: Any) -> Any:
    if isinstance(output, dict):
        before = given if isinstance(given, dict) else {}
        return {key: _through(inserted, value, before.get(key)) for key, value in output.items()}
    return inserted(output, given) if isinstance(inserted, Skip) else inserted(output)


def insert_after_(model: nn.Module, pattern: str, module: nn.Module) -> Applied:
    """Put a copy of a module after each layer of that name, in place: the layer's output goes through it.

    The layers stay where and what they are, under the same names; what is inserted is found below them as
    ``NAME.inserted.0``. Optimizers that exist do not know the parameters of a module that is inserted: make them
    afterwards, or use ``optimizer.add_param_group``.

    - `torch_geometric.nn.PairNorm()`, ``PairNorm(scale_individually=True)``: keeps rows apart, sum_i ||x_i - mean||^2 =
      N s^2, against oversmoothing.
    - `torch_geometric.nn.LayerNorm(64, mode="node")`, `nn.LayerNorm(64)`: rows of mean 0 and variance 1. Where PyG's
      normalize over a graph, all rows given are one graph.
    - `Skip()`: a skip connection, against vanishing gradients; layers must keep the width.

    Where a layer returns a dict, one tensor for each type of node (`HeteroConv`), each of them goes through it.

    Args:
        model: Any module.
        pattern: Name of a layer as in ``named_modules()``; ``*`` and ``?`` stand for anything: ``"convs.*"``. What lies
            below a layer that matches is not looked at.
        module: What to insert; each layer gets a copy of its own, on its device and in its dtype.

    Returns:
        The layers, and the way back.

    Raises:
        InputError: No layer has such a name, or `module` is no module.
        ModelError: A layer has one of this kind already, or is a scripted one. Nothing was changed. Widths that do not
            fit fail in the forward pass.

    Source:
        PairNorm: Zhao & Akoglu, ICLR 2020. Skip connections against oversmoothing: Park et al., arXiv 2506.04653.

    Example:
        >>> from torch_geometric.nn import GCNConv, PairNorm, Sequential
        >>> model = Sequential("x, edges", [(GCNConv(4, 4), "x, edges -> x"), (GCNConv(4, 2), "x, edges -> x")])
        >>> print(insert_after_(model, "module_0", PairNorm()))
        insert_after:
          module_0: PairNorm() inserted after it
    """
    user = module_of(model)
    if not isinstance(pattern, str):
        raise InputError(f"Expected the name of a layer after the model, as 'convs.*', got {type(pattern).__name__}")
    if not isinstance(module, nn.Module):
        raise InputError(f"Expected a torch.nn.Module to insert, got {type(module).__name__}")
    applied = Applied("insert_after")
    with applied.changing():
        for name, layer in list(_matching(user, pattern)):
            _check(name, layer, module)
            _insert_(applied, name, layer, module)
        return applied


def _matching(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules whose names match."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not name or not fnmatchcase(name, pattern) or any(name.startswith(f"{above}.") for above in found):
            continue
        if not any(module is other for other in found.values()):  # a module with two names is one layer
            yield name, module
        found[name] = module
    if not found:
        names = [name for name, _ in model.named_children()]
        raise InputError(f"No layer of the model is named {pattern!r}; its parts are {join_names(names, 8)}")


def _insert_(applied: Applied, name: str, layer: nn.Module, module: nn.Module) -> None:
    inserted = copy.deepcopy(module)
    like = next((tensor for tensor in layer.parameters() if tensor.is_floating_point()), None)
    if like is not None:
        inserted.to(device=like.device, dtype=like.dtype)

    def take_out() -> None:
        left = [other for other in getattr(layer, _SLOT, ()) if other is not inserted]
        if left:
            layer.add_module(_SLOT, nn.ModuleList(left).train(layer.training))
            return
        take_off(layer, _Extended)
        if hasattr(layer, _SLOT):
            delattr(layer, _SLOT)

    applied.record(name, f"{module} inserted after it", take_out)
    modules = nn.ModuleList([*getattr(layer, _SLOT, ()), inserted])
    layer.add_module(_SLOT, modules.train(layer.training))
    put_on(layer, _Extended)


def _check(name: str, layer: nn.Module, module: nn.Module) -> None:
    refuse_scripted(name, layer)
    if isinstance(layer, nn.ModuleList | nn.ModuleDict):
        raise InputError(f"{name} is a list of layers, which is not called itself: give their names, as in '{name}.*'")
    if isinstance(layer, nn.Sequential):
        last = next(reversed([part for part, _ in layer.named_children()]), "0")
        raise InputError(f"{name} is a Sequential, which calls all that is in it: insert after a part, '{name}.{last}'")
    if hasattr(layer, _SLOT) and not isinstance(layer, _Extended):
        raise ModelError(f"{name} has an attribute called {_SLOT!r} of its own: rename it")
    if any(type(other) is type(module) for other in getattr(layer, _SLOT, ())):
        raise ModelError(f"{name} has a {type(module).__name__} inserted after it already: undo that first")


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What went into a layer: its first argument or the one called x, or the target's where that is a pair."""
    given = args[0] if args else kwargs.get("x", next(iter(kwargs.values())))
    return given[-1] if isinstance(given, tuple | list) else given

"""Find the layers of a model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from gatdiag.errors import ModelError
from gatdiag.structure.adapters import (
    ADAPTERS,
    adapter_name,
    is_normalization,
    is_vector,
    layer_kind,
    parameter_role,
    weight_name,
)
from gatdiag.structure.isolation import DispatchMode
from gatdiag.structure.layers import Layer, ParameterInfo, Structure
from gatdiag.structure.modules import children_of, named_modules, named_parameters, own_parameters
from gatdiag.structure.replica import Replica, check_initialized, replicate, unwrap
from gatdiag.structure.tensors import tensor_arguments

_CONTAINERS = (nn.ParameterList, nn.ParameterDict)


def discover(model: nn.Module, *args: Any, **kwargs: Any) -> Structure:
    """Find the layers of a model, the order in which they run, and the role of every parameter.

    A convolution is one layer together with its submodules: its linear maps, and the network that a `GINConv`, an
    `EdgeConv` or a `PNAConv` applies. Convolutions inside it (`DirGNNConv`) are layers of their own. Containers
    (`GPSConv`, `HeteroConv`, `nn.TransformerEncoderLayer`, the model) are no layers, but their parts are. Multi-head
    attention and PyG's normalizations are one layer each. Any other module is a layer if it has parameters of its own.
    A convolution without parameters (`APPNP`) is a layer, too, because its output can be oversmoothed.

    Args:
        model: Any module, which is not changed. Wrappers of `torch.compile` and data parallelism are removed.
        args: Positional inputs of the forward pass. With any inputs, layers are in execution order, without in module
            order.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        The structure. A shared parameter is in the first layer, in module order, that holds it.

    Raises:
        ModelError: The model has no parameters or cannot be copied, a layer that it uses is lazy, or its forward pass
            fails on the inputs.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
        >>> print(discover(model))
        2 layers in module order
        1 0: Linear
            0.weight [3, 4]: feature weight
            0.bias [3]: bias
        2 2: Linear
            2.weight [2, 3]: feature weight
    """
    model = unwrap(model)
    check_initialized(model, args, kwargs)
    drafts = _draft_layers(model)
    if not any(draft.names for draft in drafts.values()):
        raise ModelError(
            f"Expected a model with parameters, but {type(model).__name__} has none. Keep parameters and layers in "
            "attributes, nn.ModuleList or nn.ParameterList, not in plain Python lists."
        )
    infos = _parameter_infos(model, drafts)
    if not args and not kwargs:
        return Structure(tuple(_layer(i, draft, infos, None) for i, draft in enumerate(drafts.values(), 1)), "module")
    names = {path: draft.names for path, draft in drafts.items()}
    used = execution_order(replicate(model, args, kwargs), names, dict(named_parameters(model)))
    return _in_order(drafts, infos, used)


def discover_in_order(model: nn.Module, used: Sequence[str]) -> Structure:
    """As `discover`, for a forward pass that was observed: `used` is the layers in the order of their first use."""
    model = unwrap(model)
    drafts = _draft_layers(model)
    return _in_order(drafts, _parameter_infos(model, drafts), used)


def parameters_by_layer(model: nn.Module) -> dict[str, list[str]]:
    """Path of each layer -> names of its parameters, in module order."""
    return {path: draft.names for path, draft in _draft_layers(unwrap(model)).items()}


@dataclass
class _Draft:
    path: str
    module: nn.Module
    adapter: str | None
    names: list[str] = field(default_factory=list)


def _draft_layers(model: nn.Module) -> dict[str, _Draft]:
    """Path -> layer, in module order."""
    names = {id(parameter): name for name, parameter in named_parameters(model)}
    drafts: dict[str, _Draft] = {}
    for draft, module in _walk_modules(model, "", None, set()):
        own = [id(p) for p in own_parameters(module).values() if not is_lazy(p)]
        if own or draft.adapter in ADAPTERS:
            drafts.setdefault(draft.path, draft)
        draft.names += [names.pop(key) for key in own if key in names]
    return drafts


def _walk_modules(
    module: nn.Module, path: str, inside: _Draft | None, seen: set[int]
) -> Iterator[tuple[_Draft, nn.Module]]:
    """Every module once, with the layer that its own parameters belong to."""
    if id(module) in seen:
        return
    seen.add(id(module))
    adapter = adapter_name(module)
    draft = _Draft(path, module, adapter) if inside is None or adapter in ADAPTERS else inside
    yield draft, module
    for name, child in children_of(module).items():
        belongs = draft is inside or adapter is not None or name == "parametrizations" or isinstance(child, _CONTAINERS)
        yield from _walk_modules(child, f"{path}.{name}" if path else name, draft if belongs else None, seen)


def _parameter_infos(model: nn.Module, drafts: Mapping[str, _Draft]) -> dict[str, ParameterInfo]:
    parameters, modules = dict(named_parameters(model)), dict(named_modules(model))
    names: dict[int, list[str]] = {}
    for name, parameter in named_parameters(model, remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    infos = {}
    for draft in drafts.values():
        for name in draft.names:
            parameter = parameters[name]
            weight, owner = _weight_and_owner(name, modules)
            relative = weight.removeprefix(f"{draft.path}.")
            infos[name] = ParameterInfo(
                name=name,
                names=tuple(names[id(parameter)]),
                role=parameter_role(
                    relative,
                    parameter.dim(),
                    draft.adapter,
                    normalizes=is_normalization(modules[owner]),
                    is_vector=is_vector(parameter.shape),
                ),
                shape=tuple(parameter.shape),
                trainable=parameter.requires_grad,
                module=owner,
            )
    return infos


def _weight_and_owner(name: str, modules: Mapping[str, nn.Module]) -> tuple[str, str]:
    """The name of the weight that a parameter belongs to, and the path of the module that owns it.

    The weight of `lin.parametrizations.weight.original0` and `lin.weight_orig` is `lin.weight`; that of an entry
    `mix.0` of a ParameterList is the list, `mix`.
    """
    weight = weight_name(name)
    owner = weight.rpartition(".")[0]
    while owner and isinstance(modules[owner], _CONTAINERS):
        weight = owner if isinstance(modules[owner], nn.ParameterList) else weight
        owner = owner.rpartition(".")[0]
    return weight, owner


def _in_order(drafts: Mapping[str, _Draft], infos: Mapping[str, ParameterInfo], used: Sequence[str]) -> Structure:
    order = [*used, *(path for path in drafts if path not in used)]
    layers = (_layer(i, drafts[path], infos, path in used) for i, path in enumerate(order, 1))
    return Structure(tuple(layers), "execution")


def _layer(index: int, draft: _Draft, infos: Mapping[str, ParameterInfo], executed: bool | None) -> Layer:
    parameters = tuple(infos[name] for name in draft.names)
    return Layer(index, draft.path or Structure.ROOT, layer_kind(draft.module), parameters, executed)


def execution_order(
    replica: Replica, layers: Mapping[str, Sequence[str]], originals: Mapping[str, Tensor] | None = None
) -> list[str]:
    """The layers that a forward pass of the replica uses, in the order of their first use.

    Args:
        replica: Run once, without gradients.
        layers: Path of each layer -> names of its parameters.
        originals: Name -> parameter of the original model. If the replica reads one, `ModelError` is raised.
    """
    uses: list[str] = []
    named = {id(replica.parameters[name]): name for names in layers.values() for name in names}
    foreign = {id(tensor): name for name, tensor in (originals or {}).items()}
    modules = dict(named_modules(replica.model))
    paths = {id(modules[path]): path for path in layers}

    def note_call(module: nn.Module, args: Any) -> None:
        if id(module) in paths:
            uses.append(paths[id(module)])

    # A global hook, because scripted modules accept no hooks of their own.
    with register_module_forward_pre_hook(note_call), _ReadMode(named, foreign, uses.append):
        replica.run_no_grad()
    return order_layers(layers, uses)


def order_layers(layers: Mapping[str, Sequence[str]], uses: Iterable[str]) -> list[str]:
    """The layers that are used, in the order of their first use.

    A layer is first used when an operation reads one of its parameters: the output projection of
    `nn.MultiheadAttention` is used although that module is never called. A layer without parameters is first used when
    its module is called.

    Args:
        layers: Path of each layer -> names of its parameters.
        uses: Names of the parameters that are read and paths of the modules that are called, in order.
    """
    position = {use: number for number, use in enumerate(dict.fromkeys(uses))}
    first: dict[str, int] = {}
    for path, names in layers.items():
        reads = [position[name] for name in names if name in position] or [position.get(path, -1)]
        first[path] = min(reads)
    return sorted((path for path in first if first[path] >= 0), key=first.__getitem__)


class _ReadMode(DispatchMode):
    """Calls `note` with the name of every tensor, given by id, that an operation reads."""

    def __init__(self, names: Mapping[int, str], foreign: Mapping[int, str], note: Callable[[str], None]) -> None:
        super().__init__()
        self.names = names
        self.foreign = foreign
        self.note = note

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for value in tensor_arguments(args, kwargs):
            if id(value) in self.foreign:
                raise ModelError(
                    f"The forward pass of a copy of the model read '{self.foreign[id(value)]}' of the original model: "
                    "a function in it (a lambda, a wrapped or replaced forward) holds a reference to the model. Make "
                    "it a method that reads its weights from self."
                )
            if id(value) in self.names:
                self.note(self.names[id(value)])
        return func(*args, **(kwargs or {}))

"""State dict -> layers and roles, from names and shapes alone: what `structure.discover` reads off a live model.

A state dict knows no classes. Each convolution of PyG is recognized by the names below its path, in the table of
`signatures`, and takes all that is below it; the roles then come from the table that `discover` uses. Whatever else
holds tensors itself is a layer. Where names tell less than a model does:

- Convolutions with the same names: SSG reads as SG; Hypergraph and SuperGAT without attention vectors, and dense ones,
  as GCN; TAG and MixHop as Cheb; GraphConv as it is, though SAGE once had its names. Roles are the same.
- A user's own convolution is taken apart into its modules, and so are unmatched ones.
- Layer, group and instance normalizations share their names, as batch normalizations of any dimension do.
- An embedding differs from a linear map without bias by its own name only.
- The `eps` of a GIN is listed as a parameter though it may be a buffer; what is frozen is listed as trainable.
- Layers without tensors (APPNP, activations, PairNorm) leave nothing to see.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from gatdiag.checkpoint.blocks import blocks
from gatdiag.checkpoint.measures import measure
from gatdiag.checkpoint.modules import Modules
from gatdiag.checkpoint.naming import by_number
from gatdiag.structure import Layer, ParameterInfo, Role, Structure
from gatdiag.structure.adapters import role_of

_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\..*$")
_REWRITTEN = re.compile(r"(?<=weight)_[gv]$|_orig$")  # by old-style weight normalization, spectral one, and pruning
_BUFFER = re.compile(r"(^|\.)(running_(mean|var)|n_averaged|avg_deg_(lin|log)|eye|position_ids|_[^.]*|[^.]*_mask)$")

_NORMS: Final = ("BatchNorm", "BatchNorm1d", "LayerNorm", "RMSNorm", "GraphNorm")
_NORM_ROLES: Final[Mapping[str, Role]] = {"weight": "norm scale", "scale": "norm scale", "bias": "norm shift"}
_PLAIN: Final = nn.Module()  # role_of asks an owner's class whether it normalizes; here names have told already

# Two weights of one attention layer that PyG stores twice when they are shared.
_SHARED: Final = (("lin_l", "lin_r"), ("lin_src", "lin_dst"))


@dataclass(frozen=True)
class _Entry:
    """A parameter of the state dict; `meant` is `lin.weight` for `lin.weight_orig`."""

    key: str
    meant: str
    shape: tuple[int, ...]

    @property
    def owner(self) -> str:
        return self.meant.rpartition(".")[0]


def find_layers(tensors: Mapping[str, Tensor]) -> Structure:
    """Find the layers of a state dict, and the role of every parameter.

    Args:
        tensors: Name -> tensor, named as in a model's `state_dict()`, in its order. Only names, shapes and number
            types are read; of two weights of one attention layer also whether they are equal, that is, shared.

    Returns:
        The layers in module order, as `gatdiag.discover(model)` lists them without inputs. Buffers are left out.
        `Layer.name` is `Structure.ROOT` for tensors of the model itself, `Layer.kind` "Module" for a module of an
        unknown class. Empty for a state dict without parameters.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> print(find_layers(GAT(5, 4, 2, out_channels=3, norm="batch").state_dict()))
        3 layers in module order
        1 convs.0: GATConv
            convs.0.att_src [1, 1, 4]: attention vector
            convs.0.att_dst [1, 1, 4]: attention vector
            convs.0.bias [4]: bias
            convs.0.lin.weight [4, 5]: feature weight
        2 convs.1: GATConv
            convs.1.att_src [1, 1, 3]: attention vector
            convs.1.att_dst [1, 1, 3]: attention vector
            convs.1.bias [3]: bias
            convs.1.lin.weight [3, 4]: feature weight
        3 norms.0: BatchNorm
            norms.0.module.weight [4]: norm scale
            norms.0.module.bias [4]: norm shift
    """
    entries = tuple(
        _Entry(key, _meant(key), tuple(tensor.shape))
        for key, tensor in tensors.items()
        if not _is_buffer(key, tensor, tensors)
    )
    statistics = (key.rpartition(".")[0] for key in tensors if key.endswith("running_mean"))
    modules = Modules(((entry.meant, entry.shape) for entry in entries), statistics)
    layers: dict[str, list[_Entry]] = {}
    for entry in entries:
        around = modules.layers_around(entry.owner)
        for path in around:
            layers.setdefault(path, [])
        layers[around[-1]].append(entry)
    names = _names(tensors, entries)
    return Structure(
        tuple(
            Layer(
                index=index,
                name=path or Structure.ROOT,
                kind=modules.kind(path) or "Module",
                parameters=tuple(_info(entry, path, modules, names[entry.key]) for entry in held if entry.key in names),
                executed=None,
            )
            for index, (path, held) in enumerate(_in_order(layers, tensors), 1)
        ),
        "module",
    )


def _in_order(layers: dict[str, list[_Entry]], keys: Iterable[str]) -> Iterable[tuple[str, list[_Entry]]]:
    """As in the file, which has the order of the modules; if it is sorted like text, numbers in names count instead."""
    keys = list(keys)
    if keys != sorted(keys) or keys == sorted(keys, key=by_number):
        return layers.items()
    return sorted(layers.items(), key=lambda item: by_number(item[0]))


def _meant(key: str) -> str:
    """The parameter that a tensor stands for; entries of a `ParameterList` stand for the list."""
    meant = _REWRITTEN.sub("", _PARAMETRIZED.sub(r"\1", key))
    while "." in meant and meant.rpartition(".")[2].isdigit():
        meant = meant.rpartition(".")[0]
    return meant


def _is_buffer(key: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> bool:
    """Statistics, masks, counters, and the vectors of a spectral normalization."""
    if not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized):
        return True
    power_iteration = key.endswith(("weight_u", "weight_v")) and f"{key[:-1]}orig" in tensors
    return power_iteration or _BUFFER.search(key) is not None


def _names(tensors: Mapping[str, Tensor], entries: Iterable[_Entry]) -> dict[str, tuple[str, ...]]:
    """First name of each parameter -> all names of it."""
    first: dict[object, str] = {}
    names: dict[str, list[str]] = {}
    for entry in entries:
        tensor = tensors[entry.key]
        twin = _twin(entry, tensors)
        key = twin or first.setdefault(_identity(tensor), entry.key)
        names.setdefault(key, []).append(entry.key)
    return {key: tuple(found) for key, found in names.items()}


def _identity(tensor: Tensor) -> object:
    """Equal for two tensors that are the same memory."""
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.is_meta:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _twin(entry: _Entry, tensors: Mapping[str, Tensor]) -> str | None:
    """The weight that this one repeats, as formats that store no sharing write `share_weights` of attention layers."""
    for kept, repeated in _SHARED:
        path, found, last = entry.key.rpartition(f"{repeated}.")
        other = tensors.get(f"{path}{kept}.{last}")
        is_attention = any(f"{path}{name}" in tensors for name in ("att", "att_src", "att_l"))
        if not found or other is None or not is_attention:
            continue
        if _repeats(other, tensors[entry.key]):
            return f"{path}{kept}.{last}"
    return None


def _repeats(kept: Tensor, repeated: Tensor) -> bool:
    """Whether two tensors have the same entries, not all zero."""
    if kept.shape != repeated.shape or kept.dtype != repeated.dtype or kept.is_meta or repeated.is_meta:
        return False
    if kept.layout is not torch.strided or repeated.layout is not torch.strided:
        return False
    pairs = zip(blocks(kept), blocks(repeated), strict=True)
    return all(torch.equal(one.values, other.values) for one, other in pairs) and measure(kept).norm > 0


def _info(entry: _Entry, path: str, modules: Modules, names: tuple[str, ...]) -> ParameterInfo:
    relative = entry.meant.removeprefix(f"{path}.")
    last = entry.meant.rpartition(".")[2]
    role = role_of(relative, len(entry.shape), _PLAIN, modules.kind(path))
    if modules.kind(entry.owner) in _NORMS:
        role = _NORM_ROLES.get(last, role)
    return ParameterInfo(entry.key, names, role, entry.shape, trainable=True, module=entry.owner)

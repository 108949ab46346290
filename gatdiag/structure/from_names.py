"""State dict -> a model without a forward pass, of which `discover` finds the layers as of any other.

A state dict knows no classes. Each convolution of PyG is recognized by the names below its path, in the table of
`adapters`; what else holds tensors itself gets a class by their shapes. Where names tell less than a model does:

- Convolutions with the same names: SSG reads as SG; Hypergraph and SuperGAT without attention vectors, and dense ones,
  as GCN; TAG and MixHop as Cheb; GraphConv as it is, though SAGE once had its names. Roles are the same.
- A user's own convolution is taken apart into its modules, and so are unmatched ones. Recurrent layers and
  convolutions of images are a "Module".
- Layer, group and instance normalizations share their names, as batch normalizations of any dimension do.
- An embedding differs from a linear map without bias by its own name only.
- The `eps` of a GIN is listed as a parameter though it may be a buffer; what is frozen is listed as trainable.
- Layers without tensors (APPNP, activations, PairNorm) leave nothing to see.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from gatdiag.structure.adapters import ADAPTERS, BLOCKS, weight_name
from gatdiag.structure.discovery import in_module_order
from gatdiag.structure.layers import Structure

Shape: TypeAlias = tuple[int, ...]
Parts: TypeAlias = Mapping[str, Shape | None]  # name right below a module -> shape of the tensor, None for a module

FROBENIUS_NORM: Final = "_frobenius_norm"
"""End of the name of the buffer beside a weight that a layer divides by its norm (`remedies.weight_normalize_`)."""
_BUFFER = re.compile(
    r"(^|\.)(running_(mean|var)|n_averaged|avg_deg_(lin|log)|eye|position_ids|_[^.]*|[^.]*(_mask|"
    rf"{FROBENIUS_NORM}))$"
)
_NUMBER = re.compile(r"([0-9]+)")

_INNER: Final = ("conv_in", "conv_out", "phi")  # convolutions inside a convolution: layers of their own
_WRAPPERS: Final = ("DirGNNConv", "AntiSymmetricConv")
_LINEAR: Final = re.compile(r"(^|_)(lin|linear|fc)s?\d*(_|$)", re.IGNORECASE)  # names that nn.Linear alone is given
_DEPTH: Final = 64  # modules below each other: a name of a million dots is not to take for ever

# Two weights of one attention layer that PyG stores twice when they are shared.
_SHARED: Final = (("lin_l", "lin_r"), ("lin_src", "lin_dst"))


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
    return in_module_order(skeleton(tensors))


def skeleton(tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module with these parameters and buffers, of the classes that names and shapes show.

    Names that no module can have, such as those with nothing between two dots, are left out.
    """
    root = nn.Module()
    known: dict[object, nn.Parameter] = {}
    shapes: dict[str, Shape] = {}
    for key in _in_order(tensors):
        *path, last = key.split(".", _DEPTH)
        if not all(path) or not last or "." in last:
            continue
        module: Any = root
        for part in path:
            module = module._modules.get(part) or module._modules.setdefault(part, nn.Module())
        if is_buffer(key, tensors[key], tensors):
            module._buffers[last] = tensors[key]
        else:
            original = tensors[_twin(key, tensors) or key]
            module._parameters[last] = known.setdefault(_identity(original), nn.Parameter(original))
            shapes[key] = tuple(original.shape)
    for module in root.modules():
        if module is not root and module._parameters and all(map(str.isdigit, module._parameters)):
            module.__class__ = nn.ParameterList
    parts = _parts(shapes)
    _classify(root, "", None, parts, output_axes({path: _own(found) for path, found in parts.items()}))
    return root


def _parts(shapes: Mapping[str, Shape]) -> dict[str, dict[str, Shape | None]]:
    """Path of each module -> what is right below it; of a weight that is computed from two tensors the larger shape."""
    found: dict[str, dict[str, Shape | None]] = defaultdict(dict)
    for name, shape in shapes.items():
        *path, last = _meant(name).split(".")
        for depth, part in enumerate(path):
            found[".".join(path[:depth])].setdefault(part, None)
        own = found[".".join(path)]
        own[last] = max(own.get(last) or (), shape, key=len)
    return found


def _own(parts: Parts) -> dict[str, Shape]:
    return {name: shape for name, shape in parts.items() if shape is not None}


def by_number(name: str) -> list[tuple[int, str]]:
    """Sorting key of names, so that their numbers count.

    Example:
        >>> sorted(["convs.10", "convs.2"], key=by_number)
        ['convs.2', 'convs.10']
    """
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(_NUMBER.split(name))]


def series_of(path: str) -> str:
    """Path with its numbers left out, equal for paths of a series: convs.0, convs.1, ..."""
    return _NUMBER.sub("#", path)


def is_buffer(key: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> bool:
    """True for entries of a state dict that are not parameters: statistics, masks, counters, power iteration."""
    if not tensor.is_floating_point():
        return True
    power_iteration = key.endswith(("weight_u", "weight_v")) and f"{key[:-1]}orig" in tensors
    return power_iteration or _BUFFER.search(key) is not None


def output_axes(leaves: Mapping[str, Mapping[str, Shape]]) -> dict[str, int | None]:
    """Which axis of each layer's matrix counts its outputs: 0 as in nn.Linear, 1 as in many a GCN, which takes X W.

    A bias is as long as there are outputs, which tells unless the matrix is square. If so, or without a bias, the
    layers whose paths differ in numbers alone tell: by their biases, or by the one way in which each feeds the next.

    Args:
        leaves: Path -> shapes of what is right below it.

    Returns:
        Path of each layer that holds a matrix, or a matrix and a bias -> the axis; None where it is in doubt.

    Example:
        >>> output_axes({"layers.0": {"weight": (20, 64), "bias": (64,)}, "layers.1": {"weight": (64, 64)}})
        {'layers.0': 1, 'layers.1': 1}
    """
    series: dict[str, list[str]] = {}
    for path in sorted((path for path, own in leaves.items() if _is_matrix(path, own)), key=by_number):
        series.setdefault(series_of(path), []).append(path)
    found: dict[str, int | None] = {}
    for paths in series.values():
        by_bias = {path: _axis_of_bias(leaves[path]) for path in paths}
        known = {axis for axis in by_bias.values() if axis is not None}
        shared = _axis_of_order(paths, [leaves[path]["weight"] for path in paths]) if not known else None
        if len(known) == 1:
            (shared,) = known
        found |= {path: shared if axis is None else axis for path, axis in by_bias.items()}
    return found


def _is_matrix(path: str, own: Mapping[str, Shape]) -> bool:
    plain = "weight" in own and own.keys() <= {"weight", "bias"} and len(own["weight"]) == 2
    return plain and not _is_embedding(path, own)


def _is_embedding(path: str, own: Mapping[str, Shape]) -> bool:
    return "emb" in path.rpartition(".")[2].lower() and "bias" not in own


def _axis_of_bias(own: Mapping[str, Shape]) -> int | None:
    fitting = [axis for axis, length in enumerate(own["weight"]) if own.get("bias") == (length,)]
    return fitting[0] if len(fitting) == 1 else None


def _axis_of_order(paths: Sequence[str], shapes: Sequence[Shape]) -> int | None:
    """The axis of outputs of layers, each of which may feed the next, whose biases tell nothing."""
    if _LINEAR.search(_last_word(paths[0])):
        return 0
    fitting = [axis for axis in (0, 1) if all(one[axis] == other[1 - axis] for one, other in pairwise(shapes))]
    if len(fitting) == 1:
        return fitting[0]
    ambiguous = any(rows == columns for rows, columns in shapes) or (fitting and len(shapes) > 1)
    return None if ambiguous else 0


def _last_word(path: str) -> str:
    """The last part of a path that is not numeric."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")


def _in_order(keys: Iterable[str]) -> list[str]:
    """As in the file, which has the order of the modules; if it is sorted like text, numbers in names count instead."""
    keys = list(keys)
    return sorted(keys, key=by_number) if keys == sorted(keys) else keys


def _meant(key: str) -> str:
    """The parameter that a tensor stands for: `lin.weight` for `lin.weight_orig`, the list for its entries."""
    meant = weight_name(key)
    while "." in meant and meant.rpartition(".")[2].isdigit():
        meant = meant.rpartition(".")[0]
    return meant


def _identity(tensor: Tensor) -> object:
    """Equal for two tensors that are the same memory."""
    if tensor.numel() == 0 or tensor.is_meta:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _twin(key: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The weight that this one repeats, as formats that store no sharing write `share_weights` of attention layers."""
    for kept, repeated in _SHARED:
        path, found, last = key.rpartition(f"{repeated}.")
        other = tensors.get(f"{path}{kept}.{last}") if found else None
        if other is None or not any(f"{path}{name}" in tensors for name in ("att", "att_src", "att_l")):
            continue
        if _repeats(other, tensors[key]):
            return f"{path}{kept}.{last}"
    return None


def _repeats(kept: Tensor, repeated: Tensor) -> bool:
    """True where two tensors have the same entries, not all zero."""
    alike = kept.shape == repeated.shape and kept.dtype == repeated.dtype and not kept.is_meta and not repeated.is_meta
    return alike and torch.equal(kept, repeated) and bool((kept != 0).any())


@dataclass(frozen=True)
class _Signature:
    """The names of one kind of layer, out of the table of `adapters`."""

    kind: str
    required: Mapping[str, int | None]  # name -> how many axes its tensor must have; None: any, or a module
    allowed: frozenset[str]  # all names that may be right below the layer
    absent: tuple[str, ...]  # names of tensors, dotted, that must not be there
    weak: bool  # it counts only where the path says "conv"

    def fits(self, path: str, parts: Mapping[str, Parts]) -> bool:
        own = parts[path]
        if not self.required.keys() <= own.keys() <= self.allowed or (self.weak and "conv" not in path.lower()):
            return False
        axes_fit = all(len(own[name] or ()) == axes for name, axes in self.required.items() if axes is not None)
        places = (_joined(path, name).rpartition(".") for name in self.absent)
        return axes_fit and not any(last in parts.get(module, ()) for module, _, last in places)


def _signatures() -> tuple[_Signature, ...]:
    """All rows of the table that have one: the more names are required, the earlier."""
    found = []
    for kind, adapter in {**ADAPTERS, **BLOCKS}.items():
        listed = {"bias", "aggr_module", *(name for names in adapter.roles.values() for name in names)}
        for text in adapter.signatures:
            must, _, may = text.removeprefix("conv:").partition("|")
            names = [name.partition("/") for name in must.split() if not name.startswith("-")]
            required = {name: int(axes) if axes else None for name, _, axes in names}
            absent = tuple(name[1:] for name in must.split() if name.startswith("-"))
            allowed = frozenset({*required, *may.split(), *listed})
            found.append(_Signature(kind, required, allowed, absent, text.startswith("conv:")))
    return tuple(sorted(found, key=lambda signature: -len(signature.required)))


_SIGNATURES: Final = _signatures()
# Each signature needs one of these; a leaf, which has a weight and a bias, is seen at once to be none of them.
_TELLING: Final = frozenset(name for known in _SIGNATURES for name in known.required) - {"weight", "bias"}


def _classify(
    module: nn.Module, path: str, inside: str | None, parts: Mapping[str, Parts], axes: Mapping[str, int | None]
) -> None:
    """Gives a module, and all below it, the class that names and shapes show; `inside` is that of the layer around."""
    block = _block(module, path, parts)
    kind = block or _leaf(module, path, _own(parts[path]), axes)
    is_layer = inside is None or (inside in _WRAPPERS and path.rpartition(".")[2] in _INNER)
    if kind is not None and (is_layer or kind not in ADAPTERS):
        module.__class__ = _class(kind)
    for name, child in module.named_children():
        _classify(child, _joined(path, name), (block if is_layer else None) or inside, parts, axes)


@cache
def _class(kind: str) -> type[nn.Module]:
    """A class that goes by the name of one of the library's."""
    return type(kind, (nn.Module,), {"__module__": "torch_geometric.nn"})


def _block(module: nn.Module, path: str, parts: Mapping[str, Parts]) -> str | None:
    """The class of a module that is one layer with all that is below it."""
    if parts[path].keys() == {"module"} and "module.running_mean" in dict(module.named_buffers()):
        return "BatchNorm"
    candidates = _SIGNATURES if parts[path].keys() & _TELLING else ()
    return next((known.kind for known in candidates if known.fits(path, parts)), None)


def _leaf(module: nn.Module, path: str, own: Mapping[str, Shape], axes: Mapping[str, int | None]) -> str | None:
    """The class of a module by what it holds itself."""
    if "running_mean" in module._buffers:
        return "BatchNorm1d"
    weight = own.get("weight", own.get("scale") if path else None)
    if weight is None or not own.keys() <= {"weight", "scale", "bias"}:
        return None
    if len(weight) == 1:
        return _vector_kind(path, own, weight)
    return _matrix_kind(path, own, weight, axes.get(path)) if len(weight) == 2 else None


def _matrix_kind(path: str, own: Mapping[str, Shape], weight: Shape, axis: int | None) -> str:
    if _is_embedding(path, own):
        return "Embedding"
    word = _last_word(path).lower()
    names_convolution = "conv" in word and not re.search(r"mlp|nn$", word)
    by_name = axis is None and names_convolution and own.get("bias") == weight[-1:]
    return "GCNConv" if axis == 1 or by_name else "Linear"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _vector_kind(path: str, own: Mapping[str, Shape], weight: Shape) -> str:
    if "bias" in own:
        return "LayerNorm"
    return "PReLU" if weight == (1,) or re.search(r"act|prelu", path.lower()) else "RMSNorm"

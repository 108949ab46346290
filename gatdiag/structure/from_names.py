"""State dict -> layers and roles, from names and shapes alone: what `discover` reads off a live model.

A state dict knows no classes. Each convolution of PyG is recognized by the names below its path, in the table of
`adapters`, and takes all that is below it. Whatever else holds tensors itself is a layer. Where names tell less than a
model does:

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
from itertools import pairwise
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gatdiag.structure.adapters import ADAPTERS, BLOCKS, NORM, parameter_role, weight_name
from gatdiag.structure.layers import Layer, ParameterInfo, Structure

Shape: TypeAlias = tuple[int, ...]
Children: TypeAlias = Mapping[str, Shape | None]  # name right below a path -> shape of the tensor, None for a module

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
_DEPTH: Final = 64  # modules below each other that are looked at: a name of a million dots is not to take for ever

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
    meant = {key: _meant(key) for key, tensor in tensors.items() if not is_buffer(key, tensor, tensors)}
    names = _names(tensors, meant)
    running = {key.rpartition(".")[0] for key in tensors if key.endswith("running_mean")}
    modules = _Modules([(name, tuple(tensors[key].shape)) for key, name in meant.items()], running)
    held: dict[str, list[ParameterInfo]] = {}
    for key, name in meant.items():
        around = modules.layers_around(name.rpartition(".")[0])
        for path in around:
            held.setdefault(path, [])
        if key in names:
            held[around[-1]].append(_info(key, name, around[-1], modules, names[key], tuple(tensors[key].shape)))
    return Structure(
        tuple(
            Layer(index, path or Structure.ROOT, modules.kind(path) or "Module", tuple(infos), None)
            for index, (path, infos) in enumerate(_in_order(held, tensors), 1)
        ),
        "module",
    )


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Sorting key of names, so that their numbers count.

    Example:
        >>> sorted(["convs.10", "convs.2"], key=natural_sort_key)
        ['convs.2', 'convs.10']
    """
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(_NUMBER.split(name))]


def path_pattern(path: str) -> str:
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
    for path in sorted((path for path, own in leaves.items() if _is_matrix(path, own)), key=natural_sort_key):
        series.setdefault(path_pattern(path), []).append(path)
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


def _info(key: str, meant: str, path: str, modules: "_Modules", names: tuple[str, ...], shape: Shape) -> ParameterInfo:
    owner = meant.rpartition(".")[0]
    relative = meant.removeprefix(f"{path}.")
    role = parameter_role(
        relative, len(shape), modules.kind(path), normalizes=bool(NORM.search(modules.kind(owner) or ""))
    )
    return ParameterInfo(key, names, role, shape, trainable=True, module=owner)


def _in_order(layers: dict[str, list[ParameterInfo]], keys: Iterable[str]) -> Iterable[tuple[str, list[ParameterInfo]]]:
    """As in the file, which has the order of the modules; if it is sorted like text, numbers in names count instead."""
    keys = list(keys)
    if keys != sorted(keys) or keys == sorted(keys, key=natural_sort_key):
        return layers.items()
    return sorted(layers.items(), key=lambda item: natural_sort_key(item[0]))


def _meant(key: str) -> str:
    """The parameter that a tensor stands for: `lin.weight` for `lin.weight_orig`, the list for its entries."""
    meant = weight_name(key)
    while "." in meant and meant.rpartition(".")[2].isdigit():
        meant = meant.rpartition(".")[0]
    return meant


def _names(tensors: Mapping[str, Tensor], meant: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """First name of each parameter -> all names of it."""
    first: dict[object, str] = {}
    names: dict[str, list[str]] = {}
    for key in meant:
        original = _twin(key, tensors) or first.setdefault(_identity(tensors[key]), key)
        names.setdefault(original, []).append(key)
    return {key: tuple(found) for key, found in names.items()}


def _identity(tensor: Tensor) -> object:
    """Equal for two tensors that are the same memory."""
    if tensor.numel() == 0 or tensor.is_meta:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _twin(key: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The weight that this one repeats, as formats that store no sharing write `share_weights` of attention layers."""
    for kept, repeated in _SHARED:
        path, found, last = key.rpartition(f"{repeated}.")
        other = tensors.get(f"{path}{kept}.{last}")
        is_attention = any(f"{path}{name}" in tensors for name in ("att", "att_src", "att_l"))
        if found and other is not None and is_attention and _repeats(other, tensors[key]):
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

    def fits(self, path: str, children: Children, modules: "_Modules") -> bool:
        if not self.required.keys() <= children.keys() <= self.allowed or (self.weak and "conv" not in path.lower()):
            return False
        axes_fit = all(len(children[name] or ()) == axes for name, axes in self.required.items() if axes is not None)
        return axes_fit and not any(modules.has(path, name) for name in self.absent)


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


class _Modules:
    """Names below each path, and the class of what is there as far as names and shapes tell."""

    def __init__(self, parameters: Iterable[tuple[str, Shape]], running: set[str]) -> None:
        self._running = running
        self._children: dict[str, dict[str, Shape | None]] = defaultdict(dict)
        self._blocks: dict[str, str | None] = {}
        for name, shape in parameters:
            parts = name.split(".", _DEPTH)
            for depth, part in enumerate(parts[:-1]):
                self._children[".".join(parts[:depth])].setdefault(part, None)
            siblings = self._children[".".join(parts[:-1])]
            siblings[parts[-1]] = max(siblings.get(parts[-1]) or (), shape, key=len)
        self._output_axes = output_axes({path: self._own(path) for path in self._children})

    def layers_around(self, owner: str) -> tuple[str, ...]:
        """Paths of the layers that a module is in: the last is its own, before it come convolutions that hold it."""
        found: list[str] = []
        parts = owner.split(".", _DEPTH) if owner else []
        for depth in range(len(parts) + 1):
            path = ".".join(parts[:depth])
            if found and (self._block(found[-1]) not in _WRAPPERS or parts[depth - 1] not in _INNER):
                break
            if self._block(path):
                found.append(path)
        return tuple(found) or (owner,)

    def kind(self, path: str) -> str | None:
        """The class of the module at a path; None if it is not known."""
        return self._block(path) or self._leaf(path)

    def has(self, path: str, name: str) -> bool:
        """True where there is a tensor of this dotted name below a path."""
        module, _, last = name.rpartition(".")
        return last in self._children.get(_joined(path, module), {})

    def _block(self, path: str) -> str | None:
        """The class of a module that is one layer with all that is below it."""
        if path not in self._blocks:
            children = self._children.get(path, {})
            kind = next((known.kind for known in _SIGNATURES if known.fits(path, children, self)), None)
            wraps = children.keys() == {"module"} and _joined(path, "module") in self._running
            self._blocks[path] = "BatchNorm" if wraps else kind if children.keys() & _TELLING else None
        return self._blocks[path]

    def _leaf(self, path: str) -> str | None:
        """The class of a module by what it holds itself."""
        own = self._own(path)
        if path in self._running:
            return "BatchNorm1d"
        weight = own.get("weight", own.get("scale") if path else None)
        if weight is None or not own.keys() <= {"weight", "scale", "bias"}:
            return None
        if len(weight) == 1:
            return _vector_kind(path, own, weight)
        return self._matrix_kind(path, own, weight) if len(weight) == 2 else None

    def _own(self, path: str) -> dict[str, Shape]:
        return {name: shape for name, shape in self._children.get(path, {}).items() if shape is not None}

    def _matrix_kind(self, path: str, own: Mapping[str, Shape], weight: Shape) -> str:
        if _is_embedding(path, own):
            return "Embedding"
        axis, word = self._output_axes.get(path), _last_word(path).lower()
        names_convolution = "conv" in word and not re.search(r"mlp|nn$", word)
        by_name = axis is None and names_convolution and own.get("bias") == weight[-1:]
        return "GCNConv" if axis == 1 or by_name else "Linear"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _vector_kind(path: str, own: Mapping[str, Shape], weight: Shape) -> str:
    if "bias" in own:
        return "LayerNorm"
    return "PReLU" if weight == (1,) or re.search(r"act|prelu", path.lower()) else "RMSNorm"

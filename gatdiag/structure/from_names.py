"""Find the layers of a state dict, and the roles of its parameters, from names and shapes alone.

A state dict holds no classes. PyG's convolutions are recognized by the names below their path, by the signatures in
`adapters`; such a layer includes all that is below it. Any other module with tensors of its own is a layer, too. The
result is that of `discover` on the model, with these exceptions:

- Convolutions with the same names get the same kind (and the same roles): SSG is read as SG; Hypergraph and SuperGAT
  without attention vectors, and dense layers, as GCN; TAG and MixHop as Cheb; SAGE of early versions as GraphConv.
- A user's own convolution is read as its submodules, each a layer. Recurrent and image layers are of kind "Module".
- Layer, group and instance normalizations are not distinguished, nor are batch normalizations by dimension.
- An embedding is recognized by the name of its module only, else it is a linear map without bias.
- The `eps` of a GIN is listed as a parameter, although it may be a buffer; frozen parameters are listed as trainable.
- Layers without tensors (APPNP, activations, PairNorm) are missing.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gatdiag.structure.adapters import ADAPTERS, BLOCKS, NORM, is_vector, parameter_role, weight_name
from gatdiag.structure.layers import Layer, ParameterInfo, Structure

Shape: TypeAlias = tuple[int, ...]
Children: TypeAlias = Mapping[str, Shape | None]  # name right below a path -> shape of the tensor, None for a module

FROBENIUS_NORM: Final = "_frobenius_norm"
"""Suffix of the buffer that `remedies.weight_normalize_` adds for a weight."""
_BUFFER = re.compile(
    r"(^|\.)(running_(mean|var)|n_averaged|avg_deg_(lin|log)|eye|position_ids|_[^.]*|[^.]*(_mask|"
    rf"{FROBENIUS_NORM}))$"
)
_NUMBER = re.compile(r"([0-9]+)")

_INNER: Final = ("conv_in", "conv_out", "phi")  # convolutions inside a convolution: layers of their own
_WRAPPERS: Final = ("DirGNNConv", "AntiSymmetricConv")
_LINEAR: Final = re.compile(r"(^|_)(lin|linear|fc)s?\d*(_|$)", re.IGNORECASE)  # names of nn.Linear only
_MAX_DEPTH: Final = 64  # of modules; limits the time that a name with a million dots takes

# Pairs of weights of an attention layer that are the same parameter with `share_weights`.
_SHARED: Final = (("lin_l", "lin_r"), ("lin_src", "lin_dst"))


def find_layers(tensors: Mapping[str, Tensor]) -> Structure:
    """Find the layers of a state dict, and the role of every parameter.

    Args:
        tensors: A model's `state_dict()`. Only names, shapes and dtypes are read, and whether two weights of an
            attention layer are equal, that is, shared.

    Returns:
        The layers in module order, without buffers. `Layer.name` is `Structure.ROOT` for tensors of the model itself,
        `Layer.kind` is "Module" if the class is unknown. Empty for a state dict without parameters.

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
    weights = {key: _weight_of(key) for key, tensor in tensors.items() if not _is_buffer(key, tensor, tensors)}
    names = _names_by_parameter(tensors, weights)
    batch_norms = {key.rpartition(".")[0] for key in tensors if key.endswith("running_mean")}
    modules = _Modules([(weight, tuple(tensors[key].shape)) for key, weight in weights.items()], batch_norms)
    layers: dict[str, list[ParameterInfo]] = {}
    for key, weight in weights.items():
        paths = modules.enclosing_layers(weight.rpartition(".")[0])
        for path in paths:
            layers.setdefault(path, [])
        if key in names:
            shape = tuple(tensors[key].shape)
            layers[paths[-1]].append(_parameter_info(key, weight, paths[-1], modules, names[key], shape))
    return Structure(
        tuple(
            Layer(index, path or Structure.ROOT, modules.kind(path) or "Module", tuple(infos), None)
            for index, (path, infos) in enumerate(_sort_layers(layers, tensors), 1)
        ),
        "module",
    )


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Sort key for names in which numbers are compared as numbers.

    Example:
        >>> sorted(["convs.10", "convs.2"], key=natural_sort_key)
        ['convs.2', 'convs.10']
    """
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(_NUMBER.split(name))]


def path_pattern(path: str) -> str:
    """The path with "#" for each number, which is equal for the paths of a series: convs.0, convs.1, ..."""
    return _NUMBER.sub("#", path)


def _is_buffer(key: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> bool:
    """Whether an entry of a state dict is no parameter: running statistics, masks, counters, power iteration."""
    if not tensor.is_floating_point():
        return True
    power_iteration = key.endswith(("weight_u", "weight_v")) and f"{key[:-1]}orig" in tensors
    return power_iteration or _BUFFER.search(key) is not None


def output_axes(leaves: Mapping[str, Mapping[str, Shape]]) -> dict[str, int | None]:
    """The output axis of each layer's matrix: 0 as in nn.Linear, or 1 as in GCNs that compute X W.

    The length of the bias decides, unless the matrix is square or there is no bias. Then the series of layers whose
    paths differ in numbers only decides: by the biases of others, or by the axis with which each can feed the next.

    Args:
        leaves: Path -> name -> shape of the tensors right below it.

    Returns:
        Path -> axis, or None if undecided, of each layer that consists of a matrix, or a matrix and a bias.

    Example:
        >>> output_axes({"layers.0": {"weight": (20, 64), "bias": (64,)}, "layers.1": {"weight": (64, 64)}})
        {'layers.0': 1, 'layers.1': 1}
    """
    series: dict[str, list[str]] = {}
    for path in sorted((path for path, own in leaves.items() if _is_matrix(path, own)), key=natural_sort_key):
        series.setdefault(path_pattern(path), []).append(path)
    axes: dict[str, int | None] = {}
    for paths in series.values():
        by_bias = {path: _axis_by_bias(leaves[path]) for path in paths}
        known = {axis for axis in by_bias.values() if axis is not None}
        shared = _axis_by_order(paths, [leaves[path]["weight"] for path in paths]) if not known else None
        if len(known) == 1:
            (shared,) = known
        axes |= {path: shared if axis is None else axis for path, axis in by_bias.items()}
    return axes


def _is_matrix(path: str, own: Mapping[str, Shape]) -> bool:
    plain = "weight" in own and own.keys() <= {"weight", "bias"} and len(own["weight"]) == 2
    return plain and not _is_embedding(path, own)


def _is_embedding(path: str, own: Mapping[str, Shape]) -> bool:
    return "emb" in path.rpartition(".")[2].lower() and "bias" not in own


def _axis_by_bias(own: Mapping[str, Shape]) -> int | None:
    fitting = [axis for axis, length in enumerate(own["weight"]) if own.get("bias") == (length,)]
    return fitting[0] if len(fitting) == 1 else None


def _axis_by_order(paths: Sequence[str], shapes: Sequence[Shape]) -> int | None:
    """The output axis of the layers of a series, each of which feeds the next."""
    if _LINEAR.search(_last_word(paths[0])):
        return 0
    fitting = [axis for axis in (0, 1) if all(one[axis] == other[1 - axis] for one, other in pairwise(shapes))]
    if len(fitting) == 1:
        return fitting[0]
    ambiguous = any(rows == columns for rows, columns in shapes) or (fitting and len(shapes) > 1)
    return None if ambiguous else 0


def _last_word(path: str) -> str:
    """The last part of a path that is not a number."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")


def _parameter_info(
    key: str, weight: str, path: str, modules: "_Modules", names: tuple[str, ...], shape: Shape
) -> ParameterInfo:
    owner = weight.rpartition(".")[0]
    relative = weight.removeprefix(f"{path}.")
    role = parameter_role(
        relative,
        len(shape),
        modules.kind(path),
        normalizes=bool(NORM.search(modules.kind(owner) or "")),
        is_vector=is_vector(shape),
    )
    return ParameterInfo(key, names, role, shape, trainable=True, module=owner)


def _sort_layers(
    layers: dict[str, list[ParameterInfo]], keys: Iterable[str]
) -> Iterable[tuple[str, list[ParameterInfo]]]:
    """In the order of the keys, which is module order; in natural order if the keys are sorted as text."""
    keys = list(keys)
    if keys != sorted(keys) or keys == sorted(keys, key=natural_sort_key):
        return layers.items()
    return sorted(layers.items(), key=lambda item: natural_sort_key(item[0]))


def _weight_of(key: str) -> str:
    """The weight that a tensor belongs to: `lin.weight` for `lin.weight_orig`, `mix` for an entry `mix.0` of a list."""
    weight = weight_name(key)
    while "." in weight and weight.rpartition(".")[2].isdigit():
        weight = weight.rpartition(".")[0]
    return weight


def _names_by_parameter(tensors: Mapping[str, Tensor], keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """First name of each parameter -> all its names."""
    first: dict[object, str] = {}
    names: dict[str, list[str]] = {}
    for key in keys:
        original = _shared_weight(key, tensors) or first.setdefault(_storage_key(tensors[key]), key)
        names.setdefault(original, []).append(key)
    return {key: tuple(found) for key, found in names.items()}


def _storage_key(tensor: Tensor) -> object:
    """Equal for two tensors that are the same memory."""
    if tensor.numel() == 0 or tensor.is_meta:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _shared_weight(key: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The weight that this one equals; safetensors files store both weights of a layer with `share_weights`."""
    for first, second in _SHARED:
        path, found, last = key.rpartition(f"{second}.")
        other = tensors.get(f"{path}{first}.{last}")
        is_attention = any(f"{path}{name}" in tensors for name in ("att", "att_src", "att_l"))
        if found and other is not None and is_attention and _are_equal(other, tensors[key]):
            return f"{path}{first}.{last}"
    return None


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, and not all zero."""
    is_alike = one.shape == other.shape and one.dtype == other.dtype and not one.is_meta and not other.is_meta
    return is_alike and torch.equal(one, other) and bool((one != 0).any())


@dataclass(frozen=True)
class _Signature:
    """A parsed signature of `Adapter`."""

    kind: str
    required: Mapping[str, int | None]  # name -> number of dimensions of its tensor; None for any number, or a module
    allowed: frozenset[str]  # includes those required
    absent: tuple[str, ...]  # dotted names of tensors
    needs_conv: bool  # in the path

    def fits(self, path: str, children: Children, modules: "_Modules") -> bool:
        if not self.required.keys() <= children.keys() <= self.allowed:
            return False
        if self.needs_conv and "conv" not in path.lower():
            return False
        shapes_fit = all(len(children[name] or ()) == dims for name, dims in self.required.items() if dims is not None)
        return shapes_fit and not any(modules.has(path, name) for name in self.absent)


def _parse_signatures() -> tuple[_Signature, ...]:
    """All signatures, those with the most required names first."""
    signatures = []
    for kind, adapter in {**ADAPTERS, **BLOCKS}.items():
        listed = {"bias", "aggr_module", *(name for names in adapter.roles.values() for name in names)}
        for text in adapter.signatures:
            before, _, optional = text.removeprefix("conv:").partition("|")
            names = [name.partition("/") for name in before.split() if not name.startswith("-")]
            required = {name: int(dims) if dims else None for name, _, dims in names}
            absent = tuple(name[1:] for name in before.split() if name.startswith("-"))
            allowed = frozenset({*required, *optional.split(), *listed})
            signatures.append(_Signature(kind, required, allowed, absent, text.startswith("conv:")))
    return tuple(sorted(signatures, key=lambda signature: -len(signature.required)))


_SIGNATURES: Final = _parse_signatures()
# Every signature requires one of these, so that modules with only a weight and a bias are ruled out quickly.
_DISTINCTIVE: Final = frozenset(name for known in _SIGNATURES for name in known.required) - {"weight", "bias"}


class _Modules:
    """The modules of a state dict, and their classes as far as names and shapes show them."""

    def __init__(self, parameters: Iterable[tuple[str, Shape]], batch_norms: set[str]) -> None:
        self._batch_norms = batch_norms
        self._children: dict[str, dict[str, Shape | None]] = defaultdict(dict)
        self._blocks: dict[str, str | None] = {}
        for name, shape in parameters:
            parts = name.split(".", _MAX_DEPTH)
            for depth, part in enumerate(parts[:-1]):
                self._children[".".join(parts[:depth])].setdefault(part, None)
            siblings = self._children[".".join(parts[:-1])]
            siblings[parts[-1]] = max(siblings.get(parts[-1]) or (), shape, key=len)
        self._output_axes = output_axes({path: self._own(path) for path in self._children})

    def enclosing_layers(self, owner: str) -> tuple[str, ...]:
        """Paths of the layers that a module is in, from the outermost convolution to the module's own layer."""
        found: list[str] = []
        parts = owner.split(".", _MAX_DEPTH) if owner else []
        for depth in range(len(parts) + 1):
            path = ".".join(parts[:depth])
            if found and (self._block(found[-1]) not in _WRAPPERS or parts[depth - 1] not in _INNER):
                break
            if self._block(path):
                found.append(path)
        return tuple(found) or (owner,)

    def kind(self, path: str) -> str | None:
        """The class of the module at a path; None if unknown."""
        return self._block(path) or self._leaf(path)

    def has(self, path: str, name: str) -> bool:
        """Whether there is a tensor with this dotted name below a path."""
        module, _, last = name.rpartition(".")
        return last in self._children.get(_join(path, module), {})

    def _block(self, path: str) -> str | None:
        """The class of a module that is one layer together with its submodules."""
        if path not in self._blocks:
            children = self._children.get(path, {})
            kind = next((known.kind for known in _SIGNATURES if known.fits(path, children, self)), None)
            is_batch_norm = children.keys() == {"module"} and _join(path, "module") in self._batch_norms
            self._blocks[path] = "BatchNorm" if is_batch_norm else kind if children.keys() & _DISTINCTIVE else None
        return self._blocks[path]

    def _leaf(self, path: str) -> str | None:
        """The class of a module by its own tensors."""
        own = self._own(path)
        if path in self._batch_norms:
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
        is_called_conv = "conv" in word and not re.search(r"mlp|nn$", word)
        is_conv_by_name = axis is None and is_called_conv and own.get("bias") == weight[-1:]
        return "GCNConv" if axis == 1 or is_conv_by_name else "Linear"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _vector_kind(path: str, own: Mapping[str, Shape], weight: Shape) -> str:
    if "bias" in own:
        return "LayerNorm"
    return "PReLU" if weight == (1,) or re.search(r"act|prelu", path.lower()) else "RMSNorm"

"""The modules that the names of a state dict speak of, and the class of each, as far as names and shapes tell."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from gatdiag.checkpoint.signatures import Children, Shape, matching_kind

_RECURRENT: Final[Mapping[int, str]] = {1: "RNN", 3: "GRU", 4: "LSTM"}
_BY_AXES: Final[Mapping[int, str]] = {2: "Linear", 3: "Conv1d", 4: "Conv2d", 5: "Conv3d"}
_INNER: Final = ("conv_in", "conv_out", "phi")  # convolutions inside a convolution: layers of their own
_WRAPPERS: Final = ("DirGNNConv", "AntiSymmetricConv")
_LINEAR: Final = re.compile(r"(^|_)(lin|linear|fc)s?\d*(_|$)", re.IGNORECASE)  # names that nn.Linear alone is given
_DEPTH: Final = 64  # modules below each other that are told apart: a name of a million dots is not to take for ever


_T = TypeVar("_T")


def numbered(items: Iterable[_T], path: Callable[[_T], str]) -> list[list[_T]]:
    """Items whose paths differ in numbers alone, in the order of these: convs.0, convs.1, ...

    Args:
        items: Of any kind.
        path: The path of one of them.
    """
    series: dict[str, list[_T]] = {}
    for item in items:
        series.setdefault(re.sub(r"\d+", "#", path(item)), []).append(item)
    return [sorted(members, key=lambda item: _numbers(path(item))) for members in series.values()]


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
    found: dict[str, int | None] = {}
    for paths in numbered((path for path, own in leaves.items() if _is_matrix(path, own)), str):
        of_biases = {path: _axis_of_bias(leaves[path]) for path in paths}
        told = {axis for axis in of_biases.values() if axis is not None}
        shared = _axis_of_order(paths, [leaves[path]["weight"] for path in paths]) if not told else None
        if len(told) == 1:
            (shared,) = told
        found |= {path: shared if axis is None else axis for path, axis in of_biases.items()}
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


def _numbers(path: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,18}", path)))


class Modules:
    """What is below each path."""

    def __init__(self, parameters: Iterable[tuple[str, Shape]], statistics: Iterable[str]) -> None:
        """Names of parameters with their shapes, and paths of the modules that keep running statistics."""
        self._running = frozenset(statistics)
        self._children: dict[str, dict[str, Shape | None]] = defaultdict(dict)
        self._blocks: dict[str, str | None] = {}
        self._kinds: dict[str, str | None] = {}
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
        if path not in self._kinds:
            self._kinds[path] = self._block(path) or self._leaf(path)
        return self._kinds[path]

    def _block(self, path: str) -> str | None:
        """The class of a module that is one layer with all that is below it."""
        if path not in self._blocks:
            self._blocks[path] = self._matched(path, self._children.get(path, {}))
        return self._blocks[path]

    def _matched(self, path: str, children: Children) -> str | None:
        if children.keys() == {"module"} and _joined(path, "module") in self._running:
            return "BatchNorm"
        return matching_kind(path, children, lambda name: self._has(path, name))

    def _has(self, path: str, name: str) -> bool:
        module, _, last = name.rpartition(".")
        return last in self._children.get(_joined(path, module), {})

    def _leaf(self, path: str) -> str | None:
        """The class of a module by what it holds itself."""
        own = self._own(path)
        if path in self._running:
            return "BatchNorm1d"
        if "mean_scale" in own:
            return "GraphNorm"
        inputs = next((name for name in own if name.startswith("weight_ih")), None)
        if inputs is not None:
            return _recurrent_kind(inputs, own)
        weight = own.get("weight", own.get("scale") if path else None)
        if weight is None or not own.keys() <= {"weight", "scale", "bias"}:
            return None
        return _vector_kind(path, own, weight) if len(weight) == 1 else self._matrix_kind(path, own, weight)

    def _own(self, path: str) -> dict[str, Shape]:
        return {name: shape for name, shape in self._children.get(path, {}).items() if shape is not None}

    def _matrix_kind(self, path: str, own: Mapping[str, Shape], weight: Shape) -> str | None:
        if len(weight) == 2 and _is_embedding(path, own):
            return "Embedding"
        if len(weight) == 2:
            axis = self._output_axes.get(path)
            called_so = own.get("bias") == weight[-1:] and _names_convolution(path)
            return "GCNConv" if axis == 1 or (axis is None and called_so) else "Linear"
        by_columns = len(weight) == 3 and own.get("bias") == weight[-1:]
        if by_columns and ("conv" in path.lower() or weight[-1] not in weight[:-1]):
            return "RGCNConv"
        return _BY_AXES.get(len(weight))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _recurrent_kind(inputs: str, own: Mapping[str, Shape]) -> str:
    cell = "Cell" if inputs == "weight_ih" else ""
    if "weight_hr_l0" in own:
        return f"LSTM{cell}"  # with a projection
    rows, hidden = own[inputs][:1], own.get(inputs.replace("_ih", "_hh"), ())[1:]
    gates = rows[0] // hidden[0] if rows and hidden and hidden[0] else 1
    return _RECURRENT.get(gates, "RNN") + cell


def _vector_kind(path: str, own: Mapping[str, Shape], weight: Shape) -> str:
    if "bias" in own:
        return "LayerNorm"
    return "PReLU" if weight == (1,) or re.search(r"act|prelu", path.lower()) else "RMSNorm"


def _names_convolution(path: str) -> bool:
    """Whether the last word of a path speaks of one: not that of a linear map inside."""
    last = _last_word(path).lower()
    return "conv" in last and not re.search(r"mlp|nn$", last)


def _last_word(path: str) -> str:
    """The last part of a path that is no number."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")

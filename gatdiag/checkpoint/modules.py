"""The modules that the names of a state dict speak of, and the class of each, as far as names and shapes tell."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from gatdiag.checkpoint.signatures import Children, Shape, matching_kind

_RECURRENT: Final[Mapping[int, str]] = {1: "RNN", 3: "GRU", 4: "LSTM"}
_BY_AXES: Final[Mapping[int, str]] = {2: "Linear", 3: "Conv1d", 4: "Conv2d", 5: "Conv3d"}
_INNER: Final = ("conv_in", "conv_out", "phi")  # convolutions inside a convolution: layers of their own
_WRAPPERS: Final = ("DirGNNConv", "AntiSymmetricConv")
_DEPTH: Final = 64  # modules below each other that are told apart: a name of a million dots is not to take for ever


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
        own = {name: shape for name, shape in self._children.get(path, {}).items() if shape is not None}
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
        return _vector_kind(path, own, weight) if len(weight) == 1 else _matrix_kind(path, own, weight)


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


def _matrix_kind(path: str, own: Mapping[str, Shape], weight: Shape) -> str | None:
    last = path.rpartition(".")[2].lower()
    if "emb" in last and "bias" not in own and len(weight) == 2:
        return "Embedding"
    if len(weight) in (2, 3) and own.get("bias") == weight[-1:]:
        others = weight[:-1] if len(weight) == 3 else weight[:1]
        if "conv" in path.lower() or weight[-1] not in others:
            return "GCNConv" if len(weight) == 2 else "RGCNConv"  # GCN of PyG before 1.7: its weight is (in, out)
    return _BY_AXES.get(len(weight))

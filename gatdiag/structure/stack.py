"""A stack of layers, each of which feeds the next: what maps in them, which weights lead into a neuron and out of it.

`stack_layer` says of what a map is made, and `check_widths` that it can read the one before, for a model and for a
state dict alike. Whether a layer really does, a model's owner says by asking for a stack; of a state dict
`gatdiag.checkpoint.stack` finds out.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gatdiag.law import Term
from gatdiag.roles import ATTENTION, BIAS, FEATURE
from gatdiag.structure.adapters import ADAPTERS
from gatdiag.structure.layers import Layer, ParameterInfo, Structure

_LONE: Final = ("Linear", "GCNConv")  # kinds of a matrix by itself; the second also where it is stored transposed


class NotPlainError(Exception):
    """Reason why layers are no plain stack."""


@dataclass(frozen=True, eq=False)
class StackLayer:
    """A map from features to features: a layer, or a linear map inside one.

    Attributes:
        path: Of its module.
        layer: The layer that it is, or is in.
        matrices: Each maps all of the input.
        biases: Added to its outputs.
        scores: Attention vectors of shape (1, heads, channels).
        axis: The axis of the matrices that counts outputs.
        heads: How many heads are averaged; None where that is not known.
    """

    path: str
    layer: Layer
    matrices: tuple[ParameterInfo, ...]
    biases: tuple[ParameterInfo, ...] = ()
    scores: tuple[ParameterInfo, ...] = ()
    axis: int = 0
    heads: int | None = None

    @property
    def inputs(self) -> int:
        """How many inputs it takes."""
        return self.matrices[0].shape[1 - self.axis]

    @property
    def outputs(self) -> int:
        """How many outputs it has."""
        return max(info.shape[self.axis] for info in self.matrices) // (self.heads or 1)

    @property
    def widths(self) -> set[int]:
        """How many outputs it may have, for heads may be averaged; the lengths of what is added tell."""
        if self.heads is not None:
            return {self.outputs}
        possible = {self.outputs, self.outputs // self.scores[0].shape[1]} if self.scores else {self.outputs}
        added = (*self.biases, *self.matrices)
        lengths = {info.shape[0] for info in added if info.module == self.path or info.module.endswith(".res")}
        return possible & lengths or possible

    def incoming(self, neuron: int, width: int) -> Iterator[Term]:
        """The terms of what leads into a neuron, of `width` there are; attention scores it with the opposite sign."""
        for info in (*self.matrices, *self.biases):
            axis = self.axis if len(info.shape) == 2 else 0
            places = tuple((place,) for place in range(neuron, info.shape[axis], width))
            yield Term(info.name, info.shape, (axis,), places, Fraction(1))
        for info in self.scores:
            channels, count = info.shape[2], math.prod(info.shape)
            entries = tuple((0, *divmod(place, channels)) for place in range(neuron, count, width))
            yield Term(info.name, info.shape, (0, 1, 2), entries, Fraction(-1))

    def outgoing(self, neuron: int) -> Iterator[Term]:
        """The terms of what reads a neuron of the layer before."""
        return (Term(info.name, info.shape, (1 - self.axis,), ((neuron,),), Fraction(-1)) for info in self.matrices)


def is_single_matrix(layer: Layer) -> bool:
    """True for a matrix by itself."""
    return layer.kind in _LONE and all(info.module == module_path(layer) for info in layer.parameters)


def module_path(layer: Layer) -> str:
    """The path of its module."""
    return layer.name.replace(Structure.ROOT, "")


def stack_layer(
    layer: Layer, axis: int | None = 0, path: str | None = None, infos: Sequence[ParameterInfo] | None = None
) -> StackLayer:
    """The map that a layer is, or a lone matrix in it.

    Args:
        layer: The layer.
        axis: Of its matrices, that counts outputs; None where it is in doubt.
        path: Of the matrix inside; None: the layer itself.
        infos: The parameters of that; None: all of the layer's.

    Raises:
        NotPlainError: It computes anything else, or the shapes do not fit each other.
    """
    adapter = ADAPTERS.get(layer.kind)
    lone, names = path is not None or is_single_matrix(layer), adapter.stack.split() if adapter else []
    path, infos = module_path(layer) if path is None else path, layer.parameters if infos is None else infos
    matrices = tuple(
        info
        for info in infos
        if info.role == FEATURE and (lone or info.name.removeprefix(f"{path}.").partition(".")[0] in names)
    )
    biases = tuple(info for info in infos if info.role == BIAS and len(info.shape) == 1)
    scores = tuple(info for info in infos if info.role == ATTENTION and len(info.shape) == 3)
    if len(matrices) + len(biases) + len(scores) < len(infos) or not matrices:
        raise NotPlainError(f"how {layer.name} ({layer.kind}) uses its weights is not known here")
    if axis is None:
        raise NotPlainError(f"whether rows or columns of {matrices[0].name} count outputs is not known")
    found = StackLayer(path, layer, matrices, biases, scores, axis)
    if any(len(info.shape) != 2 for info in matrices) or not _is_consistent(found):
        raise NotPlainError(f"the shapes of the parameters of {layer.name} do not fit each other")
    return found


def _is_consistent(one: StackLayer) -> bool:
    """True where all rows, entries and columns count the same neurons."""
    rows = max(info.shape[one.axis] for info in one.matrices)
    heads = {info.shape[1] for info in one.scores} or {1}
    lengths = {info.shape[one.axis] for info in one.matrices} | {info.shape[0] for info in one.biases}
    counts = {math.prod(info.shape) for info in one.scores} or {rows}
    inputs = {info.shape[1 - one.axis] for info in one.matrices}
    return len(heads) == 1 and counts == {rows} and len(inputs) == 1 and lengths <= {rows, rows // heads.pop()}


def check_widths(before: StackLayer, one: StackLayer) -> None:
    """Raises `NotPlainError` where a map cannot read all of the one before it."""
    if one.inputs not in before.widths:
        has = f"{next(iter(before.widths))} outputs" if len(before.widths) == 1 else "other widths"
        raise NotPlainError(f"{one.path} takes {one.inputs} inputs, and {before.path} before it has {has}")

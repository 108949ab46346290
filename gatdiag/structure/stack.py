"""Layers of a plain stack, in which each layer reads the output of the one before, of a model or a state dict.

`stack_layer` reads a layer's matrices, biases and attention vectors, and `check_widths` checks that two widths fit.
Whether one layer does read the other is for the caller to know; `gatdiag.checkpoint.stack` infers it for state dicts.
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

_SINGLE_MATRIX: Final = ("Linear", "GCNConv")  # a matrix that is stored transposed is read as a GCNConv


class NotPlainError(Exception):
    """Why layers are not a plain stack."""


@dataclass(frozen=True, eq=False)
class StackLayer:
    """A layer of a stack, or a linear map inside a layer.

    Attributes:
        path: Path of its module.
        layer: The layer that it is or belongs to.
        matrices: Matrices that each map the whole input.
        biases: Biases of the outputs.
        attention_vectors: Attention vectors of shape (1, heads, channels).
        axis: The axis of the matrices that is the output axis.
        heads: Number of heads that are averaged; None if unknown.
    """

    path: str
    layer: Layer
    matrices: tuple[ParameterInfo, ...]
    biases: tuple[ParameterInfo, ...] = ()
    attention_vectors: tuple[ParameterInfo, ...] = ()
    axis: int = 0
    heads: int | None = None

    @property
    def in_features(self) -> int:
        """Number of inputs."""
        return self.matrices[0].shape[1 - self.axis]

    @property
    def out_features(self) -> int:
        """Number of outputs."""
        return max(info.shape[self.axis] for info in self.matrices) // (self.heads or 1)

    @property
    def widths(self) -> set[int]:
        """Possible numbers of outputs: if heads may be averaged, the lengths of biases and of `res` decide."""
        if self.heads is not None:
            return {self.out_features}
        possible = {self.out_features}
        if self.attention_vectors:
            possible.add(self.out_features // self.attention_vectors[0].shape[1])
        added = (*self.biases, *self.matrices)
        lengths = {info.shape[0] for info in added if info.module == self.path or info.module.endswith(".res")}
        return possible & lengths or possible

    def incoming_terms(self, neuron: int, width: int) -> Iterator[Term]:
        """The terms of a law that are incoming weights of a neuron, and its attention weights with the opposite sign.

        Args:
            neuron: Index of the neuron.
            width: Number of neurons.
        """
        for info in (*self.matrices, *self.biases):
            axis = self.axis if len(info.shape) == 2 else 0
            indices = tuple((index,) for index in range(neuron, info.shape[axis], width))
            yield Term(info.name, info.shape, (axis,), indices, Fraction(1))
        for info in self.attention_vectors:
            channels, count = info.shape[2], math.prod(info.shape)
            entries = tuple((0, *divmod(index, channels)) for index in range(neuron, count, width))
            yield Term(info.name, info.shape, (0, 1, 2), entries, Fraction(-1))

    def outgoing_terms(self, neuron: int) -> Iterator[Term]:
        """The terms of a law that are outgoing weights of a neuron of the layer before."""
        return (Term(info.name, info.shape, (1 - self.axis,), ((neuron,),), Fraction(-1)) for info in self.matrices)


def is_single_matrix(layer: Layer) -> bool:
    """Whether a layer is nothing but a matrix, and perhaps a bias."""
    return layer.kind in _SINGLE_MATRIX and all(info.module == module_path(layer) for info in layer.parameters)


def module_path(layer: Layer) -> str:
    """The path of a layer's module."""
    return layer.name.replace(Structure.ROOT, "")


def stack_layer(
    layer: Layer, axis: int | None = 0, path: str | None = None, infos: Sequence[ParameterInfo] | None = None
) -> StackLayer:
    """Read a layer of a stack, or a linear map inside a layer.

    Args:
        layer: The layer.
        axis: The axis of its matrices that is the output axis; None if unknown.
        path: Path of the linear map; None for the layer itself.
        infos: Parameters of the linear map; None for all of the layer's.

    Raises:
        NotPlainError: It may compute anything else, or shapes are inconsistent.
    """
    adapter = ADAPTERS.get(layer.kind)
    is_single, names = path is not None or is_single_matrix(layer), adapter.stack.split() if adapter else []
    path, infos = module_path(layer) if path is None else path, layer.parameters if infos is None else infos
    matrices = tuple(
        info
        for info in infos
        if info.role == FEATURE and (is_single or info.name.removeprefix(f"{path}.").partition(".")[0] in names)
    )
    biases = tuple(info for info in infos if info.role == BIAS and len(info.shape) == 1)
    scores = tuple(info for info in infos if info.role == ATTENTION and len(info.shape) == 3)
    if len(matrices) + len(biases) + len(scores) < len(infos) or not matrices:
        raise NotPlainError(f"how {layer.name} ({layer.kind}) uses its weights is not known")
    if axis is None:
        raise NotPlainError(f"whether rows or columns of {matrices[0].name} are outputs is not known")
    found = StackLayer(path, layer, matrices, biases, scores, axis)
    if any(len(info.shape) != 2 for info in matrices) or not _is_consistent(found):
        raise NotPlainError(f"the shapes of the parameters of {layer.name} do not fit each other")
    return found


def _is_consistent(one: StackLayer) -> bool:
    """Whether the numbers of rows, columns and entries fit each other."""
    rows = max(info.shape[one.axis] for info in one.matrices)
    heads = {info.shape[1] for info in one.attention_vectors} or {1}
    lengths = {info.shape[one.axis] for info in one.matrices} | {info.shape[0] for info in one.biases}
    counts = {math.prod(info.shape) for info in one.attention_vectors} or {rows}
    inputs = {info.shape[1 - one.axis] for info in one.matrices}
    return len(heads) == 1 and counts == {rows} and len(inputs) == 1 and lengths <= {rows, rows // heads.pop()}


def check_widths(before: StackLayer, one: StackLayer) -> None:
    """Raise `NotPlainError` if the inputs of a layer are not the outputs of the one before."""
    if one.in_features not in before.widths:
        outputs = " or ".join(map(str, sorted(before.widths)))
        raise NotPlainError(
            f"{one.path} takes {one.in_features} inputs, but {before.path} before it has {outputs} outputs"
        )

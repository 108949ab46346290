"""A stack of layers, each of which feeds the next: the weights that lead into a neuron, and those that lead out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from gatdiag.law import Term
from gatdiag.structure.layers import Layer, ParameterInfo


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
        heads: How many heads are averaged, where that is known.
    """

    path: str
    layer: Layer
    matrices: tuple[ParameterInfo, ...]
    biases: tuple[ParameterInfo, ...] = ()
    scores: tuple[ParameterInfo, ...] = ()
    axis: int = 0
    heads: int = 1

    @property
    def inputs(self) -> int:
        """How many inputs it takes."""
        return self.matrices[0].shape[1 - self.axis]

    @property
    def outputs(self) -> int:
        """How many outputs it has."""
        return max(info.shape[self.axis] for info in self.matrices) // self.heads

    @property
    def widths(self) -> set[int]:
        """How many outputs it may have, for heads may be averaged; the lengths of what is added tell."""
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

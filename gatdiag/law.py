"""One conservation law and its terms."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from operator import mul
from typing import Any, Literal

Kind = Literal["neuron", "stream", "product", "scale"]


@dataclass(frozen=True)
class Term:
    """Some rows, columns or entries of a parameter that share an exponent.

    Attributes:
        parameter: Full name of the parameter.
        shape: Its shape.
        axes: The axes that `indices` refer to; all others are taken in full.
        indices: Positions along those axes, one tuple each.
        exponent: The power of s by which they are multiplied.
    """

    parameter: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    exponent: Fraction

    @property
    def kind(self) -> Literal["rows", "columns", "entries", "slices", "whole"]:
        """What the indices select."""
        if not self.axes:
            return "whole"
        if len(self.axes) == len(self.shape):
            return "entries"
        if len(self.axes) == 1 and self.axes[0] < 2:
            return "rows" if self.axes[0] == 0 else "columns"
        return "slices"

    def positions(self, axes: Sequence[int] | None = None) -> list[int]:
        """Flat positions, in row-major order over the lengths of some axes, of what the indices select.

        Args:
            axes: The axes, which include those of the term; by default just these.

        Example:
            >>> term = Term("weight", (4, 3), (0,), ((1,), (2,)), Fraction(1))
            >>> term.positions(), term.positions((0, 1))
            ([1, 2], [3, 4, 5, 6, 7, 8])
        """
        axes = self.axes if axes is None else axes
        lengths = [self.shape[axis] for axis in axes]
        strides = {axis: prod(lengths[at + 1 :]) for at, axis in enumerate(axes)}
        own = [strides.pop(axis) for axis in self.axes]
        starts = [sum(map(mul, index, own)) for index in self.indices]
        steps = [range(0, self.shape[axis] * stride, stride) for axis, stride in strides.items()]
        return [start + sum(step) for start in starts for step in product(*steps)] if steps else starts

    def select(self, array: Any) -> Iterator[Any]:
        """The part of the parameter, an array or tensor, at each index: a view."""
        for index in self.indices:
            place: list[slice | int] = [slice(None)] * len(self.shape)
            for axis, position in zip(self.axes, index, strict=True):
                place[axis] = position
            yield array[tuple(place)]

    def __str__(self) -> str:
        """For example ``+ convs.0.lin_l.weight[3, :]``."""
        factor = "" if abs(self.exponent) == 1 else f"{abs(self.exponent)} "
        sign = "-" if self.exponent < 0 else "+"
        places = [self._place(index) for index in self.indices[:3]]
        more = f" and {len(self.indices) - 3} more" if len(self.indices) > 3 else ""
        return f"{sign} {factor}{', '.join(f'{self.parameter}[{place}]' for place in places)}{more}"

    def _place(self, index: tuple[int, ...]) -> str:
        shown = dict(zip(self.axes, index, strict=True))
        return ", ".join(str(shown.get(axis, ":")) for axis in range(len(self.shape)))


@dataclass(frozen=True, repr=False)
class Law:
    """sum_k e_k <w_k, dL/dw_k> = 0 at every point, and sum_k e_k ||w_k||^2 is conserved by gradient flow.

    Multiplying each term's weights by s^(its exponent) leaves the function that the model computes unchanged; by
    Noether's theorem, this symmetry gives the law (for GAT: "Are GATs Out of Balance?", theorem 2.2 and equation 5).

    Attributes:
        name: Its place: ``layer 3 (convs.2), neuron 5`` or ``residual stream, channel 5``.
        kind: ``neuron`` between the incoming and outgoing weights of a neuron; ``stream`` for a channel that several
            layers write to, such as a residual stream; ``product`` for a channel of a product of two factors, such as
            query and key; ``scale`` for weights whose scale a normalization removes.
        layer: Module path of the layer it is assigned to.
        neuron: Index of the neuron or channel; None if the law includes all neurons of the layer.
        terms: The weights that are scaled; incoming weights have positive exponents.
        exact: False if it holds only up to an epsilon in the model, such as that of batch norm.
        residual: |delta| / sum_k |e_k| sum |w_k dL/dw_k| of the numerical check in float64; about 1e-15 (rounding) if
            the law holds. NaN if no gradient reached its weights at any point that was tried.
    """

    name: str
    kind: Kind
    layer: str
    neuron: int | None
    terms: tuple[Term, ...]
    exact: bool
    residual: float

    def __repr__(self) -> str:
        """For example ``Law(layer 0 (0), neuron 1: 2 terms)``."""
        return f"Law({self.name}: {len(self.terms)} terms)"

    def __str__(self) -> str:
        """The name and the terms."""
        return f"{self.name}: {' '.join(map(str, self.terms))}".replace(": + ", ": ", 1)


@dataclass(frozen=True)
class Exclusion:
    """A part of the model without a law, and the reason.

    Attributes:
        what: A layer, a parameter, an operation or a candidate law.
        reason: Why it has no law.
    """

    what: str
    reason: str

    def __str__(self) -> str:
        """Part and reason in one line."""
        return f"{self.what}: {self.reason}"

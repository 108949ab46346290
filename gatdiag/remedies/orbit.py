"""The orbit of weights: all that the rescalings of some laws make of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gatdiag.laws import Law, Term

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class _Pattern:
    """The exponents of one parameter along some of its axes.

    Attributes:
        parameter: Its name.
        shape: Its shape.
        axes: The axes along which the exponents change.
        laws: (slots, most laws at a slot): which laws scale what lies there; padded with the first.
        exponents: Of the same shape, zero where padded.
    """

    parameter: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    laws: Tensor
    exponents: Tensor

    @property
    def broadcast(self) -> list[int]:
        """The shape in which a value a slot broadcasts against the parameter."""
        return [length if axis in self.axes else 1 for axis, length in enumerate(self.shape)]

    def slots(self, axes: tuple[int, ...]) -> Tensor:
        """The slot of each position along more axes, flattened."""
        numbers = torch.arange(len(self.laws)).reshape(self.broadcast)
        return numbers.expand([self.shape[axis] if axis in axes else 1 for axis in range(len(self.shape))]).flatten()


@dataclass(frozen=True)
class _Coupling:
    """Where the marginal of one parameter over some axes enters the curvature, and with which coefficient."""

    parameter: str
    axes: tuple[int, ...]
    positions: Tensor
    coefficients: Tensor


@dataclass(frozen=True)
class _Curved:
    """The entries of the curvature, coupling after coupling."""

    couplings: tuple[_Coupling, ...]
    rows: Tensor
    columns: Tensor


class Orbit:
    """The points w_k exp(sum_j t_j e_jk) that laws j with exponents e_jk lead to, one coordinate t_j a law.

    All vectors are float64 on the CPU. Squares w_k^2 are given by name of parameter; what no law touches is not read.

    Attributes:
        size: Number of laws.
        parameters: Names of those that the laws scale.

    Example:
        >>> from fractions import Fraction
        >>> into = Term("a", (2, 3), (0,), ((1,),), Fraction(1))
        >>> out = Term("b", (1, 2), (1,), ((1,),), Fraction(-1))
        >>> orbit = Orbit([Law("neuron 1", "neuron", "", 1, (into, out), True, 0.0)])
        >>> weights = {"a": torch.ones(2, 3), "b": torch.ones(1, 2)}
        >>> orbit.factors(torch.tensor([2.0]).log())["b"]
        tensor([[1.0000, 0.5000]], dtype=torch.float64)
        >>> orbit.sides({name: weight.square() for name, weight in weights.items()})
        (tensor([3.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """

    def __init__(self, laws: Sequence[Law]) -> None:
        """Lay out the exponents of the laws."""
        self.size = len(laws)
        self._patterns = _patterns(laws)
        self.parameters = tuple(self._patterns)

    @property
    def rows(self) -> Tensor:
        """Law numbers j of the entries of the curvature at and below the diagonal."""
        return self._curved.rows

    @property
    def columns(self) -> Tensor:
        """Law numbers k <= j of the same entries; a pair may occur more than once, and counts as a sum."""
        return self._curved.columns

    @cached_property
    def _curved(self) -> "_Curved":
        patterns = self._patterns.values()
        found = [_coupled(first, second) for several in patterns for first in several for second in several]
        nowhere = torch.zeros(0, dtype=torch.int64)
        return _Curved(
            tuple(coupling for coupling, _, _ in found),
            torch.cat([nowhere, *(rows for _, rows, _ in found)]),
            torch.cat([nowhere, *(columns for _, _, columns in found)]),
        )

    def exponents(self, coordinates: Tensor) -> dict[str, Tensor]:
        """sum_j t_j e_jk of each weight, as tensors that broadcast against the parameters."""
        found: dict[str, Tensor] = {}
        for name, patterns in self._patterns.items():
            for pattern in patterns:
                values = (coordinates[pattern.laws] * pattern.exponents).sum(1).reshape(pattern.broadcast)
                found[name] = found[name] + values if name in found else values
        return found

    def factors(self, coordinates: Tensor) -> dict[str, Tensor]:
        """What each weight is multiplied by: exp(sum_j t_j e_jk), positive, broadcasting against the parameters."""
        return {name: exponents.exp() for name, exponents in self.exponents(coordinates).items()}

    def squares(self, squares: Tensors, coordinates: Tensor) -> dict[str, Tensor]:
        """The squares at a point of the orbit."""
        return {name: squares[name] * (2 * values).exp() for name, values in self.exponents(coordinates).items()}

    def sides(self, squares: Tensors) -> tuple[Tensor, Tensor]:
        """For each law sum |e_k| w_k^2 over positive exponents (what leads in), and over negative (what leads out).

        Their difference is c, and the gradient of 1/2 ||w||^2 along the orbit.
        """
        into, out = torch.zeros(2, self.size, dtype=torch.float64)
        for patterns in self._patterns.values():
            for pattern in patterns:
                values = pattern.exponents * _marginal(squares[pattern.parameter], pattern.axes)[:, None]
                into.index_add_(0, pattern.laws.flatten(), values.clamp(min=0).flatten())
                out.index_add_(0, pattern.laws.flatten(), -values.clamp(max=0).flatten())
        return into, out

    def curvature(self, squares: Tensors) -> Tensor:
        """2 sum_k e_jk e_lk w_k^2 at `rows` j, `columns` l: the second derivatives of 1/2 ||w||^2 along the orbit."""
        values = [
            2 * coupling.coefficients * _marginal(squares[coupling.parameter], coupling.axes)[coupling.positions]
            for coupling in self._curved.couplings
        ]
        return torch.cat(values) if values else torch.zeros(0, dtype=torch.float64)


def multiply_(tensor: Tensor, factor: Tensor, power: int = 1) -> Tensor:
    """Multiply a tensor of any floating dtype by a power of a factor, in place, rounding once."""
    scaled = tensor.detach().to(torch.float64) * factor.to(tensor.device) ** power
    with torch.no_grad():
        return tensor.copy_(scaled)


def _marginal(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Sums over all axes but some, flattened."""
    gone = [axis for axis in range(tensor.dim()) if axis not in axes]
    return (tensor.sum(gone) if gone else tensor).flatten()


def _patterns(laws: Sequence[Law]) -> dict[str, list[_Pattern]]:
    """Parameter -> its patterns."""
    terms: dict[str, dict[tuple[int, ...], list[tuple[int, Term]]]] = {}
    for number, law in enumerate(laws):
        for term in law.terms:
            terms.setdefault(term.parameter, {}).setdefault(term.axes, []).append((number, term))
    return {name: [_pattern(numbered) for numbered in by_axes.values()] for name, by_axes in terms.items()}


def _pattern(terms: Sequence[tuple[int, Term]]) -> _Pattern:
    _, first = terms[0]
    lengths = [first.shape[axis] for axis in first.axes]
    places = torch.arange(torch.Size(lengths).numel()).reshape(lengths)
    at: list[list[tuple[int, float]]] = [[] for _ in range(places.numel())]
    for number, term in terms:
        for index in term.indices:
            at[int(places[index])].append((number, float(term.exponent)))
    width = max(map(len, at))
    table = torch.tensor([pairs + [(0, 0.0)] * (width - len(pairs)) for pairs in at], dtype=torch.float64)
    return _Pattern(first.parameter, first.shape, first.axes, table[..., 0].long(), table[..., 1])


def _coupled(first: _Pattern, second: _Pattern) -> tuple[_Coupling, Tensor, Tensor]:
    """Two patterns of one parameter meet where their axes cross; with the rows and the columns they meet at."""
    axes = tuple(sorted({*first.axes, *second.axes}))
    mine, others = first.slots(axes), second.slots(axes)
    rows, columns = torch.broadcast_tensors(first.laws[mine][:, :, None], second.laws[others][:, None, :])
    coefficients = first.exponents[mine][:, :, None] * second.exponents[others][:, None, :]
    kept = (coefficients != 0) & (rows >= columns)
    coupling = _Coupling(first.parameter, axes, kept.nonzero()[:, 0], coefficients[kept])
    return coupling, rows[kept], columns[kept]

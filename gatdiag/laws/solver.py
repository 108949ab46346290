"""The solutions of the equations between exponents, as a basis in which each law has few terms.

Gaussian elimination with exact fractions. An equation is solved for a parameter's own entry before a channel, and for
a late unknown before an early one, so the unknowns that stay free are channels: each basis vector sets one of them to
one and the others to zero, and the law it gives belongs to that neuron.
"""

import heapq
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from gatdiag.laws.exponents import Equations, Exponents
from gatdiag.laws.label import ZERO_EXPONENT, Label
from gatdiag.laws.slices import distinct_rows
from gatdiag.structure.deadline import check_time

Number = int | Fraction  # an integer where it is one, which is many times faster
Vector = dict[int, Number]  # a sparse vector


class Basis(NamedTuple):
    """A basis of the solutions.

    Attributes:
        free: For each basis vector, the free unknown that is one in it.
        exact: For each basis vector, whether it also solves the equations of epsilons.
        values: Unknown -> {number of a basis vector: value in it}, without zeros.
    """

    free: tuple[int, ...]
    exact: tuple[bool, ...]
    values: dict[int, dict[int, Number]]


class Elimination:
    """Gaussian elimination row by row: every pivot unknown is a linear combination of other unknowns."""

    def __init__(self, exponents: Exponents) -> None:
        self._exponents = exponents
        self._pivots: dict[int, Vector] = {}
        self._order: dict[int, int] = {}

    def reduce(self, vector: Vector) -> Vector:
        """Write a linear combination in free unknowns."""
        check_time()
        # A pivot's combination contains only unknowns that became pivots later: in that order each is replaced once.
        result = {unknown: value for unknown, value in vector.items() if unknown != ZERO_EXPONENT}
        waiting = [(self._order[unknown], unknown) for unknown in result if unknown in self._order]
        heapq.heapify(waiting)
        while waiting:
            _, pivot = heapq.heappop(waiting)
            coefficient = result.pop(pivot)
            for unknown, value in self._pivots[pivot].items():
                if unknown not in result and unknown in self._order:
                    heapq.heappush(waiting, (self._order[unknown], unknown))
                result[unknown] = result.get(unknown, 0) + coefficient * value
        return {unknown: value for unknown, value in result.items() if value}

    def insert(self, row: Vector) -> None:
        """Add the equation sum over unknowns of row[unknown] * value[unknown] = 0."""
        row = self.reduce(row)
        if row:
            pivot = max(row, key=lambda unknown: (self._exponents.block_of(unknown).is_entry, unknown))
            scale = -row.pop(pivot)
            self._order[pivot] = len(self._order)
            self._pivots[pivot] = {unknown: _divide(value, scale) for unknown, value in row.items()}

    def back_substitute(self) -> None:
        """Write every pivot in free unknowns, the last one first."""
        for pivot in reversed(list(self._pivots)):
            self._pivots[pivot] = self.reduce(self._pivots[pivot])

    def copy(self) -> "Elimination":
        """An independent copy."""
        copied = Elimination(self._exponents)
        copied._pivots, copied._order = dict(self._pivots), dict(self._order)
        return copied


def solve(exponents: Exponents, unknowns: Iterable[Tensor]) -> Basis:
    """Solve for the given (unbound) unknowns, those in the labels of parameters."""
    elimination = Elimination(exponents)
    for row in _rows(exponents, exponents.equations):
        elimination.insert(row)
    elimination.back_substitute()
    strict_elimination = elimination
    if exponents.approximations:
        strict_elimination = elimination.copy()  # as if no epsilon were negligible
        for row in _rows(exponents, exponents.approximations):
            strict_elimination.insert(row)
        strict_elimination.back_substitute()

    wanted = sorted({int(unknown) for ids in unknowns for unknown in ids.unique().tolist()} - {ZERO_EXPONENT})
    relaxed = {unknown: elimination.reduce({unknown: 1}) for unknown in wanted}
    strict = relaxed
    if strict_elimination is not elimination:
        strict = {unknown: strict_elimination.reduce({unknown: 1}) for unknown in wanted}
    free = sorted({unknown for vector in relaxed.values() for unknown in vector})
    exact = {unknown for vector in strict.values() for unknown in vector}
    number = {unknown: position for position, unknown in enumerate(free)}
    values: dict[int, dict[int, Number]] = {}
    for unknown in wanted:
        found = {number[other]: value for other, value in strict[unknown].items()}
        found |= {number[other]: value for other, value in relaxed[unknown].items() if other not in exact}
        values[unknown] = found
    return Basis(tuple(free), tuple(unknown in exact for unknown in free), values)


def _divide(value: Number, divisor: Number) -> Number:
    return value * divisor if divisor in (1, -1) else _simplify(Fraction(value) / divisor)


def _simplify(value: Number) -> Number:
    return value.numerator if value.denominator == 1 else value


def _rows(exponents: Exponents, equations: Iterable[Equations]) -> Iterable[Vector]:
    """The equations as sparse vectors, in unbound unknowns."""
    for equation in equations:
        columns = torch.unbind(equation.ids, dim=1)
        label = exponents.resolve(Label(tuple(zip(equation.coefficients, columns, strict=True))))
        if not label.terms:
            continue
        coefficients = [_simplify(coefficient) for coefficient in label.coefficients]
        table = torch.stack([ids.expand(label.shape) for _, ids in label.terms], dim=1)
        for row in distinct_rows(table).tolist():
            vector: Vector = {}
            for coefficient, unknown in zip(coefficients, row, strict=True):
                vector[unknown] = vector.get(unknown, 0) + coefficient
            yield vector

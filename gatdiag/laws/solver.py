"""The solutions of the equations between exponents, as a basis in which each law touches as little as it can.

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

from gatdiag.laws.exponents import Equations, Exponents, distinct_rows
from gatdiag.laws.label import ZERO, Label
from gatdiag.structure.deadline import check_time

Vector = dict[int, Fraction]


class Basis(NamedTuple):
    """A basis of the solutions."""

    free: tuple[int, ...]  # for each basis vector, the unknown that names it
    exact: tuple[bool, ...]  # whether it also solves the equations that hold only up to an epsilon
    values: dict[int, Vector]  # unknown -> its value in every basis vector in which it is not zero


class Elimination:
    """Rows of equations, reduced as they come: every pivot unknown is a combination of other unknowns."""

    def __init__(self, exponents: Exponents) -> None:
        self._exponents = exponents
        self._pivots: dict[int, Vector] = {}
        self._order: dict[int, int] = {}

    def reduced(self, vector: Vector) -> Vector:
        """The same combination in unknowns that are free.

        A pivot's combination holds only unknowns that became pivots after it, so taking pivots in the order they were
        made meets each one once.
        """
        check_time()
        result = {unknown: value for unknown, value in vector.items() if unknown != ZERO}
        waiting = [(self._order[unknown], unknown) for unknown in result if unknown in self._order]
        heapq.heapify(waiting)
        while waiting:
            _, pivot = heapq.heappop(waiting)
            coefficient = result.pop(pivot)
            for unknown, value in self._pivots[pivot].items():
                if unknown not in result and unknown in self._order:
                    heapq.heappush(waiting, (self._order[unknown], unknown))
                result[unknown] = result.get(unknown, Fraction(0)) + coefficient * value
        return {unknown: value for unknown, value in result.items() if value}

    def insert(self, row: Vector) -> None:
        """Add the equation sum of coefficient * value[unknown] = 0."""
        row = self.reduced(row)
        if row:
            pivot = max(row, key=lambda unknown: (self._exponents.block(unknown).is_entry, unknown))
            scale = -row.pop(pivot)
            self._order[pivot] = len(self._order)
            self._pivots[pivot] = {unknown: value / scale for unknown, value in row.items()}

    def compress(self) -> None:
        """Rewrite every pivot in free unknowns, the last made first."""
        for pivot in reversed(list(self._pivots)):
            self._pivots[pivot] = self.reduced(self._pivots[pivot])

    def copy(self) -> "Elimination":
        """An independent copy."""
        twin = Elimination(self._exponents)
        twin._pivots, twin._order = dict(self._pivots), dict(self._order)
        return twin


def solve(exponents: Exponents, unknowns: Iterable[Tensor]) -> Basis:
    """Solve for the given (unbound) unknowns, those that the parameters' exponents are made of."""
    hard = Elimination(exponents)
    for vector in _vectors(exponents, exponents.equations):
        hard.insert(vector)
    hard.compress()
    soft = hard.copy()
    for vector in _vectors(exponents, exponents.approximations):
        soft.insert(vector)
    soft.compress()

    wanted = sorted({int(unknown) for ids in unknowns for unknown in ids.unique().tolist()} - {ZERO})
    relaxed = {unknown: hard.reduced({unknown: Fraction(1)}) for unknown in wanted}
    strict = {unknown: soft.reduced({unknown: Fraction(1)}) for unknown in wanted}
    free = sorted({name for vector in relaxed.values() for name in vector})
    exact = {name for vector in strict.values() for name in vector}
    number = {name: position for position, name in enumerate(free)}
    values: dict[int, Vector] = {}
    for unknown in wanted:
        parts = {number[name]: value for name, value in strict[unknown].items()}
        parts |= {number[name]: value for name, value in relaxed[unknown].items() if name not in exact}
        values[unknown] = parts
    return Basis(tuple(free), tuple(name in exact for name in free), values)


def _vectors(exponents: Exponents, equations: Iterable[Equations]) -> Iterable[Vector]:
    """The equations row by row, in unbound unknowns."""
    for equation in equations:
        columns = torch.unbind(equation.ids, dim=1)
        label = exponents.resolve(Label(tuple(zip(equation.coefficients, columns, strict=True))))
        if not label.terms:
            continue
        coefficients = [coefficient for coefficient, _ in label.terms]
        table = torch.stack([ids.expand(label.shape) for _, ids in label.terms], dim=1)
        for row in distinct_rows(table).tolist():
            vector: Vector = {}
            for coefficient, unknown in zip(coefficients, row, strict=True):
                vector[unknown] = vector.get(unknown, Fraction(0)) + coefficient
            yield vector

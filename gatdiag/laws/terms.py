"""The terms of every basis vector: the entries of parameters with the same exponent, as arrays sorted and cut."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gatdiag.law import Term
from gatdiag.laws.label import Label
from gatdiag.laws.solver import Basis
from gatdiag.structure.deadline import check_time

Integers = npt.NDArray[Any]
Axes = tuple[int, ...]
_LARGE = 2**31  # beyond which products of two exponents are computed in Python's integers


class _Table(NamedTuple):
    """Entries of parameters with an exponent in some basis vector, one a row."""

    vector: Integers
    place: Integers  # number of the parameter and the axes that are indexed, in the order of terms
    entry: Integers  # its index along these axes, as one number
    exponent: Integers  # times the common denominator


def collect_terms(
    labels: Mapping[str, Label],
    basis: Basis,
    shapes: Mapping[str, tuple[int, ...]],
    sort_key: Callable[[str, Axes], tuple[Any, ...]],
) -> Iterator[tuple[int, tuple[Term, ...]]]:
    """Basis vector and terms, the first one positive, positive ones before negative ones.

    Args:
        labels: Name of a parameter -> its label in unbound unknowns.
        basis: The solutions.
        shapes: Name of a parameter -> its shape.
        sort_key: Of a parameter and the axes that are indexed: the order of terms.
    """
    indexed = [
        (name, _kept_axes(ids, shapes[name]), coefficient, ids)
        for name, label in labels.items()
        for coefficient, ids in label.terms
        if 0 not in shapes[name]
    ]
    places = sorted({(name, axes) for name, axes, _, _ in indexed}, key=lambda place: sort_key(*place))
    number = {place: position for position, place in enumerate(places)}
    if not indexed or not basis.free:
        return
    values = _Values(basis, [coefficient for _, _, coefficient, _ in indexed])
    parts = [values.entries(number[name, axes], coefficient, ids) for name, axes, coefficient, ids in indexed]
    table = _Table(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    lengths = [[shapes[name][axis] for axis in axes] for name, axes in places]
    yield from _cut_into_terms(_order_terms(*_add_up(table)), places, shapes, lengths, values.denominator)


def _kept_axes(ids: Tensor, shape: Sequence[int]) -> Axes:
    """The axes that a label changes along; all axes if it has the shape of the parameter."""
    if tuple(ids.shape) == tuple(shape):
        return tuple(range(len(shape)))
    return tuple(axis for axis, length in enumerate(ids.shape) if length > 1)


class _Values:
    """The values of all unknowns in all basis vectors, as integers over a common denominator."""

    def __init__(self, basis: Basis, coefficients: Sequence[Fraction]) -> None:
        found = [(vector, value) for of_unknown in basis.values.values() for vector, value in of_unknown.items()]
        self._scale = math.lcm(*(value.denominator for _, value in found))
        self._factor = math.lcm(*(coefficient.denominator for coefficient in coefficients))
        self.denominator = self._scale * self._factor
        scaled = [int(value * self._scale) for _, value in found]
        largest = max([1, *map(abs, scaled)]) * max(abs(int(value * self._factor)) for value in coefficients)
        self._kind = np.int64 if largest < _LARGE else object
        self._scaled = np.array(scaled, dtype=self._kind)
        self._vectors = np.array([vector for vector, _ in found], dtype=np.int64)
        unknowns = np.array(list(basis.values), dtype=np.int64)
        counts = np.array([len(of_unknown) for of_unknown in basis.values.values()], dtype=np.int64)
        ends = counts.cumsum()
        order = unknowns.argsort()
        self._unknowns, self._counts, self._starts = unknowns[order], counts[order], (ends - counts)[order]

    def entries(self, place: int, coefficient: Fraction, ids: Tensor) -> _Table:
        """The entries that a term of a label gives."""
        check_time()
        asked = ids.flatten().numpy()
        at = np.searchsorted(self._unknowns, asked).clip(max=max(0, len(self._unknowns) - 1))
        counts = np.where(self._unknowns[at] == asked, self._counts[at], 0)
        index = np.repeat(np.arange(len(asked)), counts)
        first = np.repeat(self._starts[at] - (counts.cumsum() - counts), counts)
        position = first + np.arange(len(index))
        exponent = self._scaled[position] * int(coefficient * self._factor)
        return _Table(self._vectors[position], np.full(len(index), place), index, exponent)


def _starts(*columns: Integers) -> Integers:
    """Positions at which one of the columns changes, with that of the first row."""
    changes = np.zeros(len(columns[0]), dtype=bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def _add_up(table: _Table) -> tuple[_Table, Integers]:
    """Add the exponents of one entry, and drop those that are zero; also when each entry was first seen."""
    order = np.lexsort((table.entry, table.place, table.vector))  # stable
    table = _Table(*(column[order] for column in table))
    starts = _starts(table.vector, table.place, table.entry)
    if len(starts):
        exponent = np.add.reduceat(table.exponent, starts)
        table = _Table(table.vector[starts], table.place[starts], table.entry[starts], exponent)
    kept = np.asarray(table.exponent != 0, dtype=bool)
    return _Table(*(column[kept] for column in table)), order[starts][kept]


def _order_terms(table: _Table, seen: Integers) -> tuple[_Table, Integers]:
    """Rows in the order of laws, terms and indices, and the numbers of their terms; the first one is positive."""
    code = np.unique(table.exponent, return_inverse=True)[1]
    order = np.lexsort((seen, code, table.place, table.vector))
    starts = _starts(table.vector[order], table.place[order], code[order])
    lengths = np.diff(np.append(starts, len(order)))
    term_seen = np.empty_like(seen)  # when the first entry of the term was
    term_seen[order] = np.repeat(seen[order][starts], lengths)
    table, term_seen = _sort(table, term_seen, (table.entry, term_seen, table.place, table.vector))
    firsts = _starts(table.vector)
    signs = np.where(np.asarray(table.exponent[firsts] < 0, dtype=bool), -1, 1)
    table = table._replace(exponent=table.exponent * np.repeat(signs, np.diff(np.append(firsts, len(table.vector)))))
    is_negative = np.asarray(table.exponent < 0, dtype=bool)
    return _sort(table, term_seen, (table.entry, term_seen, table.place, is_negative, table.vector))


def _sort(table: _Table, also: Integers, keys: tuple[Integers, ...]) -> tuple[_Table, Integers]:
    order = np.lexsort(keys)
    return _Table(*(column[order] for column in table)), also[order]


def _cut_into_terms(
    ordered: tuple[_Table, Integers],
    places: Sequence[tuple[str, Axes]],
    shapes: Mapping[str, tuple[int, ...]],
    lengths: Sequence[Sequence[int]],
    denominator: int,
) -> Iterator[tuple[int, tuple[Term, ...]]]:
    table, seen = ordered
    indices = np.empty(len(seen), dtype=object)
    for place in np.unique(table.place).tolist():
        rows = np.flatnonzero(table.place == place)
        flat = table.entry[rows]
        columns = np.unravel_index(flat, lengths[place]) if lengths[place] else ()
        indices[rows] = _as_objects([column.tolist() for column in columns], len(rows))
    starts = _starts(table.vector, table.place, seen)
    exponents = {value: Fraction(int(value), denominator) for value in set(table.exponent[starts].tolist())}
    terms = []
    for start, end in pairwise([*starts.tolist(), len(seen)]):
        name, axes = places[table.place[start]]
        exponent = exponents[table.exponent[start]]
        terms.append(Term(name, shapes[name], axes, tuple(indices[start:end].tolist()), exponent))
    vectors = table.vector[starts]
    firsts = _starts(vectors).tolist()
    for first, last in pairwise([*firsts, len(terms)]):
        yield int(vectors[first]), tuple(terms[first:last])


def _as_objects(columns: list[list[int]], count: int) -> npt.NDArray[np.object_]:
    """The rows of columns as tuples."""
    rows = np.empty(count, dtype=object)
    rows[:] = list(zip(*columns, strict=True)) if columns else [()] * count
    return rows

"""The unknown exponents of a model and the linear equations between them.

Most equations are solved the moment they arise, whole arrays at a time: an unknown that an equation determines is
*bound*, value[i] = value[plus[i]] - value[minus[i]], and disappears. A matrix product, for instance, binds every entry
of its weight to (unknown of the row) - (exponent of the column). What cannot be bound is kept as an equation for
`gatdiag.laws.solver`.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gatdiag.laws.label import ZERO, Label, distinct_slices, merged

_ONE = Fraction(1)
_MANY = 4096  # entries; looking for equal slices is worth it where there are more


class Block(NamedTuple):
    """A run of consecutive unknowns made together."""

    start: int
    length: int
    parameter: str | None  # that they belong to
    is_entry: bool  # the entries of the parameter; else the channels its product writes


@dataclass(frozen=True)
class Equations:
    """Rows of ids; in each row sum_k coefficients[k] * value[ids[k]] = 0; and what was running."""

    coefficients: tuple[Fraction, ...]
    ids: Tensor
    cause: str = ""


@dataclass(frozen=True)
class Mixture:
    """The unknown of a sum whose summands scale differently.

    d log |sum_j x_j| = sum_j share_j d log |x_j| with shares that add up to one and depend on the data. As long as such
    a common factor cancels (the norm in x / ||x||, if another normalization follows), it demands nothing.
    """

    label: Label  # of what was summed
    axes: tuple[int, ...]
    is_spread: bool  # whether the result has many entries, each with shares of its own


def distinct_rows(table: Tensor) -> Tensor:
    """The different rows of a table, in ascending order: as `unique(dim=0)`, in a fraction of its time."""
    keys = torch.zeros(len(table), dtype=torch.int64)
    for column in table.unbind(1):
        values, places = column.unique(return_inverse=True)
        _, keys = (keys * len(values) + places).unique(return_inverse=True)
    count = int(keys.max()) + 1 if len(table) else 0
    return torch.empty(count, table.shape[1], dtype=table.dtype).index_copy_(0, keys, table)


def _condensed(label: Label) -> tuple[Label, list[tuple[int, Tensor]]]:
    """The label with one slice of each kind along every axis; and the axes that it took from, with the kinds."""
    kinds = []
    label = label.aligned(label.ndim)
    for axis, length in enumerate(label.shape):
        if length > 1 and (found := distinct_slices(label.arrays, axis)) is not None:
            first, kind = found
            label = label.map(partial(_taken, axis=axis, positions=first))
            kinds.append((axis, kind))
    return label, kinds


def _taken(array: Tensor, axis: int, positions: Tensor) -> Tensor:
    return array if array.shape[axis] == 1 else array.index_select(axis, positions)


def _spread(array: Tensor, kinds: Iterable[tuple[int, Tensor]]) -> Tensor:
    """An array over the slices of each kind, written out over all slices, but where it does not change along them."""
    for axis, kind in kinds:
        array = _taken(array, axis, kind)
    return array


def _entries(table: Tensor, ids: Tensor) -> Tensor:
    """table[ids], in a fifth of its time."""
    return table.index_select(0, ids.flatten()).reshape(ids.shape)


class Exponents:
    """Unknowns, bindings and equations, filled while a forward pass is traced."""

    def __init__(self) -> None:
        self._plus = torch.zeros(1024, dtype=torch.int64)
        self._minus = torch.zeros(1024, dtype=torch.int64)
        self._is_bound = torch.zeros(1024, dtype=torch.bool)
        self._marks = torch.zeros(1024, dtype=torch.bool)  # all false between uses
        self._size = 1
        self.blocks = [Block(ZERO, 1, None, False)]  # where each unknown came from, in order of creation
        self.equations: list[Equations] = []  # what could not be solved on the spot
        self.approximations: list[Equations] = []  # those of a small epsilon, should it be taken seriously
        self.cause = ""  # what is running, set by the tracer
        self.coarse: Counter[str] = Counter()  # what was running when a rule demanded more than its operation does
        self._forced: list[tuple[str, Tensor]] = []
        self._mixtures: dict[int, Mixture] = {}

    def fresh(self, shape: Sequence[int], parameter: str | None = None, *, is_entry: bool = False) -> Tensor:
        """New unknowns, one an entry of `shape`."""
        count = int(torch.Size(shape).numel())
        while self._size + count > len(self._plus):
            tables = (self._plus, self._minus, self._is_bound, self._marks)
            self._plus, self._minus, self._is_bound, self._marks = (
                torch.cat([table, torch.zeros_like(table)]) for table in tables
            )
        ids = torch.arange(self._size, self._size + count)
        self._plus[ids] = ids
        self.blocks.append(Block(self._size, count, parameter, is_entry))
        self._size += count
        return ids.reshape(torch.Size(shape))

    def block(self, unknown: int) -> Block:
        """The block an unknown was made in."""
        return self.blocks[bisect_right(self.blocks, unknown, key=lambda block: block.start) - 1]

    def resolve(self, label: Label) -> Label:
        """The label in unbound unknowns only, equal terms added up."""
        label = Label(merged(label.terms), label.zeros)
        while len(expanded := self._expanded(label)) > len(label.terms):
            label = Label(merged(expanded), label.zeros)
        return label

    def _expanded(self, label: Label) -> list[tuple[Fraction, Tensor]]:
        """The terms, those with bound unknowns in what they are bound to."""
        expanded: list[tuple[Fraction, Tensor]] = []
        for coefficient, ids in label.terms:
            if bool(_entries(self._is_bound, ids).any()):
                expanded += [(coefficient, _entries(self._plus, ids)), (-coefficient, _entries(self._minus, ids))]
            else:
                expanded.append((coefficient, ids))
        return expanded

    def collapse(self, label: Label) -> Tensor:
        """One array of unknowns that equals the label."""
        label = self.resolve(label)
        if not label.terms:
            return torch.full((1,) * label.ndim, ZERO)
        if len(label.terms) == 1 and label.terms[0][0] == 1:
            return label.terms[0][1]
        if any(coefficient.denominator != 1 for coefficient, _ in label.terms):
            label = self.settled(label).present()
            small, kinds = _condensed(label)
            total = self.fresh(small.shape)
            whole = Label(((-_ONE, total), *small.terms))
            coefficients = tuple(coefficient for coefficient, _ in whole.terms)
            self.equations.append(Equations(coefficients, self._rows(whole), self.cause))
            return _spread(total, kinds)
        signs = sorted(label.terms, key=lambda term: -term[0])
        arrays = [(coefficient > 0, ids) for coefficient, ids in signs for _ in range(abs(int(coefficient)))]
        total = arrays.pop(0)[1] if arrays[0][0] else torch.full((1,) * label.ndim, ZERO)
        for is_positive, ids in arrays:
            total = self._difference(total, self._difference(torch.tensor(ZERO), ids) if is_positive else ids)
        return total

    def written_out(self, label: Label, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Unknown of every entry of a tensor, and whether it is an exact zero; `written` is the way back."""
        return self.collapse(label.present()).expand(shape), label.mask.expand(shape)

    def _difference(self, plus: Tensor, minus: Tensor) -> Tensor:
        """Unknowns that equal a difference, as many as there are different ones along each axis."""
        small, kinds = _condensed(Label(((_ONE, plus), (-_ONE, minus))))
        total = self.fresh(small.shape)
        self._bind(total, small.terms[0][1], small.terms[1][1])
        return _spread(total, kinds)

    def _bind(self, ids: Tensor, plus: Tensor, minus: Tensor) -> None:
        self._plus[ids] = plus.expand(ids.shape)
        self._minus[ids] = minus.expand(ids.shape)
        self._is_bound[ids] = True

    def _bind_to(self, ids: Tensor, label: Label) -> None:
        """Bind ids := label."""
        label = label.aligned(ids.ndim)
        zero = torch.full((1,) * ids.ndim, ZERO)
        signs = sorted((coefficient for coefficient, _ in label.terms), reverse=True)
        if signs in ([], [1], [-1], [1, -1]):
            arrays = {int(coefficient): array for coefficient, array in label.terms}
            self._bind(ids, arrays.get(1, zero), arrays.get(-1, zero))
        else:
            self._bind(ids, self.collapse(label), zero)

    def vanish(self, label: Label) -> None:
        """Demand that the exponent is zero everywhere but at entries that are zeros."""
        label = self.settled(self.resolve(label))
        if not label.terms or label.is_zero:
            return
        if len(label.terms) == 1:
            self._forced.append((self.cause, label.terms[0][1].unique()))
        rows = self._rows(label)
        coefficients = [coefficient for coefficient, _ in label.terms]
        column = self._bindable_column(coefficients, rows)
        if column is not None:
            rows = self._bind_rows(coefficients, rows, column)
        if len(rows):
            self.equations.append(Equations(tuple(coefficients), rows, self.cause))

    def approximate(self, label: Label) -> None:
        """Note that the exponent would have to be zero, but for an epsilon small enough to be left out."""
        label = self._unmixed(self.resolve(label))
        if label.terms and not label.is_zero:
            coefficients = tuple(coefficient for coefficient, _ in label.terms)
            self.approximations.append(Equations(coefficients, self._rows(label)))

    @staticmethod
    def _rows(label: Label) -> Tensor:
        """The different rows of unknowns in a label, in ascending order."""
        if label.shape.numel() > _MANY:
            label, _ = _condensed(label)
        columns = [ids.expand(label.shape).flatten() for _, ids in label.terms]
        rows = torch.stack(columns, dim=1)
        if label.zeros is not None:
            rows = rows[~label.zeros.expand(label.shape).flatten()]
        return distinct_rows(rows)

    def _is_entry(self, unknown: int) -> bool:
        return self.block(unknown).is_entry

    def _bindable_column(self, coefficients: Iterable[Fraction], rows: Tensor) -> int | None:
        """The column to solve for: a parameter's entries before channels, late unknowns before early ones."""
        candidates = [
            (self._is_entry(int(rows[:, column].max())), int(rows[:, column].max()), column)
            for column, coefficient in enumerate(coefficients)
            if len(rows) and abs(coefficient) == 1
        ]
        return max(candidates)[2] if candidates else None

    def _bind_rows(self, coefficients: list[Fraction], rows: Tensor, column: int) -> Tensor:
        """Bind the unknowns of one column wherever that is unambiguous; return the rows that remain."""
        target = rows[:, column]
        others = [position for position in range(rows.shape[1]) if position != column]
        _, inverse, counts = target.unique(return_inverse=True, return_counts=True)
        free = (counts[inverse] == 1) & (target != ZERO) & ~self._among(target, [rows[:, others]])
        sign = -1 / coefficients[column]
        terms = tuple((coefficients[position] * sign, rows[free, position]) for position in others)
        self._bind_to(target[free], self.resolve(Label(terms)))
        return rows[~free]

    def equal(self, left: Label, right: Label) -> Label:
        """Demand equal exponents, as a sum does; return the label of the sum."""
        if left.is_zero or right.is_zero:
            both = left.zeros is not None and right.zeros is not None
            kept = right if left.is_zero else left
            return kept if both else kept.present()
        self.vanish(left - right)
        if left.zeros is None or right.zeros is None:
            return (left if left.zeros is None else right).aligned(max(left.ndim, right.ndim))
        ids = torch.where(left.zeros, self.collapse(right.present()), self.collapse(left.present()))
        return Label(((_ONE, ids),), left.zeros & right.zeros)

    def uniform(self, label: Label, axes: Iterable[int]) -> Label:
        """Demand one exponent along each axis, as a sum over it does; the axes are left with length one."""
        label = self.resolve(label)
        if label.is_zero:
            return Label((), torch.ones((1,) * label.ndim, dtype=torch.bool))
        axes = [axis for axis in axes if label.changes_along([axis])]
        if not axes:
            return label
        label, kinds = _condensed(label) if label.shape.numel() > _MANY else (label, [])
        for axis in axes:
            if label.changes_along([axis]):
                label = self._uniform_along(label, axis)
        return label.map(lambda array: _spread(array, kinds)) if kinds else label

    def _uniform_along(self, label: Label, axis: int) -> Label:
        if label.zeros is not None and label.zeros.shape[axis] > 1:
            return self._uniform_beside_zeros(label, label.zeros, axis)
        label = self._settled_along(label, axis)
        target = self._solvable(label, axis)
        if target is not None:
            self._solve_along(label, target, axis)
            label = self.resolve(label)
        first = label.map(lambda array: array.narrow(axis, 0, 1))
        varying = Label(tuple(term for term in label.terms if term[1].shape[axis] > 1), label.zeros)
        self.vanish(varying - varying.map(lambda array: array.narrow(axis, 0, 1)))
        return first

    def total(self, label: Label, axes: Sequence[int], *, is_spread: bool) -> Label:
        """The label of a sum over axes, left with length one; summands may scale differently as long as that cancels.

        `is_spread` says whether the sum has more than one entry.
        """
        label = self.resolve(label)
        changes = [any(ids.shape[axis] > 1 for axis in axes) for _, ids in label.terms]
        varying = Label(tuple(term for term, does in zip(label.terms, changes, strict=True) if does))
        fixed = Label(tuple(term for term, does in zip(label.terms, changes, strict=True) if not does))
        spread = [mixture for mixture in self._present_mixtures(fixed) if self._mixtures[mixture].is_spread]
        alone = all(length == 1 for axis, length in enumerate(varying.shape) if axis not in axes)
        has_entries = any(self._is_entry(int(ids.max())) for _, ids in varying.terms)
        if label.zeros is not None or not alone or has_entries or (spread and (is_spread or varying.terms)):
            return self.uniform(self.settled(label), axes)
        if not varying.terms:
            return self._single_entries(fixed, spread)
        unknown = self.fresh((1,) * label.ndim)
        self._mixtures[int(unknown)] = Mixture(varying, tuple(axes), is_spread)
        return fixed + Label(((_ONE, unknown),))

    def _single_entries(self, label: Label, spread: Sequence[int]) -> Label:
        """The label with spread mixtures replaced by mixtures of one entry."""
        terms = list(label.terms)
        for position, (coefficient, ids) in enumerate(terms):
            if ids.numel() == 1 and int(ids) in spread:
                unknown = self.fresh(ids.shape)
                self._mixtures[int(unknown)] = replace(self._mixtures[int(ids)], is_spread=False)
                terms[position] = (coefficient, unknown)
        return Label(tuple(terms))

    def _present_mixtures(self, label: Label) -> list[int]:
        if not self._mixtures or not label.terms:
            return []
        known = [torch.tensor(list(self._mixtures))]
        return sorted({int(unknown) for _, ids in label.terms for unknown in ids[self._among(ids, known)].unique()})

    def settled(self, label: Label, *, only_spread: bool = False) -> Label:
        """The label after its mixtures were given up: their summands must scale alike."""
        for unknown in self._present_mixtures(label):
            mixture = self._mixtures[unknown]
            if mixture.is_spread or not only_spread:
                del self._mixtures[unknown]
                total = self.uniform(mixture.label, mixture.axes)
                self._bind_to(torch.tensor([unknown]), total.map(lambda array: array.reshape(1)))
        return self.resolve(label)

    def _settled_along(self, label: Label, axis: int) -> Label:
        varying = Label(tuple(term for term in label.terms if term[1].shape[axis] > 1))
        if self._present_mixtures(varying):
            self.settled(varying)
        return self.resolve(label)

    def _unmixed(self, label: Label) -> Label:
        """The label with each mixture replaced by what it is made of."""
        terms: list[tuple[Fraction, Tensor]] = []
        mixed = Label()
        for coefficient, ids in label.terms:
            mixture = self._mixtures.get(int(ids)) if ids.numel() == 1 else None
            if mixture is None:
                terms.append((coefficient, ids))
            else:
                parts = mixture.label.map(lambda array: array.reshape(-1)).scaled(coefficient)
                mixed = mixed.map(lambda array: array.unsqueeze(-1)) + parts
        return (
            Label(tuple(terms), label.zeros).map(lambda array: array.reshape(array.shape + (1,) * mixed.ndim)) + mixed
            if mixed.terms
            else label
        )

    def _uniform_beside_zeros(self, label: Label, zeros: Tensor, axis: int) -> Label:
        """As `_uniform_along` where some entries along the axis are zeros, which are skipped."""
        label = self._uniform_where_whole(label.present(), zeros, axis)
        fixed = tuple(term for term in label.terms if term[1].shape[axis] == 1)
        varying = Label(tuple(term for term in label.terms if term[1].shape[axis] > 1), zeros)
        empty = zeros.all(axis, keepdim=True)
        if not varying.terms:
            return Label(fixed, empty)
        ids, shape = self.collapse(varying.present()), varying.shape
        zeros = zeros.expand(shape)
        first = ids.expand(shape).gather(axis, (~zeros).int().argmax(axis, keepdim=True))
        self.vanish(Label(((_ONE, ids), (-_ONE, first)), zeros))
        return Label((*fixed, (_ONE, first)), empty)

    def _uniform_where_whole(self, label: Label, zeros: Tensor, axis: int) -> Label:
        """Demand it first of the slices without zeros: what they say of weights holds in the others, too."""
        for other in range(zeros.ndim):
            is_whole = ~zeros.movedim(other, 0).flatten(1).any(1)
            if other == axis or len(is_whole) == 1 or not is_whole.any():
                continue
            slices = is_whole.nonzero().flatten()
            whole = [
                (sign, ids if ids.shape[other] == 1 else ids.index_select(other, slices)) for sign, ids in label.terms
            ]
            self._uniform_along(Label(tuple(whole)), axis)
            return self.resolve(label)
        return label

    def _solvable(self, label: Label, axis: int) -> int | None:
        """The term whose unknowns a sum over the axis determines: the largest, a parameter's before others."""
        candidates = [
            (ids.numel(), self._is_entry(int(ids.max())), int(ids.max()), position)
            for position, (coefficient, ids) in enumerate(label.terms)
            if ids.shape[axis] != 1 and abs(coefficient) == 1 and self._distinct(label, position)
        ]
        return max(candidates)[-1] if candidates else None

    def _distinct(self, label: Label, position: int) -> bool:
        ids = label.terms[position][1].flatten()
        rest = [array for other, (_, array) in enumerate(label.terms) if other != position]
        if bool((ids == ZERO).any()) or not (bool((ids.diff() > 0).all()) or len(ids.unique()) == len(ids)):
            return False
        return not bool(self._among(ids, rest).any())

    def _among(self, ids: Tensor, others: Iterable[Tensor]) -> Tensor:
        """Which of the unknowns are in other arrays."""
        arrays = [array.flatten() for array in others]
        for array in arrays:
            self._marks.index_fill_(0, array, True)
        found = _entries(self._marks, ids)
        for array in arrays:
            self._marks.index_fill_(0, array, False)
        return found

    def _solve_along(self, label: Label, position: int, axis: int) -> None:
        """Bind one term so that the label no longer changes along the axis."""
        coefficient, ids = label.terms[position]
        shape = list(ids.shape)
        shape[axis] = 1
        parameter = self.block(int(ids.flatten()[0])).parameter
        total = self.fresh(shape, parameter)
        rest = [term for other, term in enumerate(label.terms) if other != position and term[1].shape[axis] > 1]

        def fitted(array: Tensor) -> Tensor:
            for dim, length in enumerate(ids.shape):
                if length == 1:
                    array = array.narrow(dim, 0, 1)
            return array

        others = Label(tuple((-other / coefficient, fitted(array)) for other, array in rest))
        self._bind_to(ids, self.resolve(Label(((_ONE, total), *others.terms))))

    def tabulated(self, label: Label) -> Label:
        """Bind the entries of a table (rows x columns) to (unknown of the column) - (unknown of the row)."""
        label = self.resolve(label)
        if len(label.terms) == 1 and label.terms[0][0] == 1 and self._distinct(label, 0):
            ids = label.terms[0][1]
            rows = self.fresh((ids.shape[0], 1))
            rows[0] = ZERO
            self._bind(ids, self.fresh((1, ids.shape[1]), self.block(int(ids[0, 0])).parameter), rows)
        return self.resolve(label)

    def forced(self) -> dict[int, str]:
        """Unknowns an operation held at zero directly, with what was running then."""
        causes: dict[int, str] = {}
        for cause, ids in self._forced:
            for unknown in ids.tolist():
                causes.setdefault(unknown, cause)
        return causes

    def cause_of(self, unknown: int, forced: dict[int, str]) -> str | None:
        """Cause that held an unknown, or one of those it was bound to, at zero."""
        waiting, seen = [unknown], {ZERO}
        while waiting:
            current = waiting.pop()
            if current in forced:
                return forced[current]
            if current not in seen and int(self._plus[current]) != current:
                waiting += [int(self._minus[current]), int(self._plus[current])]
            seen.add(current)
        return None

    def tied(self) -> dict[int, str]:
        """Unbound unknowns in equations that could not be solved on the spot, with what was running last."""
        causes: dict[int, str] = {}
        for equation in self.equations:
            columns = zip(equation.coefficients, torch.unbind(equation.ids, dim=1), strict=True)
            for _, ids in self.resolve(Label(tuple(columns))).terms:
                causes |= dict.fromkeys(ids.unique().tolist(), equation.cause)
        return causes

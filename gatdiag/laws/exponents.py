"""The unknown exponents of a model and the linear equations between them.

Most equations are solved the moment they arise, whole arrays at a time: an unknown that an equation determines is
*bound*, value[i] = value[plus[i]] - value[minus[i]], and disappears. A matrix product, for instance, binds every entry
of its weight to (unknown of the row) - (exponent of the column). Equations that bind no unknown are kept for
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

from gatdiag.laws.bindings import Bindings
from gatdiag.laws.label import ZERO_EXPONENT, Label, merge_terms
from gatdiag.laws.reserved import Reserved
from gatdiag.laws.slices import deduplicate_slices, distinct_rows, expand_slices, first_slices, independent_axes

_ONE = Fraction(1)
_MANY = 4096  # entries above which looking for equal slices pays


class Block(NamedTuple):
    """Consecutive unknowns created by one call of `Exponents.new_unknowns`."""

    start: int
    length: int
    parameter: str | None  # name of the parameter they belong to
    is_entry: bool  # True: one per entry of the parameter; False: one per channel that its product writes


@dataclass(frozen=True)
class Equations:
    """One equation per row of `ids`: sum_k coefficients[k] * value[ids[row, k]] = 0."""

    coefficients: tuple[Fraction, ...]
    ids: Tensor
    cause: str = ""  # the operation they come from


@dataclass(frozen=True)
class Mixture:
    """The exponent of a sum whose summands scale differently: their weighted mean.

    d log |sum_j x_j| = sum_j share_j d log |x_j| with shares that add up to one and depend on the data. As long as such
    a common factor cancels (the norm in x / ||x||, if another normalization follows), the sum needs no equation. Where
    it does not, the mixture is resolved: its summands must scale alike.
    """

    label: Label  # of the summands
    axes: tuple[int, ...]  # summed over
    has_many_entries: bool  # whether the sum has several entries, each with shares of its own


@dataclass(frozen=True)
class Choice:
    """Entries that data choose along an axis, such as rows of an embedding: each has an unknown of its own.

    The next batch may choose others, so what holds for the chosen entries must hold for all. As long as their exponents
    cancel (a normalization follows), they need no equation. Where they do not, all entries must scale alike.
    """

    label: Label  # of all entries along the axis, the only one that it changes along
    axis: int
    start: int  # of the unknowns of the chosen entries
    count: int


class ConstantRow(NamedTuple):
    """The padding row of a table: looked up without a gradient, it is a constant, which fits exponents only if zero."""

    table: Tensor
    row: int
    label: Label  # of the rows that were looked up
    cause: str  # the operation


def _is_chosen(ids: Tensor, choice: Choice) -> Tensor:
    return (ids >= choice.start) & (ids < choice.start + choice.count)


class Exponents:
    """Unknowns, bindings and equations, filled while a forward pass is traced."""

    def __init__(self) -> None:
        self._bindings = Bindings()
        self._size = 1
        self._reserved: dict[int, Reserved] = {}
        self.blocks = [Block(ZERO_EXPONENT, 1, None, False)]  # in order of creation
        self._starts = [ZERO_EXPONENT]
        self.equations: list[Equations] = []  # those that bound no unknown
        self.approximations: list[Equations] = []  # those that hold only up to an epsilon of the model
        self.cause = ""  # the operation and module that are running, set by the tracer
        self.demands = 0  # how often something was required of labels that did not fulfill it yet
        self.coarse: Counter[str] = Counter()  # operations whose rule required more than the operation does
        self._required_zero: list[tuple[str, Tensor]] = []  # operation, the unknowns it required to be zero
        self._mixtures: dict[int, Mixture] = {}
        self._choices: list[Choice] = []  # those that no equation depends on yet
        self.constant_rows: list[ConstantRow] = []
        self.partly_read: set[str] = set()  # parameters that other inputs may read other slices of
        self.times_zeros: dict[str, Tensor] = {}  # parameter that multiplies zeros (a first state) -> mask of these

    def new_unknowns(self, shape: Sequence[int], parameter: str | None = None, *, is_entry: bool = False) -> Tensor:
        """Create one unknown per entry of `shape`."""
        start = self._add_block(shape, parameter, is_entry=is_entry)
        return torch.arange(start, self._size).reshape(torch.Size(shape))

    def reserve_entries(self, shape: Sequence[int], parameter: str) -> Tensor:
        """As `new_unknowns` for a parameter's entries, with ids that are not written down until a rule needs them."""
        if 0 in shape:
            return self.new_unknowns(shape, parameter, is_entry=True)
        reserved = Reserved(self._add_block(shape, parameter, is_entry=True), torch.Size(shape))
        self._reserved[reserved.key_of(reserved.ids)] = reserved
        return reserved.ids

    def _add_block(self, shape: Sequence[int], parameter: str | None, *, is_entry: bool) -> int:
        start, count = self._size, int(torch.Size(shape).numel())
        self.blocks.append(Block(start, count, parameter, is_entry))
        self._starts.append(start)
        self._size += count
        self._bindings.extend(self._size)
        return start

    def open(self, label: Label) -> Label:
        """The label without tensors that stand for reserved unknowns."""
        if not any(ids.is_meta for _, ids in label.terms):
            return label
        terms: list[tuple[Fraction, Tensor]] = []
        for coefficient, ids in label.terms:
            whole = self._reservation(ids).label_of(ids) if ids.is_meta else Label(((_ONE, ids),))
            terms += (whole * coefficient).terms
        return Label(tuple(terms), label.zeros)

    def knows_reserved(self, label: Label) -> bool:
        """Whether the tensors that stand for reserved unknowns in a label are views of the original ones."""
        return all(Reserved.key_of(ids) in self._reserved for _, ids in label.terms if ids.is_meta)

    def _reservation(self, ids: Tensor) -> Reserved:
        return self._reserved[Reserved.key_of(ids)]

    def _can_bind_reserved(self, label: Label) -> bool:
        """Whether a label has one term of reserved unknowns, to which an equation could bind all entries at once."""
        reserved = [ids for _, ids in label.terms if ids.is_meta]
        return len(reserved) == 1 and label.zeros is None and self._reservation(reserved[0]).can_bind(reserved[0])

    def block_of(self, unknown: int) -> Block:
        """The block that an unknown was created in."""
        return self.blocks[bisect_right(self._starts, unknown) - 1]

    def resolve(self, label: Label) -> Label:
        """Write a label in unbound unknowns only, with equal terms added up."""
        return self._resolve_but_reserved(self.open(label))

    def _resolve_but_reserved(self, label: Label) -> Label:
        label = Label(merge_terms(label.terms), label.zeros)
        while len(expanded := self._substitute_bound(label)) > len(label.terms):
            label = Label(merge_terms(expanded), label.zeros)
        return label

    def _substitute_bound(self, label: Label) -> list[tuple[Fraction, Tensor]]:
        expanded: list[tuple[Fraction, Tensor]] = []
        for coefficient, ids in label.terms:
            found = None if ids.is_meta else self._bindings.substitute(ids)
            expanded += [(coefficient, ids)] if found is None else zip((coefficient, -coefficient), found, strict=True)
        return expanded

    def collapse(self, label: Label) -> Tensor:
        """Write a label as one array of unknowns, new ones where it needs them."""
        label = self.resolve(label)
        if len(label.terms) > 1:
            label = self._resolve_choices(label)  # else as many as there are entries
        if not label.terms:
            return torch.full((1,) * label.ndim, ZERO_EXPONENT)
        if len(label.terms) == 1 and label.terms[0][0] == 1:
            return label.terms[0][1]
        if any(coefficient.denominator != 1 for coefficient, _ in label.terms):
            label = self.resolve_mixtures(label).drop_zero_mask()
            small, kinds = deduplicate_slices(label)
            total = self.new_unknowns(small.shape)
            whole = Label(((-_ONE, total), *small.terms))
            self.equations.append(Equations(whole.coefficients, self._rows(whole), self.cause))
            return expand_slices(total, kinds)
        terms = sorted(label.terms, key=lambda term: -term[0])
        arrays = [(coefficient > 0, ids) for coefficient, ids in terms for _ in range(abs(int(coefficient)))]
        total = arrays.pop(0)[1] if arrays[0][0] else torch.full((1,) * label.ndim, ZERO_EXPONENT)
        for is_positive, ids in arrays:
            subtrahend = self._new_difference(torch.tensor(ZERO_EXPONENT), ids) if is_positive else ids
            total = self._new_difference(total, subtrahend)
        return total

    def to_entries(self, label: Label, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """One unknown per entry of a tensor of `shape`, and the mask of zeros; `Label.from_entries` is the inverse."""
        return self.collapse(label.drop_zero_mask()).expand(shape), label.zero_mask.expand(shape)

    def _new_difference(self, plus: Tensor, minus: Tensor) -> Tensor:
        """New unknowns bound to plus - minus, no more than there are distinct slices along each axis."""
        small, kinds = deduplicate_slices(Label(((_ONE, plus), (-_ONE, minus))))
        total = self.new_unknowns(small.shape)
        self._bindings.bind(total, small.terms[0][1], small.terms[1][1])
        return expand_slices(total, kinds)

    def _bind_to_label(self, ids: Tensor, label: Label) -> None:
        label = label.with_ndim(ids.ndim)
        zero = torch.full((1,) * ids.ndim, ZERO_EXPONENT)
        signs = sorted(label.coefficients, reverse=True)
        if signs in ([], [1], [-1], [1, -1]):
            arrays = {int(coefficient): array for coefficient, array in label.terms}
            self._bindings.bind(ids, arrays.get(1, zero), arrays.get(-1, zero))
        else:
            self._bindings.bind(ids, self.collapse(label), zero)

    def require_zero(self, label: Label) -> None:
        """Require the exponent of every entry to be zero (entries that are zeros fit every exponent)."""
        if len(label.terms) == 1 and self._can_bind_reserved(label):
            ids = label.terms[0][1]
            self._reservation(ids).bind(ids, Label())
            return
        label = self.resolve_mixtures(self.resolve(label))
        if not label.terms or label.is_all_zeros:
            return
        self.demands += 1
        if len(label.terms) == 1:
            self._required_zero.append((self.cause, label.terms[0][1].unique()))
        rows = self._spanning_rows(label)
        column = self._choose_column(label.coefficients, rows)
        if column is not None and len(independent_axes(label)) < 2:  # else each unknown is in several rows
            rows = self._bind_rows(label.coefficients, rows, column)
        if len(rows):
            self.equations.append(Equations(label.coefficients, rows, self.cause))

    def require_zero_up_to_epsilon(self, label: Label) -> None:
        """Require the exponent to be zero unless a small epsilon is neglected: laws that violate it are approximate."""
        label = self._expand_choices(self._expand_mixtures(self.resolve(label)))
        if label.terms and not label.is_all_zeros:
            self.approximations.append(Equations(label.coefficients, self._spanning_rows(label)))

    def _spanning_rows(self, label: Label) -> Tensor:
        """Rows that span all rows of a label.

        If a_i + b_j = 0 is required of all i and j, those with i = 0 or j = 0 imply the others.
        """
        label = label.with_ndim(label.ndim)
        groups = independent_axes(label)
        if len(groups) < 2:
            return self._rows(label)
        others = [[axis for group in groups for axis in group if group is not kept] for kept in groups]
        return distinct_rows(torch.cat([self._rows(label.map(partial(first_slices, axes=axes))) for axes in others]))

    @staticmethod
    def _rows(label: Label) -> Tensor:
        """Distinct rows (one id per term) over all entries of a label, in ascending order."""
        if label.shape.numel() > _MANY:
            label, _ = deduplicate_slices(label)
        columns = [ids.expand(label.shape).flatten() for _, ids in label.terms]
        rows = torch.stack(columns, dim=1)
        if label.zeros is not None:
            rows = rows[~label.zeros.expand(label.shape).flatten()]
        return distinct_rows(rows)

    def _is_entry(self, unknown: int) -> bool:
        return self.block_of(unknown).is_entry

    def _choose_column(self, coefficients: Iterable[Fraction], rows: Tensor) -> int | None:
        """The column to solve for: entries of parameters before channels, late unknowns before early ones."""
        candidates = [
            (self._is_entry(int(rows[:, column].max())), int(rows[:, column].max()), column)
            for column, coefficient in enumerate(coefficients)
            if len(rows) and abs(coefficient) == 1
        ]
        return max(candidates)[2] if candidates else None

    def _bind_rows(self, coefficients: Sequence[Fraction], rows: Tensor, column: int) -> Tensor:
        """Bind the unknowns of one column that occur in one row only; return the other rows."""
        target = rows[:, column]
        others = [position for position in range(rows.shape[1]) if position != column]
        _, inverse, counts = target.unique(return_inverse=True, return_counts=True)
        free = (counts[inverse] == 1) & (target != ZERO_EXPONENT) & ~self._bindings.isin(target, [rows[:, others]])
        sign = -1 / coefficients[column]
        terms = tuple((coefficients[position] * sign, rows[free, position]) for position in others)
        self._bind_to_label(target[free], self.resolve(Label(terms)))
        return rows[~free]

    def require_equal(self, left: Label, right: Label) -> Label:
        """Require two tensors to scale alike, as a sum of them does; return the label of the sum."""
        if left.is_all_zeros or right.is_all_zeros:
            other = right if left.is_all_zeros else left
            return other.drop_zero_mask() if left.zeros is None or right.zeros is None else other
        self.require_zero(left - right)
        if left.zeros is None or right.zeros is None:
            return (left if left.zeros is None else right).with_ndim(max(left.ndim, right.ndim))
        ids = torch.where(left.zeros, self.collapse(right.drop_zero_mask()), self.collapse(left.drop_zero_mask()))
        return Label(((_ONE, ids),), left.zeros & right.zeros)

    def require_uniform(self, label: Label, axes: Iterable[int]) -> Label:
        """Require one exponent along each axis, as a sum over it does; the axes are kept with length one."""
        label = label if self._can_bind_reserved(label) else self.open(label)
        label, axes = self._resolve_but_reserved(label), list(axes)
        if label.is_all_zeros:
            return Label((), torch.ones((1,) * label.ndim, dtype=torch.bool))
        axes = [axis for axis in axes if label.changes_along([axis])]
        if not axes:
            return label
        label, kinds = deduplicate_slices(label) if label.shape.numel() > _MANY else (label, [])
        for axis in axes:
            if label.changes_along([axis]):
                label = self._require_uniform_along(label, axis)
        return label.map(lambda array: expand_slices(array, kinds)) if kinds else label

    def _require_uniform_along(self, label: Label, axis: int) -> Label:
        if label.zeros is not None and label.zeros.shape[axis] > 1:
            return self._require_uniform_beside_zeros(label, label.zeros, axis)
        label = self._resolve_mixtures_along(label, axis)
        target = self._choose_term(label, axis)
        if target is not None and not label.terms[target][1].is_meta:
            label = self.resolve(label)
            target = self._choose_term(label, axis)
        if target is not None:
            self._solve_for_term(label, target, axis)
            label = self.resolve(label)
        first = label.map(lambda array: array.narrow(axis, 0, 1))
        varying = Label(tuple(term for term in label.terms if term[1].shape[axis] > 1), label.zeros)
        self.require_zero(varying - varying.map(lambda array: array.narrow(axis, 0, 1)))
        return first

    def sum(self, label: Label, axes: Sequence[int], *, has_many_entries: bool) -> Label:
        """The label of a sum over axes, kept with length one; summands may scale differently as long as that cancels.

        Args:
            label: Of the summands.
            axes: Axes that are summed over.
            has_many_entries: Whether the sum has more than one entry.
        """
        label = self.resolve(label)
        varying = Label(tuple(term for term in label.terms if any(term[1].shape[axis] > 1 for axis in axes)))
        fixed = Label(tuple(term for term in label.terms if all(term[1].shape[axis] == 1 for axis in axes)))
        large = [mixture for mixture in self._mixtures_in(fixed) if self._mixtures[mixture].has_many_entries]
        varies_elsewhere = any(length > 1 for axis, length in enumerate(varying.shape) if axis not in axes)
        has_entries = any(self._is_entry(int(ids.max())) for _, ids in varying.terms)
        is_mixed_again = large and (has_many_entries or varying.terms)
        if label.zeros is not None or varies_elsewhere or has_entries or is_mixed_again:
            return self.require_uniform(self.resolve_mixtures(label), axes)
        if not varying.terms:
            return self._with_single_entries(fixed, large)
        unknown = self.new_unknowns((1,) * label.ndim)
        self._mixtures[int(unknown)] = Mixture(varying, tuple(axes), has_many_entries)
        return fixed + Label(((_ONE, unknown),))

    def choose(self, label: Label, axis: int, count: int) -> Label:
        """The label of so many entries that data choose along the only axis that the given label changes along."""
        if not count:  # nothing tells how these would be used
            return self.require_uniform(label, [axis])
        unknowns = self.new_unknowns([count if other == axis else 1 for other in range(label.ndim)])
        self._choices.append(Choice(label, axis, int(unknowns.min()), count))
        return Label(((_ONE, unknowns),))

    def stand_in(self, label: Label, are_zeros: Tensor, other: Label) -> Label:
        """The label of a factor with zeros that need not be zero in the next batch: they get unknown exponents.

        Args:
            label: Of the factor.
            are_zeros: Mask of the zeros along the axis that is summed over; all other axes have length one.
            other: Label of the factor that it multiplies.
        """
        self.note_zeros(are_zeros.flatten(), other)
        unknowns = self.new_unknowns(are_zeros.shape)
        if bool(are_zeros.all()):
            return Label(((_ONE, unknowns),))
        ids = torch.where(are_zeros, unknowns, self.collapse(label.drop_zero_mask()))
        return Label.from_entries(ids, label.zero_mask & ~are_zeros)

    def note_zeros(self, are_zeros: Tensor, other: Label) -> None:
        """Note that parameters multiply zeros where the mask says so, given the label of what does."""
        blocks = [self.block_of(self._last(ids)) for _, ids in self.resolve(other).terms]
        self.times_zeros |= {block.parameter: are_zeros for block in blocks if block.parameter}

    def _choices_in(self, label: Label) -> list[Choice]:
        arrays = [ids for _, ids in label.terms if not ids.is_meta]
        return [choice for choice in self._choices if any(bool(_is_chosen(ids, choice).any()) for ids in arrays)]

    def _resolve_choices(self, label: Label) -> Label:
        """Require all entries to scale alike that the ones in a label were chosen from."""
        for choice in self._choices_in(label):
            self._choices.remove(choice)
            total = self.require_uniform(choice.label, [choice.axis])
            unknowns = torch.arange(choice.start, choice.start + choice.count)
            self._bind_to_label(unknowns, total.map(lambda array: array.reshape(1)))
        return self.resolve(label)

    def _expand_choices(self, label: Label) -> Label:
        """Replace chosen entries by all that they were chosen from, along a new last axis."""
        for choice in self._choices_in(label):
            is_of_choice = [bool(_is_chosen(ids, choice).any()) for _, ids in label.terms]
            chosen = [term for term, is_chosen in zip(label.terms, is_of_choice, strict=True) if is_chosen]
            if len(chosen) > 1 or not bool(_is_chosen(chosen[0][1], choice).all()):
                label = self._resolve_choices(label)
                continue
            rest = Label(tuple(term for term in label.terms if term is not chosen[0]), label.zeros)
            every = choice.label.map(lambda array: array.reshape(-1)) * chosen[0][0]
            label = rest.map(lambda array: array.unsqueeze(-1)) + every
        return label

    def _with_single_entries(self, label: Label, mixtures: Sequence[int]) -> Label:
        """Replace these mixtures by ones whose sum has one entry."""
        terms = list(label.terms)
        for position, (coefficient, ids) in enumerate(terms):
            if ids.numel() == 1 and int(ids) in mixtures:
                unknown = self.new_unknowns(ids.shape)
                self._mixtures[int(unknown)] = replace(self._mixtures[int(ids)], has_many_entries=False)
                terms[position] = (coefficient, unknown)
        return Label(tuple(terms))

    def _mixtures_in(self, label: Label) -> list[int]:
        terms = [ids for _, ids in label.terms if not ids.is_meta]
        if not self._mixtures or not terms:
            return []
        known = [torch.tensor(list(self._mixtures))]
        return sorted({int(unknown) for ids in terms for unknown in ids[self._bindings.isin(ids, known)].unique()})

    def resolve_mixtures(self, label: Label, *, only_large: bool = False) -> Label:
        """Require the summands of each mixture in a label to scale alike; `only_large`: of those with many entries.

        Unless only the large mixtures are resolved, what the chosen entries in a label were chosen from, too.
        """
        for unknown in self._mixtures_in(label):
            mixture = self._mixtures[unknown]
            if mixture.has_many_entries or not only_large:
                del self._mixtures[unknown]
                total = self.require_uniform(mixture.label, mixture.axes)
                self._bind_to_label(torch.tensor([unknown]), total.map(lambda array: array.reshape(1)))
        return self.resolve(label) if only_large else self._resolve_choices(self.resolve(label))

    def _resolve_mixtures_along(self, label: Label, axis: int) -> Label:
        varying = Label(tuple(term for term in label.terms if term[1].shape[axis] > 1))
        if self._mixtures_in(varying) or self._choices_in(varying):
            self.resolve_mixtures(Label(tuple(term for term in varying.terms if not term[1].is_meta)))
        return self._resolve_but_reserved(label)

    def _expand_mixtures(self, label: Label) -> Label:
        """Replace each mixture by the label of its summands, along a new last axis."""
        terms: list[tuple[Fraction, Tensor]] = []
        mixed = Label()
        for coefficient, ids in label.terms:
            mixture = self._mixtures.get(int(ids)) if ids.numel() == 1 else None
            if mixture is None:
                terms.append((coefficient, ids))
            else:
                parts = mixture.label.map(lambda array: array.reshape(-1)) * coefficient
                mixed = mixed.map(lambda array: array.unsqueeze(-1)) + parts
        return (
            Label(tuple(terms), label.zeros).map(lambda array: array.reshape(array.shape + (1,) * mixed.ndim)) + mixed
            if mixed.terms
            else label
        )

    def _require_uniform_beside_zeros(self, label: Label, zeros: Tensor, axis: int) -> Label:
        """`_require_uniform_along` an axis with some entries that are zeros; these are skipped."""
        label = self._require_uniform_without_zeros(label.drop_zero_mask(), zeros, axis)
        fixed = tuple(term for term in label.terms if term[1].shape[axis] == 1)
        varying = Label(tuple(term for term in label.terms if term[1].shape[axis] > 1), zeros)
        empty = zeros.all(axis, keepdim=True)
        if not varying.terms:
            return Label(fixed, empty)
        ids, shape = self.collapse(varying.drop_zero_mask()), varying.shape
        zeros = zeros.expand(shape)
        first = ids.expand(shape).gather(axis, (~zeros).int().argmax(axis, keepdim=True))
        self.require_zero(Label(((_ONE, ids), (-_ONE, first)), zeros))
        return Label((*fixed, (_ONE, first)), empty)

    def _require_uniform_without_zeros(self, label: Label, zeros: Tensor, axis: int) -> Label:
        """Apply it first to the slices without zeros: what it binds there simplifies the others."""
        for other in range(zeros.ndim):
            is_whole = ~zeros.movedim(other, 0).flatten(1).any(1)
            if other == axis or len(is_whole) == 1 or not is_whole.any():
                continue
            slices = is_whole.nonzero().flatten()
            whole = [
                (sign, ids if ids.shape[other] == 1 else ids.index_select(other, slices)) for sign, ids in label.terms
            ]
            self._require_uniform_along(Label(tuple(whole)), axis)
            return self.resolve(label)
        return label

    def _choose_term(self, label: Label, axis: int) -> int | None:
        """The term to solve for when the label must not change along the axis: the largest, parameters first."""
        candidates = [
            (ids.numel(), self._is_entry(self._last(ids)), self._last(ids), position)
            for position, (coefficient, ids) in enumerate(label.terms)
            if ids.shape[axis] != 1 and abs(coefficient) == 1 and self._is_solvable(label, position)
        ]
        return max(candidates)[-1] if candidates else None

    def _last(self, ids: Tensor) -> int:
        """The latest unknown of a term."""
        return self._reservation(ids).last if ids.is_meta else int(ids.max())

    def _is_solvable(self, label: Label, position: int) -> bool:
        if label.terms[position][1].is_meta:
            return self._can_bind_reserved(label)
        ids = label.terms[position][1].flatten()
        rest = [array for other, (_, array) in enumerate(label.terms) if other != position and not array.is_meta]
        if bool((ids == ZERO_EXPONENT).any()) or not (bool((ids.diff() > 0).all()) or len(ids.unique()) == len(ids)):
            return False
        return not bool(self._bindings.isin(ids, rest).any())

    def _solve_for_term(self, label: Label, position: int, axis: int) -> None:
        """Bind the ids of one term so that the label no longer changes along the axis."""
        self.demands += 1
        coefficient, ids = label.terms[position]
        shape = list(ids.shape)
        shape[axis] = 1
        parameter = self.block_of(self._last(ids)).parameter
        total = self.new_unknowns(shape, parameter)
        rest = [term for other, term in enumerate(label.terms) if other != position and term[1].shape[axis] > 1]

        def fit(array: Tensor) -> Tensor:
            for dim, length in enumerate(ids.shape):
                if length == 1:
                    array = array.narrow(dim, 0, 1)
            return array

        others = Label(tuple((-other / coefficient, fit(array)) for other, array in rest))
        whole = self.resolve(Label(((_ONE, total), *others.terms)))
        if ids.is_meta:
            self._reservation(ids).bind(ids, whole)
        else:
            self._bind_to_label(ids, whole)

    def bind_table(self, label: Label) -> Label:
        """Bind the entries of a table (rows x columns) to (unknown of the column) - (unknown of the row)."""
        label = label if self._can_bind_reserved(label) else self.resolve(label)
        if len(label.terms) == 1 and label.terms[0][0] == 1 and self._is_solvable(label, 0):
            ids = label.terms[0][1]
            rows = self.new_unknowns((ids.shape[0], 1))
            rows[0] = ZERO_EXPONENT
            columns = self.new_unknowns((1, ids.shape[1]), self.block_of(self._last(ids)).parameter)
            if ids.is_meta:
                self._reservation(ids).bind(ids, Label(((_ONE, columns), (-_ONE, rows))))
            else:
                self._bindings.bind(ids, columns, rows)
        return self.resolve(label)

    def complete(self, parameters: Iterable[Tensor], *, holds_rest: bool = False) -> None:
        """Require that slices of a parameter scale alike if nothing was required of the exponents of some.

        A longer sequence reads more rows of a table of positions, and may read those again elsewhere.

        Args:
            parameters: What `reserve_entries` returned for them.
            holds_rest: Whether other entries that nothing was required of must keep their scale.
        """
        held = [self._reservation(parameter).entries for parameter in parameters if parameter.numel()]
        written = [ids for ids in held if ids is not None]
        if written:
            is_mentioned = self._is_mentioned(torch.cat([ids.flatten() for ids in written]))
            for ids, mask in zip(written, is_mentioned.split([ids.numel() for ids in written]), strict=True):
                rest = self._complete(ids, ~mask.reshape(ids.shape))
                if holds_rest and bool(rest.any()):
                    self.partly_read.add(self.block_of(int(ids.max())).parameter or "")
                    self.require_zero(Label(((_ONE, ids[rest]),)))

    def _complete(self, ids: Tensor, is_free: Tensor) -> Tensor:
        """`complete` one parameter, given the mask of the entries that nothing was required of; return those left."""
        for axis in range(ids.ndim if bool(is_free.any()) else 0):
            lines = is_free.movedim(axis, 0).flatten(1) if ids.ndim > 1 else is_free.unsqueeze(1)
            free, used = lines.all(1).nonzero().flatten(), (~lines).all(1).nonzero().flatten()
            if len(free) and len(used):
                label = self.resolve(Label(((_ONE, ids.index_select(axis, used)),)))
                if label.changes_along([axis]):
                    self.partly_read.add(self.block_of(int(ids.max())).parameter or "")
                    label = self.require_uniform(label, [axis])
                self._bind_to_label(ids.index_select(axis, free), label)
                return is_free.index_fill(axis, free, False)
        return is_free

    def _is_mentioned(self, ids: Tensor) -> Tensor:
        """Mask of the unknowns that something was required of."""
        labels = [mixture.label for mixture in self._mixtures.values()] + [choice.label for choice in self._choices]
        labels += [held.label for held in self._reserved.values() if held.label is not None and held.entries is None]
        arrays = [array for label in labels for _, array in label.terms]
        arrays += [equation.ids for equation in (*self.equations, *self.approximations)]
        arrays += [array for _, array in self._required_zero]
        return self._bindings.mentions(ids) | self._bindings.isin(ids, arrays)

    def zero_causes(self) -> dict[int, str]:
        """Unknown -> the operation that required it to be zero, of those that one did."""
        causes: dict[int, str] = {}
        for cause, ids in self._required_zero:
            for unknown in ids.tolist():
                causes.setdefault(unknown, cause)
        return causes

    def cause_of(self, unknown: int, zero_causes: dict[int, str]) -> str | None:
        """The operation that required an unknown, or one that it is bound to, to be zero."""
        waiting, seen = [unknown], {ZERO_EXPONENT}
        while waiting:
            current = waiting.pop()
            if current in zero_causes:
                return zero_causes[current]
            found = self._bindings.substitute(torch.tensor(current))
            if current not in seen and found is not None:
                waiting += [int(other) for other in reversed(found)]
            seen.add(current)
        return None

    def tie_causes(self) -> dict[int, str]:
        """Unbound unknown -> the last operation with an equation that could not be solved at once."""
        causes: dict[int, str] = {}
        for equation in self.equations:
            columns = zip(equation.coefficients, torch.unbind(equation.ids, dim=1), strict=True)
            for _, ids in self.resolve(Label(tuple(columns))).terms:
                causes |= dict.fromkeys(ids.unique().tolist(), equation.cause)
        return causes

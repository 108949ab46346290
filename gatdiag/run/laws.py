"""The laws in meta.json: written in a few lines a layer, read one by one, and their c from weights.

The laws of a layer differ in an index alone. So an entry of `laws.found` stands for `count` laws, of which each has all
its indices further by one step than the one before:

    {"name": "layer 1 (convs.0), neuron {neuron}", "kind": "neuron", "layer": "convs.0", "neuron": 0, "count": 64,
     "exact": true, "residual": [1.2e-16, ...], "terms": [
        {"exponent": "1", "parameter": "convs.0.lin.weight", "shape": [64, 1433], "axes": [0], "at": [[0, 1, 1]],
         "each": 1},
        {"exponent": "-1", "parameter": "convs.1.lin.weight", "shape": [64, 64], "axes": [1], "at": [[0, 1, 1]],
         "each": 1}]}

Law j of an entry, counted from 0, has the neuron `neuron` + j (null: none), which stands in its name in place of
{neuron} where `count` is above 1, and residual j (null: none was measured). It is the sum over its terms of exponent
times squared entries of the parameter: those at some positions along `axes`, with all that is on the other axes.
Positions count row by row over the lengths of these axes, and [first, count, step] in `at` are the positions
first + j each, first + j each + step, and so on. `count` is 1 where it is missing.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import isfinite, nan, prod
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from gatdiag.errors import InputError
from gatdiag.law import Law, Term

if TYPE_CHECKING:
    import pandas as pd

Entry: TypeAlias = Mapping[str, Any]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

MOST = 2**24  # laws, and positions of a term
_NEURON = "{neuron}"


def pack(laws: Iterable[Law]) -> list[dict[str, Any]]:
    """The entries that stand for these laws, in their order.

    Example:
        >>> laws = [Law(f"layer 1 (0), neuron {n}", "scale", "0", n, (), True, nan) for n in range(3)]
        >>> pack(laws)[0]["name"], pack(laws)[0]["count"]
        ('layer 1 (0), neuron {neuron}', 3)
    """
    entries: list[dict[str, Any]] = []
    for law in laws:
        entry = _entry(law)
        if not entries or not _joined(entries[-1], entry):
            entries.append(entry)
    for entry in entries:
        if entry["count"] == 1 and entry["neuron"] is not None:
            entry["name"] = entry["name"].replace(_NEURON, str(entry["neuron"]))
        if set(entry["residual"]) == {None}:
            entry["residual"] = None
    return entries


def _entry(law: Law) -> dict[str, Any]:
    before, number, after = ("", "", law.name) if law.neuron is None else law.name.rpartition(str(law.neuron))
    return {
        "name": f"{before}{_NEURON}{after}" if number else law.name,
        "kind": law.kind,
        "layer": law.layer,
        "neuron": law.neuron,
        "count": 1,
        "exact": law.exact,
        "residual": [float(f"{law.residual:.1e}") if isfinite(law.residual) else None],
        "terms": [
            {
                "exponent": str(term.exponent),
                "parameter": term.parameter,
                "shape": list(term.shape),
                "axes": list(term.axes),
                "at": _runs(_positions(term)),
                "each": 0,
            }
            for term in law.terms
        ],
    }


def _positions(term: Term) -> list[int]:
    lengths = [term.shape[axis] for axis in term.axes]
    strides = [prod(lengths[at + 1 :]) for at in range(len(lengths))]
    return [sum(at * stride for at, stride in zip(index, strides, strict=True)) for index in term.indices]


def _runs(positions: Sequence[int]) -> list[list[int]]:
    """Positions as [first, count, step].

    Example:
        >>> _runs([0, 1, 2, 7, 5])
        [[0, 3, 1], [7, 2, -2]]
    """
    runs: list[list[int]] = []
    for position in positions:
        last = runs[-1] if runs else [0, 0, 0]
        if last[1] == 1:
            last[1:] = [2, position - last[0]]
        elif last[1] and position == last[0] + last[1] * last[2]:
            last[1] += 1
        else:
            runs.append([position, 1, 1])
    return runs


def _joined(entry: dict[str, Any], law: dict[str, Any]) -> bool:
    """Add a law to an entry, if it is the next one of its kind there."""
    count, terms = entry["count"], entry["terms"]
    neuron = None if entry["neuron"] is None else entry["neuron"] + count
    if law["neuron"] != neuron or any(entry[key] != law[key] for key in ("name", "kind", "layer", "exact")):
        return False
    each = [_each(first, term, count) for first, term in zip(terms, law["terms"], strict=False)]
    if len(terms) != len(law["terms"]) or None in each or (count > 1 and each != [term["each"] for term in terms]):
        return False
    for term, step in zip(terms, each, strict=True):
        term["each"] = step
    entry["count"] += 1
    entry["residual"] += law["residual"]
    return True


def _each(first: Entry, term: Entry, count: int) -> int | None:
    """By how much the positions of a term move with each of so many laws; None if not all by the same."""
    if any(first[key] != term[key] for key in ("exponent", "parameter", "shape", "axes")):
        return None
    if [run[1:] for run in first["at"]] != [run[1:] for run in term["at"]]:
        return None
    moves = {run[0] - start[0] for start, run in zip(first["at"], term["at"], strict=True)}
    move = moves.pop() if len(moves) == 1 else 1
    return None if moves or move % count else move // count


@dataclass(frozen=True, eq=False)
class _Terms:
    """The terms of all laws of an entry that stand at one place in them."""

    parameter: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    exponent: Fraction
    positions: Integers
    each: int

    @classmethod
    def read(cls, term: Entry, count: int) -> "_Terms":
        shape, axes, each = tuple(term["shape"]), tuple(term["axes"]), int(term["each"])
        size = prod(shape[axis] for axis in axes)
        if sum(run[1] for run in term["at"]) > min(size, MOST):
            raise ValueError("more positions than there are")
        runs = [first + step * np.arange(number, dtype=np.int64) for first, number, step in term["at"]]
        positions = np.concatenate(runs)
        last = positions + (count - 1) * each
        if min(positions.min(), last.min()) < 0 or max(positions.max(), last.max()) >= size:
            raise ValueError(f"positions beyond the {size} there are")
        return cls(str(term["parameter"]), shape, axes, Fraction(term["exponent"]), positions, each)

    def term(self, number: int) -> Term:
        """Of the law with this number in its entry."""
        lengths = tuple(self.shape[axis] for axis in self.axes)
        positions = self.positions + number * self.each
        rows = np.stack(np.unravel_index(positions, lengths), 1).tolist() if lengths else [[]] * len(positions)
        return Term(self.parameter, self.shape, self.axes, tuple(map(tuple, rows)), self.exponent)

    def squares(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> Floats | None:
        """Squared entries of the parameter, summed over all axes but these; None if it is not among the weights."""
        weight = weights.get(self.parameter)
        if weight is None:
            return None
        if weight.shape != self.shape:
            raise InputError(f"The laws are of {self.parameter} of shape {self.shape}, got weights of {weight.shape}")
        others = tuple(axis for axis in range(weight.ndim) if axis not in self.axes)
        squares: Floats = np.square(weight, dtype=np.float64).sum(others).reshape(-1)
        return squares


class RecordedLaws(Sequence[Law]):
    """The laws of a recorded run, in the order of the positions in the column `law` of its table `neurons`.

    A sequence of `gatdiag.law.Law`, each with its name, layer, kind and terms, made when it is asked for.

    Attributes:
        entries: As they stand in meta.json.
    """

    def __init__(self, entries: Sequence[Entry], where: str) -> None:
        """For `Run.laws`.

        Args:
            entries: Of `laws.found`.
            where: What they are called in an error.

        Raises:
            InputError: The terms of an entry are damaged.
        """
        self.entries = entries
        self._ends = list(accumulate(entry.get("count", 1) for entry in entries))
        self._terms: list[tuple[_Terms, ...]] = []
        for number, entry in enumerate(entries):
            try:
                terms = tuple(_Terms.read(term, entry.get("count", 1)) for term in entry.get("terms") or ())
                _residual(entry, entry.get("count", 1) - 1)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise InputError(f'{where}: the terms in "laws.found.{number}" cannot be read ({error})') from error
            self._terms.append(terms)

    def __len__(self) -> int:
        """How many laws there are."""
        return self._ends[-1] if self._ends else 0

    def __repr__(self) -> str:
        """How many, of how many layers."""
        return f"RecordedLaws({len(self)} laws in {len({entry['layer'] for entry in self.entries})} layers)"

    @overload
    def __getitem__(self, position: int) -> Law: ...

    @overload
    def __getitem__(self, position: slice) -> list[Law]: ...

    def __getitem__(self, position: int | slice) -> Law | list[Law]:
        """The law at a position."""
        if isinstance(position, slice):
            return [self[at] for at in range(len(self))[position]]
        position = range(len(self))[position]
        at = bisect_right(self._ends, position)
        entry = self.entries[at]
        number = position - self._ends[at] + entry.get("count", 1)
        return Law(
            name=_name(entry, number),
            kind=entry.get("kind", "neuron"),
            layer=entry["layer"],
            neuron=_neuron(entry, number),
            terms=tuple(terms.term(number) for terms in self._terms[at]),
            exact=bool(entry.get("exact", True)),
            residual=_residual(entry, number),
        )

    @cached_property
    def table(self) -> "pd.DataFrame":
        """All but the terms: name, kind, layer, neuron, exact and residual, one row a law."""
        import pandas as pd

        def column(value: Callable[[Entry, int], Any]) -> list[Any]:
            return [value(entry, number) for entry in self.entries for number in range(entry.get("count", 1))]

        return pd.DataFrame(
            {
                "name": column(_name),
                "kind": column(lambda entry, _: entry.get("kind", "neuron")),
                "layer": column(lambda entry, _: entry["layer"]),
                "neuron": pd.array(column(_neuron), dtype="Int32"),
                "exact": np.array(column(lambda entry, _: entry.get("exact", True)), bool),
                "residual": np.array(column(_residual), float),
            }
        )

    def c(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> Floats:
        """c = sum_k e_k ||w_k||^2 of every law, as it was recorded for these weights.

        Args:
            weights: Name -> values, as `run.snapshot("final")` gives them.

        Returns:
            One value a law; NaN where a parameter is not among the weights, as where its layer was not recorded.

        Raises:
            InputError: A parameter has another shape.
        """
        squares: dict[tuple[str, tuple[int, ...]], Floats | None] = {}
        found = [np.zeros(0)]
        for entry, terms in zip(self.entries, self._terms, strict=True):
            count = entry.get("count", 1)
            values = np.zeros(count) if terms else np.full(count, nan)
            for term in terms:
                key = term.parameter, term.axes
                if key not in squares:
                    squares[key] = term.squares(weights)
                known = squares[key]
                places = term.positions + term.each * np.arange(count)[:, None]
                values += nan if known is None else float(term.exponent) * known[places].sum(1)
            found.append(values)
        return np.concatenate(found)


def _neuron(entry: Entry, number: int) -> int | None:
    return None if entry["neuron"] is None else int(entry["neuron"]) + number


def _name(entry: Entry, number: int) -> str:
    name, count = str(entry.get("name", "")), entry.get("count", 1)
    return name if count == 1 else name.replace(_NEURON, str(_neuron(entry, number)))


def _residual(entry: Entry, number: int) -> float:
    residuals = entry.get("residual")
    return nan if residuals is None or residuals[number] is None else float(residuals[number])

"""The laws in meta.json: a compact form, read one by one, and c of each from weights.

The laws of a layer differ in an index only. So an entry of `laws.found` stands for `count` laws, and the positions in
each term increase by a constant from one law to the next:

    {"name": "layer 1 (convs.0), neuron {neuron}", "kind": "neuron", "layer": "convs.0", "neuron": 0, "count": 64,
     "exact": true, "residual": [1.2e-16, ...], "terms": [
        {"exponent": "1", "parameter": "convs.0.lin.weight", "shape": [64, 1433], "axes": [0], "at": [0], "each": 1},
        {"exponent": "-1", "parameter": "convs.1.lin.weight", "shape": [64, 64], "axes": [1], "at": [0], "each": 1}]}

Law j of an entry, counted from 0, has the neuron `neuron` + j (null: none), which replaces {neuron} in its name, and
residual j (null: none was measured). Its c is the sum over its terms of the exponent times the squared entries of the
parameter at the positions `at` + j `each`: flat indices, in row-major order, over the lengths of `axes`, with all
entries of the other axes. Defaults of missing keys: `count` 1, `exact` true, `kind` "neuron", `residual` null.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import isfinite, nan, prod
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from gatdiag.card import card
from gatdiag.errors import InputError
from gatdiag.law import Law, Term
from gatdiag.names import quote

if TYPE_CHECKING:
    import pandas as pd

Entry: TypeAlias = Mapping[str, Any]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_NEURON = "{neuron}"
_DEFAULTS = {"name": "", "kind": "neuron", "count": 1, "exact": True, "residual": None, "terms": None}
_SAME = ("name", "kind", "layer", "exact")
_SAME_IN_TERMS = ("exponent", "parameter", "shape", "axes")


def pack(laws: Iterable[Law]) -> list[dict[str, Any]]:
    """Pack laws into entries of `laws.found`, in the same order.

    Example:
        >>> laws = [Law(f"layer 1 (0), neuron {n}", "scale", "0", n, (), True, nan) for n in range(3)]
        >>> pack(laws)[0]["name"], pack(laws)[0]["count"]
        ('layer 1 (0), neuron {neuron}', 3)
    """
    entries: list[dict[str, Any]] = []
    for law in laws:
        entry = _entry(law)
        if not entries or not _try_extend(entries[-1], entry):
            entries.append(entry)
    for entry in entries:
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
                "at": term.positions(),
                "each": 0,
            }
            for term in law.terms
        ],
    }


def _try_extend(entry: dict[str, Any], law: dict[str, Any]) -> bool:
    """Add a law to an entry if it continues it; returns whether it did."""
    count, terms = entry["count"], law["terms"]
    neuron = None if entry["neuron"] is None else entry["neuron"] + count
    if law["neuron"] != neuron or any(entry[key] != law[key] for key in _SAME) or len(terms) != len(entry["terms"]):
        return False
    strides = [_stride(first, term, count) for first, term in zip(entry["terms"], terms, strict=True)]
    if None in strides or (count > 1 and strides != [term["each"] for term in entry["terms"]]):
        return False
    for term, stride in zip(entry["terms"], strides, strict=True):
        term["each"] = stride
    entry["count"] += 1
    entry["residual"] += law["residual"]
    return True


def _stride(first: Entry, term: Entry, count: int) -> int | None:
    """By how much the positions of a term increase per law, `count` laws after the first; None if not uniformly."""
    if any(first[key] != term[key] for key in _SAME_IN_TERMS) or len(first["at"]) != len(term["at"]):
        return None
    increases = {now - start for start, now in zip(first["at"], term["at"], strict=True)}
    increase = increases.pop() if increases else 0
    return None if increases or increase % count else increase // count


@dataclass(frozen=True, eq=False)
class _Terms:
    """Corresponding terms of all laws of an entry."""

    parameter: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    exponent: Fraction
    at: Integers
    each: int

    @classmethod
    def read(cls, term: Entry, count: int) -> "_Terms":
        shape, axes, at = tuple(term["shape"]), tuple(term["axes"]), np.array(term["at"], np.int64)
        if at.max(initial=-1) + (count - 1) * term["each"] >= prod(shape[axis] for axis in axes):
            raise IndexError(f"a law has positions outside {quote(term['parameter'])}")
        return cls(term["parameter"], shape, axes, Fraction(term["exponent"]), at, term["each"])

    def term(self, number: int) -> Term:
        """The term of the law with this number in its entry."""
        lengths = tuple(self.shape[axis] for axis in self.axes)
        positions = self.at + number * self.each
        rows = np.stack(np.unravel_index(positions, lengths), 1).tolist() if lengths else [[]] * len(positions)
        return Term(self.parameter, self.shape, self.axes, tuple(map(tuple, rows)), self.exponent)

    def squares(self, weight: np.ndarray[Any, Any]) -> Floats:
        """Squared entries of the parameter, summed over all other axes."""
        if weight.shape != self.shape:
            raise InputError(f"Expected weights of shape {self.shape} for {self.parameter}, got {weight.shape}")
        others = tuple(axis for axis in range(weight.ndim) if axis not in self.axes)
        squares: Floats = np.square(weight, dtype=np.float64).sum(others).reshape(-1)
        return squares


class RecordedLaws(Sequence[Law]):
    """The laws of a recorded run: a sequence of `gatdiag.law.Law`, indexed by the column `law` of the table `neurons`.

    Args:
        entries: The entries of `laws.found` in meta.json.

    Raises:
        ValueError: An exponent is no fraction.
        LookupError: A position is outside its parameter, or residuals are missing.

    Attributes:
        entries: The entries.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._entries = [{**_DEFAULTS, **entry} for entry in entries]
        self._ends = list(accumulate(entry["count"] for entry in self._entries))
        self._terms = [
            tuple(_Terms.read(term, entry["count"]) for term in entry["terms"] or ()) for entry in self._entries
        ]
        if any(len(entry["residual"] or ()) not in (0, entry["count"]) for entry in self._entries):
            raise IndexError("a law has no residual, or one too many")

    def __len__(self) -> int:
        """The number of laws."""
        return self._ends[-1] if self._ends else 0

    def __repr__(self) -> str:
        """For example ``RecordedLaws(576 laws in 9 layers)``."""
        return f"RecordedLaws({len(self)} laws in {len({entry['layer'] for entry in self.entries})} layers)"

    def _repr_html_(self) -> str:
        counts: dict[str, int] = {}
        for entry in self._entries:
            counts[entry["layer"]] = counts.get(entry["layer"], 0) + entry["count"]
        return card(repr(self), rows=[(layer, f"{count} laws") for layer, count in counts.items()])

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
        number = position - self._ends[at] + self._entries[at]["count"]
        terms = tuple(terms.term(number) for terms in self._terms[at])
        return Law(**_law_fields(self._entries[at], number), terms=terms)

    @cached_property
    def table(self) -> "pd.DataFrame":
        """The laws without their terms: name, kind, layer, neuron, exact and residual, one row per law."""
        import pandas as pd

        rows = [_law_fields(entry, number) for entry in self._entries for number in range(entry["count"])]
        table = pd.DataFrame(rows, columns=["name", "kind", "layer", "neuron", "exact", "residual"])
        return table.astype({"neuron": "Int32", "exact": "bool", "residual": "float64"})

    def c(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> Floats:
        """c = sum_k e_k ||w_k||^2 of every law, computed from weights.

        Args:
            weights: Name -> values, such as `run.snapshot("final")`.

        Returns:
            (laws,). NaN where a parameter is missing in `weights`, as those of layers that were not recorded.

        Raises:
            InputError: A parameter has another shape.
        """
        squares: dict[tuple[str, tuple[int, ...]], Floats] = {}
        found = [np.zeros(0)]
        for entry, terms in zip(self._entries, self._terms, strict=True):
            values = np.full(entry["count"], 0.0 if terms else nan)
            for term in terms:
                if term.parameter not in weights:
                    values += nan
                    continue
                key = term.parameter, term.axes
                if key not in squares:
                    squares[key] = term.squares(weights[term.parameter])
                positions = term.at + term.each * np.arange(len(values))[:, None]
                with np.errstate(invalid="ignore"):  # c of infinite weights is NaN
                    values += float(term.exponent) * squares[key][positions].sum(1)
            found.append(values)
        return np.concatenate(found)


def _law_fields(entry: Entry, number: int) -> dict[str, Any]:
    """The fields, except the terms, of the law with this number in its entry."""
    neuron = None if entry["neuron"] is None else int(entry["neuron"]) + number
    residual = entry["residual"][number] if entry["residual"] else None
    return {
        "name": entry["name"] if neuron is None else entry["name"].replace(_NEURON, str(neuron)),
        "kind": entry["kind"],
        "layer": entry["layer"],
        "neuron": neuron,
        "exact": bool(entry["exact"]),
        "residual": nan if residual is None else float(residual),
    }

"""Turn the solutions of the equations into laws with names."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from torch import Tensor

from gatdiag.law import Kind, Law, Term
from gatdiag.laws.label import Label
from gatdiag.laws.solver import Basis
from gatdiag.structure.deadline import check_time


class Place(NamedTuple):
    """The place of a parameter in the model."""

    number: int  # of its layer, in order of execution from 1
    layer: str  # module path of its layer
    order: int  # position of the parameter among all parameters
    shape: tuple[int, ...]
    is_feature_weight: bool  # whether it multiplies features


def assemble(labels: Mapping[str, Label], basis: Basis, places: Mapping[str, Place]) -> list[Law]:
    """One law per basis vector that scales a parameter, in order of execution; their residuals are NaN.

    Args:
        labels: Name of a parameter -> its label in unbound unknowns.
        basis: The solutions.
        places: Name of a parameter -> its place.
    """
    laws: list[tuple[tuple[int, ...], Law]] = []
    for vector, exponents in enumerate(_entry_exponents(labels, basis, places)):
        check_time()
        terms = _make_terms(exponents, places)
        if terms:
            kind, layer, neuron, name = _describe_law(terms, places)
            place = places[terms[0].parameter]
            key = (place.number, place.order, *terms[0].indices[0])
            laws.append((key, Law(name, kind, layer, neuron, terms, basis.exact[vector], math.nan)))
    return _make_names_unique([law for _, law in sorted(laws, key=lambda pair: pair[0])])


def _make_names_unique(laws: list[Law]) -> list[Law]:
    """Add to names that several laws share a term that distinguishes them."""
    alike: dict[str, list[Law]] = defaultdict(list)
    for law in laws:
        alike[law.name].append(law)
    marks = {name: _distinguishing_marks(group) for name, group in alike.items() if len(group) > 1}
    return [replace(law, name=_add_mark(law.name, next(marks[law.name]))) if law.name in marks else law for law in laws]


def _add_mark(name: str, mark: str) -> str:
    where, _, neuron = name.rpartition(", ")  # it stays last: runs store the names of all neurons of a layer as one
    return f"{where}, {mark}, {neuron}"


def _distinguishing_marks(laws: Sequence[Law]) -> Iterator[str]:
    """For each of several laws, the parameter of a term that the others do not have, or the term itself."""
    counts = Counter(term for law in laws for term in law.terms)
    own = [[term for term in law.terms if counts[term] == 1][:1] or law.terms for law in laws]
    marks = [f"{terms[0].kind} of {terms[0].parameter}" for terms in own]
    if len(set(marks)) < len(laws):
        marks = [" ".join(map(str, terms)).removeprefix("+ ").removeprefix("- ") for terms in own]
    return iter(marks)


_Parts = list[tuple[int, Fraction]]  # basis vector, exponent
# (parameter, axes) -> index along these axes -> exponent
_Exponents = dict[tuple[str, tuple[int, ...]], dict[tuple[int, ...], Fraction]]


def _entry_exponents(labels: Mapping[str, Label], basis: Basis, places: Mapping[str, Place]) -> list[_Exponents]:
    """The exponents of all parameters, for each basis vector."""
    found: list[_Exponents] = [defaultdict(dict) for _ in basis.free]
    parts_of: dict[Fraction, dict[int, _Parts]] = defaultdict(dict)  # by unknown, as many parameters share one
    for name, label in labels.items():
        shape = places[name].shape
        if 0 in shape:
            continue
        for coefficient, ids in label.terms:
            axes = _kept_axes(ids, shape)
            indices = product(*(range(shape[axis]) for axis in axes))
            check_time()
            parts = parts_of[coefficient]
            for index, unknown in zip(indices, ids.flatten().tolist(), strict=True):
                if unknown not in parts:
                    parts[unknown] = [(v, coefficient * value) for v, value in basis.values.get(unknown, {}).items()]
                for vector, value in parts[unknown]:
                    entries = found[vector][name, axes]
                    entries[index] = entries[index] + value if index in entries else value
    return found


def _kept_axes(ids: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """The axes that a label changes along; all axes if it has the shape of the parameter."""
    if tuple(ids.shape) == tuple(shape):
        return tuple(range(len(shape)))
    return tuple(axis for axis, length in enumerate(ids.shape) if length > 1)


def _make_terms(exponents: _Exponents, places: Mapping[str, Place]) -> tuple[Term, ...]:
    """Terms in order of execution, the first one positive, positive ones before negative ones."""
    ordered = sorted(exponents.items(), key=lambda item: _sort_key(item[0][0], item[0][1], places))
    terms = [
        Term(name, places[name].shape, axes, tuple(sorted(indices)), exponent)
        for (name, axes), entries in ordered
        for exponent, indices in _group_by_exponent(entries)
    ]
    if terms and terms[0].exponent < 0:
        terms = [replace(term, exponent=-term.exponent) for term in terms]
    return (*(term for term in terms if term.exponent > 0), *(term for term in terms if term.exponent < 0))


def _group_by_exponent(entries: Mapping[tuple[int, ...], Fraction]) -> Iterable[tuple[Fraction, list[tuple[int, ...]]]]:
    """The non-zero exponents, each with its indices."""
    grouped: dict[tuple[int, int], tuple[Fraction, list[tuple[int, ...]]]] = {}  # hashing a Fraction is slow
    for index, exponent in entries.items():
        if exponent:
            grouped.setdefault(exponent.as_integer_ratio(), (exponent, []))[1].append(index)
    return grouped.values()


def _sort_key(name: str, axes: tuple[int, ...], places: Mapping[str, Place]) -> tuple[int, bool, int, tuple[int, ...]]:
    place = places[name]
    return (place.number, not place.is_feature_weight, place.order, axes)


def _describe_law(terms: Sequence[Term], places: Mapping[str, Place]) -> tuple[Kind, str, int | None, str]:
    """Kind, layer, neuron and name of a law."""
    first = terms[0]
    place = places[first.parameter]
    where = f"layer {place.number} ({place.layer})"
    neuron = first.indices[0][-1] if len(first.indices) == 1 and first.indices[0] else None
    scope = "all neurons" if neuron is None else f"neuron {neuron}"
    writers = _layers_of((term for term in terms if term.exponent > 0), places)
    readers = _layers_of((term for term in terms if term.exponent < 0), places)
    factors = _layers_of(
        (term for term in terms if term.exponent < 0 and places[term.parameter].is_feature_weight), places
    )
    if not readers or (readers == writers and not factors):
        return "scale", place.layer, neuron, f"{where}, {scope} scale"
    if len(writers) > 1:
        channel = "all channels" if neuron is None else f"channel {neuron}"
        return "stream", place.layer, neuron, f"residual stream, {channel}"
    if readers == writers:
        channel = f"{_product_name(first)} channel {'all' if neuron is None else neuron}"
        return "product", place.layer, neuron, f"{where}, {channel}"
    return "neuron", place.layer, neuron, f"{where}, {scope}"


def _layers_of(terms: Iterable[Term], places: Mapping[str, Place]) -> set[str]:
    return {places[term.parameter].layer for term in terms}


def _product_name(term: Term) -> str:
    name = term.parameter.lower()
    return "query/key" if any(word in name for word in ("query", "key", "q_proj", "k_proj", "in_proj")) else "product"

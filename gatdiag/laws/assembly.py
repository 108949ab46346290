"""Turn the solutions of the equations into laws with names."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gatdiag.law import Kind, Law, Term
from gatdiag.laws.label import Label
from gatdiag.laws.solver import Basis
from gatdiag.laws.terms import collect_terms
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
    shapes = {name: place.shape for name, place in places.items()}
    for vector, terms in collect_terms(labels, basis, shapes, partial(_sort_key, places)):
        check_time()
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


def _sort_key(places: Mapping[str, Place], name: str, axes: tuple[int, ...]) -> tuple[int, bool, int, tuple[int, ...]]:
    place = places[name]
    return (place.number, not place.is_feature_weight, place.order, axes)


def _describe_law(terms: Sequence[Term], places: Mapping[str, Place]) -> tuple[Kind, str, int | None, str]:
    """Kind, layer, neuron and name of a law."""
    first = terms[0]
    place = places[first.parameter]
    where = f"layer {place.number} ({place.layer})"
    neuron = first.indices[0][-1] if len(first.indices) == 1 and first.indices[0] else None
    scope = "all neurons" if neuron is None else f"neuron {neuron}"
    writers, readers, factors = set[str](), set[str](), set[str]()  # layers
    for term in terms:
        owner = places[term.parameter]
        is_positive = term.exponent.numerator > 0
        (writers if is_positive else readers).add(owner.layer)
        if owner.is_feature_weight and not is_positive:
            factors.add(owner.layer)
    if not readers or (readers == writers and not factors):
        return "scale", place.layer, neuron, f"{where}, {scope} scale"
    if len(writers) > 1:
        channel = "all channels" if neuron is None else f"channel {neuron}"
        return "stream", place.layer, neuron, f"residual stream, {channel}"
    if readers == writers:
        channel = f"{_product_name(first)} channel {'all' if neuron is None else neuron}"
        return "product", place.layer, neuron, f"{where}, {channel}"
    return "neuron", place.layer, neuron, f"{where}, {scope}"


def _product_name(term: Term) -> str:
    name = term.parameter.lower()
    return "query/key" if any(word in name for word in ("query", "key", "q_proj", "k_proj", "in_proj")) else "product"

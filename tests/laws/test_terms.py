"""Terms made by arrays, against loops over entries and exact fractions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import torch

from gatdiag.law import Term
from gatdiag.laws.label import Label
from gatdiag.laws.solver import Basis
from gatdiag.laws.terms import collect_terms

SHAPES = {"matrix": (3, 4), "vector": (3,), "scalar": (), "filters": (4, 3, 2), "empty": (0, 3)}
ORDER = ["filters", "scalar", "matrix", "vector", "empty"]
Axes = tuple[int, ...]
Place = tuple[str, Axes]
Entries = dict[tuple[int, ...], Fraction]


def key(name: str, axes: Axes) -> tuple[int, Axes]:
    return ORDER.index(name), axes


def entries_of(labels: dict[str, Label], of_unknown: Callable[[int], Fraction | None]) -> dict[Place, Entries]:
    found: dict[Place, Entries] = {}
    for name, label in labels.items():
        shape = SHAPES[name]
        for coefficient, ids in label.terms if 0 not in shape else ():
            axes = tuple(a for a in range(len(shape)) if ids.shape == shape or ids.shape[a] > 1)
            for index in product(*(range(shape[a]) for a in axes)):
                at = tuple(index[axes.index(a)] if ids.shape[a] > 1 else 0 for a in range(len(shape)))
                value = of_unknown(int(ids[at]))
                if value is not None:
                    entries = found.setdefault((name, axes), {})
                    entries[index] = entries.get(index, Fraction(0)) + coefficient * value
    return found


def loops(labels: dict[str, Label], basis: Basis) -> Iterator[tuple[int, tuple[Term, ...]]]:
    for vector in range(len(basis.free)):
        found = entries_of(labels, lambda unknown: basis.values.get(unknown, {}).get(vector))
        terms = []
        for name, axes in sorted(found, key=lambda place: key(*place)):
            entries = {index: value for index, value in found[name, axes].items() if value}
            for exponent in dict.fromkeys(entries.values()):
                indices = tuple(sorted(index for index, value in entries.items() if value == exponent))
                terms.append(Term(name, SHAPES[name], axes, indices, exponent))
        sign = -1 if terms and terms[0].exponent < 0 else 1
        terms = [replace(term, exponent=sign * term.exponent) for term in terms]
        if terms:
            yield vector, tuple(sorted(terms, key=lambda term: term.exponent < 0))


def draw(seed: int, factor: int) -> tuple[dict[str, Label], Basis]:
    random = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    labels = {}
    for name, shape in SHAPES.items():
        terms = []
        for _ in range(number(1, 4)):
            lengths = [length if number(0, 2) else min(1, length) for length in shape]
            ids = torch.randint(0, 12, lengths, generator=random)
            terms.append((Fraction(number(1, 4) * (-1) ** number(0, 2), number(1, 3)), ids))
        labels[name] = Label(tuple(terms))
    values = {
        unknown: {v: Fraction(number(1, 3) * factor * (-1) ** number(0, 2), number(1, 4)) for v in range(number(0, 3))}
        for unknown in [7, 3, 5, 11, 2]
    }
    return labels, Basis((7, 3, 5), (True, False, True), values)


@pytest.mark.parametrize("factor", [1, 2**70])
@pytest.mark.parametrize("seed", range(20))
def test_terms_are_those_of_loops_over_entries(seed: int, factor: int) -> None:
    labels, basis = draw(seed, factor)

    assert list(collect_terms(labels, basis, SHAPES, key)) == list(loops(labels, basis))


def test_nothing_is_made_of_nothing() -> None:
    assert list(collect_terms({}, Basis((), (), {}), SHAPES, key)) == []
    assert list(collect_terms({}, Basis((1,), (True,), {1: {0: Fraction(1)}}), SHAPES, key)) == []

"""Laws put to the test by large steps along them, where rounding and a small violation look the same.

A residual of 1e-4 may be what single precision leaves of an exact law, or a bound of 1e-3 that some activations are
below. Multiplying weights by powers of two tells these apart: floating-point numbers scale by powers of two without
rounding, so along an exact law each gradient comes out the same to the last digit or so, however large its rounding.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gatdiag.law import Law, Term
from gatdiag.laws.point import Point, Tensors, gradients, place
from gatdiag.structure.deadline import check_time
from gatdiag.structure.isolation import random_state
from gatdiag.structure.replica import Replica

# Passes made to find out which of many laws do not hold; those that are not cleared by then do not count as laws.
_MOST_PASSES = 64
_POWERS = (-3, -2, -1, 1, 2, 3)


def violations(
    laws: Sequence[Law], suspects: Iterable[int], replica: Replica, points: Iterable[Point], tolerance: float
) -> dict[int, float]:
    """By how much gradients change where a law says that they do not, relative to the largest of its term.

    Args:
        laws: All candidates.
        suspects: Positions of those that are tested.
        replica: What is run; it is left at another point.
        points: Where the laws are tested. One point is enough to refute a law.
        tolerance: What changes up to this do not count.

    Returns:
        Position -> change, of those that do not hold.
    """
    left, found, generator = list(suspects), dict[int, float](), torch.Generator().manual_seed(2)
    passes = _MOST_PASSES
    for point in points:
        groups = [left] if left else []
        while groups:
            check_time()
            group = groups.pop()
            changes = _changes([laws[number] for number in group], replica, point, generator)
            passes -= 1
            if max(changes) <= tolerance:
                continue
            if len(group) == 1 or passes <= 0:
                found |= dict(zip(group, changes, strict=True))
            else:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        left = [number for number in left if number not in found]
    return found


def _changes(laws: Sequence[Law], replica: Replica, point: Point, generator: torch.Generator) -> list[float]:
    """What each law's own gradients do when all of these laws are followed at once."""
    powers = {name: torch.zeros(weight.shape, dtype=torch.float64) for name, weight in point.weights.items()}
    for law in laws:
        whole = math.lcm(*(term.exponent.denominator for term in law.terms))
        step = _POWERS[int(torch.randint(len(_POWERS), (), generator=generator))] * whole
        for term in law.terms:
            powers[term.parameter][_slice(term)] += step * float(term.exponent)
    factors: Tensors = {name: (2.0**power).to(point.weights[name]) for name, power in powers.items()}
    place(replica, {name: weight * factors[name] for name, weight in point.weights.items()})
    wanted: Tensors = {name: replica.parameters[name] for name in point.gradients}
    with random_state(point.seed, {weight.device for weight in factors.values()}):
        (moved,) = gradients(replica, wanted, [0.0], [])
    return [max(_change(term, point.gradients, moved, factors) for term in law.terms) for law in laws]


def _change(term: Term, before: Tensors, after: Tensors, factors: Tensors) -> float:
    chosen, name = _slice(term), term.parameter
    old = before[name][chosen]
    new = after[name][chosen] * factors[name][chosen] if name in after else torch.zeros_like(old)
    size = float(old.abs().max()) if old.numel() else 0.0
    difference = float((new - old).abs().max()) if old.numel() else 0.0
    return difference / size if size else math.inf if difference else 0.0


def _slice(term: Term) -> tuple[Any, ...]:
    """What indexes a term's entries."""
    places: list[Any] = [slice(None)] * len(term.shape)
    for axis, positions in zip(term.axes, zip(*term.indices, strict=True), strict=True):
        places[axis] = torch.tensor(positions)
    return tuple(places)

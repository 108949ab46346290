"""The check that every law must pass: gradients at random points, in float64, and large steps along it where in doubt.

A residual of 1e-4 may be what single precision leaves of an exact law, or a bound of 1e-3 that some activations are
below. Multiplying weights by powers of two tells these apart: floating-point numbers scale by powers of two without
rounding, so along an exact law each gradient comes out the same to the last digit or so, however large its rounding.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gatdiag.errors import ModelError
from gatdiag.law import Exclusion, Law, Term
from gatdiag.laws.laws import Laws
from gatdiag.laws.no_effect import without_effect
from gatdiag.laws.point import Point, Tensors, at, elsewhere, near, place, seeded_gradients, trainable
from gatdiag.laws.rules.call import EPSILON
from gatdiag.structure.deadline import check_time
from gatdiag.structure.replica import Replica, replicate


class Precision(NamedTuple):
    """Limits on the numbers of a check."""

    residual: float  # the largest of an exact law
    rounding: float  # below this a residual is rounding; above, large steps along the law tell it from a violation
    change: float  # by how much gradients may change along these steps


_DOUBLE = Precision(1e-8, 1e-12, 1e-11)
_SINGLE = Precision(1e-3, 0.0, 2e-6)
# Largest residual of an approximate law once the epsilons are gone.
_WITHOUT_EPSILON = 1e-6
# Points tried further where the first says nothing about a law, because units are dead or an epsilon rules.
_POINTS = 5
# Passes made to find out which of many laws do not hold; those that are not cleared by then do not count as laws.
_MOST_PASSES = 64
_POWERS = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True)
class Evidence:
    """Results of forward and backward passes at a random point."""

    replica: Replica  # the model on its inputs, at the point
    precision: Precision
    point: Point  # near the model's own weights
    unreached: tuple[str, ...]  # trainable parameters that never reach the output
    no_effect: Tensors  # name -> mask of entries that take part in the computation but cancel out of the output
    unsearched: str | None  # why such entries could not be looked for, if they could not


def gather(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], layer_of: Mapping[str, str]) -> Evidence:
    """Look at the gradients of a replica at a random point, in float64; in its own precision if it has no other.

    The point is the model's own weights times random factors near one, with small numbers in place of zeros and of what
    is not finite, so that nothing overflows or vanishes however deep the network is; it falls back to the model's own
    weights where even that does.
    """
    try:
        return _gathered(replicate(model, args, kwargs).to(torch.float64), layer_of, _DOUBLE)
    except ModelError:
        return _gathered(replicate(model, args, kwargs), layer_of, _SINGLE)


def _gathered(replica: Replica, layer_of: Mapping[str, str], precision: Precision) -> Evidence:
    generator = torch.Generator().manual_seed(0)
    replica.perturb_inputs(generator)
    # a NaN among the weights says nothing about the laws: it is replaced as zeros are
    own = {name: tensor.detach().nan_to_num(0.0, 0.0, 0.0) for name, tensor in trainable(replica).items()}
    point = near(replica, own, generator) or at(replica, own)
    if point is None:
        raise ModelError(
            "The gradients of the model are not finite, at its own weights and near them, so no law can be checked. "
            "Give weights and inputs for which the forward and backward pass are finite."
        )
    masks, unsearched = without_effect(replica, point, layer_of, generator)
    unreached = tuple(name for name in own if name not in point.gradients)
    return Evidence(replica, precision, point, unreached, masks, unsearched)


def checked(candidates: list[Law], evidence: Evidence) -> tuple[list[Law], list[Exclusion]]:
    """Each law with the residual it shows; those that fail the check are turned into exclusions.

    An exact law must hold at two points, or at most of several where units are dead or attention is saturated, for a
    gradient is nothing but rounding there; and along large steps where anything is left in doubt. At a few it may hold
    by chance: a unit above zero on all inputs does not tell a wrong backward pass from that of ReLU. An approximate law
    must hold to rounding once the epsilons are gone, at one of several points. A law between weights that no gradient
    reaches at any point stands on the equations alone, with a residual of NaN; a scale that no gradient reaches is an
    unused row of an embedding, and no law.
    """
    replica, precision = evidence.replica, evidence.precision
    exact = torch.tensor([law.exact for law in candidates], dtype=torch.bool)
    laws = Laws(candidates, evidence.point.weights)
    points = [evidence.point]
    seen = _residuals(laws, evidence.point)[None]
    for point in elsewhere(replica, evidence.point, _POINTS):
        points.append(point)
        seen = torch.cat([seen, _residuals(laws, point)[None]])
        says = seen.isfinite()
        if bool((~exact | (says.any(0) & (~says | (seen <= precision.residual)).all(0))).all()):
            break
    doubtful = exact & (seen.nan_to_num() > precision.rounding).any(0)
    broken = violations(candidates, doubtful.nonzero().flatten().tolist(), replica, points, precision.change)
    residuals = torch.where(exact, _of_most(seen), seen[0])
    verdicts = residuals if bool(exact.all()) else torch.where(exact, residuals, _without_epsilon(laws, evidence))
    kept, failed, unmet = [], [], Counter[str]()
    for number, law in enumerate(candidates):
        verdict = float(verdicts[number])
        if math.isnan(verdict) and law.kind == "scale":
            unmet[law.layer] += 1
        elif number in broken:
            failed.append(Exclusion(law.name, f"large steps along it change gradients by {broken[number]:.1e} of them"))
        elif verdict > max(precision.residual, 0 if law.exact else _WITHOUT_EPSILON):
            failed.append(Exclusion(law.name, f"the numerical check left a residual of {verdict:.1e}"))
        else:
            kept.append(replace(law, residual=float(residuals[number])))
    reason = "no gradient reaches them on these inputs"
    return kept, failed + [Exclusion(f"{count} entries of {layer}", reason) for layer, count in unmet.items()]


def _residuals(laws: Laws, point: Point) -> Tensor:
    return laws.at(point.weights).residual(point.gradients).cpu()


def _of_most(residuals: Tensor) -> Tensor:
    """What more than half of the residuals of each law do not exceed (points x laws); NaN where no point says any."""
    says = (~residuals.isnan()).sum(0, keepdim=True)
    return residuals.sort(0).values.gather(0, says // 2)[0]


def _smallest(residuals: Tensor) -> Tensor:
    """The smallest residual of each law (points x laws); NaN where no point says anything."""
    smallest = residuals.nan_to_num(math.inf, math.inf).amin(0)
    return torch.where(smallest.isinf(), math.nan, smallest)


def _without_epsilon(laws: Laws, evidence: Evidence) -> Tensor:
    """The smallest residual of each law at one of several points, once epsilons are gone; until all are small."""
    replica, weights, seen = evidence.replica, evidence.point.weights, list[Tensor]()
    exact = torch.tensor([law.exact for law in laws])
    with WithoutEpsilon():
        for point in chain([at(replica, weights)], elsewhere(replica, evidence.point, _POINTS)):
            seen += [_residuals(laws, point)] if point else []
            if seen and bool((exact | (_smallest(torch.stack(seen)) <= _WITHOUT_EPSILON)).all()):
                break
    return _smallest(torch.stack(seen)) if seen else torch.full((len(laws),), math.nan, dtype=torch.float64)


_NAMES = (
    "add sub rsub radd iadd isub clamp clamp_min clip batch_norm layer_norm group_norm instance_norm rms_norm "
    "normalize local_response_norm cosine_similarity"
)
_GUARDS = frozenset(_NAMES.split())


class WithoutEpsilon(TorchFunctionMode):
    """While active, small constants that are added, or given to a normalization, are made negligible.

    An approximate law is exact for the model without its epsilons. They are left far below rounding, yet not zero, so
    that 0 / 0 stays guarded.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Shrink the constants of guards against division by zero."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").strip("_") in _GUARDS:
            args = tuple(map(_shrunk, args))
            kwargs = {name: _shrunk(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _shrunk(value: Any) -> Any:
    return value * 1e-12 if isinstance(value, float) and 0 < abs(value) <= EPSILON else value


def violations(
    laws: Sequence[Law], suspects: Iterable[int], replica: Replica, points: Iterable[Point], tolerance: float
) -> dict[int, float]:
    """Changes of gradients where a law says that there are none, relative to the largest of its term.

    The suspects among the laws are tested at each point; one is enough to refute a law. The result names those whose
    change exceeds the tolerance. The replica is left at another point.
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
    """Changes of each law's own gradients when all of these laws are followed at once."""
    powers = {name: torch.zeros(weight.shape, dtype=torch.float64) for name, weight in point.weights.items()}
    for law in laws:
        whole = math.lcm(*(term.exponent.denominator for term in law.terms))
        step = _POWERS[int(torch.randint(len(_POWERS), (), generator=generator))] * whole
        for term in law.terms:
            powers[term.parameter][_slice(term)] += step * float(term.exponent)
    factors: Tensors = {name: (2.0**power).to(point.weights[name]) for name, power in powers.items()}
    place(replica, {name: weight * factors[name] for name, weight in point.weights.items()})
    moved = seeded_gradients(replica, point.seed)
    return [max(_change(term, point.gradients, moved, factors) for term in law.terms) for law in laws]


def _change(term: Term, before: Tensors, after: Tensors, factors: Tensors) -> float:
    chosen, name = _slice(term), term.parameter
    old = before[name][chosen]
    new = after[name][chosen] * factors[name][chosen] if name in after else torch.zeros_like(old)
    size = float(old.abs().max()) if old.numel() else 0.0
    difference = float((new - old).abs().max()) if old.numel() else 0.0
    return difference / size if size else math.inf if difference else 0.0


def _slice(term: Term) -> tuple[Any, ...]:
    """Index of a term's entries."""
    places: list[Any] = [slice(None)] * len(term.shape)
    for axis, positions in zip(term.axes, zip(*term.indices, strict=True), strict=True):
        places[axis] = torch.tensor(positions)
    return tuple(places)

"""The check that every law must pass: gradients at random points in float64 and, in doubt, large steps along the law.

A residual of 1e-4 may be rounding in single precision of an exact law, or a bound of 1e-3 that some activations are
below. Multiplying weights by powers of two tells these apart: floating-point numbers scale by powers of two without
rounding, so along an exact law each gradient comes out the same to the last digit or so, however large its rounding.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gatdiag.errors import ModelError
from gatdiag.law import Exclusion, Law
from gatdiag.laws.laws import Laws
from gatdiag.laws.no_effect import find_without_effect
from gatdiag.laws.point import (
    Point,
    Tensors,
    distant_points,
    point_at,
    point_near,
    seeded_gradients,
    set_weights,
    trainable_parameters,
)
from gatdiag.laws.rules.call import EPSILON
from gatdiag.structure.deadline import check_time
from gatdiag.structure.replica import Replica, initialized_parameters, replicate


class Tolerances(NamedTuple):
    """Limits of the check in one precision."""

    residual: float  # largest residual of an exact law
    rounding: float  # largest residual that needs no check by large steps along the law
    change: float  # largest relative change of gradients along these steps


_DOUBLE = Tolerances(1e-8, 1e-12, 1e-11)
_SINGLE = Tolerances(1e-3, 0.0, 2e-6)
# Largest residual of an approximate law without epsilons.
_WITHOUT_EPSILON = 1e-6
# Further points, for laws whose residual at the first is unknown (dead units) or dominated by an epsilon.
POINTS = 5
# Passes to find out which of many laws are violated; those not cleared by then are excluded.
_MOST_PASSES = 64
_POWERS = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True)
class Evidence:
    """Results of forward and backward passes at a random point."""

    replica: Replica  # the model at the point
    tolerances: Tolerances
    point: Point  # near the model's own weights
    unreached: tuple[str, ...]  # trainable parameters that no output depends on
    no_effect: Tensors  # name -> mask of entries that cancel out of the output
    unsearched: str | None  # why the search for such entries failed, if it did


def gather_evidence(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], layer_of: Mapping[str, str]
) -> Evidence:
    """Compute gradients of a replica at a random point, in float64 or, where that fails, in the model's own precision.

    The point is the model's own weights times random factors near one, with zeros and non-finite numbers replaced by
    small ones, so that nothing overflows or vanishes however deep the network is; if something does, it is the model's
    own weights.
    """
    try:
        return _gather(model, replicate(model, args, kwargs).to(torch.float64), layer_of, _DOUBLE)
    except ModelError:
        return _gather(model, replicate(model, args, kwargs), layer_of, _SINGLE)


def _own_weights(model: nn.Module, replica: Replica) -> Iterator[tuple[str, Tensor]]:
    """The weights that a replica was made with, in its precision; NaN becomes zero."""
    parameters = initialized_parameters(model)
    for name, parameter in trainable_parameters(replica).items():
        yield name, parameters[name].detach().to(parameter).nan_to_num(0.0, 0.0, 0.0)


def _gather(model: nn.Module, replica: Replica, layer_of: Mapping[str, str], tolerances: Tolerances) -> Evidence:
    generator = torch.Generator().manual_seed(0)
    replica.perturb_inputs(generator)
    point = point_near(replica, _own_weights(model, replica), generator)
    point = point or point_at(replica, dict(_own_weights(model, replica)))
    if point is None:
        raise ModelError(
            "The gradients of the model are not finite, at its own weights and near them, so no law can be checked. "
            "Give weights and inputs for which the forward and backward pass are finite."
        )
    masks, unsearched = find_without_effect(replica, point, layer_of, generator)
    unreached = tuple(name for name in trainable_parameters(replica) if name not in point.gradients)
    return Evidence(replica, tolerances, point, unreached, masks, unsearched)


def check_laws(candidates: list[Law], evidence: Evidence) -> tuple[list[Law], list[Exclusion]]:
    """The laws that pass the check, with their residuals, and exclusions for those that fail.

    An exact law must hold at two points, or at most of several where units are dead or attention is saturated and
    gradients are rounding; and along large steps if its residual is above rounding. (At a few points it may hold by
    chance: a unit above zero on all inputs cannot tell a wrong backward pass from that of ReLU.) An approximate law
    must hold to rounding without epsilons at one of several points. A law whose weights get no gradient at any point
    rests on the equations alone, with a residual of NaN; a "scale" law without any gradient is an unused row of an
    embedding, and is excluded.
    """
    replica, tolerances = evidence.replica, evidence.tolerances
    exact = torch.tensor([law.exact for law in candidates], dtype=torch.bool)
    laws = Laws(candidates, evidence.point.weights)
    measured = _residuals(laws, replica, evidence.point)[None]
    for found in map(partial(_residuals, laws, replica), distant_points(replica, evidence.point, POINTS)):
        measured = torch.cat([measured, found[None]])
        is_known = measured.isfinite()
        if bool((~exact | (is_known.any(0) & (~is_known | (measured <= tolerances.residual)).all(0))).all()):
            break
    suspects = (exact & (measured.nan_to_num() > tolerances.rounding).any(0)).nonzero().flatten().tolist()
    # the same points once more: to keep the weights and gradients of all of them takes memory
    again = islice(distant_points(replica, evidence.point, POINTS), len(measured) - 1)
    points = chain([evidence.point], again) if suspects else ()
    violations = find_violations(candidates, suspects, replica, points, tolerances.change)
    median = -(-measured).nanmedian(0).values  # of an even number, the larger of the two in the middle
    residuals = torch.where(exact, median, measured[0])
    judged = residuals
    if not bool(exact.all()):
        judged = torch.where(exact, residuals, _residuals_without_epsilon(laws, evidence))
    kept, failed, unreached = [], [], Counter[str]()
    for number, law in enumerate(candidates):
        residual = float(judged[number])
        if math.isnan(residual) and law.kind == "scale":
            unreached[law.layer] += 1
        elif number in violations:
            reason = f"large steps along it change its gradients by a fraction of {violations[number]:.1e}"
            failed.append(Exclusion(law.name, reason))
        elif residual > max(tolerances.residual, 0 if law.exact else _WITHOUT_EPSILON):
            failed.append(Exclusion(law.name, f"the numerical check found a residual of {residual:.1e}"))
        else:
            kept.append(replace(law, residual=float(residuals[number])))
    reason = "they get no gradient on these inputs"
    return kept, failed + [Exclusion(f"{count} entries of {layer}", reason) for layer, count in unreached.items()]


def _residuals(laws: Laws, replica: Replica, point: Point) -> Tensor:
    """The residuals at a point that the replica is at."""
    return laws.residual(point.gradients, replica.parameters).cpu()


def _smallest_residuals(residuals: Tensor) -> Tensor:
    """The smallest residual of each law over points (points x laws); NaN if there is none."""
    return residuals.nanquantile(0.0, dim=0, interpolation="lower")


def _residuals_without_epsilon(laws: Laws, evidence: Evidence) -> Tensor:
    """The smallest residual of each law at several points without epsilons; stops once all are small."""
    replica, weights, measured = evidence.replica, evidence.point.weights, list[Tensor]()
    exact = torch.tensor([law.exact for law in laws])
    with WithoutEpsilon():
        own = filter(None, [point_at(replica, weights)])
        points = chain(own, distant_points(replica, evidence.point, POINTS))
        for found in map(partial(_residuals, laws, replica), points):
            measured.append(found)
            if bool((exact | (_smallest_residuals(torch.stack(measured)) <= _WITHOUT_EPSILON)).all()):
                break
    if not measured:
        return torch.full((len(laws),), math.nan, dtype=torch.float64)
    return _smallest_residuals(torch.stack(measured))


_NAMES = (
    "add sub rsub radd iadd isub clamp clamp_min clip batch_norm layer_norm group_norm instance_norm rms_norm "
    "normalize local_response_norm cosine_similarity"
)
_GUARDS = frozenset(_NAMES.split())


class WithoutEpsilon(TorchFunctionMode):
    """Makes small constants negligible that are added, or passed to a normalization.

    An approximate law is exact for the model without its epsilons. They become far smaller than rounding, but not zero,
    so that 0 / 0 does not occur.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Shrink the epsilons among the arguments."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").strip("_") in _GUARDS:
            args = tuple(map(_shrink_epsilon, args))
            kwargs = {name: _shrink_epsilon(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _shrink_epsilon(value: Any) -> Any:
    return value * 1e-12 if isinstance(value, float) and 0 < abs(value) <= EPSILON else value


def find_violations(
    laws: Sequence[Law], suspects: Iterable[int], replica: Replica, points: Iterable[Point], tolerance: float
) -> dict[int, float]:
    """Position of each violated law -> largest change of its gradients along it, relative to the largest of the term.

    The suspects (positions of laws) are tested at each point, and a change above the tolerance at one of them refutes a
    law. The replica is left at another point.
    """
    remaining, found, generator = list(suspects), dict[int, float](), torch.Generator().manual_seed(2)
    passes = _MOST_PASSES
    for point in points:
        if not remaining:
            break
        groups = [remaining]
        while groups:
            check_time()
            group = groups.pop()
            changes = _gradient_changes([laws[number] for number in group], replica, point, generator)
            passes -= 1
            if max(changes) <= tolerance:
                continue
            if len(group) == 1 or passes <= 0:
                found |= dict(zip(group, changes, strict=True))
            else:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        remaining = [number for number in remaining if number not in found]
        del point  # before the next is computed
    return found


def _gradient_changes(laws: Sequence[Law], replica: Replica, point: Point, generator: torch.Generator) -> list[float]:
    """Change of each law's gradients after a random large step along all of these laws at once."""
    table = Laws(laws, replica.parameters)
    denominators = [math.lcm(*(term.exponent.denominator for term in law.terms)) for law in laws]
    powers = torch.tensor(_POWERS)[torch.randint(len(_POWERS), (len(laws),), generator=generator)]
    factors = table.rescaling((powers * torch.tensor(denominators)).double())
    moved_weights = ((name, math.prod(factors.get(name, ()), start=weight)) for name, weight in point.weights.items())
    set_weights(replica, moved_weights)
    moved = seeded_gradients(replica, point.seed)
    for name, old in point.gradients.items():
        new = moved.setdefault(name, torch.zeros_like(old))
        for factor in factors.get(name, ()):
            new *= factor
        new -= old
    change, size = table.largest_in_terms(moved), table.largest_in_terms(point.gradients)
    relative = torch.where(size > 0, change / size, torch.where(change == 0, 0.0, math.inf)).nan_to_num(math.inf)
    return [float(part.max()) for part in relative.cpu().split([len(law.terms) for law in laws])]

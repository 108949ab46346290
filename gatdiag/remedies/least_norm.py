"""Find the rescaling to the point of least norm, where c of every law is zero."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from scipy.linalg import solveh_banded
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws import Exclusion, Laws
from gatdiag.remedies.orbit import Orbit, Tensors

_TOLERANCE: Final = 1e-13  # of c relative to its terms
# Steps are in log factors.
_CONVERGED: Final = 1e-3  # largest step at convergence; steps of diverging laws are 1/2
_MAX_STEP: Final = 3.0
_MIN_STEP: Final = 1e-9  # in the line search, relative to a full step
_MAX_LOG_FACTOR: Final = math.log(1e6)  # laws beyond diverge
_MAX_ITERATIONS: Final = 200
_MAX_SWEEPS: Final = 6
_NEAR: Final = 0.1  # largest step from which Newton's method needs two or three iterations
_RIDGE: Final = 1e-13  # relative to a diagonal of one; directions without curvature do not move

_DIVERGING: Final = "no factor between 1e-6 and 1e6 balances it: the norm decreases without limit along the rescaling"


@dataclass(frozen=True)
class Rescaling:
    """Factors of parameters that do not change the function of a model.

    Attributes:
        factors: Parameter name -> factor, positive float64 on the CPU, broadcastable to the parameter.
        coordinates: Logarithm of each law's factor, float64 of shape (laws,); zero for skipped laws.
        balanced: Indices of the balanced laws.
        skipped: The other laws, with reasons.
    """

    factors: Mapping[str, Tensor]
    coordinates: Tensor
    balanced: tuple[int, ...]
    skipped: tuple[Exclusion, ...]


def find_rescaling(
    laws: Laws,
    weights: Tensors,
    gradients: Tensors | None = None,
    *,
    excluded: Mapping[int, str] = MappingProxyType({}),
    fixed: Collection[str] = (),
) -> Rescaling:
    """Find the rescaling that balances weights (`least_norm`), or relative gradients if gradients are given.

    Balanced relative gradients satisfy sum_k e_jk ||g_k / w_k||^2 = 0 for each law j, with g / w taken entry by entry,
    so that neither side of a neuron changes faster relative to its size. If w is multiplied by s, g / w is divided by
    s^2, so this is the same problem: the coordinates are those that balance g / w as if it were a weight, times -1/2.
    Entries with w = 0, which no factor changes, are omitted. One small weight can dominate such a sum.

    Args:
        laws: The laws.
        weights: Parameter name -> weight.
        gradients: Parameter name -> gradient.
        excluded: Index of a law to skip -> reason.
        fixed: Names of parameters that are not scaled but count.

    Source:
        c: equation 5 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023). Relative gradients:
        "Dynamic Rescaling for Training GNNs" (Mustafa, Burkholz, NeurIPS 2024), as in its code, which approaches the
        solution by ten sweeps of s = (sum (g/W^l)^2 / (sum (g/W^(l+1))^2 + (g/a)^2))^(1/8), clamped to [1e-5, 2].
    """
    reasons = dict(excluded)
    chosen = [number for number in range(len(laws)) if number not in reasons]
    orbit = Orbit([laws[number] for number in chosen])
    solution, skipped = solve_balance(orbit, weights, gradients, fixed)
    reasons |= {chosen[index]: reason for index, reason in skipped.items()}
    coordinates = torch.zeros(len(laws), dtype=torch.float64)
    coordinates[chosen] = solution
    balanced = tuple(number for number in chosen if number not in reasons)
    return Rescaling(
        {name: factor for name, factor in orbit.factors(solution.numpy()).items() if name not in fixed},
        coordinates,
        balanced,
        tuple(Exclusion(laws[number].name, reason) for number, reason in sorted(reasons.items())),
    )


def solve_balance(
    orbit: Orbit, weights: Tensors, gradients: Tensors | None, fixed: Collection[str] = ()
) -> tuple[Tensor, dict[int, str]]:
    """The result of `least_norm` for weights, or for relative gradients if gradients are given."""
    if gradients is None:
        return least_norm(orbit, weights, fixed)
    coordinates, skipped = least_norm(orbit, relative_gradients(weights, gradients), fixed)
    return -coordinates / 2, skipped  # multiplying a weight by s divides its relative gradient by s^2


def relative_gradients(weights: Tensors, gradients: Tensors) -> dict[str, Tensor]:
    """g / w entry by entry in float64; zero where w is zero or has no gradient."""
    relative = {}
    for name, weight in weights.items():
        w = weight.detach().to(torch.promote_types(weight.dtype, torch.float64))
        gradient = gradients.get(name)
        g = torch.zeros_like(w) if gradient is None else gradient.detach().to_dense().to(w.dtype)
        relative[name] = torch.where(w == 0, 0.0, g / torch.where(w == 0, 1.0, w))
    return relative


def least_norm(orbit: Orbit, weights: Tensors, fixed: Collection[str] = ()) -> tuple[Tensor, dict[int, str]]:
    """Find the rescaling along laws after which sum_k e_jk ||w_k||^2 = 0 for each law j.

    On the orbit w_k exp(sum_j t_j e_jk),

        f(t) = 1/2 sum_k ||w_k||^2 exp(2 sum_j t_j e_jk)

    is convex with gradient c(t), so weights are balanced at the point of least norm, if there is one. It is found by
    Newton's method in float64 with a line search; the systems are banded (`Orbit.curvature`). The term of a fixed
    parameter, which is not scaled but counts, is ||w_k||^2 sum_j t_j e_jk, whose derivative is its term in c.

    A law is skipped if no factor balances it: its incoming or outgoing weights are all zero (dead neurons; weights
    whose scale a normalization removes; weights without effect), weights are not finite, or the norm decreases without
    limit, beyond factors of a million. The others are balanced without it.

    Returns:
        The logarithm t_j of each law's factor, float64 of shape (laws,), zero for skipped laws; and index of a skipped
        law -> reason.

    Source:
        Convexity and least norm: Saul, "Weight-balancing fixes and flows for deep learning" (2023), for ReLU networks;
        for any orbit of a torus, the Kempf-Ness theorem (1979).
    """
    count = orbit.exponents.shape[1]
    squares = orbit.squares(weights)
    is_fixed = orbit.cell_mask(fixed)
    reasons = _find_unbalanceable(orbit, squares, is_fixed)
    squares = np.where(np.isfinite(squares), squares, 0.0)
    while True:
        free = [number for number in range(count) if number not in reasons]
        solution, diverging = _minimize(
            _Objective(orbit if len(free) == count else orbit.restrict(free), squares, is_fixed)
        )
        if not diverging:
            coordinates = torch.zeros(count, dtype=torch.float64)
            coordinates[free] = torch.from_numpy(solution)
            return coordinates, reasons
        reasons |= {free[index]: _DIVERGING for index in diverging}


def _find_unbalanceable(orbit: Orbit, squares: Any, is_fixed: Any) -> dict[int, str]:
    """Laws that cannot be balanced, whatever the factors of the others."""
    reasons = {}
    scalable = sum(orbit.side_sums(np.where(is_fixed, 0.0, squares)))
    for number, (incoming, outgoing) in enumerate(zip(*orbit.side_sums(squares), strict=True)):
        if not math.isfinite(incoming + outgoing):
            reasons[number] = "some of its weights are not finite"
        elif incoming == 0 or outgoing == 0:
            side = "all its" if incoming == outgoing else "its outgoing" if incoming else "its incoming"
            reasons[number] = f"{side} weights are zero, which no factor changes"
        elif scalable[number] == 0:
            reasons[number] = "all its weights are fixed"
    return reasons


class _Objective:
    """Half the squared norm of the weights along an orbit, as a function f of the coordinates."""

    def __init__(self, orbit: Orbit, squares: Any, is_fixed: Any) -> None:
        self.orbit = orbit
        self._fixed, self._scaled = squares * is_fixed, squares * ~is_fixed
        self._slope = np.subtract(*orbit.side_sums(self._fixed))

    def squares(self, point: Any) -> Any:
        """Squared weights of the cells that are not fixed."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._scaled * np.exp(2 * (self.orbit.exponents @ point))

    def side_sums(self, squares: Any) -> tuple[Any, Any]:
        """Incoming and outgoing sums of each law, with the fixed weights included."""
        return self.orbit.side_sums(squares + self._fixed)

    def decreases(self, squares: Any, point: Any, step: Any) -> bool:
        """True if f does not increase along a step, up to rounding; `squares` are those at the point."""
        after = self.squares(point + step).sum() + 2 * self._slope @ step
        return bool(after <= squares.sum() * (1 + 1e-14))


def _initial_point(objective: _Objective) -> Any:
    """A starting point by a few cheap sweeps, in which each law is balanced as if the others were."""
    point = np.zeros(objective.orbit.exponents.shape[1])
    for _ in range(_MAX_SWEEPS if len(point) else 0):
        squares = objective.squares(point)
        incoming, outgoing = objective.side_sums(squares)
        step = np.log(outgoing / incoming) / 4
        if abs(step).max() < _NEAR or not objective.decreases(squares, point, step):
            break
        point = point + step
    return point


def _minimize(objective: _Objective) -> tuple[Any, list[int]]:
    """Newton's method: the point of least norm, and the indices of laws that diverge."""
    point = _initial_point(objective)
    step = np.zeros(len(point))
    for _ in range(_MAX_ITERATIONS if len(point) else 0):
        squares = objective.squares(point)
        incoming, outgoing = objective.side_sums(squares)
        is_balanced = abs(incoming - outgoing) <= _TOLERANCE * (incoming + outgoing)
        if is_balanced.all():
            return point, _find_diverging(point, step)
        if (is_balanced | (abs(point) > _MAX_LOG_FACTOR)).all():
            break
        step = -solve_banded(2 * objective.orbit.curvature(squares), incoming - outgoing)
        candidates = (candidate for candidate in _line_search(step) if objective.decreases(squares, point, candidate))
        accepted = next(candidates, None)
        if accepted is None:
            break
        point = point + accepted
    diverging = _find_diverging(point, step)
    if len(point) and not diverging:
        raise ModelError(
            "Expected every c to converge to zero, but the sizes of a neuron's weights differ too much for float64: "
            "initialize the model again."
        )
    return point, diverging


def _line_search(step: Any) -> Iterator[Any]:
    """Steps to try, shorter and shorter. The first is clipped, so that a diverging law does not slow the others."""
    yield np.clip(step, -_MAX_STEP, _MAX_STEP)
    length = min(1.0, _MAX_STEP / abs(step).max())
    while length > _MIN_STEP:
        yield length * step
        length /= 2


def _find_diverging(point: Any, step: Any) -> list[int]:
    diverging: list[int] = np.flatnonzero((abs(step) > _CONVERGED) | (abs(point) > _MAX_LOG_FACTOR)).tolist()
    return diverging


def solve_banded(band: Any, right: Any) -> Any:
    """Solve H x = right for a symmetric positive semidefinite H in banded form: entry [d, j] of `band` is H[j + d, j].

    H is scaled to a diagonal of one in place. x is zero where a row of H is zero.
    """
    diagonal = band[0]
    scale = np.divide(1, np.sqrt(diagonal), out=np.zeros_like(diagonal), where=diagonal > 0)
    below = np.append(scale, np.zeros(len(band) - 1))
    band *= scale * np.lib.stride_tricks.sliding_window_view(below, len(scale))
    band[0] = 1 + _RIDGE * len(right)
    return scale * solveh_banded(band, scale * right, lower=True, overwrite_ab=True, check_finite=False)

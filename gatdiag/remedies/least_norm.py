"""The rescaling along laws that leads to the point of least norm, where every law's c is zero."""

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
_SETTLED: Final = 1e-3  # longest step, in log factors, of a point that is as good as reached; diverging ones make 1/2
_LONGEST: Final = 3.0  # longest step tried, in log factors
_SHORTEST: Final = 1e-9  # share of a step
_FARTHEST: Final = math.log(1e6)  # log factor past which a law is taken for a diverging one
_ITERATIONS: Final = 200
_SWEEPS: Final = 6
_NEAR: Final = 0.1  # longest step, in log factors, from which Newton's method takes two or three
_RIDGE: Final = 1e-13  # relative to a diagonal of one: what no entry determines stays where it is

_DIVERGING: Final = (
    "no factor between 1e-6 and 1e6 balances it: the norm falls on and on along a rescaling it takes part in"
)


@dataclass(frozen=True)
class Rescaling:
    """Factors that leave the function a model computes as it is.

    Attributes:
        factors: Name of parameter -> what to multiply it by, positive float64 on the CPU, broadcasting against it.
        coordinates: Logarithm of each law's factor, float64 of shape (laws,); zero where the law was skipped.
        balanced: Positions of the laws that were balanced.
        skipped: Laws that were not, and why.
    """

    factors: Mapping[str, Tensor]
    coordinates: Tensor
    balanced: tuple[int, ...]
    skipped: tuple[Exclusion, ...]


def balancing(
    laws: Laws,
    weights: Tensors,
    gradients: Tensors | None = None,
    *,
    refused: Mapping[int, str] = MappingProxyType({}),
    held: Collection[str] = (),
) -> Rescaling:
    """The rescaling that brings weights, or with gradients their relative gradients, into balance.

    Of weights it makes sum_k e_jk ||w_k||^2 = 0 for each law j: see `least_norm`.

    Of relative gradients it makes sum_k e_jk ||g_k / w_k||^2 = 0, with g / w taken entry by entry: on both sides of a
    neuron the squared relative gradients add up to the same, so that no side's weights change faster, relative to their
    own size, than the other's. Where w is multiplied by s, g is divided by s and g / w by s^2, so this is the same
    problem: the coordinates that balance g / w as if it were a weight, times -1/2. Entries with w = 0, which no factor
    moves, are left out. One small weight can outweigh all others in such a sum; that is the criterion's nature.

    Laws that are refused, with a reason, are skipped; weights that are held count, and stay.

    Source:
        c: equation 5 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023). Relative gradients:
        "Dynamic Rescaling for Training GNNs" (Mustafa, Burkholz, NeurIPS 2024), as its code has them, which takes ten
        sweeps of s = (sum (g/W^l)^2 / (sum (g/W^(l+1))^2 + (g/a)^2))^(1/8), each held in [1e-5, 2], towards the point
        that is found here at once.
    """
    reasons = dict(refused)
    chosen = [number for number in range(len(laws)) if number not in reasons]
    orbit = Orbit([laws[number] for number in chosen])
    found, skipped = balanced_point(orbit, weights, gradients, held)
    reasons |= {chosen[at]: reason for at, reason in skipped.items()}
    coordinates = torch.zeros(len(laws), dtype=torch.float64)
    coordinates[chosen] = found
    balanced = tuple(number for number in chosen if number not in reasons)
    return Rescaling(
        {name: factor for name, factor in orbit.factors(found.numpy()).items() if name not in held},
        coordinates,
        balanced,
        tuple(Exclusion(laws[number].name, reason) for number, reason in sorted(reasons.items())),
    )


def balanced_point(
    orbit: Orbit, weights: Tensors, gradients: Tensors | None, held: Collection[str] = ()
) -> tuple[Tensor, dict[int, str]]:
    """What `least_norm` returns, of weights or, with gradients, of their relative gradients."""
    if gradients is None:
        return least_norm(orbit, weights, held)
    found, skipped = least_norm(orbit, relative_gradients(weights, gradients), held)
    return -found / 2, skipped  # a weight times s has a relative gradient times s^-2


def relative_gradients(weights: Tensors, gradients: Tensors) -> dict[str, Tensor]:
    """g / w entry by entry in float64; zero where w is zero or there is no gradient."""
    found = {}
    for name, weight in weights.items():
        w = weight.detach().to(torch.promote_types(weight.dtype, torch.float64))
        gradient = gradients.get(name)
        g = torch.zeros_like(w) if gradient is None else gradient.detach().to_dense().to(w.dtype)
        found[name] = torch.where(w == 0, 0.0, g / torch.where(w == 0, 1.0, w))
    return found


def least_norm(orbit: Orbit, weights: Tensors, held: Collection[str] = ()) -> tuple[Tensor, dict[int, str]]:
    """The rescaling along laws after which sum_k e_jk ||w_k||^2 = 0 for each law j.

    On the orbit w_k exp(sum_j t_j e_jk),

        f(t) = 1/2 sum_k ||w_k||^2 exp(2 sum_j t_j e_jk)

    is convex with gradient c(t), so the balanced point is the point of least norm: there is one, or the norm falls
    without end. Newton's method in float64, each step halved until f falls; its systems are banded, since a neuron
    meets only those that share a matrix with it. Parameters that are held count, and stay: their share of f is
    ||w_k||^2 sum_j t_j e_jk, whose derivative is their share of c.

    A law is skipped where no factor can balance it: one of its sides is zero (dead neurons; weights whose scale a
    normalization takes out; entries the output does not depend on), weights are not finite, or the norm falls on and on
    along several laws at once, past factors of a million. The others balance around it.

    Returns:
        Coordinates t_j, the logarithm of each law's factor, float64 of shape (laws,), zero where skipped; and the
        position of each law that was skipped -> why.

    Source:
        Convexity and least norm: Saul, "Weight-balancing fixes and flows for deep learning" (2023), for networks of
        ReLU; on any orbit of a torus it is the theorem of Kempf and Ness (1979).
    """
    count = orbit.exponents.shape[1]
    squares = orbit.squares(weights)
    fixed = orbit.cells_of(held)
    reasons = _unbalanceable(orbit, squares, fixed)
    squares = np.where(np.isfinite(squares), squares, 0.0)
    while True:
        free = [number for number in range(count) if number not in reasons]
        found, diverging = _newton(_Norm(orbit if len(free) == count else orbit.restricted(free), squares, fixed))
        if not diverging:
            coordinates = torch.zeros(count, dtype=torch.float64)
            coordinates[free] = torch.from_numpy(found)
            return coordinates, reasons
        reasons |= {free[at]: _DIVERGING for at in diverging}


def _unbalanceable(orbit: Orbit, squares: Any, fixed: Any) -> dict[int, str]:
    """The laws that cannot be balanced whatever becomes of the others."""
    reasons = {}
    moving = sum(orbit.sides(np.where(fixed, 0.0, squares)))
    for number, (into, out) in enumerate(zip(*orbit.sides(squares), strict=True)):
        if not math.isfinite(into + out):
            reasons[number] = "some of its weights are not finite"
        elif into == 0 or out == 0:
            empty = "both of its sides are" if into == out else f"what leads {'out of' if into else 'into'} it is"
            reasons[number] = f"{empty} zero, and no factor changes that"
        elif moving[number] == 0:
            reasons[number] = "all of its weights are held"
    return reasons


class _Norm:
    """Half the squared norm of the weights along an orbit, as a function f of the coordinates."""

    def __init__(self, orbit: Orbit, squares: Any, fixed: Any) -> None:
        self.orbit = orbit
        self._standing, self._moving = squares * fixed, squares * ~fixed
        self._slope = np.subtract(*orbit.sides(self._standing))

    def squares(self, point: Any) -> Any:
        """Of the weights that move."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._moving * np.exp(2 * (self.orbit.exponents @ point))

    def sides(self, squares: Any) -> tuple[Any, Any]:
        """Of each law, where the squares that move are these."""
        return self.orbit.sides(squares + self._standing)

    def falls(self, squares: Any, point: Any, step: Any) -> bool:
        """Does f fall along a step from the point where the squares are these, or stay but for rounding?"""
        after = self.squares(point + step).sum() + 2 * self._slope @ step
        return bool(after <= squares.sum() * (1 + 1e-14))


def _swept(norm: _Norm) -> Any:
    """A point to begin from: a few steps of each law by itself, as if its neighbors stayed, are cheap."""
    point = np.zeros(norm.orbit.exponents.shape[1])
    for _ in range(_SWEEPS if len(point) else 0):
        here = norm.squares(point)
        into, out = norm.sides(here)
        step = np.log(out / into) / 4
        if abs(step).max() < _NEAR or not norm.falls(here, point, step):
            break
        point = point + step
    return point


def _newton(norm: _Norm) -> tuple[Any, list[int]]:
    """The point of least norm, or the numbers of laws along which there is none."""
    point = _swept(norm)
    step, into, out = np.zeros(len(point)), np.ones(1), np.ones(1)
    for _ in range(_ITERATIONS if len(point) else 0):
        here = norm.squares(point)
        into, out = norm.sides(here)
        settled = abs(into - out) <= _TOLERANCE * (into + out)
        if settled.all():
            return point, _diverging(point, step)
        if (settled | (abs(point) > _FARTHEST)).all():
            break
        step = -solve_banded(2 * norm.orbit.curvature(here), into - out)
        move = next((move for move in _moves(step) if norm.falls(here, point, move)), None)
        if move is None:
            break
        point = point + move
    diverging = _diverging(point, step)
    if len(point) and not diverging:
        raise ModelError(
            f"Expected every c to come to zero, but {_ITERATIONS} iterations left one at "
            f"{(abs(into - out) / (into + out)).max():.1e} of its terms. The weights of a neuron are too far apart in "
            "size for float64: initialize the model anew."
        )
    return point, diverging


def _moves(step: Any) -> Iterator[Any]:
    """Shorter and shorter steps to try; in the first, a law that diverges does not keep the others from moving."""
    yield np.clip(step, -_LONGEST, _LONGEST)
    length = min(1.0, _LONGEST / abs(step).max())
    while length > _SHORTEST:
        yield length * step
        length /= 2


def _diverging(point: Any, step: Any) -> list[int]:
    """Numbers of the laws that never come to rest."""
    found: list[int] = np.flatnonzero((abs(step) > _SETTLED) | (abs(point) > _FARTHEST)).tolist()
    return found


def solve_banded(band: Any, right: Any) -> Any:
    """The x of H x = right for a symmetric positive semidefinite H, of which entry [d, j] of the band is H[j + d, j].

    H is scaled to a diagonal of one first, in place; x is zero where H has a row of zeros.
    """
    diagonal = band[0]
    scale = np.divide(1, np.sqrt(diagonal), out=np.zeros_like(diagonal), where=diagonal > 0)
    below = np.append(scale, np.zeros(len(band) - 1))
    band *= scale * np.lib.stride_tricks.sliding_window_view(below, len(scale))
    band[0] = 1 + _RIDGE * len(right)
    return scale * solveh_banded(band, scale * right, lower=True, overwrite_ab=True, check_finite=False)

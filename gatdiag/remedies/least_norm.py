"""The point of least norm on the orbit of weights: where every law's c is zero."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import solveh_banded
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws import Law
from gatdiag.remedies.orbit import Orbit, Tensors

_TOLERANCE = 1e-13  # of c relative to its terms
_SETTLED = 1e-3  # longest step, in log factors, of a point that is as good as reached; a flight steps by about 1/2
_LONGEST = 3.0  # longest step tried
_FARTHEST = math.log(1e6)  # log factor past which a law is taken for one in flight
_ITERATIONS = 200
_RIDGE = 1e-13  # relative to a diagonal of one: what no entry determines stays where it is

_FLYING = "no factor between 1e-6 and 1e6 balances it: the norm falls on and on along a rescaling it takes part in"


@dataclass(frozen=True)
class LeastNorm:
    """A point on an orbit.

    Attributes:
        coordinates: t_j of each law, the logarithm of its factor; float64 of shape (laws,), zero where left alone.
        left_alone: Position of a law that cannot be balanced -> why.
    """

    coordinates: Tensor
    left_alone: Mapping[int, str]


def least_norm(laws: Sequence[Law], weights: Tensors) -> LeastNorm:
    """The rescaling along laws after which sum_k e_jk ||w_k||^2 = 0 for each law j.

    On the orbit w_k exp(sum_j t_j e_jk),

        f(t) = 1/2 sum_k ||w_k||^2 exp(2 sum_j t_j e_jk)

    is convex with gradient c(t), so the balanced point is the point of least norm: there is one, or the norm falls
    without end. Newton's method in float64, each step halved until f falls; its systems are banded, since a neuron
    meets only those that share a matrix with it.

    A law is left alone where no factor can balance it: one of its sides is zero (dead neurons; weights whose scale a
    normalization takes out; entries the output does not depend on), weights are not finite, or the norm falls on and on
    along several laws at once, past factors of a million. The others balance around it.

    Args:
        laws: Of one model, or some of them.
        weights: Name -> tensor of any floating dtype; of a saved checkpoint just as well.

    Raises:
        ModelError: The iteration did not converge.

    Source:
        Convexity and least norm: Saul, "Weight-balancing fixes and flows for deep learning" (2023), for networks of
        ReLU; on any orbit of a torus it is the theorem of Kempf and Ness (1979).

    Example:
        >>> from fractions import Fraction
        >>> from gatdiag.laws import Term
        >>> into, out = Term("a", (1,), (0,), ((0,),), Fraction(1)), Term("b", (1,), (0,), ((0,),), Fraction(-1))
        >>> law = Law("neuron", "neuron", "", 0, (into, out), True, 0.0)
        >>> point = least_norm([law], {"a": torch.tensor([8.0]), "b": torch.tensor([2.0])})
        >>> print(f"{float(point.coordinates.exp()):.3f}")  # 8 * 0.5 = 2 / 0.5
        0.500
    """
    whole = Orbit(laws)
    squares, reasons = _prepared(whole, weights)
    while True:
        free = [number for number in range(len(laws)) if number not in reasons]
        coordinates, flying = _newton(Orbit([laws[number] for number in free]) if reasons else whole, squares)
        if not flying:
            break
        reasons |= {free[number]: _FLYING for number in flying}
    everywhere = torch.zeros(len(laws), dtype=torch.float64)
    everywhere[free] = coordinates
    return LeastNorm(everywhere, reasons)


def _prepared(orbit: Orbit, weights: Tensors) -> tuple[dict[str, Tensor], dict[int, str]]:
    """The squares with nothing in them that is not finite, and the laws that cannot be balanced by themselves."""
    squares = {name: weights[name].detach().to("cpu", torch.float64).square() for name in orbit.parameters}
    reasons = {}
    for number, (into, out) in enumerate(zip(*(side.tolist() for side in orbit.sides(squares)), strict=True)):
        if not torch.tensor(into + out).isfinite():
            reasons[number] = "some of its weights are not finite"
        elif into == 0 or out == 0:
            empty = "both of its sides are" if into == out else f"what leads {'out of' if into else 'into'} it is"
            reasons[number] = f"{empty} zero, and no factor changes that"
    finite = {name: torch.where(square.isfinite(), square, 0.0) for name, square in squares.items()}
    return finite, reasons


def _newton(orbit: Orbit, squares: Tensors) -> tuple[Tensor, list[int]]:
    """The point of least norm, or the numbers of laws along which there is none."""
    point = torch.zeros(orbit.size, dtype=torch.float64)
    if not orbit.size:
        return point, []
    for _ in range(_ITERATIONS):
        here = orbit.squares(squares, point)
        into, out = orbit.sides(here)
        step = -solve_banded(orbit.rows, orbit.columns, orbit.curvature(here), into - out)
        if bool(((into - out).abs() <= _TOLERANCE * (into + out)).all()):
            return point, _flying(point, step)
        length = _length(orbit, squares, point, step)
        if not length:
            break
        point = point + length * step
    flying = _flying(point, step)
    if not flying:
        worst = float(((into - out).abs() / (into + out)).max())
        raise ModelError(
            f"Expected every c to come to zero, but {_ITERATIONS} iterations left one at {worst:.1e} of its terms. The "
            "weights of a neuron are too far apart in size for float64: initialize the model anew."
        )
    return point, flying


def solve_banded(rows: Tensor, columns: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """The x of H x = right for a symmetric positive semidefinite H whose entries lie near its diagonal.

    Neurons meet those of the neighboring layers only, so the cost is linear in the number of layers. H is scaled to a
    diagonal of one first; x is zero where H has a row of zeros.

    Args:
        rows: Rows of the entries at and below the diagonal.
        columns: Their columns, none greater than its row.
        values: The entries, float64; those of one place add up.
        right: Shape (size,).

    Example:
        >>> values, right = torch.tensor([4.0, 2.0, 3.0]).double(), torch.tensor([8.0, 8.0]).double()
        >>> solve_banded(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), values, right)
        tensor([1.0000, 2.0000], dtype=torch.float64)
    """
    below = (rows - columns).numpy()
    band = np.zeros((int(below.max(initial=0)) + 1, len(right)))
    np.add.at(band, (below, columns.numpy()), values.numpy())
    diagonal = band[0]
    scale = np.divide(1, np.sqrt(diagonal), out=np.zeros_like(diagonal), where=diagonal > 0)
    for offset in range(len(band)):
        band[offset, : len(right) - offset] *= scale[: len(right) - offset] * scale[offset:]
    diagonal[:] = np.where(diagonal > 0, diagonal, 1.0) + _RIDGE * len(right)
    solution = solveh_banded(band, right.numpy() * scale, lower=True, overwrite_ab=True, check_finite=False)
    return torch.from_numpy(solution * scale)


def _flying(point: Tensor, step: Tensor) -> list[int]:
    """Numbers of the laws that never come to rest."""
    return ((step.abs() > _SETTLED) | (point.abs() > _FARTHEST)).nonzero().flatten().tolist()


def _length(orbit: Orbit, squares: Tensors, point: Tensor, step: Tensor) -> float:
    """How much of a step to take for f to fall."""
    value = _halved_norm(orbit, squares, point)
    length = min(1.0, _LONGEST / float(step.abs().max()))
    while length > 1e-9:
        if _halved_norm(orbit, squares, point + length * step) <= value * (1 + 1e-14):
            return length
        length /= 2
    return 0.0


def _halved_norm(orbit: Orbit, squares: Tensors, point: Tensor) -> float:
    return sum(float(square.sum()) for square in orbit.squares(squares, point).values()) / 2

"""Find the rescaling to the point of least norm, where c of every law is zero."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from scipy import sparse
from scipy.linalg import solveh_banded
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws import Exclusion, Law, Laws, Term

Tensors: TypeAlias = Mapping[str, Tensor]

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
    orbit = Orbit([laws[number] for number in chosen], fixed)
    solution, skipped = solve_balance(orbit, weights, gradients)
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


def solve_balance(orbit: "Orbit", weights: Tensors, gradients: Tensors | None) -> tuple[Tensor, dict[int, str]]:
    """The result of `least_norm` for weights, or for relative gradients if gradients are given."""
    if gradients is None:
        return least_norm(orbit, weights)
    coordinates, skipped = least_norm(orbit, relative_gradients(weights, gradients))
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


def least_norm(orbit: "Orbit", weights: Tensors) -> tuple[Tensor, dict[int, str]]:
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
    reasons = _find_unbalanceable(orbit, squares)
    squares = np.where(np.isfinite(squares), squares, 0.0)
    while True:
        free = [number for number in range(count) if number not in reasons]
        solution, diverging = _minimize(orbit if len(free) == count else orbit.restrict(free), squares)
        if not diverging:
            coordinates = torch.zeros(count, dtype=torch.float64)
            coordinates[free] = torch.from_numpy(solution)
            return coordinates, reasons
        reasons |= {free[index]: _DIVERGING for index in diverging}


def _find_unbalanceable(orbit: "Orbit", squares: Any) -> dict[int, str]:
    """Laws that cannot be balanced, whatever the factors of the others."""
    reasons = {}
    scalable = sum(orbit.side_sums(np.where(orbit.is_scaled, squares, 0.0)))
    for number, (incoming, outgoing) in enumerate(zip(*orbit.side_sums(squares), strict=True)):
        if not math.isfinite(incoming + outgoing):
            reasons[number] = "some of its weights are not finite"
        elif incoming == 0 or outgoing == 0:
            side = "all its" if incoming == outgoing else "its outgoing" if incoming else "its incoming"
            reasons[number] = f"{side} weights are zero, which no factor changes"
        elif scalable[number] == 0:
            reasons[number] = "all its weights are fixed"
    return reasons


def _initial_point(orbit: "Orbit", start: Any) -> Any:
    """A starting point by a few cheap sweeps, in which each law is balanced as if the others were."""
    point, squares = np.zeros(orbit.exponents.shape[1]), start
    for _ in range(_MAX_SWEEPS if len(point) else 0):
        incoming, outgoing = orbit.side_sums(squares)
        step = np.log(outgoing / incoming) / 4
        moved = orbit.move(start, point + step)
        if abs(step).max() < _NEAR or not orbit.decreases(squares, moved, step):
            break
        point, squares = point + step, moved
    return point


def _minimize(orbit: "Orbit", start: Any) -> tuple[Any, list[int]]:
    """Newton's method: the point of least norm, and the indices of laws that diverge."""
    point = _initial_point(orbit, start)
    step, squares = np.zeros(len(point)), orbit.move(start, point)
    for _ in range(_MAX_ITERATIONS if len(point) else 0):
        incoming, outgoing = orbit.side_sums(squares)
        is_balanced = abs(incoming - outgoing) <= _TOLERANCE * (incoming + outgoing)
        if is_balanced.all():
            return point, _find_diverging(point, step)
        if (is_balanced | (abs(point) > _MAX_LOG_FACTOR)).all():
            break
        step = -solve_banded(2 * orbit.curvature(squares), incoming - outgoing)
        moves = ((candidate, orbit.move(start, point + candidate)) for candidate in _line_search(step))
        accepted = next((move for move in moves if orbit.decreases(squares, move[1], move[0])), None)
        if accepted is None:
            break
        point, squares = point + accepted[0], accepted[1]
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


class Orbit:
    """The points w_k exp(sum_j t_j e_jk) that laws j with exponents e_jk lead to, with one coordinate t_j per law.

    Weights of a parameter that all laws scale by the same factor, such as a row of a matrix, form one cell.

    Args:
        laws: The laws.
        fixed: Names of parameters that are not scaled but count.

    Attributes:
        exponents: Sparse float64 matrix of e_jk, of shape (cells, laws).
        is_scaled: Boolean mask of the cells whose parameters are not fixed.

    Example:
        >>> from fractions import Fraction
        >>> into = Term("a", (2, 3), (0,), ((1,),), Fraction(1))
        >>> out = Term("b", (1, 2), (1,), ((1,),), Fraction(-1))
        >>> orbit = Orbit([Law("neuron 1", "neuron", "", 1, (into, out), True, 0.0)])
        >>> orbit.factors(np.log([2.0]))["b"]
        tensor([[1.0000, 0.5000]], dtype=torch.float64)
        >>> orbit.exponents.T @ orbit.squares({"a": torch.ones(2, 3), "b": torch.ones(1, 2)})  # c: 3 - 1
        array([2.])
    """

    def __init__(self, laws: Sequence[Law], fixed: Collection[str] = ()) -> None:
        terms: dict[str, list[tuple[int, Term]]] = {}
        for number, law in enumerate(laws):
            for term in law.terms:
                terms.setdefault(term.parameter, []).append((number, term))
        self._shapes: dict[str, list[int]] = {}  # cells of each parameter; length 1 along axes that are not scaled
        entries: list[Any] = [np.zeros((3, 0))]
        first = 0
        for name, numbered in terms.items():
            scaled = sorted({axis for _, term in numbered for axis in term.axes})
            shape = self._shapes[name] = [n if axis in scaled else 1 for axis, n in enumerate(numbered[0][1].shape)]
            for number, term in numbered:
                rows = first + np.array(term.positions(scaled))
                entries.append(np.stack([rows, np.full(len(rows), number), np.full(len(rows), float(term.exponent))]))
            first += prod(shape)
        rows, columns, values = np.concatenate(entries, axis=1)
        self.exponents = sparse.csr_matrix((values, (rows.astype(int), columns.astype(int))), (first, len(laws)))
        masks = [np.full(prod(shape), name not in fixed) for name, shape in self._shapes.items()]
        self.is_scaled = np.concatenate([np.zeros(0, dtype=bool), *masks])
        self.exponents.eliminate_zeros()
        self.exponents.sort_indices()

    def restrict(self, numbers: Sequence[int]) -> "Orbit":
        """The orbit of a subset of the laws, with the same cells."""
        orbit = copy(self)
        vars(orbit).pop("_sides", None)
        orbit.exponents = self.exponents[:, list(numbers)]
        orbit.exponents.sort_indices()
        return orbit

    def side_sums(self, squares: Any) -> tuple[Any, Any]:
        """For each law, sum |e_k| s_k over incoming weights (positive exponents), and over outgoing ones."""
        incoming, outgoing = self._sides
        return incoming @ squares, outgoing @ squares

    def curvature(self, squares: Any) -> Any:
        """The matrix H_ij = sum_k e_ik e_jk s_k over scaled cells in banded form: entry [d, j] is H[j + d, j].

        Neurons share weights only with those of neighboring layers, so the band is narrow, and the cost linear in the
        number of layers.
        """
        scaled = sparse.diags(squares * self.is_scaled)
        pairs = sparse.tril(self.exponents.T @ (scaled @ self.exponents)).tocoo()
        offsets = pairs.row - pairs.col
        band = np.zeros((offsets.max(initial=0) + 1, pairs.shape[1]))
        band[offsets, pairs.col] = pairs.data
        return band

    @cached_property
    def _sides(self) -> tuple[Any, Any]:
        return self.exponents.maximum(0).T.tocsr(), (-self.exponents).maximum(0).T.tocsr()

    def squares(self, weights: Tensors) -> Any:
        """The sum of squared weights in each cell, as a float64 array."""
        sums = [np.zeros(0)]
        for name, shape in self._shapes.items():
            square = weights[name].detach().abs().to("cpu", torch.float64).square()
            sums.append(square.sum_to_size(shape).flatten().numpy())
        return np.concatenate(sums)

    def move(self, squares: Any, coordinates: Any) -> Any:
        """The sums of squares at these coordinates from those at zero."""
        with np.errstate(over="ignore", invalid="ignore"):
            return squares * np.exp(2 * (self.exponents @ coordinates) * self.is_scaled)

    def decreases(self, squares: Any, moved: Any, step: Any) -> bool:
        """True if half the squared norm (see `least_norm`) does not increase along a step, up to rounding."""
        slope = np.subtract(*self.side_sums(np.where(self.is_scaled, 0.0, squares)))
        after = moved[self.is_scaled].sum() + 2 * slope @ step
        return bool(after <= squares[self.is_scaled].sum() * (1 + 1e-14))

    def factors(self, coordinates: Any) -> dict[str, Tensor]:
        """The factor exp(sum_j t_j e_jk) of each weight, broadcastable to the parameters; 1 for fixed ones."""
        factors = torch.from_numpy(np.exp(self.exponents @ coordinates * self.is_scaled))
        parts = factors.split([prod(shape) for shape in self._shapes.values()])
        return {name: part.reshape(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}


def multiply_(tensor: Tensor, factor: Tensor) -> Tensor:
    """Multiply a tensor of any floating dtype by a float64 factor, in place, rounding once."""
    data = tensor.detach()
    data.copy_(data.to(torch.promote_types(data.dtype, torch.float64)) * factor.to(tensor.device))
    return tensor

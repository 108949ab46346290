"""Norms of weights, outputs and gradients, and the number of NaN and infinities."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag.errors import InputError

__all__ = ["frobenius_norm", "non_finite_count", "norms", "norms_of_pieces", "spectral_norm"]

_NARROW: Final = 128  # rows or columns up to which all eigenvalues are faster than Lanczos iteration
_CHUNK: Final = 1 << 22  # entries converted to float64 at a time
_SMALLEST, _LARGEST = 1e-12, 1e15  # norms between which no float32 square over- or underflows
_PIECE: Final = 4096  # entries whose squares are summed in float32
_CACHED: Final = 1 << 17  # float32 entries that stay in a CPU cache from one product to the next
_LEAST, _MOST, _RESIDUAL = 8, 1000, 2e-5  # Lanczos iterations, and their tolerance: 1e-5 of the singular value


def frobenius_norm(x: Tensor) -> Tensor:
    """Frobenius norm ||X||_F = sqrt(sum_ij X_ij^2): of a weight, of a layer's output, or of dLoss/dX.

    It is an upper bound on the largest singular value, ||W||_2 <= ||W||_F <= sqrt(rank) ||W||_2, with which Park & Kim
    (arXiv 2410.04824) bound a layer's Lipschitz constant.

    Args:
        x: Any shape, dense.

    Returns:
        0-d, as for `norms`.

    Example:
        >>> frobenius_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).item()
        5.0
    """
    return norms([x])[0]


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> Tensor:
    """Frobenius norms of many tensors in a few kernels: all parameters, or all gradients, of a model at one step.

    `relative_gradient_norm` is norms(gradients) / norms(weights), which times the learning rate is the relative change
    of a weight in one step of SGD. `update_ratio` is norms(updates) / norms(weights), about 1e-3 by a rule of thumb.

    Args:
        tensors: P tensors of any shapes and floating types on one device.

    Returns:
        (P,), float64. float32 on the CPU is summed in float32 if no square can over- or underflow, which leaves six
        digits; all else in float64, scaled by the largest entry if squares would overflow. 0 for an empty tensor; NaN
        for one with a NaN; infinity for one with an infinity and no NaN.

    Source:
        Mustafa et al., "Are GATs Out of Balance?", NeurIPS 2023, figures 3b, 4b and 5, for the relative gradient norm.

    Example:
        >>> norms([torch.ones(4), torch.zeros(2, 2)])
        tensor([2., 0.], dtype=torch.float64)
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    kinds = {tensor.dtype for tensor in tensors}
    if torch.float64 in kinds:
        return torch.stack([_scaled_norm(tensor) for tensor in tensors])
    if kinds != {torch.float32} or not tensors[0].is_cpu:
        return torch.stack(torch._foreach_norm(list(tensors), 2, torch.float64))
    return torch.from_numpy(_array_norms([tensor.detach().numpy().reshape(-1) for tensor in tensors]))


@torch.no_grad()
def norms_of_pieces(flats: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Frobenius norms of tensors that are concatenated in flat ones, as a recorder keeps those of several steps.

    Args:
        flats: F tensors of one floating type, on one device, of shape (sum(sizes),).
        sizes: Number of entries of each of P tensors.

    Returns:
        (F, P), float64, as for `norms`.

    Example:
        >>> norms_of_pieces([torch.ones(5)], [4, 1])
        tensor([[2., 1.]], dtype=torch.float64)
    """
    if flats and flats[0].dtype is torch.float32 and flats[0].is_cpu:
        pieces = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        found = _array_norms([array[piece] for array in (flat.numpy() for flat in flats) for piece in pieces])
        return torch.from_numpy(found).view(len(flats), len(sizes))
    return norms([piece for flat in flats for piece in flat.split(list(sizes))]).view(len(flats), len(sizes))


def _array_norms(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Norms of flat arrays by dot products, which take a fifth of the time of a torch kernel."""
    with np.errstate(all="ignore"):  # sums that over- or underflow are recomputed below
        found: NDArray[np.float64] = np.sqrt(np.array([_sum_of_squares(array) for array in arrays]))
    for at in np.flatnonzero(~((found >= _SMALLEST) & (found < _LARGEST))).tolist():
        found[at] = math.sqrt(_sum_of_squares(arrays[at].astype(np.float64)))
    return found


def _sum_of_squares(array: NDArray[Any]) -> float:
    """The sum of squares in chunks: accurate, and BLAS starts no threads in addition to torch's."""
    end = len(array) // _PIECE * _PIECE
    pieces, rest = array[:end].reshape(-1, _PIECE), array[end:]
    return float(np.vecdot(pieces, pieces).sum(dtype=np.float64)) + float(np.vdot(rest, rest))


def non_finite_count(x: Tensor) -> Tensor:
    """The number of entries that are NaN or infinite.

    Args:
        x: Any shape and number type: weights, gradients, outputs.

    Returns:
        0-d, float64.

    Example:
        >>> non_finite_count(torch.tensor([1.0, float("nan"), float("-inf")])).item()
        2.0
    """
    return (~x.isfinite()).sum(dtype=torch.float64)


def _scaled_norm(x: Tensor) -> Tensor:
    """The norm in float64, scaled by the largest entry if squares would over- or underflow."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    if x.is_cpu and 1e-120 < float(norm) < 1e135:
        return norm
    values = x.double()
    largest = values.abs().amax() if x.numel() else norm
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    norm = torch.linalg.vector_norm(values / scale)
    return norm * scale


@torch.no_grad()
def spectral_norm(weight: Tensor) -> Tensor:
    """Largest singular value ||W||_2, by which W can stretch its input at most. The relative error is below 1e-5.

    The root of the largest eigenvalue of W^T W: by a full eigendecomposition if the matrix has at most 128 rows or
    columns, else by Lanczos iteration until the residual is below 2e-5 of the eigenvalue. The start vector is fixed;
    the global random state is not used. Synchronizes with the device. Not differentiable, unlike
    `torch.linalg.matrix_norm`.

    Args:
        weight: (out, in), real or complex, of any precision. All axes but the first are flattened, as in spectral
            normalization: for the kernel of a convolution, (out, in, k, k), this is the norm of the map from one patch
            to one output, not of the convolution of a whole image.

    Returns:
        0-d. 0 for a zero or empty W; NaN if W contains a NaN or infinity.

    Raises:
        InputError: `weight` has fewer than two axes.

    Source:
        Miyato et al., "Spectral Normalization for Generative Adversarial Networks", ICLR 2018, for the flattening;
        Golub & Van Loan, "Matrix Computations", chapter 10, for the iteration.

    Example:
        >>> round(spectral_norm(torch.diag(torch.tensor([4.0, 1.0]))).item(), 12)
        4.0
    """
    if weight.dim() < 2:
        raise InputError(f"expected a weight with two or more axes, got shape {tuple(weight.shape)}; pass a matrix")
    matrix = weight.flatten(1).to(_promote(torch.float32, weight.dtype))
    largest = max(map(abs, map(float, _real(matrix).aminmax()))) if matrix.numel() else 0.0
    if largest == 0 or not math.isfinite(largest):
        return torch.full((), largest * 0.0, dtype=torch.float64, device=weight.device)
    with torch.autocast(weight.device.type, enabled=False):
        if min(matrix.shape) <= _NARROW:
            square = _by_gram(matrix if len(matrix) >= matrix.shape[1] else matrix.mT, largest)
        elif 1e-4 < largest < 1e4:  # fourth powers fit float32, so no scaled copy is needed
            largest, square = 1.0, _by_lanczos(matrix)
        else:
            square = _by_lanczos(matrix / largest)
    return largest * square.sqrt()


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _by_gram(tall: Tensor, scale: float) -> Tensor:
    """Largest eigenvalue of W^T W / scale^2."""
    gram = torch.zeros((), dtype=torch.float64, device=tall.device)
    for piece in tall.split(_CHUNK // tall.shape[1]):
        rows = piece.to(_promote(torch.float64, piece.dtype)) / scale
        gram = gram + rows.mH @ rows
    eigenvalues: Tensor = torch.linalg.eigvalsh(gram)
    return eigenvalues[-1]


def _by_lanczos(matrix: Tensor) -> Tensor:
    """Largest eigenvalue of W^T W, from below. In chunks of rows, so that memory is read once per iteration."""
    pieces = matrix.split(max(1, _CACHED // matrix.shape[1])) if matrix.is_cpu else (matrix,)
    halves = [(piece, piece.mH) for piece in pieces]
    generator = torch.Generator().manual_seed(0)
    following = torch.randn(matrix.shape[1], generator=generator).to(matrix)
    vector = torch.zeros_like(following)
    diagonal: list[float] = []
    off_diagonal = [float(torch.linalg.vector_norm(following))]
    check = _LEAST
    while True:
        before, vector = vector, following / (off_diagonal[-1] or 1.0)
        following, kept, images = before, -off_diagonal[-1], []
        for piece, adjoint in halves:
            images.append(piece @ vector)
            following.addmv_(adjoint, images[-1], beta=kept)
            kept = 1.0
        diagonal.append(float(torch.linalg.vector_norm(torch.cat(images))) ** 2)
        following.sub_(vector, alpha=diagonal[-1])
        off_diagonal.append(float(torch.linalg.vector_norm(following)))
        if len(diagonal) == check:
            tridiagonal = torch.tensor(diagonal, dtype=torch.float64).diag()
            tridiagonal += torch.tensor(off_diagonal[1:-1], dtype=torch.float64).diag(-1)
            values: Tensor
            values, vectors = torch.linalg.eigh(tridiagonal)
            largest = float(values[-1])
            if off_diagonal[-1] * abs(float(vectors[-1, -1])) <= _RESIDUAL * largest or check >= _MOST:
                return values[-1].to(matrix.device)
            check += max(_LEAST // 2, check // 8)


def _promote(least: torch.dtype, given: torch.dtype) -> torch.dtype:
    return least if given.itemsize == 1 else torch.promote_types(given, least)

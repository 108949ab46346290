"""Inputs moved into general position, so that no coincidence among them (one-hot rows, equal weights) can fake a result."""

import torch
from torch import Tensor

_STRENGTH = 0.2  # largest share of an entry that is replaced: far above rounding, and the input keeps its character
_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def perturbed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor with x replaced by (1 - t) x + t r, t uniform in [0, 0.2] and r uniform in the range of the tensor and zero.

    So each entry is multiplied by a random factor near one and gets dense noise, and yet stays between the smallest and the
    largest entry (zero counted in; [0, 1] where all entries are zero): non-negative edge weights stay non-negative and
    pseudo-coordinates in [0, 1] stay there. Of a sparse tensor only the stored values move. Integer, boolean and complex
    tensors, NaN and infinite entries are left alone.

    Args:
        tensor: Any shape, device and layout.
        generator: On the CPU, so that all devices see the same draw.

    Returns:
        A new tensor of the same shape, dtype, device and layout.

    Example:
        >>> x = torch.tensor([1.0, 0.0, 2.0])
        >>> y = perturbed(x, torch.Generator().manual_seed(0))
        >>> bool((y != x).all() and (y >= 0).all() and (y <= 2).all())
        True
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    if tensor.layout is torch.sparse_coo:
        values = perturbed(tensor._values(), generator)
        return torch.sparse_coo_tensor(tensor._indices(), values, tensor.shape, is_coalesced=tensor.is_coalesced())
    if tensor.layout in _COMPRESSED:
        return _with_values(tensor, perturbed(tensor.values(), generator))
    finite = tensor.isfinite()
    known = torch.where(finite, tensor, 0)
    low, high = known.min().clamp(max=0), known.max().clamp(min=0)
    high = torch.where(low == high, 1, high).to(tensor.dtype)
    share, place = (_uniform(tensor, generator) for _ in range(2))
    share = _STRENGTH * share
    return torch.where(finite, (1 - share) * known + share * (low + place * (high - low)), tensor)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator).to(like)


def _with_values(tensor: Tensor, values: Tensor) -> Tensor:
    by_row = tensor.layout in {torch.sparse_csr, torch.sparse_bsr}
    pointers, others = (
        (tensor.crow_indices(), tensor.col_indices()) if by_row else (tensor.ccol_indices(), tensor.row_indices())
    )
    return torch.sparse_compressed_tensor(pointers, others, values, tensor.shape, layout=tensor.layout)

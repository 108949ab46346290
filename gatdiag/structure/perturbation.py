"""Inputs moved into general position, so that no coincidence among them (one-hot rows, equal weights) counts."""

import torch
from torch import Tensor

_STRENGTH = 0.2  # largest share of an entry that is replaced: far above rounding, and the input keeps its character


def perturbed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor with each entry x replaced by (1 - t) x + t r, at random.

    t is uniform in [0, 0.2], r uniform between the smallest and the largest entry of the tensor and zero (between
    zero and one where all entries are zero). So each entry is multiplied by a random factor near one and gets dense
    noise, and stays in the range of the input: non-negative edge weights stay non-negative, coordinates in [0, 1]
    stay there. Of a sparse tensor only the stored values move. Integer, boolean and complex tensors, NaN and infinite
    entries are left alone. The generator is on the CPU, so that all devices see the same draw.

    Example:
        >>> x = torch.tensor([1.0, 0.0, 2.0])
        >>> y = perturbed(x, torch.Generator().manual_seed(0))
        >>> bool((y != x).all() and (y >= 0).all() and (y <= 2).all())
        True
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    if tensor.layout is not torch.strided:
        moved = tensor.clone()
        values = moved._values() if tensor.layout is torch.sparse_coo else moved.values()
        values.copy_(perturbed(values, generator))
        return moved
    finite = tensor.isfinite()
    known = torch.where(finite, tensor, 0)
    low, high = known.min().clamp(max=0), known.max().clamp(min=0)
    high = torch.where(low == high, 1, high).to(tensor.dtype)
    share, place = (_uniform(tensor, generator) for _ in range(2))
    share = _STRENGTH * share
    return torch.where(finite, (1 - share) * known + share * (low + place * (high - low)), tensor)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator).to(like)

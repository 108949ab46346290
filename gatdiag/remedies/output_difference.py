"""How far a model's outputs move when its weights are multiplied by factors, found out on a copy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag.laws.outputs import floating_tensors, read_outputs
from gatdiag.remedies.orbit import Tensors, multiply_
from gatdiag.structure import replicate


@dataclass(frozen=True)
class OutputDifference:
    """The largest change of an output.

    Attributes:
        absolute: Largest |after - before| of any entry.
        relative: The same relative to the largest |before| of its tensor, the largest of all tensors. NaN where an
            output was not finite before, infinite where one no longer is.
        epsilon: Machine epsilon of the coarsest floating dtype among outputs and parameters: what rounding alone makes.
    """

    absolute: float
    relative: float
    epsilon: float


def output_difference(
    model: nn.Module,
    factors: Tensors,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> OutputDifference:
    """Run a copy of the model in evaluation mode, before and after its parameters are multiplied.

    Args:
        model: The model, which is not changed.
        factors: Name of parameter -> factor that broadcasts against it.
        args: Positional inputs of its forward pass.
        kwargs: Keyword inputs.
        dtype: The precision to run in; the model's own if None.

    Raises:
        ModelError: The model cannot be copied, or its forward pass fails (in this precision).

    Example:
        >>> mlp = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> s = torch.tensor([0.5, 1.0, 4.0])
        >>> factors = {"0.weight": s[:, None], "0.bias": s, "2.weight": 1 / s}
        >>> output_difference(mlp, factors, (torch.randn(4, 2),), dtype=torch.float64).relative < 1e-12
        True
    """
    replica = replicate(model, args, kwargs)
    if dtype is not None:
        replica.to(dtype)
    replica.model.eval()
    before = replica.run_no_grad(read_outputs).tensors
    for name, factor in factors.items():
        multiply_(replica.parameters[name], factor)
    after = replica.run_no_grad(read_outputs).tensors
    dtypes = {tensor.dtype for tensor in [*before, *floating_tensors(replica.parameters)]}
    epsilon = max((torch.finfo(known).eps for known in dtypes), default=0.0)
    changes = [_change(old, new) for old, new in zip(before, after, strict=True) if old.numel()]
    absolute, relative = torch.tensor(changes or [[0.0, 0.0]], dtype=torch.float64).amax(0).tolist()
    return OutputDifference(absolute, relative, epsilon)


def _change(before: Tensor, after: Tensor) -> tuple[float, float]:
    before, after = (
        tensor.to_dense().to(torch.promote_types(tensor.dtype, torch.float64)) for tensor in (before, after)
    )
    if not bool(before.isfinite().all()):
        return math.nan, math.nan
    if not bool(after.isfinite().all()):
        return math.inf, math.inf
    absolute, size = float((after - before).abs().max()), float(before.abs().max())
    return absolute, absolute / size if size else math.inf if absolute else 0.0

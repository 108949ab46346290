"""Where a forward pass has kinks: ReLU, maxima and other operations that are only piecewise smooth.

A parameter without effect near one point may be without effect by chance (a dead ReLU) or for good (a bias before batch
norm). Up to the first kink the network is analytic, and what an analytic function does not depend on near one generic
point it does not depend on anywhere. So the inputs of kinks, cut off from what follows, tell the two apart.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_KINKS = frozenset(
    [
        "relu",
        "relu6",
        "leaky_relu",
        "prelu",
        "rrelu",
        "threshold",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "hardshrink",
        "softshrink",
        "elu",
        "celu",
        "selu",
        "abs",
        "absolute",
        "clamp",
        "clamp_min",
        "clamp_max",
        "clip",
        "max",
        "min",
        "amax",
        "amin",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "cummax",
        "cummin",
        "where",
        "masked_fill",
        "sort",
        "topk",
        "median",
        "mode",
        "kthvalue",
        "scatter_reduce",
        "index_reduce",
        "segment_reduce",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "max_pool1d_with_indices",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "adaptive_max_pool1d_with_indices",
        "adaptive_max_pool2d_with_indices",
        "fractional_max_pool2d",
        "fractional_max_pool2d_with_indices",
        "sign",
        "sgn",
        "round",
        "floor",
        "ceil",
        "fmod",
        "remainder",
        "huber_loss",
        "smooth_l1_loss",
        "l1_loss",
        "nan_to_num",
        "aminmax",
        "msort",
        "argsort",
        "cdist",
        "pdist",
    ]
)


_SMOOTH_REDUCTIONS = ("sum", "mean", "add")


class Kinks(TorchFunctionMode):
    """Looks at what goes into kinks and cuts the graph behind them.

    Attributes:
        projections: For each tensor with a gradient history that went into a kink, a random linear function of it.
    """

    def __init__(self, generator: torch.Generator) -> None:
        """Projections are drawn from the generator."""
        super().__init__()
        self._generator = generator
        self.projections: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let everything through; at a kink, project the inputs and detach the outputs."""
        kwargs = kwargs or {}
        values = (*args, *kwargs.values())
        name = getattr(func, "__name__", "").strip("_")
        smooth = any(isinstance(value, str) and value in _SMOOTH_REDUCTIONS for value in values)
        if name not in _KINKS or smooth or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        for value in values:
            if isinstance(value, Tensor) and value.requires_grad and value.is_floating_point():
                weights = torch.randn(value.shape, generator=self._generator, dtype=value.dtype).to(value.device)
                self.projections.append((value * weights).sum())
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and any(out is value for value in args):
            return out if out._is_view() else out.detach_()
        return tree_map_only(Tensor, Tensor.detach, out)

"""Where a forward pass has kinks: ReLU, maxima and other operations that are only piecewise smooth.

A parameter without effect near one point may be without effect by chance (a dead ReLU) or for good (a bias before batch
norm). Between kinks the network is analytic, and what an analytic function does not depend on near one generic point it
does not depend on anywhere. So the inputs of kinks, cut off from what follows, tell the two apart, provided that what
follows starts from a generic point as well: a layer all of whose units are dead feeds zeros to the next one, whose
attention then weighs equal rows and seems to be without effect. What leaves a kink is therefore moved into general
position.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from gatdiag.structure.perturbation import perturbed

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
    """Looks at what goes into kinks, cuts the graph behind them, and goes on from a point in general position.

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
        """Let everything through; at a kink, project the inputs, and move and cut off the outputs.

        Without gradients (a checkpointed segment, before it is computed again) nobody can tell what depends on a
        parameter, and all is moved.
        """
        kwargs = kwargs or {}
        values = (*args, *kwargs.values())
        name = getattr(func, "__name__", "").strip("_")
        smooth = any(isinstance(value, str) and value in _SMOOTH_REDUCTIONS for value in values)
        floating = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
        bent = [value for value in floating if value.requires_grad]
        if name not in _KINKS or smooth or not (bent or (floating and not torch.is_grad_enabled())):
            return func(*args, **kwargs)
        if torch.is_grad_enabled():
            for value in bent:
                weights = torch.randn(value.shape, generator=self._generator, dtype=value.dtype).to(value.device)
                self.projections.append((value * weights).sum())
        seed = _seed(floating)
        with torch.no_grad():
            out = func(*args, **kwargs)
        if isinstance(out, Tensor) and any(out is value for value in values):
            return out.copy_(_restarted(out, seed))
        return tree_map_only(Tensor, lambda tensor: _restarted(tensor, seed), out)


def _seed(inputs: Sequence[Tensor]) -> int:
    """A number that depends on nothing but the inputs, so that what is computed twice, or recomputed, stays equal."""
    total = sum(float(value.detach().nan_to_num(posinf=0.0, neginf=0.0).sum()) for value in inputs)
    return hash(total)


def _restarted(tensor: Tensor, seed: int) -> Tensor:
    """The tensor near its values, without its history; it has one of its own, so that the next kink knows it."""
    if not tensor.is_floating_point():
        return tensor
    moved = perturbed(tensor.detach(), torch.Generator().manual_seed(seed))
    return moved.clone().requires_grad_().clone()

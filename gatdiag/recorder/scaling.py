"""What gradients are to be multiplied by to undo a gradient scaler."""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer


def calling_scaler() -> GradScaler | None:
    """The gradient scaler whose `step` this is called from, if it is.

    A scaler leaves no trace on an optimizer that is not fused, and tells no hook; but it is what calls the optimizer.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


def of_parameters(optimizers: Sequence[Optimizer]) -> Tensor | None:
    """For gradients of parameters as a fused optimizer finds them: it unscales them inside its step."""
    scales = [scale for optimizer in optimizers if (scale := getattr(optimizer, "grad_scale", None)) is not None]
    return 1.0 / scales[0].double() if scales else None


def of_outputs(scaler: Any) -> Tensor | float | None:
    """For gradients of layer outputs; a tensor where that spares waiting for the device."""
    if scaler is None or not scaler.is_enabled():
        return None
    scale = getattr(scaler, "_scale", None)
    return 1.0 / (scale.double() if isinstance(scale, Tensor) else float(scaler.get_scale()))

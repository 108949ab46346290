"""What a model's outputs show at the start and the end: whether rows differ, and targets that they cannot reach."""

import math
from collections.abc import Sequence
from typing import Final

from torch import Tensor

from gatdiag.metrics.smoothing import as_rows
from gatdiag.operations import RANGES

_MIN_ROWS: Final = 3
_EXACT: Final = 1e-3  # relative, of a slope that shows the kind of error
_MARGIN: Final = 0.01  # of the spread of the targets
_MAIN_PART: Final = 0.5  # of a loss with another part
_NEAR: Final = 0.01  # of the largest output is the spread of targets at least
_AT_BOUND: Final = 0.1  # share of the entries whose gradient is the largest: an absolute error


def row_spread(o: Tensor) -> dict[str, float]:
    """How much the rows of an output differ.

    Returns:
        "size": root mean square distance of a row from the mean row; "direction": the same of the rows divided by their
        norms, 0 if all point the same way, near 1 if they point everywhere. Without "direction" for a single column and
        where a row is zero; empty for less than three rows, and if some entry is not finite.

    Example:
        >>> import torch
        >>> spread = row_spread(torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]]))
        >>> round(spread["size"], 4), spread["direction"]
        (0.8165, 0.0)
    """
    o = as_rows(o.detach()).double()
    if len(o) < _MIN_ROWS or not bool(o.isfinite().all()):
        return {}
    found = {"size": float((o - o.mean(0)).square().sum(1).mean().sqrt())}
    norms = o.norm(dim=1, keepdim=True)
    if o.shape[1] > 1 and bool(norms.all()):
        found["direction"] = float((1 - (o / norms).mean(0).square().sum()).clamp(min=0).sqrt())
    return found


def latent_size(latents: Sequence[Tensor]) -> dict[str, float]:
    """Of what a model returns beside its output, one row for each example.

    Returns:
        "size": the root mean square of all entries; "spread": that of their distance from the mean row, in the tensor
        whose rows differ most; empty if there is nothing of the kind.
    """
    rows = [as_rows(x).double() for x in latents if x.dim() > 1 and x.numel() and x.is_floating_point()]
    rows = [x for x in rows if len(x) >= _MIN_ROWS and bool(x.isfinite().all())]
    if not rows:
        return {}
    size = sum(float(x.square().sum()) for x in rows) / sum(x.numel() for x in rows)
    return {"size": math.sqrt(size), "spread": max(float((x - x.mean(0)).square().mean().sqrt()) for x in rows)}


def unreachable_targets(
    o: Tensor, gradient: Tensor, loss: float, operation: str, bound: float | None = None, *, has_parts: bool = False
) -> float | None:
    """Share of the targets that the last operation of the model cannot return.

    The sum of squares of the gradient of s * sum (o - y)^2 is 4 s times the loss: so s is known, and if it is that of a
    mean or a sum, targets are, too. The gradient of the mean absolute error has one size, and that of Huber's error is
    bounded by it; where the output of a ReLU is zero, its sign shows whether the target is below. Where the gradient of
    Huber's error is at its bound, the target is at least as far from the output as where it becomes constant.

    Args:
        o: The output (rows, columns).
        gradient: dL/do.
        loss: Its value.
        operation: The name of the last operation, without "Backward0".
        bound: The distance from which on the slope of Huber's error is constant, if it is one.
        has_parts: Whether a smaller part of the loss may be something else, which is positive, as a divergence is.

    Returns:
        None if the operation has no bounds, or the loss is no such error.

    Example:
        >>> import torch
        >>> o, y = torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([[-1.0], [0.4], [2.0]])
        >>> round(unreachable_targets(o, 2 * (o - y) / 3, float((o - y).square().mean()), "Relu"), 3)
        0.333
    """
    o, g = as_rows(o.detach()).double(), as_rows(gradient.detach()).double()
    if operation not in RANGES or not bool(g.any()) or not loss > 0:
        return None
    if bound:
        return _unreachable_by_huber(o, g, bound, *RANGES[operation])
    each = [1 / count for count in _counts(g)]
    if (y := _targets(o, g, loss, has_parts=has_parts)) is not None:
        low, high = RANGES[operation]
        margin = _MARGIN * float(y.std())
        return float(((y < low - margin) | (y > high + margin)).double().mean())
    size = g.abs()
    is_absolute = _is_one_of(float(size.max()), each) and float((size > 0.999 * size.max()).double().mean()) > _AT_BOUND
    return float(((o == 0) & (g > 0)).double().mean()) if is_absolute and operation == "Relu" else None


def unreachable_error(
    o: Tensor, gradient: Tensor, loss: float, operation: str, *, has_parts: bool = False
) -> float | None:
    """The squared error that is left if each output comes as near to its target as the last operation can.

    Args:
        o: The output (rows, columns).
        gradient: dL/do.
        loss: Its value.
        operation: The name of the last operation, without "Backward0".
        has_parts: See `unreachable_targets`.

    Returns:
        In units of the loss; None if the operation has no bounds, or the loss is no squared error.

    Example:
        >>> import torch
        >>> o, y = torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([[-1.0], [0.4], [2.0]])
        >>> round(unreachable_error(o, 2 * (o - y) / 3, float((o - y).square().mean()), "Sigmoid"), 3)
        0.667
    """
    o, g = as_rows(o.detach()).double(), as_rows(gradient.detach()).double()
    if operation not in RANGES or not bool(g.any()) or not loss > 0:
        return None
    y = _targets(o, g, loss, has_parts=has_parts)
    if y is None:
        return None
    error = (o - y).square().sum()
    return float((y - y.clamp(*RANGES[operation])).square().sum() / error) * loss if error > 0 else 0.0


def asked_of_rows(o: Tensor, gradient: Tensor, loss: float) -> Tensor | None:
    """The mean target of each row of an output, NaN where one is missing; None if the loss is no squared error."""
    o, g = as_rows(o.detach()).double(), as_rows(gradient.detach()).double()
    y = _targets(o, g, loss) if loss > 0 and bool(g.any()) else None
    live = (g != 0).all(1)
    if y is None or not bool(live.any()) or not float(y[live].std(correction=0)) > _NEAR * float(o.abs().max()):
        return None  # of outputs that are far off rounding is left, and other errors look the same
    return y.mean(1).where(live, math.nan)


def _targets(o: Tensor, g: Tensor, loss: float, *, has_parts: bool = False) -> Tensor | None:
    """The targets of a squared error; None if the loss is another one."""
    each = [1 / count for count in _counts(g)]
    slopes = [*each, *(2 * one for one in each)]
    fitted = float(g.square().sum()) / (2 * loss)
    if not has_parts:
        slope = next((each for each in slopes if _is_one_of(fitted, [each])), 0.0)
        return o - g / slope if slope else None
    possible = {slope for slope in slopes if fitted * (1 - _EXACT) <= slope < fitted / _MAIN_PART}
    return o - g / possible.pop() if len(possible) == 1 else None


def _unreachable_by_huber(o: Tensor, g: Tensor, bound: float, low: float, high: float) -> float:
    far = g.abs() > (1 - _EXACT) * g.abs().max()
    above, below = far & (g < 0) & (o + bound > high + _MARGIN), far & (g > 0) & (o - bound < low - _MARGIN)
    return float((above | below).double().mean()) if float(far.double().mean()) > _AT_BOUND else 0.0


def _counts(g: Tensor) -> list[int]:
    """What an error may be divided by: entries or rows, all or those with a gradient, or one."""
    live = int((g != 0).any(1).sum())
    return [g.numel(), len(g), live * g.shape[1], live, 1]


def _is_one_of(value: float, known: Sequence[float]) -> bool:
    return any(math.isclose(value, one, rel_tol=_EXACT) for one in known)

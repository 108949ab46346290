"""Scale and shift the output of an existing model, so that its layers need not learn the size of the targets."""

from typing import Any

from torch import Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.remedies.applied import Applied, add_mixin, check_not_generated, check_positive, remove_mixin, unwrap_model

_AFFINE = "_gatdiag_output"


def rescale_output_(model: nn.Module, scale: float, shift: float) -> Applied:
    """Return scale y + shift in place of each output y of a model, in place.

    With the standard deviation and the mean of the targets, the layers learn standardized targets, while outputs and
    loss stay in the units of the targets. The gradient of a squared error is then scale^2 times that of standardized
    targets: gradient descent needs a learning rate that much smaller, Adam the same one.

    Args:
        model: Any module. Of a tuple or dict of outputs, the first one is rescaled.
        scale: Positive.
        shift: Finite.

    Returns:
        The change, which can be undone.

    Raises:
        InputError: An argument is invalid.
        ModelError: The output is rescaled already, or the model is scripted or traced by torch.fx. In the forward pass:
            the output is no tensor.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Identity())
        >>> applied = rescale_output_(model, 2.0, 100.0)
        >>> model(torch.tensor([-1.0, 1.0]))
        tensor([ 98., 102.])
        >>> applied.undo()
        >>> model(torch.tensor([-1.0, 1.0]))
        tensor([-1.,  1.])
    """
    user = unwrap_model(model)
    check_not_generated("", user)
    if isinstance(user, _RescaledMixin):
        raise ModelError("The output of the model is rescaled already: undo that first")
    if not abs(shift) < float("inf"):
        raise InputError(f"Expected shift to be a finite number, got {shift!r}")
    scale = check_positive("scale", scale)
    applied = Applied("rescale_output")

    def restore() -> None:
        remove_mixin(user, _RescaledMixin)
        vars(user).pop(_AFFINE, None)

    with applied.undo_on_error():
        applied.add_change("output", f"times {scale:g}, plus {shift:g}", restore)
        setattr(user, _AFFINE, (scale, float(shift)))
        add_mixin(user, _RescaledMixin)
        return applied


class _RescaledMixin:
    """Mixin of a model whose output is rescaled."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _rescale(super().forward(*args, **kwargs), *getattr(self, _AFFINE))  # type: ignore[misc]


def _rescale(output: Any, scale: float, shift: float) -> Any:
    if isinstance(output, Tensor):
        return scale * output + shift
    if type(output) is tuple and output:
        return (_rescale(output[0], scale, shift), *output[1:])
    if isinstance(output, dict) and output:
        first = next(iter(output))
        return {**output, first: _rescale(output[first], scale, shift)}
    raise ModelError(f"Expected an output that is a tensor, or a tuple or dict of tensors, got {type(output).__name__}")

"""Gradients of a loss, without a trace on the model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag.errors import InputError
from gatdiag.remedies.orbit import Tensors
from gatdiag.structure import replicate
from gatdiag.structure.isolation import preserved_random_state


def gradients_of(
    model: nn.Module,
    parameters: Tensors,
    loss: Callable[[Any], Tensor] | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Gradients by name: of a loss, found on a copy of the model in its own mode; or those a backward pass left on it.

    Args:
        model: The model, which is not changed.
        parameters: Name -> parameter of the model. Those the loss does not depend on are left out of the result.
        loss: The output of the forward pass -> scalar; None: use what is in ``.grad``.
        args: Positional inputs of the forward pass.
        kwargs: Keyword inputs.

    Raises:
        InputError: There are no gradients, or the loss is not one number that depends on the output.
        ModelError: The forward pass fails.

    Example:
        >>> line = nn.Linear(2, 1, bias=False)
        >>> found = gradients_of(line, dict(line.named_parameters()), torch.sum, (torch.ones(3, 2),), {})
        >>> found["weight"], line.weight.grad
        (tensor([[3., 3.]]), None)
    """
    if loss is None:
        left = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
        if not left and parameters:
            raise InputError(
                "Expected gradients, got a model without. Give loss=, a function of the output, or call this after "
                "loss.backward()."
            )
        return left
    replica = replicate(model, args, kwargs)
    copies = [replica.parameters[name] for name in parameters]
    with torch.enable_grad(), preserved_random_state({copied.device for copied in copies}):
        value = loss(replica.run())
        if not (isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad):
            raise InputError(
                f"Expected the loss to be one number that depends on the output, got {_shown(value)}. Give a function "
                "of what the forward pass returns."
            )
        found = torch.autograd.grad(value.sum(), copies, allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"a tensor of shape {list(value.shape)}" + ("" if value.requires_grad else " without a gradient")

"""The next step of an optimizer, split for every weight into the parts that a law distinguishes.

Every supported step has the form

    w' = k w - a g - r

with the loss gradient g, numbers k (weight decay) and a (step length along the gradient) for each parameter group, and
a tensor r for the rest: the momentum part of SGD, the whole preconditioned step of Adam. Then

    sum e w'^2 = k^2 c + sum e (a g + r)^2 - 2 k sum e w r - 2 k a sum e w g,

and the last sum is delta, which is zero where the law holds.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from gatdiag.errors import OptimizerError


class Update(NamedTuple):
    """One parameter's step w' = keep * w - step * g - rest."""

    keep: float = 1.0  # k, one minus learning rate times weight decay
    step: float = 0.0  # a, the step length along the gradient
    rest: Tensor | None = None  # r; None if it is zero


def predict_updates(optimizer: Optimizer, gradients: Mapping[int, Tensor]) -> dict[int, Update]:
    """The step an optimizer is about to make, from its state and the gradients: id of a parameter -> `Update`.

    Supported are `SGD` (weight decay, momentum, dampening, Nesterov, maximize), `Adam` and `AdamW` (AMSGrad, maximize)
    before their ``step()``, with any number of parameter groups. Parameters without a gradient are not updated.
    Gradients may be flat.

    Raises:
        OptimizerError: Another optimizer that updates any of these parameters.
    """
    rule = _RULES.get(type(optimizer))
    found: dict[int, Update] = {}
    for group in optimizer.param_groups:
        updated = [parameter for parameter in group["params"] if id(parameter) in gradients]
        if not updated:
            continue
        if rule is None:
            known = ", ".join(kind.__name__ for kind in _RULES)
            raise OptimizerError(
                f"Expected one of {known}, got {type(optimizer).__name__}, whose step gatdiag cannot predict. "
                "Measure c before and after the step with laws.c() instead."
            )
        if rule is _sgd and not group["momentum"]:  # the same for all
            found |= dict.fromkeys(map(id, updated), _sgd(group, {}, updated[0], gradients[id(updated[0])]))
            continue
        alike: dict[tuple[object, ...], list[Tensor]] = defaultdict(list)
        for parameter in updated:
            state = optimizer.state.get(parameter, {})
            kinds = (key for key, value in state.items() if value is not None)
            step = state.get("step", 0)
            key = (parameter.dtype, parameter.device, None if _is_on_device(step) else float(step), *kinds)
            alike[key].append(parameter)
        for together in alike.values():
            found |= _predict_together(rule, group, optimizer, together, gradients)
    return found


def _predict_together(
    rule: "_Rule",
    group: dict[str, Any],
    optimizer: Optimizer,
    parameters: list[Tensor],
    gradients: Mapping[int, Tensor],
) -> dict[int, Update]:
    """The updates of parameters with alike states, as one flat tensor."""
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    state = {
        key: _flat([of[key] for of in states])
        if isinstance(value, Tensor) and value.shape == parameters[0].shape and key != "step"
        else value
        for key, value in states[0].items()
        if value is not None
    }
    if "step" in state and _is_on_device(state["step"]):  # may differ: one for each entry
        entries = [parameter.numel() * (1 + parameter.is_complex()) for parameter in parameters]
        steps = [of["step"].expand(count) for of, count in zip(states, entries, strict=True)]
        state["step"] = torch.cat(steps).double()
    elif "step" in state:
        state["step"] = float(state["step"])
    gradient = _flat([gradients[id(parameter)] for parameter in parameters])
    update = rule(group, state, _flat([parameter.detach() for parameter in parameters]), gradient)
    if update.rest is None:
        return dict.fromkeys(map(id, parameters), update)
    rest = torch.view_as_complex(update.rest.view(-1, 2)) if parameters[0].is_complex() else update.rest
    pieces = rest.split([parameter.numel() for parameter in parameters])
    return {
        id(parameter): Update(update.keep, update.step, piece.view(parameter.shape))
        for parameter, piece in zip(parameters, pieces, strict=True)
    }


def _is_on_device(step: Any) -> bool:
    """True for the step count of a fused or capturable optimizer, which the host would have to wait for."""
    return isinstance(step, Tensor) and not step.is_cpu


def _flat(tensors: list[Tensor]) -> Tensor:
    """Concatenate flattened tensors; complex ones as real and imaginary parts, which optimizers treat separately."""
    dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors]
    dense = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in dense]
    flat: Tensor = torch._C._nn.flatten_dense_tensors(dense)
    return flat


def _sgd(group: dict[str, Any], state: dict[str, Any], weight: Tensor, gradient: Tensor) -> Update:
    rate, decay, momentum = float(group["lr"]), float(group["weight_decay"]), float(group["momentum"])
    sign = -1.0 if group["maximize"] else 1.0
    buffer = state.get("momentum_buffer")
    # v' = momentum * v + fresh * (sign * g + decay * w), and the step is v', or d + momentum * v' with Nesterov
    fresh = 1.0 if buffer is None else 1.0 - float(group["dampening"])
    direct, carried = (fresh, momentum) if momentum else (1.0, 0.0)
    if momentum and group["nesterov"]:
        direct, carried = 1.0 + momentum * fresh, momentum * momentum
    rest = None if buffer is None or not carried else rate * carried * buffer.to(torch.float64)
    return Update(1.0 - rate * direct * decay, rate * direct * sign, rest)


def _adam(group: dict[str, Any], state: dict[str, Any], weight: Tensor, gradient: Tensor) -> Update:
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    decoupled = bool(group.get("decoupled_weight_decay", False))
    (beta1, beta2), epsilon = map(float, group["betas"]), float(group["eps"])
    direction = -gradient if group["maximize"] else gradient
    if decay and not decoupled:
        direction = direction + decay * weight
    step = state.get("step", 0.0) + 1
    first = direction * (1 - beta1)
    second = direction * direction * (1 - beta2)
    if state:
        first = first + beta1 * state["exp_avg"]
        second = second + beta2 * state["exp_avg_sq"]
    if group["amsgrad"]:
        second = torch.maximum(state["max_exp_avg_sq"], second) if state else second
    scale = (1 - beta2**step) ** 0.5
    rest = rate / (1 - beta1**step) * first / (second.sqrt() / scale + epsilon)
    return Update(1.0 - rate * decay if decoupled else 1.0, 0.0, rest.to(torch.float64))


_Rule: TypeAlias = Callable[[dict[str, Any], dict[str, Any], Tensor, Tensor], Update]
_RULES: dict[type[Optimizer], _Rule] = {SGD: _sgd, Adam: _adam, AdamW: _adam}

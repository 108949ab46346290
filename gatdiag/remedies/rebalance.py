"""Rescale the weights of a model until its neurons are in balance, without changing its function."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.laws import Exclusion, Laws, find_laws
from gatdiag.remedies.applied import Applied, unwrap_model
from gatdiag.remedies.least_norm import Tensors, multiply_, relative_gradients
from gatdiag.remedies.moments import scaled_moments, state_powers
from gatdiag.remedies.verification import OutputDifference, find_verified_rescaling
from gatdiag.structure.optimizers import parameters_of

Towards: TypeAlias = Literal["c", "relative-gradients"]


@dataclass(eq=False, repr=False)
class Rebalanced(Applied):
    """The result of `rebalance_`. All values are over the laws that were balanced.

    `undo` restores weights, gradients and optimizer state bit for bit.

    Attributes:
        towards: What was balanced.
        laws: The laws of the model.
        balanced: Positions of the laws that were balanced.
        c_before: Largest |c| before, c = sum_k e_k ||w_k||^2; 0 if no law was balanced.
        c_after: Largest |c| after, with the weights rounded to their dtype.
        imbalance_before: Largest |in - out| / (in + out) before, from 0 (balance) to 1, where in and out are the
            squared norms of a neuron's incoming and outgoing weights, or of their relative gradients.
        imbalance_after: The same after; about 1e-7 in float32, 1e-15 in float64.
        factors: Name of a law -> its factor s > 0: each term is multiplied by s to the power of its exponent. If
            s > 1, a neuron's incoming weights grow, and its outgoing weights shrink.
        scales: Parameter name -> factor, positive float64, broadcastable to the parameter.
        double: Change of the outputs in float64, in which weights are hardly rounded; None if the model does not run in
            it.
        own: Change of the outputs in the model's own precision.
    """

    towards: Towards
    laws: Laws
    balanced: tuple[int, ...]
    c_before: float
    c_after: float
    imbalance_before: float
    imbalance_after: float
    factors: Mapping[str, float]
    scales: Tensors
    skipped: tuple[Exclusion, ...]
    double: OutputDifference | None
    own: OutputDifference

    def __post_init__(self) -> None:
        """Start without changes."""
        super().__init__("rebalance", self.skipped)

    def imbalance(self, weights: Tensors) -> tuple[float, float]:
        """Largest |c|, and largest imbalance of weights, of the balanced laws at other weights, such as rounded ones.

        Args:
            weights: Name -> weight, for all `laws.names`.
        """
        return _imbalance(self.laws, self.balanced, weights)


def rebalance_(
    model: nn.Module,
    *args: Any,
    towards: Towards = "c",
    optimizer: Optimizer | None = None,
    **kwargs: Any,
) -> Rebalanced:
    """Rescale a model's weights, in place, until its neurons are in balance, without changing its function.

    Each law of the model is a rescaling that does not change its function. Among all weights that such rescalings lead
    to, those with c = sum_k e_k ||w_k||^2 = 0 for each law are chosen: the unique weights of least norm. Gradient
    descent nearly conserves c, so a network that is out of balance stays so, and the larger weights of a neuron hardly
    change. Factors are positive and commute with ReLU and LeakyReLU.

    It can be called during training, between ``optimizer.step()`` and the next forward pass, or before a step. Existing
    gradients are divided by the factors of their weights, which gives the gradients of the rescaled model, and the
    optimizer's moments are rescaled (`gatdiag.remedies.moments.rescale_moments_`). Averages of weights elsewhere (EMA)
    are not rescaled.

    Laws are found with these inputs in the model's current mode. Before anything is changed, the outputs are checked on
    copies in evaluation mode; layers that would change them are skipped.

    Args:
        model: Any module whose laws can be found.
        args: Positional inputs of its forward pass.
        towards: ``c``, or ``relative-gradients`` to balance the squared relative gradients instead, from the existing
            gradients of the parameters and entry by entry: sum_k e_k ||g_k / w_k||^2 = 0
            (`gatdiag.remedies.least_norm.find_rescaling`).
        optimizer: The optimizer whose state is rescaled along.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        What was balanced and what was skipped, and how much the outputs changed. A model without laws is not changed.

    Raises:
        InputError: An argument is invalid.
        OptimizerError: The state of the optimizer cannot be rescaled.
        ModelError: No laws can be found, or the outputs would change by more than rounding. Nothing was changed.

    Source:
        Equation 5 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023); "Dynamic Rescaling for
        Training GNNs" (Mustafa, Burkholz, NeurIPS 2024).

    Example:
        >>> _ = torch.manual_seed(0)
        >>> mlp = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> x = torch.randn(5, 4)
        >>> before = mlp(x)
        >>> done = rebalance_(mlp, x)
        >>> done.imbalance_before > 0.1, done.imbalance_after < 1e-6, torch.allclose(mlp(x), before)
        (True, True, True)
    """
    if towards not in get_args(Towards):
        raise InputError(f"Expected towards to be one of {', '.join(get_args(Towards))}, got {towards!r}.")
    user = unwrap_model(model)
    powers = {} if optimizer is None else optimizer_powers(user, optimizer)
    laws = find_laws(user, *args, **kwargs)
    gradients = None if towards == "c" else _gradients(laws.parameters)
    rescaling, double, own = find_verified_rescaling(user, laws, gradients, args, kwargs)
    scales = rescaling.factors
    relative = None if gradients is None else relative_gradients(laws.parameters, gradients)
    weights = {name: multiply_(laws.parameters[name].detach().clone(), scale) for name, scale in scales.items()}
    balanced = tuple(rescaling.balanced)
    c_before, imbalance_before = _imbalance(laws, balanced, laws.parameters, relative)
    if relative is not None:
        relative |= {name: multiply_(relative[name], scale**-2) for name, scale in scales.items()}
    c_after, imbalance_after = _imbalance(laws, balanced, {**laws.parameters, **weights}, relative)
    done = Rebalanced(
        towards,
        laws,
        balanced,
        c_before,
        c_after,
        imbalance_before,
        imbalance_after,
        {laws[number].name: math.exp(rescaling.coordinates[number]) for number in balanced},
        scales,
        (*rescaling.skipped, *laws.excluded, *_frozen(user)),
        double,
        own,
    )
    with done.undo_on_error():
        for name, scale in [(name, scale) for name, scale in scales.items() if bool((scale != 1).any())]:
            what = f"multiplied by {float(scale.min()):.3g} to {float(scale.max()):.3g}"
            parameter = laws.parameters[name]
            values = parameter, parameter.grad, *_state(parameter, optimizer).values()
            done.save_tensors(name, what, *(value for value in values if isinstance(value, Tensor)))
        rescale_(laws.parameters, scales, optimizer, powers)
        return done


def _gradients(parameters: Tensors) -> dict[str, Tensor]:
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    if not gradients and parameters:
        raise InputError("Expected parameters with gradients, got none: call this after loss.backward().")
    return gradients


def _state(parameter: Tensor, optimizer: Optimizer | None) -> Mapping[str, Any]:
    return {} if optimizer is None else optimizer.state.get(parameter, {})


def rescale_(parameters: Tensors, factors: Tensors, optimizer: Optimizer | None, powers: Mapping[str, int]) -> None:
    """Multiply weights by their factors, divide gradients by them, and rescale the optimizer's state accordingly.

    This is a single call of torch, so that an interrupt cannot leave some weights rescaled and others not.
    """
    scaled = []
    for name, factor in factors.items():
        parameter, scale = parameters[name], factor.to(parameters[name].device)
        scaled.append((parameter.detach(), scale))
        if parameter.grad is not None:
            scaled.append((parameter.grad, 1 / scale))
        scaled += scaled_moments(_state(parameter, optimizer), scale, powers)
    if scaled:
        torch._foreach_mul_(*zip(*scaled, strict=True))


def optimizer_powers(model: nn.Module, optimizer: Any) -> Mapping[str, int]:
    """The powers with which the state of an optimizer scales; raises InputError if it does not train the model."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"Expected optimizer to be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    trained = parameters_of(optimizer).keys()
    if trained.isdisjoint(map(id, model.parameters())):
        raise InputError("Expected the optimizer of this model, got one without any of its parameters.")
    return state_powers(optimizer)


def _imbalance(
    laws: Laws, balanced: Sequence[int], weights: Tensors, relative: Tensors | None = None
) -> tuple[float, float]:
    """Largest |c|, and largest imbalance of weights or relative gradients, over the balanced laws."""
    if not balanced:
        return 0.0, 0.0
    chosen = list(balanced)
    values = laws.c(weights), laws.normalized_c(weights if relative is None else relative)
    c, imbalance = (float(value[chosen].abs().max()) for value in values)
    return c, imbalance


def _frozen(model: nn.Module) -> tuple[Exclusion, ...]:
    reason = "it is frozen (requires_grad is False), so weights coupled with it are not rescaled either"
    return tuple(Exclusion(name, reason) for name, parameter in model.named_parameters() if not parameter.requires_grad)

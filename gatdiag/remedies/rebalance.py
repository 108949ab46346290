"""Balance a model without changing the function it computes."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Exclusion, Laws, find_laws
from gatdiag.laws.find import find_shared_memory
from gatdiag.laws.prediction import held_by
from gatdiag.laws.repeatability import why_not_repeatable
from gatdiag.remedies.applied import Applied, module_of
from gatdiag.remedies.least_norm import Rescaling, relative_gradients
from gatdiag.remedies.moments import powers_of, scaled_moments
from gatdiag.remedies.orbit import Tensors, multiply_
from gatdiag.remedies.verification import OutputDifference, verified_balancing
from gatdiag.structure import replicate

Towards: TypeAlias = Literal["c", "relative-gradients"]


@dataclass(eq=False)
class Rebalanced(Applied):
    """What was done to a model, and the way back. All that is said of laws is of those that were balanced.

    `undo` puts back the weights, the gradients that are still there and what the optimizer remembered, bit for bit as
    they were before.

    Attributes:
        towards: What was balanced.
        c_before: Largest |c| before, c = sum_k e_k ||w_k||^2; 0 where no law was balanced.
        c_after: The same afterwards, of the weights as they were rounded to their dtype.
        imbalance_before: Largest |in - out| / (in + out) of what was balanced, from 0 (balance) to 1: of squared
            weights on the two sides of a neuron, or of squared relative gradients.
        imbalance_after: The same afterwards; about 1e-7 in float32, 1e-15 in float64.
        factors: Name of each law that was balanced -> its factor s > 0: each of its terms is multiplied by s to the
            power of its exponent. Above 1, what leads into the neuron grows, and what leads out of it shrinks.
        scales: Name of parameter -> what it was multiplied by, positive float64, broadcasting against it.
        skipped: Laws that were not balanced, parameters and operations without laws, with the reasons.
        double: How far the outputs moved in float64; None where the model does not run in it.
        own: The same in the model's own precision.
    """

    towards: Towards
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
        """Begins without changes."""
        super().__init__("rebalance")


def rebalance_(
    model: nn.Module,
    *args: Any,
    towards: Towards = "c",
    optimizer: Optimizer | None = None,
    **kwargs: Any,
) -> Rebalanced:
    """Rescale a model's weights, in place, until its neurons balance; the function it computes stays the same.

    Each law of the model is a rescaling that the function does not notice. Of all weights that can be reached so, those
    are taken for which c = sum_k e_k ||w_k||^2 = 0 for each law: the weights of least norm, of which there is one set.
    Gradient descent all but conserves c, so a network that is out of balance stays so, and can hardly change the
    heavier weights of a neuron. Factors are positive, so ReLU and LeakyReLU do not notice them either.

    It may be called in the middle of training, between ``optimizer.step()`` and the next forward pass or before a
    step. Parameters stay the same objects; gradients that are there are divided by the factors of their weights, as
    those of the rescaled model are; the mode and the random state stay. The optimizer's moments are carried along
    (what that preserves: `gatdiag.remedies.moments.rescale_moments_`). Averages of weights kept elsewhere (EMA) are not
    reached.

    Laws are found in the mode the model is in, on these inputs; that the outputs stay is checked in evaluation mode, on
    copies, before anything is changed. Layers that would move them are skipped; so is a model whose calls differ in
    training by more than masks and data (a layer dropped at random, a counter).

    Args:
        model: Any module whose laws can be found.
        args: Positional inputs of its forward pass.
        towards: ``c``, or ``relative-gradients`` to balance the squared relative gradients that a backward pass left on
            the parameters instead, summed entry by entry: sum_k e_k ||g_k / w_k||^2 = 0
            (`gatdiag.remedies.least_norm.balancing`).
        optimizer: Whose moments of past gradients are to follow.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        What was balanced and what was not, by how much, and how far outputs moved. A model without laws is left as it
        is.

    Raises:
        InputError: An argument does not fit.
        OptimizerError: The state of such an optimizer is not known.
        ModelError: No laws can be found, gradients are sparse, or the outputs would change by more than rounding.
            Nothing was changed.

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
    user = module_of(model)
    powers = {} if optimizer is None else checked_powers(user, optimizer)
    laws = repeatable_laws(user, args, kwargs)
    gradients = None if towards == "c" else _gradients(laws.parameters)
    rescaling, double, own = verified_balancing(user, laws, gradients, args, kwargs)
    scales = rescaling.factors
    relative = None if gradients is None else relative_gradients(laws.parameters, gradients)
    weights = {name: multiply_(laws.parameters[name].detach().clone(), scale) for name, scale in scales.items()}
    c_before, imbalance_before = _imbalance(laws, rescaling, laws.parameters, relative)
    if relative is not None:
        relative |= {name: multiply_(relative[name], scale**-2) for name, scale in scales.items()}
    c_after, imbalance_after = _imbalance(laws, rescaling, {**laws.parameters, **weights}, relative)
    done = Rebalanced(
        towards,
        c_before,
        c_after,
        imbalance_before,
        imbalance_after,
        {laws[number].name: math.exp(rescaling.coordinates[number]) for number in rescaling.balanced},
        scales,
        (*rescaling.skipped, *laws.excluded, *_frozen(user)),
        double,
        own,
    )
    with done.changing():
        for name, scale in [(name, scale) for name, scale in scales.items() if bool((scale != 1).any())]:
            what = f"multiplied by {float(scale.min()):.3g} to {float(scale.max()):.3g}"
            parameter = laws.parameters[name]
            held = parameter, parameter.grad, *_state(parameter, optimizer).values()
            done.remember(name, what, *(tensor for tensor in held if isinstance(tensor, Tensor)))
        rescale_(laws.parameters, scales, optimizer, powers)
        return done


def _gradients(parameters: Tensors) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    if not found and parameters:
        raise InputError("Expected gradients, got a model without: call this after loss.backward().")
    return found


def _state(parameter: Tensor, optimizer: Optimizer | None) -> Mapping[str, Any]:
    return optimizer.state[parameter] if optimizer is not None and parameter in optimizer.state else {}


def rescale_(parameters: Tensors, factors: Tensors, optimizer: Optimizer | None, powers: Mapping[str, int]) -> None:
    """Multiply weights, divide the gradients that are there, and carry along what the optimizer remembers.

    All of it is one call, which no interrupt comes into the middle of: weights rescaled in part are another function.
    """
    scaled = [
        (tensor, scale)
        for name, factor in factors.items()
        for tensor, scale in _scaled(parameters[name], factor, optimizer, powers)
    ]
    if scaled:
        torch._foreach_mul_([tensor.detach() for tensor, _ in scaled], [scale for _, scale in scaled])


def _scaled(
    parameter: Tensor, factor: Tensor, optimizer: Optimizer | None, powers: Mapping[str, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What is to be multiplied along with a parameter, and by what."""
    factor = factor.to(parameter.device)
    yield parameter, factor
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise ModelError("Expected dense gradients, got sparse ones: clear them first, optimizer.zero_grad().")
    if parameter.grad is not None:
        yield parameter.grad, 1 / factor
    yield from scaled_moments(_state(parameter, optimizer), factor, powers)


def repeatable_laws(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Laws:
    """The laws in the mode the model is in; none if it is in evaluation mode, and calls in training differ."""
    laws = find_laws(model, *args, **kwargs)
    _refuse_shared_memory(laws.parameters)
    if model.training or not len(laws):
        return laws
    replica = replicate(model, args, kwargs)
    replica.model.train()
    try:
        obstacle = why_not_repeatable(replica)
    except ModelError:  # it cannot be trained on these inputs (batch norm of one row), so there is nothing to keep
        return laws
    if obstacle is None:
        return laws
    return Laws([], laws.parameters, [*laws.excluded, Exclusion("the forward pass", f"in training, {obstacle}")])


def checked_powers(model: nn.Module, optimizer: Any) -> Mapping[str, int]:
    """How the state of the optimizer that trains a model scales; refuses one that trains something else, or is none."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"Expected optimizer to be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    trained = held_by(optimizer).keys()
    if trained.isdisjoint(map(id, model.parameters())):
        raise InputError("Expected the optimizer that trains this model, got one that holds none of its parameters.")
    return powers_of(optimizer)


def _refuse_shared_memory(parameters: Tensors) -> None:
    """Copies of the model, on which all is found and checked, have memory of their own for each parameter."""
    if shared := find_shared_memory(parameters):
        raise ModelError(
            f"Expected parameters with memory of their own, but {' and '.join(shared)} are two parameters over the "
            "same memory. Assign one parameter to both places, or give one of them a copy."
        )


def _imbalance(laws: Laws, rescaling: Rescaling, weights: Tensors, relative: Tensors | None) -> tuple[float, float]:
    """Largest |c|, and largest imbalance of weights or relative gradients, over the laws that are balanced."""
    if not rescaling.balanced:
        return 0.0, 0.0
    chosen = list(rescaling.balanced)
    values = laws.c(weights), laws.normalized_c(weights if relative is None else relative)
    c, imbalance = (float(value[chosen].abs().max()) for value in values)
    return c, imbalance


def _frozen(model: nn.Module) -> tuple[Exclusion, ...]:
    reason = "it is frozen (requires_grad is False), and no law moves it or what it is coupled to"
    return tuple(Exclusion(name, reason) for name, parameter in model.named_parameters() if not parameter.requires_grad)

"""Balance a model without changing the function it computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Exclusion, Laws, find_laws
from gatdiag.laws.repetition import repetition
from gatdiag.remedies.applied import Applied
from gatdiag.remedies.least_norm import LawFactor, Rescaling, relative_gradients
from gatdiag.remedies.moments import powers_of, rescale_moments_
from gatdiag.remedies.orbit import Tensors, multiply_
from gatdiag.remedies.verification import OutputDifference, verified_balancing
from gatdiag.structure import replicate, unwrapped
from gatdiag.structure.isolation import preserved_random_state

Towards: TypeAlias = Literal["c", "relative-gradients"]
Moments: TypeAlias = Literal["rescale", "drop"]


@dataclass(frozen=True)
class Rebalanced:
    """What was done to a model. All that is said of laws is of those that were balanced.

    Attributes:
        towards: What was balanced.
        c_before: Largest |c| before, c = sum_k e_k ||w_k||^2; 0 where no law was balanced.
        c_after: The same afterwards, of the weights as they were rounded to their dtype.
        imbalance_before: Largest |in - out| / (in + out) of what was balanced, from 0 (balance) to 1: of squared
            weights on the two sides of a neuron, or of squared relative gradients.
        imbalance_after: The same afterwards; about 1e-7 in float32, 1e-15 in float64.
        factors: One for each law that was balanced.
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
    factors: tuple[LawFactor, ...]
    scales: Tensors
    skipped: tuple[Exclusion, ...]
    double: OutputDifference | None
    own: OutputDifference

    @property
    def smallest_factor(self) -> float:
        """Of all laws; 1 where none was balanced."""
        return min((law.factor for law in self.factors), default=1.0)

    @property
    def largest_factor(self) -> float:
        """Of all laws; 1 where none was balanced."""
        return max((law.factor for law in self.factors), default=1.0)


def rebalance_(
    model: nn.Module,
    *args: Any,
    towards: Towards = "c",
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: Optimizer | None = None,
    moments: Moments = "rescale",
    include_approximate: bool = False,
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
    (what that preserves: `gatdiag.remedies.moments.rescale_moments_`), or forgotten altogether. Averages of weights
    kept elsewhere (EMA) are not reached.

    Laws are found in the mode the model is in, on these inputs; that the outputs stay is checked in evaluation mode, on
    copies, before anything is changed. Layers that would move them are skipped; so is a model whose calls differ in
    training by more than masks and data (a layer dropped at random, a counter).

    Args:
        model: Any module whose laws can be found.
        args: Positional inputs of its forward pass.
        towards: ``c``, or ``relative-gradients`` to balance squared relative gradients instead, summed entry by entry:
            sum_k e_k ||g_k / w_k||^2 = 0 (`gatdiag.remedies.least_norm.balancing`).
        loss: For relative gradients: the output of the forward pass -> scalar. If left out, the ``.grad`` that a
            backward pass left on the parameters are used.
        optimizer: Whose moments of past gradients are to follow.
        moments: ``rescale`` them, or ``drop`` all of the optimizer's state, as when it was made.
        include_approximate: Use laws that hold only up to an epsilon, such as that of batch normalization, as well; an
            output may then move by 1e-3 of its size.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        What was balanced and what was not, by how much, and how far outputs moved. A model without laws is left as it
        is.

    Raises:
        InputError: An argument does not fit.
        OptimizerError: The state of such an optimizer is not known; drop it.
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
    _refuse_misfits(model, towards, loss, optimizer, moments)
    user = unwrapped(model)
    powers = powers_of(optimizer) if optimizer is not None and moments == "rescale" else {}
    laws = repeatable_laws(user, args, kwargs)
    refuse_shared_memory(laws.parameters)
    gradients = None if towards == "c" else gradients_of(user, laws.parameters, loss, args, kwargs)
    rescaling, double, own = verified_balancing(
        user, laws, gradients, args, kwargs, include_approximate=include_approximate
    )
    relative = None if gradients is None else relative_gradients(laws.parameters, gradients)
    c_before, imbalance_before = _imbalance(laws, rescaling, relative)
    rescale_(laws.parameters, rescaling.factors, optimizer, powers)
    if optimizer is not None and moments == "drop":
        optimizer.state.clear()
    if relative is not None:
        for name, factor in rescaling.factors.items():
            multiply_(relative[name], factor, -2)
    c_after, imbalance_after = _imbalance(laws, rescaling, relative)
    return Rebalanced(
        towards,
        c_before,
        c_after,
        imbalance_before,
        imbalance_after,
        rescaling.by_law,
        rescaling.factors,
        (*rescaling.skipped, *laws.excluded, *_frozen(user)),
        double,
        own,
    )


def rescale_(parameters: Tensors, factors: Tensors, optimizer: Optimizer | None, powers: Mapping[str, int]) -> None:
    """Multiply weights, divide the gradients that are there, and carry along what the optimizer remembers.

    If it is interrupted, all is as before: weights rescaled in part are another function.
    """
    applied = Applied("rescale")
    with applied.changing():
        for name, factor in factors.items():
            parameter, gradient = parameters[name], parameters[name].grad
            state = optimizer.state[parameter] if optimizer is not None and parameter in optimizer.state else {}
            for tensor in (parameter, gradient, *(state.get(key) for key in powers)):
                if isinstance(tensor, Tensor) and not tensor.is_sparse:
                    applied.remember(name, tensor, "rescaled")
            applied.record(name, "gradient divided", partial(setattr, parameter, "grad", gradient))
            multiply_(parameter, factor)
            _divide_gradient_(parameter, factor)
            rescale_moments_(state, factor, powers)


def repeatable_laws(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Laws:
    """The laws in the mode the model is in; none if it is in evaluation mode, and calls in training differ."""
    laws = find_laws(model, *args, **kwargs)
    if model.training or not len(laws):
        return laws
    replica = replicate(model, args, kwargs)
    replica.model.train()
    try:
        obstacle = repetition(replica).obstacle
    except ModelError:  # it cannot be trained on these inputs (batch norm of one row), so there is nothing to keep
        return laws
    if obstacle is None:
        return laws
    return Laws([], laws.parameters, [*laws.excluded, Exclusion("the forward pass", f"in training, {obstacle}")])


def _refuse_misfits(model: Any, towards: str, loss: Any, optimizer: Any, moments: str) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(
            f"Expected a torch.nn.Module and then the inputs of its forward pass, got {type(model).__name__}."
        )
    for name, value, known in (("towards", towards, get_args(Towards)), ("moments", moments, get_args(Moments))):
        if value not in known:
            raise InputError(f"Expected {name} to be one of {', '.join(known)}, got {value!r}.")
    if loss is not None and (towards == "c" or not callable(loss)):
        raise InputError(
            'Expected loss to be a function of the output, with towards="relative-gradients", got '
            f"{type(loss).__name__} with towards={towards!r}. Give no loss to balance c."
        )
    if optimizer is not None:
        refuse_foreign(model, optimizer)


def refuse_foreign(model: nn.Module, optimizer: Any) -> None:
    """An optimizer that trains something else, or is none."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"Expected optimizer to be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if trained.isdisjoint(map(id, model.parameters())):
        raise InputError("Expected the optimizer that trains this model, got one that holds none of its parameters.")


def refuse_shared_memory(parameters: Tensors) -> None:
    """Copies of the model, on which all is found and checked, have memory of their own for each parameter."""
    seen: dict[int, str] = {}
    for name, parameter in parameters.items():
        first = seen.setdefault(parameter.data_ptr(), name)
        if first != name and parameter.numel():
            raise ModelError(
                f"Expected parameters with memory of their own, but {first} and {name} are two parameters over the "
                "same memory. Assign one parameter to both places, or give one of them a copy."
            )


def _imbalance(laws: Laws, rescaling: Rescaling, relative: Tensors | None) -> tuple[float, float]:
    """Largest |c|, and largest imbalance of weights or relative gradients, over the laws that are balanced."""
    if not rescaling.balanced:
        return 0.0, 0.0
    chosen = list(rescaling.balanced)
    values = laws.c(), laws.normalized_c(relative)
    c, imbalance = (float(value[chosen].abs().max()) for value in values)
    return c, imbalance


def _divide_gradient_(parameter: Tensor, factor: Tensor) -> None:
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse:  # of an embedding
        gradient = gradient.coalesce()
        places, values = gradient.indices(), gradient.values().clone()
        multiply_(values, factor.to(places.device).expand(gradient.shape)[tuple(places)], -1)
        parameter.grad = torch.sparse_coo_tensor(
            places, values, gradient.shape, check_invariants=False, is_coalesced=True
        )
    elif gradient is not None:
        multiply_(gradient, factor, -1)


def _frozen(model: nn.Module) -> tuple[Exclusion, ...]:
    reason = "it is frozen (requires_grad is False), and no law moves it or what it is coupled to"
    return tuple(Exclusion(name, reason) for name, parameter in model.named_parameters() if not parameter.requires_grad)


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

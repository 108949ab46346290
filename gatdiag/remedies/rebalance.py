"""Balance a model without changing the function it computes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Exclusion, Laws, find_laws
from gatdiag.laws.prediction import held_by
from gatdiag.laws.repetition import repetition
from gatdiag.remedies.applied import Applied, Kept
from gatdiag.remedies.least_norm import LawFactor, Rescaling, relative_gradients
from gatdiag.remedies.moments import powers_of, scaled_moments
from gatdiag.remedies.orbit import Tensors, multiply_
from gatdiag.remedies.verification import OutputDifference, verified_balancing
from gatdiag.structure import replicate, unwrapped
from gatdiag.structure.isolation import preserved_random_state

Towards: TypeAlias = Literal["c", "relative-gradients"]
Moments: TypeAlias = Literal["rescale", "drop"]


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

    def __post_init__(self) -> None:
        """Begins without changes."""
        super().__init__("rebalance")

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
    scales = rescaling.factors
    relative = None if gradients is None else relative_gradients(laws.parameters, gradients)
    weights = {name: multiply_(laws.parameters[name].detach().clone(), scale) for name, scale in scales.items()}
    c_before, imbalance_before = _imbalance(laws, rescaling, laws.parameters, relative)
    if relative is not None:
        relative |= {name: multiply_(relative[name], scale, -2) for name, scale in scales.items()}
    c_after, imbalance_after = _imbalance(laws, rescaling, {**laws.parameters, **weights}, relative)
    done = Rebalanced(
        towards,
        c_before,
        c_after,
        imbalance_before,
        imbalance_after,
        rescaling.by_law,
        scales,
        (*rescaling.skipped, *laws.excluded, *_frozen(user)),
        double,
        own,
    )
    with done.changing():
        for name, scale in [(name, scale) for name, scale in scales.items() if bool((scale != 1).any())]:
            what = f"multiplied by {float(scale.min()):.3g} to {float(scale.max()):.3g}"
            done.record(name, what, _way_back(laws.parameters[name], optimizer))
        rescale_(laws.parameters, scales, optimizer, powers)
        if optimizer is not None and moments == "drop":
            done.record(
                type(optimizer).__name__, "forgot its state", partial(_remember, optimizer, {**optimizer.state})
            )
            optimizer.state.clear()
        return done


def _way_back(parameter: Tensor, optimizer: Optimizer | None) -> Callable[[], None]:
    """Puts back a parameter, its gradient if that is still there, and what an optimizer remembers of it."""
    state = optimizer.state[parameter] if optimizer is not None and parameter in optimizer.state else {}
    before = parameter.grad
    if before is not None and before.is_sparse:
        parameter.grad = before.clone() if before.is_coalesced() else before.coalesce()
    gradient = parameter.grad
    tensors = [parameter, *(tensor for tensor in (gradient, *state.values()) if isinstance(tensor, Tensor))]
    kept = [Kept(tensor) for tensor in tensors if not tensor.is_sparse]

    def put_back() -> None:
        for tensor in kept:
            tensor.put_back()
        if parameter.grad is gradient:
            parameter.grad = before

    return put_back


def _remember(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    optimizer.state.clear()
    optimizer.state.update(state)


def rescale_(parameters: Tensors, factors: Tensors, optimizer: Optimizer | None, powers: Mapping[str, int]) -> None:
    """Multiply weights, divide the gradients that are there, and carry along what the optimizer remembers.

    All of it is one call, which no interrupt comes into the middle of: weights rescaled in part are another function.
    """
    for name in factors:
        _coalesce(parameters[name])
    scaled = [
        (tensor, scale)
        for name, factor in factors.items()
        for tensor, scale in _scaled(parameters[name], factor, optimizer, powers)
    ]
    if scaled:
        torch._foreach_mul_([tensor.detach() for tensor, _ in scaled], [scale for _, scale in scaled])


def _coalesce(parameter: Tensor) -> None:
    """Replace a sparse gradient, as of an embedding, by one whose values can be multiplied."""
    if parameter.grad is not None and parameter.grad.is_sparse and not parameter.grad.is_coalesced():
        parameter.grad = parameter.grad.coalesce()


def _scaled(
    parameter: Tensor, factor: Tensor, optimizer: Optimizer | None, powers: Mapping[str, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What is to be multiplied along with a parameter, and by what."""
    factor = factor.to(parameter.device)
    yield parameter, factor
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse:
        yield gradient._values(), (1 / factor).expand(gradient.shape)[tuple(gradient._indices())]
    elif gradient is not None:
        yield gradient, 1 / factor
    state = optimizer.state[parameter] if optimizer is not None and parameter in optimizer.state else {}
    yield from scaled_moments(state, factor, powers)


def repeatable_laws(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Laws:
    """The laws in the mode the model is in; none if it is in evaluation mode, and calls in training differ."""
    laws = find_laws(model, *args, **kwargs)
    if model.training or not len(laws):
        return laws
    replica = replicate(model, args, kwargs)
    replica.model.train()
    try:
        obstacle = repetition(replica)
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
    trained = held_by(optimizer).keys()
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


def gradients_of(
    model: nn.Module,
    parameters: Tensors,
    loss: Callable[[Any], Tensor] | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Gradients by name: of a loss, found on a copy of the model in its own mode; or those a backward pass left on it.

    Raises:
        InputError: There are no gradients, or the loss is not one number that depends on the output.
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

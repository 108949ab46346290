"""Scale new weights so that each neuron is in balance, and a signal keeps its norm.

The incoming and outgoing weights of neurons come from a model's own laws, or from a stack of layers.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Final, TypeAlias

from torch import Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.laws import Term
from gatdiag.roles import SCALE, STACKED
from gatdiag.structure import Layer, Replica, Structure, discover, replicate
from gatdiag.structure.stack import NotPlainError, StackLayer, check_widths, module_path, stack_layer
from gatdiag.structure.tensors import floating_tensors

# The terms of a neuron's law: incoming weights have positive exponents, outgoing weights negative ones.
Neuron: TypeAlias = tuple[Term, ...]

_TOLERANCE: Final = 1e-6  # of c relative to its terms; float32 rounding leaves about 1e-7
_MAX_PASSES: Final = 12
_GAIN_TOLERANCE: Final = 1e-3  # of the logarithm of the gain


# --- a stack of layers ------------------------------------------------------------------------------------------------


def find_stack_neurons(model: nn.Module, structure: Structure) -> tuple[Neuron, ...]:
    """All neurons between consecutive layers in module order, with their incoming and outgoing weights.

    Concatenated heads are separate neurons; with averaged heads, neuron i has row i of each head. Biases, which start
    at zero, are omitted.

    Raises:
        ModelError: A layer is not one of `STACKED`, or the widths of consecutive layers do not match.
    """
    layers = _stack_layers(model, structure)
    return tuple(
        (*layer.incoming_terms(i, layer.out_features), *successor.outgoing_terms(i))
        for layer, successor in pairwise(layers)
        for i in range(layer.out_features)
    )


def stack_squared_norm(model: nn.Module, structure: Structure, *, in_reverse: bool = False) -> float:
    """The squared norm of a first-layer neuron's incoming weights with which a balanced stack keeps a signal's norm.

    In a balanced stack, the sum F of squared weights is the same in all layers, so one number is free. A layer with
    input width n whose columns have squared norm F / n, and which averages H heads, multiplies the squared norm of a
    signal by F / (2 n H^2): ReLU halves it, and the mean of H mutually orthogonal matrices has 1 / H^2 of their
    squared norm. The first layer, whose rows are scaled instead, multiplies the mean square of its inputs in the same
    way, where n is its output width. F is chosen so that the product over all layers is 1.

    Returns:
        F divided by the output width of the first layer; in reverse, the squared norm of a neuron's outgoing weights
        before the last layer: F divided by its input width. It is 2 if all hidden widths are equal and no heads are
        averaged, as in procedure 2.6 of "Are GATs Out of Balance?", and 2 H^2 if each layer averages H heads.

    Raises:
        ModelError: As `find_stack_neurons`.
    """
    layers = _stack_layers(model, structure)
    first = layers[0].out_features
    widths = [first, *(layer.out_features for layer in layers[:-1])]
    logs = (math.log(width * (layer.heads or 1) ** 2 / first) for width, layer in zip(widths, layers, strict=True))
    total = 2 * first * math.exp(fmean(logs))
    return total / (layers[-1].in_features if in_reverse else first)


def _stack_layers(model: nn.Module, structure: Structure) -> list[StackLayer]:
    try:
        layers = [_stack_layer(model, layer) for layer in structure if layer.parameters]
        for layer, successor in pairwise(layers):
            check_widths(layer, successor)
    except NotPlainError as error:
        raise ModelError(
            f"Expected a stack of {', '.join(STACKED)} layers in module order, but {error}. Give the inputs of a "
            "forward pass too, so that the model's own laws are used."
        ) from error
    return layers


def _stack_layer(model: nn.Module, layer: Layer) -> StackLayer:
    found = stack_layer(layer)
    if layer.kind not in STACKED or len({info.shape for info in found.matrices}) != 1:
        names = ", ".join(info.name for info in layer.parameters)
        raise NotPlainError(f"{layer.name} is a {layer.kind} with {names}")
    conv = model.get_submodule(module_path(layer))
    averaged = not getattr(conv, "concat", True)
    return replace(found, biases=(), heads=int(getattr(conv, "heads", 1)) if averaged else 1)


# --- balance ----------------------------------------------------------------------------------------------------------


def balance_(
    weights: Mapping[str, Tensor],
    neurons: Sequence[Neuron],
    squared_norm: float = 2.0,
    *,
    in_reverse: bool = False,
    vectors: Collection[str] = (),
    fixed: Collection[str] = (),
) -> Neuron | None:
    """Balance neurons one after the other, in place, so that sum_k e_k ||w_k||^2 = 0 for each.

    From input to output: the incoming weights of each first-layer neuron are scaled to `squared_norm`, then the
    outgoing weights of each neuron to the norm of its incoming ones. In reverse: the outgoing weights of each neuron
    before the last layer are scaled to `squared_norm`, then, from the last neuron to the first, the incoming weights
    to the norm of the outgoing ones. All factors are positive.

    Args:
        weights: Parameter name -> weight.
        neurons: In order.
        squared_norm: Of the weights that are scaled first.
        in_reverse: From output to input.
        vectors: Names of attention vectors, queries and keys: scaled along, but never first.
        fixed: Names of parameters that are not scaled but count, such as scales of normalizations.

    Returns:
        The first neuron that could not be balanced, or None: it has no outgoing weights, or its weights are used in
        two places, as in a residual stream.

    Source:
        Procedure 2.6 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).
    """
    for terms in first_matrices(neurons, in_reverse, {*vectors, *fixed}):
        scale_to_norm_(weights, terms, squared_norm)
    for terms in reversed(neurons) if in_reverse else neurons:
        first, second = _sides(terms, in_reverse)
        fixed_square = _squared_norm(weights, tuple(term for term in second if term.parameter in fixed))
        scaled = tuple(term for term in second if term.parameter not in fixed)
        scale_to_norm_(weights, scaled, max(0.0, _squared_norm(weights, first) - fixed_square))
    return next((terms for terms in neurons if not _is_balanced(*side_squared_norms(weights, terms))), None)


def side_squared_norms(weights: Mapping[str, Tensor], terms: Neuron) -> tuple[float, float]:
    """sum |e_k| ||w_k||^2 of a neuron's incoming weights, and of its outgoing ones."""
    incoming, outgoing = _sides(terms, False)
    return _squared_norm(weights, incoming), _squared_norm(weights, outgoing)


def _is_balanced(incoming: float, outgoing: float) -> bool:
    return abs(incoming - outgoing) <= _TOLERANCE * (incoming + outgoing)


def first_matrices(neurons: Sequence[Neuron], in_reverse: bool, others: Collection[str]) -> list[Neuron]:
    """The matrix terms with which balancing starts, one group per neuron.

    They lead into the first layer's neurons; in reverse, out of those before the last layer. `others` names
    parameters that are not feature matrices: attention vectors, scales of normalizations.
    """
    sides = [_sides(terms, in_reverse) for terms in neurons]
    others = {*others, *(term.parameter for _, second in sides for term in second)}
    found = (tuple(t for t in first if t.parameter not in others and len(t.shape) > 1) for first, _ in sides)
    return [terms for terms in found if terms]


def _sides(terms: Neuron, in_reverse: bool) -> tuple[Neuron, Neuron]:
    """Incoming and outgoing terms; in reverse, outgoing and incoming."""
    incoming, outgoing = (tuple(term for term in terms if term.exponent * sign > 0) for sign in (1, -1))
    return (outgoing, incoming) if in_reverse else (incoming, outgoing)


def _squared_norm(weights: Mapping[str, Tensor], terms: Neuron) -> float:
    """sum_k |e_k| ||w_k||^2."""
    views = ((abs(float(term.exponent)), view) for term in terms for view in term.select(weights[term.parameter]))
    return sum(exponent * float(view.square().sum()) for exponent, view in views)


def scale_to_norm_(weights: Mapping[str, Tensor], terms: Neuron, squared_norm: float) -> None:
    """Scale weights to a squared norm, in place; zeros stay zero."""
    before = _squared_norm(weights, terms)
    if before > 0:
        for term in terms:
            for view in term.select(weights[term.parameter]):
                view.mul_((squared_norm / before) ** 0.5)


# --- signal norm ------------------------------------------------------------------------------------------------------


def signal_preserving_factor(
    model: nn.Module, weights: Mapping[str, Tensor], scaled: frozenset[str], args: tuple[Any, ...], kwargs: Any
) -> float:
    """The factor of the `scaled` matrices with which a model keeps the norm of a signal.

    The target is that of `stack_squared_norm`: the squared norm of the outputs is the mean square of the first layer's
    inputs times its width. It is measured by forward passes on a copy, in evaluation mode. The norm of the outputs is
    about a power of the factor, so the secant method on logarithms finds it in a few passes. The factor is 1 if none
    can be found: the norm does not depend on it, as after a normalization, or is zero or not finite.
    """
    structure = discover(model, *args, **kwargs)
    roles = {info.role for info in structure.parameters}
    first = next(layer for layer in structure if scaled.intersection(info.name for info in layer.parameters))
    if SCALE in roles or first.name == structure.ROOT:
        return 1.0
    replica = replicate(model, args, kwargs)
    replica.model.eval()
    module = replica.model.get_submodule(first.name)

    def log_gain(factor: float) -> float:
        for name, tensor in weights.items():
            replica.parameters[name].data.copy_(tensor * factor if name in scaled else tensor)
        gain = _measure_gain(replica, module)
        if not math.isfinite(gain):  # overflow: infinities, or NaN made from them
            return math.inf
        return math.log(gain) if gain > 0 else -math.inf

    return _solve_for_unit_gain(log_gain)


def _solve_for_unit_gain(log_gain: Callable[[float], float]) -> float:
    """The factor at which the logarithm of the gain is zero; 1 if it hardly grows with the factor."""
    previous = 1.0, log_gain(1.0)
    for _ in range(_MAX_PASSES):  # the outputs of deep networks may overflow or vanish
        if math.isfinite(previous[1]):
            break
        factor = previous[0] / 8 if previous[1] > 0 else previous[0] * 8
        previous = factor, log_gain(factor)
    factor = previous[0] / 2 if previous[1] > 0 else previous[0] * 2
    for _ in range(_MAX_PASSES):
        current = factor, log_gain(factor)
        power = (current[1] - previous[1]) / math.log(current[0] / previous[0])
        if not 1 / 2 < power < math.inf:
            return 1.0
        if abs(current[1]) < _GAIN_TOLERANCE:
            break
        previous, factor = current, factor * math.exp(-current[1] / power)
    return factor


def _measure_gain(replica: Replica, first: nn.Module) -> float:
    """Norm of the outputs relative to the norm expected after the first layer."""
    expected: list[float] = []

    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        width = next(floating_tensors(output)).shape[-1]
        source = next(floating_tensors((args, kwargs)), None)  # an embedding has no floating inputs
        norm = _rms_norm(output) if source is None else _rms_norm(source) * (width / source.shape[-1]) ** 0.5
        expected.append(norm)

    handle = first.register_forward_hook(hook, with_kwargs=True)
    try:
        outputs = replica.run_no_grad()
    finally:
        handle.remove()
    return _rms_norm(outputs) / expected[0] if expected and expected[0] else math.nan


def _rms_norm(output: Any) -> float:
    """Root mean square of the norms along the last axis."""
    tensor = next(floating_tensors(output)).to_dense()
    squares = float(tensor.abs().double().square().sum())
    return math.sqrt(squares / max(1, tensor.shape[:-1].numel()))

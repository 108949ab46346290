"""How large fresh weights are: what leads into a neuron as what leads out of it, and a signal as it came."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from gatdiag.errors import ModelError
from gatdiag.laws import Term
from gatdiag.laws.outputs import floating_tensors
from gatdiag.structure import Replica, discover, replicate

# The terms of a neuron's law: weights that lead into it have positive exponents, those that lead out of it negative.
Neuron: TypeAlias = tuple[Term, ...]

_TOLERANCE: Final = 1e-4  # of c relative to its terms; rounding in float32 leaves about 1e-7
_PASSES: Final = 10
_CLOSE: Final = 1e-3  # logarithm of the size of the outputs


def balance_(weights: Mapping[str, Tensor], neurons: Iterable[Neuron], squared_norm: float = 2.0) -> None:
    """Make sum_k e_k ||w_k||^2 zero for every neuron, in place, going from the input to the output.

    What leads into a neuron of the first layer is scaled to a squared norm; then, neuron after neuron, what leads out
    of it is scaled to what leads into it. Factors are positive: the first matrix keeps the directions of its rows, all
    others those of their columns. A normalization's scale, which may lead into neurons instead, is followed as it is.

    Args:
        weights: Name -> tensor. Attention vectors and biases are to be zero.
        neurons: In order of execution.
        squared_norm: Of the weights that lead into a neuron of the first layer. At 2, looks-linear orthogonal matrices
            of equal widths balance as they are.

    Raises:
        ModelError: A neuron cannot be balanced: all that leads out of it is zero, or weights are used in two places.

    Source:
        Procedure 2.6 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).
    """
    sides = [(_side(terms, 1), _side(terms, -1)) for terms in neurons]
    fed = {term.parameter for _, outgoing in sides for term in outgoing}
    for incoming, outgoing in sides:
        if fed.isdisjoint(term.parameter for term in incoming) and any(len(term.shape) > 1 for term in incoming):
            _scale(weights, incoming, squared_norm)
        _scale(weights, outgoing, _squares(weights, incoming))
    for incoming, outgoing in sides:
        into, out = _squares(weights, incoming), _squares(weights, outgoing)
        if not abs(into - out) <= _TOLERANCE * (into + out):
            raise ModelError(
                f"Expected weights that can be scaled until each neuron balances, but the neuron of {incoming[0]} has "
                f"a squared norm of {into:.3g} leading in and {out:.3g} leading out. Weights that two layers share "
                "cannot balance: use a scheme that is not balanced."
            )


def _side(terms: Neuron, sign: int) -> Neuron:
    return tuple(term for term in terms if term.exponent * sign > 0)


def _squares(weights: Mapping[str, Tensor], terms: Neuron) -> float:
    """sum_k |e_k| ||w_k||^2."""
    views = ((abs(float(term.exponent)), view) for term in terms for view in _views(weights[term.parameter], term))
    return sum(exponent * float(view.square().sum()) for exponent, view in views)


def _scale(weights: Mapping[str, Tensor], terms: Neuron, squared_norm: float) -> None:
    """Scale to a squared norm what is not zero."""
    before = _squares(weights, terms)
    if before > 0:
        for term in terms:
            for view in _views(weights[term.parameter], term):
                view.mul_((squared_norm / before) ** 0.5)


def _views(weight: Tensor, term: Term) -> Iterator[Tensor]:
    for index in term.indices:
        place: list[slice | int] = [slice(None)] * weight.dim()
        for axis, position in zip(term.axes, index, strict=True):
            place[axis] = position
        yield weight[tuple(place)]


def preserving_factor(
    model: nn.Module, weights: Mapping[str, Tensor], scaled: frozenset[str], args: tuple[Any, ...], kwargs: Any
) -> float:
    """What to multiply matrices by for a model to pass a signal on at the size at which it came.

    The size of the outputs is to be that of the inputs of the first layer, as `squared_norm_of_stack` has it: mean
    squares are multiplied by the width of the first layer, and kept from there on. It is measured in forward passes on
    a copy, in evaluation mode. The outputs are a power of the common factor of all matrices, or nearly so where scores
    and gates depend on it, too: the secant method on logarithms finds it in a few passes.

    Args:
        model: The model, which is not changed.
        weights: Name of parameter -> the values to run it with.
        scaled: Names of the matrices.
        args: Positional inputs.
        kwargs: Keyword inputs.

    Returns:
        The factor. 1 where no factor is known to do it: the size of the outputs does not depend on it, as behind a
        normalization, or is zero or not finite.

    Raises:
        ModelError: The model cannot be copied, or its forward pass fails.
    """
    structure = discover(model, *args, **kwargs)
    roles = {info.role for info in structure.parameters}
    first = next(layer for layer in structure if scaled.intersection(info.name for info in layer.parameters))
    if "norm scale" in roles or first.name == structure.ROOT:
        return 1.0
    replica = replicate(model, args, kwargs)
    replica.model.eval()
    module = replica.model.get_submodule(first.name)

    def logarithm(factor: float) -> float:
        for name, tensor in weights.items():
            replica.parameters[name].data.copy_(tensor * factor if name in scaled else tensor)
        gain = _gain(replica, module)
        return math.log(gain) if 0 < gain < math.inf else math.nan

    return _root(logarithm)


def _root(logarithm: Callable[[float], float]) -> float:
    """The factor at which the logarithm of the gain is zero; 1 where it hardly grows with the factor."""
    before, factor = (1.0, logarithm(1.0)), 2.0
    for _ in range(_PASSES):
        here = factor, logarithm(factor)
        power = (here[1] - before[1]) / math.log(here[0] / before[0])
        if not power > 1 / 2:
            return 1.0
        if abs(here[1]) < _CLOSE:
            break
        before, factor = here, factor * math.exp(-here[1] / power)
    return factor


def _gain(replica: Replica, first: nn.Module) -> float:
    """Size of the outputs relative to what is expected of the first layer."""
    expected: list[float] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module is first and not expected:
            width = next(floating_tensors(output)).shape[-1]
            source = next(floating_tensors((args, kwargs)), None)  # an embedding reads none
            expected.append(_norm(output) if source is None else _norm(source) * (width / source.shape[-1]) ** 0.5)

    # scripted modules take no hooks of their own
    handle = module_hooks.register_module_forward_hook(note, with_kwargs=True)
    try:
        outputs = replica.run_no_grad()
    finally:
        handle.remove()
        # torch forgets to: what stays there makes it believe that there are global hooks
        module_hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)
    return _norm(outputs) / expected[0] if expected and expected[0] else math.nan


def _norm(output: Any) -> float:
    """Root mean square norm of the vectors along the last axis."""
    tensor = next(floating_tensors(output)).to_dense()
    squares = float(tensor.abs().double().square().sum())
    return math.sqrt(squares / max(1, tensor.shape[:-1].numel()))

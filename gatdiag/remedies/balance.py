"""How large fresh weights are: what leads into a neuron as what leads out of it, and a signal as it came.

What leads where is read off a model's own laws, or off a stack of layers.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Final, TypeAlias

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from gatdiag.errors import ModelError
from gatdiag.laws import Term
from gatdiag.laws.outputs import floating_tensors
from gatdiag.roles import SCALE, STACKED
from gatdiag.structure import Layer, Replica, Structure, discover, replicate
from gatdiag.structure.stack import NotPlainError, StackLayer, check_widths, module_path, stack_layer

# The terms of a neuron's law: weights that lead into it have positive exponents, those that lead out of it negative.
Neuron: TypeAlias = tuple[Term, ...]

_WAY_OUT: Final = "Give the inputs of a forward pass too, so that the model's own laws say what leads where."
_TOLERANCE: Final = 1e-6  # of c relative to its terms; rounding in float32 leaves about 1e-7
_PASSES: Final = 12
_CLOSE: Final = 1e-3  # logarithm of the size of the outputs


# --- a stack of layers ------------------------------------------------------------------------------------------------


def neurons_of_stack(model: nn.Module, structure: Structure) -> tuple[Neuron, ...]:
    """Every neuron between two layers that follow each other in module order, with the weights on both of its sides.

    Neuron i of a layer has row i of each of its matrices on one side, and column i of each of the next layer's on the
    other, where its own attention vectors count, too. Heads that are concatenated are so many more neurons; where they
    are averaged, neuron i has row i of each head. Biases, which are zero at the beginning, are left out.

    Raises:
        ModelError: A layer is of another kind than `STACKED`, or the widths do not follow each other.
    """
    links = _links(model, structure)
    return tuple(
        (*link.incoming_terms(i, link.out_features), *following.outgoing_terms(i))
        for link, following in pairwise(links)
        for i in range(link.out_features)
    )


def squared_norm_of_stack(model: nn.Module, structure: Structure, *, in_reverse: bool = False) -> float:
    """The squared norm of what leads into a neuron of the first layer with which a balanced stack passes a signal on.

    Balance makes the sum F of all squared weights the same in each layer, so one number is left to choose. A layer
    whose columns have squared norms of F / n, n being the width it reads, and which averages H heads, multiplies the
    squared norm of a signal by F / (2 n H^2): ReLU passes half of it on, and the mean of H matrices that are orthogonal
    to each other has 1 / H^2 of their squared norms. The first layer, whose rows are scaled instead, multiplies its
    inputs' mean square in this way, n being the width it writes. F is chosen so that the product over all layers is 1.

    Returns:
        F divided by the width of the first layer (in reverse: what leads out of a neuron before the last layer, so
        divided by the number of these): 2 where all hidden widths are equal and no heads are averaged, as in
        procedure 2.6 of "Are GATs Out of Balance?"; 2 H^2 where each layer averages H heads.

    Raises:
        ModelError: As `neurons_of_stack`.
    """
    links = _links(model, structure)
    first = links[0].out_features
    widths = [first, *(link.out_features for link in links[:-1])]
    logarithms = (math.log(width * (link.heads or 1) ** 2 / first) for width, link in zip(widths, links, strict=True))
    whole = 2 * first * math.exp(fmean(logarithms))
    return whole / (links[-1].in_features if in_reverse else first)


def _links(model: nn.Module, structure: Structure) -> list[StackLayer]:
    links = [_link(model, layer) for layer in structure if layer.parameters]
    try:
        for link, following in pairwise(links):
            check_widths(link, following)
    except NotPlainError as error:
        raise ModelError(f"Expected a stack in module order, but {error}. {_WAY_OUT}") from error
    return links


def _link(model: nn.Module, layer: Layer) -> StackLayer:
    try:
        found = stack_layer(layer)
    except NotPlainError:
        found = None
    if found is None or layer.kind not in STACKED or len({info.shape for info in found.matrices}) != 1:
        raise ModelError(
            f"Expected a stack of {', '.join(STACKED)} layers without edge features or targets of their own, but "
            f"{layer.name} is a {layer.kind} with {', '.join(info.name for info in layer.parameters)}. {_WAY_OUT}"
        )
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
    held: Collection[str] = (),
) -> Neuron | None:
    """Make sum_k e_k ||w_k||^2 zero for every neuron, in place, going from the input to the output, or back.

    What leads into a neuron of the first layer is scaled to a squared norm; then, neuron after neuron, what leads out
    of it is scaled to what leads into it. Factors are positive: the first matrix keeps the directions of its rows, all
    others those of their columns. In reverse, what leads out of a neuron into the last layer is scaled to a squared
    norm; then, from the last neuron to the first, what leads into it is scaled to what leads out of it. What scores
    edges (`vectors`) is scaled along, and no place to begin; what is held (scales of normalizations) is followed.

    Returns:
        The first neuron that is not in balance, None if all are: nothing leads out of it, or weights are used in two
        places, as by a residual stream.

    Source:
        Procedure 2.6 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).
    """
    for terms in ends(neurons, in_reverse, {*vectors, *held}):
        scale_(weights, terms, squared_norm)
    for terms in reversed(neurons) if in_reverse else neurons:
        first, second = _sides(terms, in_reverse)
        followed = _squares(weights, tuple(term for term in second if term.parameter in held))
        scaled = tuple(term for term in second if term.parameter not in held)
        scale_(weights, scaled, max(0.0, _squares(weights, first) - followed))
    return next((terms for terms in neurons if not _is_balanced(*squared_sides(weights, terms))), None)


def squared_sides(weights: Mapping[str, Tensor], terms: Neuron) -> tuple[float, float]:
    """sum |e_k| ||w_k||^2 of what leads into a neuron, and of what leads out of it."""
    into, out = _sides(terms, False)
    return _squares(weights, into), _squares(weights, out)


def _is_balanced(into: float, out: float) -> bool:
    return abs(into - out) <= _TOLERANCE * (into + out)


def ends(neurons: Sequence[Neuron], in_reverse: bool, others: Collection[str]) -> list[Neuron]:
    """Terms of the matrices that lead into the first layer's neurons, neuron by neuron (in reverse: out of the last).

    That is where balancing begins. `others` are no matrices of features: attention vectors, scales of normalizations.
    """
    sides = [_sides(terms, in_reverse) for terms in neurons]
    others = {*others, *(term.parameter for _, second in sides for term in second)}
    found = (tuple(t for t in first if t.parameter not in others and len(t.shape) > 1) for first, _ in sides)
    return [terms for terms in found if terms]


def _sides(terms: Neuron, in_reverse: bool) -> tuple[Neuron, Neuron]:
    """What leads into a neuron, and what leads out of it; in reverse the other way round."""
    into, out = (tuple(term for term in terms if term.exponent * sign > 0) for sign in (1, -1))
    return (out, into) if in_reverse else (into, out)


def _squares(weights: Mapping[str, Tensor], terms: Neuron) -> float:
    """sum_k |e_k| ||w_k||^2."""
    views = ((abs(float(term.exponent)), view) for term in terms for view in _views(weights[term.parameter], term))
    return sum(exponent * float(view.square().sum()) for exponent, view in views)


def scale_(weights: Mapping[str, Tensor], terms: Neuron, squared_norm: float) -> None:
    """Scale to a squared norm, in place, what is not zero."""
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


# --- a signal keeps its size ------------------------------------------------------------------------------------------


def preserving_factor(
    model: nn.Module, weights: Mapping[str, Tensor], scaled: frozenset[str], args: tuple[Any, ...], kwargs: Any
) -> float:
    """What to multiply matrices by for a model to pass a signal on at the size at which it came.

    The size of the outputs is to be that of the inputs of the first layer, as `squared_norm_of_stack` has it: mean
    squares are multiplied by the width of the first layer, and kept from there on. It is measured in forward passes on
    a copy, in evaluation mode. The outputs are a power of the common factor of all matrices, or nearly so where scores
    and gates depend on it, too: the secant method on logarithms finds it in a few passes. It is 1 where none is known
    to do it: the size of the outputs does not depend on it, as behind a normalization, or is zero or not finite.
    """
    structure = discover(model, *args, **kwargs)
    roles = {info.role for info in structure.parameters}
    first = next(layer for layer in structure if scaled.intersection(info.name for info in layer.parameters))
    if SCALE in roles or first.name == structure.ROOT:
        return 1.0
    replica = replicate(model, args, kwargs)
    replica.model.eval()
    module = dict(replica.model.named_modules())[first.name]  # scripted models have no get_submodule

    def logarithm(factor: float) -> float:
        for name, tensor in weights.items():
            replica.parameters[name].data.copy_(tensor * factor if name in scaled else tensor)
        gain = _gain(replica, module)
        if not math.isfinite(gain):  # an overflow makes infinities, and these NaN
            return math.inf
        return math.log(gain) if gain > 0 else -math.inf

    return _root(logarithm)


def _root(logarithm: Callable[[float], float]) -> float:
    """The factor at which the logarithm of the gain is zero; 1 where it hardly grows with the factor."""
    before = 1.0, logarithm(1.0)
    for _ in range(_PASSES):  # deep networks overflow, and vanish
        if math.isfinite(before[1]):
            break
        closer = before[0] / 8 if before[1] > 0 else before[0] * 8
        before = closer, logarithm(closer)
    factor = before[0] / 2 if before[1] > 0 else before[0] * 2
    for _ in range(_PASSES):
        here = factor, logarithm(factor)
        power = (here[1] - before[1]) / math.log(here[0] / before[0])
        if not 1 / 2 < power < math.inf:
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

"""Scale weights until what leads into a neuron is as large as what leads out of it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws import Term

# The terms of a neuron's law: weights that lead into it have positive exponents, those that lead out of it negative.
Neuron: TypeAlias = tuple[Term, ...]

_TOLERANCE = 1e-4  # of c relative to its terms; rounding in float32 leaves about 1e-7


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

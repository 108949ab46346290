"""What an optimizer remembers of past gradients, carried along when weights are rescaled."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor, optim

from gatdiag.errors import OptimizerError
from gatdiag.remedies.orbit import multiply_

_ADAM = MappingProxyType({"exp_avg": -1, "exp_avg_sq": -2})

POWERS: Final[Mapping[type[optim.Optimizer], Mapping[str, int]]] = MappingProxyType(
    {
        optim.SGD: {"momentum_buffer": -1},
        optim.Muon: {"momentum_buffer": -1},
        optim.ASGD: {"ax": 1},
        optim.Adam: {**_ADAM, "max_exp_avg_sq": -2},
        optim.AdamW: {**_ADAM, "max_exp_avg_sq": -2},
        optim.NAdam: _ADAM,
        optim.RAdam: _ADAM,
        optim.Adamax: {"exp_avg": -1, "exp_inf": -1},
        optim.Adagrad: {"sum": -2},
        optim.Adadelta: {"square_avg": -2, "acc_delta": 2},
        optim.RMSprop: {"square_avg": -2, "grad_avg": -1, "momentum_buffer": 0},
        optim.Rprop: {"prev": -1, "step_size": 1},
    }
)
"""Optimizer -> name of a state tensor -> the power of s it scales with, where weights are multiplied by s.

A gradient goes with s^-1, its square with s^-2, a weight or a step of weights with s; RMSprop's momentum is of
gradients that are normalized already. State with one value a parameter (step counts) stays.
"""


def powers_of(optimizer: optim.Optimizer) -> Mapping[str, int]:
    """How the state of an optimizer scales with the weights.

    Raises:
        OptimizerError: Its state is not known. A subclass may keep other things under the same names.
    """
    try:
        return POWERS[type(optimizer)]
    except KeyError:
        known = ", ".join(kind.__name__ for kind in POWERS)
        raise OptimizerError(
            f"Expected one of {known}, got {type(optimizer).__name__}, whose state gatdiag does not know how to "
            "rescale. Rebalance without it, and make it anew."
        ) from None


def rescale_moments_(state: Mapping[str, Any], factor: Tensor, powers: Mapping[str, int]) -> None:
    """Bring the state of one parameter, in place, to what it would be had the weights always been s times as large.

    That is: had each past gradient been taken at the weights rescaled by this same s, where it is g / s. What follows
    is the training of the rescaled model, not the old one seen through other eyes: no optimizer but those whose step
    has the unit of the weights (Adadelta, Rprop, up to their epsilons) goes on along the same functions. With
    ``v' = v / s`` the next step of SGD is 1 / s times what it was, so relative to the weights 1 / s^2 times; that of
    Adam, Adamax, Adagrad and RMSprop is what it was, up to epsilon, so relative to the weights 1 / s times.

    The state is as `optimizer.state` holds it for one parameter, or a saved optimizer; `powers` are from `POWERS`.
    """
    for tensor, scale in scaled_moments(state, factor, powers):
        multiply_(tensor, scale)


def scaled_moments(
    state: Mapping[str, Any], factor: Tensor, powers: Mapping[str, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors that `rescale_moments_` multiplies, and by what."""
    for name, power in powers.items():
        if power and isinstance(state.get(name), Tensor):
            yield state[name], factor**power

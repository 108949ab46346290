"""Rescale the state of an optimizer along with the weights."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor, optim

from gatdiag.errors import OptimizerError
from gatdiag.remedies.least_norm import multiply_

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
"""Optimizer -> name of a state tensor -> power of s that it scales with when weights are multiplied by s.

Gradients scale with s^-1, squared gradients with s^-2, weights and updates with s. RMSprop's momentum is of normalized
gradients and does not scale, nor does state with one value per parameter, such as step counts.
"""


def state_powers(optimizer: optim.Optimizer) -> Mapping[str, int]:
    """The powers with which the state of an optimizer scales, from `POWERS`.

    Raises:
        OptimizerError: The optimizer's class is not known; the state of a subclass may have another meaning.
    """
    try:
        return POWERS[type(optimizer)]
    except KeyError:
        known = ", ".join(kind.__name__ for kind in POWERS)
        raise OptimizerError(
            f"Expected one of {known}, got {type(optimizer).__name__}, whose state cannot be rescaled. Rebalance "
            "without the optimizer, then create a new one."
        ) from None


def rescale_moments_(state: Mapping[str, Any], factor: Tensor, powers: Mapping[str, int]) -> None:
    """Rescale the state of one parameter, in place, as if its weights had always been multiplied by s.

    That is the state if each past gradient g had been taken at the rescaled weights, where it is g / s. Training then
    continues from the rescaled model, but in general not along the same functions: only optimizers whose updates scale
    like the weights (Adadelta, Rprop) do that, up to epsilon. The next step of SGD is 1 / s times as large as before,
    so 1 / s^2 times relative to the weights; that of Adam, Adamax, Adagrad and RMSprop is as large as before, up to
    epsilon, so 1 / s times relative to the weights.

    Args:
        state: `optimizer.state` of one parameter, or that of a saved optimizer.
        factor: s, broadcastable to the parameter.
        powers: From `POWERS`.
    """
    for tensor, scale in scaled_moments(state, factor, powers):
        multiply_(tensor, scale)


def scaled_moments(
    state: Mapping[str, Any], factor: Tensor, powers: Mapping[str, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors that `rescale_moments_` multiplies, with their factors."""
    for name, power in powers.items():
        if power and isinstance(state.get(name), Tensor):
            yield state[name], factor**power

"""Whether a model's modules and parameters are still those that were there before."""

from collections.abc import Iterable
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class Binding:
    """The modules and parameters of a model, each with the place that holds it.

    A layer that is replaced, `load_state_dict(assign=True)` and `torch.func.functional_call` put other objects into
    these places.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> binding = Binding(model)
        >>> binding.holds()
        True
        >>> model[0] = nn.Linear(2, 2)
        >>> binding.holds()
        False
    """

    def __init__(self, model: nn.Module) -> None:
        """Remembers what is there now."""
        modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        held = [
            (place, key, value)
            for module in modules
            for place in (module._modules, module._parameters)
            for key, value in place.items()
        ]
        self._places: list[dict[str, Any]] = [place for place, _, _ in held]
        self._keys = [key for _, key, _ in held]
        self._held = [value for _, _, value in held]

    def holds(self) -> bool:
        """Whether each is where it was; a few dozen nanoseconds for each, for every step asks."""
        return all(map(is_, map(dict.get, self._places, self._keys), self._held))


def holds_none_of(optimizers: Iterable[Optimizer], parameters: Iterable[nn.Parameter]) -> bool:
    """Whether no optimizer holds any of the parameters."""
    held = {id(item) for optimizer in optimizers for group in optimizer.param_groups for item in group["params"]}
    return held.isdisjoint(map(id, parameters))

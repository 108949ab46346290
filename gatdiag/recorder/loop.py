"""What the training loop does around the model: backward passes without a step, and optimizers made anew."""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

_LATER = 3  # passes


class LoopFacts:
    """Counts, of one training."""

    def __init__(self) -> None:
        self._passes = self._steps = self._new = 0
        self._sizes: list[complex] = []  # of the parameters, at the first pass
        self._moves = False  # the weights differ at a later pass without a step that was seen
        self._known = weakref.WeakSet[Optimizer]()

    def on_backward_start(self, parameters: Sequence[Tensor]) -> bool:
        """Called once in each recorded backward pass; returns whether it is one of those before the first step."""
        self._passes += 1
        if self._steps:
            return False
        if self._passes == 1:
            self._sizes = [each.sum().item() for each in parameters]
        elif self._passes == _LATER:
            self._moves = self._sizes != [each.sum().item() for each in parameters]
        return True

    def before_step(self, optimizers: Sequence[Optimizer]) -> None:
        """Called before each recorded step."""
        self._steps += 1
        remembering = [each for each in optimizers if any(map(_remembers, each.param_groups))]
        if remembering and self._known.isdisjoint(remembering):
            self._new += 1
        self._known.update(optimizers)

    def as_meta(self) -> dict[str, Any]:
        """What stands in meta.json: recorded steps, those of an optimizer that is new, passes if there is no step."""
        passes = {} if self._steps else {"backward_passes": self._passes, "weights_move": self._moves}
        return {"recorded_steps": self._steps, "steps_of_new_optimizers": self._new, **passes}


def _remembers(group: dict[str, Any]) -> bool:
    """Whether its steps depend on earlier gradients: moments or momentum."""
    return "betas" in group or bool(group.get("momentum"))

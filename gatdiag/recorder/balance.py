"""The laws of a model at each recorded step: delta, c, and what the last step of the optimizers must have made of c."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.errors import OptimizerError
from gatdiag.laws import Laws
from gatdiag.laws.laws import Observation


class Balance:
    """Follows the laws through training.

    predicted_c at step t is what was predicted at step t - 1 from the c measured there: if delta is zero and the
    optimizers did what they say, c - predicted_c is rounding. It needs no chain of predictions, so it can be recorded
    at any steps, if the one before is known to be followed by a recorded one. Each optimizer that takes part in a step
    is looked at just before it moves its weights.

    Args:
        laws: The laws.
        wanted: Positions of those that are recorded.
    """

    def __init__(self, laws: Laws, wanted: Sequence[int]) -> None:
        """Nothing is predicted yet."""
        self.laws = laws
        self.wanted = torch.tensor(list(wanted), dtype=torch.int64)
        self.unpredictable = ""  # why c cannot be predicted
        self._predicted: tuple[int, Tensor] | None = None  # the step it is for
        self._observation: Observation | None = None  # of the step that is open
        self._step, self._foresees = 0, False

    def measure(
        self, step: int, optimizers: Sequence[Optimizer], unscale: Tensor | float | None, *, foresee: bool
    ) -> None:
        """A step is about to be made.

        Args:
            step: The step.
            optimizers: Those that begin it; none if it is made by something else.
            unscale: What gradients are multiplied by, where a gradient scaler has not done so yet.
            foresee: Whether the next step is recorded, so that its c is to be predicted.
        """
        self._step, self._foresees = step, foresee and bool(optimizers)
        self._observation = Observation(self.laws, self._gradients(unscale), foresee=self._foresees)
        for optimizer in optimizers:
            self._foresee(self._observation, optimizer)

    def join(self, optimizer: Optimizer, unscale: Tensor | float | None) -> None:
        """A further optimizer is about to take part in the step."""
        if self._observation is not None:
            self._observation.renew(optimizer, self._gradients(unscale))
            self._foresee(self._observation, optimizer)

    def end(self) -> dict[str, Tensor]:
        """The step is over: delta and c of each wanted law, and c as predicted if the step before foresaw it."""
        observation, self._observation = self._observation, None
        before, self._predicted = self._predicted, None
        if observation is None:
            return {}
        columns = {"delta": observation.delta, "c": observation.c}
        if before is not None and before[0] == self._step:
            columns["predicted_c"] = before[1]
        if self._foresees:
            self._predicted = (self._step + 1, observation.predicted())
        if len(self.wanted) < len(self.laws):
            columns = {name: values[self.wanted.to(values.device)] for name, values in columns.items()}
        return columns

    def _foresee(self, observation: Observation, optimizer: Optimizer) -> None:
        if not self._foresees:
            return
        try:
            observation.step(optimizer)
        except OptimizerError as error:
            self.unpredictable = self.unpredictable or str(error)
            self._foresees = False

    def _gradients(self, unscale: Tensor | float | None) -> Mapping[str, Tensor] | None:
        if unscale is None:
            return None
        parameters = self.laws.parameters.items()
        return {name: tensor.grad * unscale for name, tensor in parameters if tensor.grad is not None}

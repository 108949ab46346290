"""The laws of a model at each recorded step -> the rows of the table `neurons`: delta, c, and c as it was predicted."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.errors import OptimizerError
from gatdiag.laws import Law, Laws
from gatdiag.laws.laws import Observation
from gatdiag.recorder.outbox import Columns

_MOST_LAWS = 4096  # recorded at each recorded step; with more of them, at a fraction of the steps


class NeuronRecorder:
    """Follows the laws through training.

    predicted_c at step t is what was predicted at step t - 1 from the c measured there: if delta is zero and the
    optimizers did what they say, c - predicted_c is rounding. It needs no chain of predictions, so it can be recorded
    at any steps, if the one before is known to be followed by a recorded one. Each optimizer that takes part in a step
    is looked at just before it moves its weights.

    Args:
        laws: The laws.
        wanted: Positions of those that are recorded.
        every: At every how many-th record; rarer with very many laws.
        predicts: Whether predicted c is wanted.

    Attributes:
        recorded: The laws that are recorded.
        unpredictable: Why c cannot be predicted.
    """

    def __init__(self, laws: Laws, wanted: Sequence[int], every: int, *, predicts: bool) -> None:
        self.laws, self._wanted = laws, torch.tensor(list(wanted), dtype=torch.int64)
        self.recorded: list[Law] = [laws[number] for number in wanted]
        self.unpredictable = ""
        self._options: dict[str, Any] = {"every": every, "predicts": predicts}
        self._every, self._predicts = every * max(1, math.ceil(len(wanted) / _MOST_LAWS)), predicts
        self._predicted: tuple[int, Tensor] | None = None  # the step it is for
        self._observation: Observation | None = None  # of the step that is open
        self._step, self._is_due, self._foresees = 0, False, False

    def at(self, parameters: Mapping[str, Any]) -> "NeuronRecorder":
        """The same for other parameters of these names."""
        return NeuronRecorder(self.laws.at(parameters), self._wanted.tolist(), **self._options)

    def measure(
        self,
        step: int,
        records: tuple[int | None, int | None],
        optimizers: Sequence[Optimizer],
        unscale: Tensor | float | None,
    ) -> None:
        """A step is about to be made.

        Args:
            step: The step.
            records: Number of the record that this step is, and the next; None if it is none.
            optimizers: Those that begin it; none if it is made by something else.
            unscale: What gradients are multiplied by, where a gradient scaler has not done so yet.
        """
        self._step = step
        self._is_due, is_next_due = (record is not None and record % self._every == 0 for record in records)
        self._foresees = self._predicts and is_next_due and bool(optimizers)
        self._observation = None
        if self._is_due or self._foresees:
            self._observation = Observation(self.laws, self._gradients(unscale), foresee=self._foresees)
            for optimizer in optimizers:
                self._foresee(self._observation, optimizer)

    def join(self, optimizer: Optimizer, unscale: Tensor | float | None) -> None:
        """A further optimizer is about to take part in the step."""
        if self._observation is not None:
            self._observation.renew(optimizer, self._gradients(unscale))
            self._foresee(self._observation, optimizer)

    def end(self) -> Columns:
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
        if not self._is_due:
            return {}
        if len(self._wanted) < len(self.laws):
            columns = {name: values[self._wanted.to(values.device)] for name, values in columns.items()}
        return {**columns, "law": np.arange(len(self._wanted), dtype=np.int32)}

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

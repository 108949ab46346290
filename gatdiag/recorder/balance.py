"""The laws of a model at each recorded step: delta, c, and what the last step of the optimiser must have made of c."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.errors import OptimizerError
from gatdiag.laws import Laws


class Balance:
    """Follows the laws through training.

    predicted_c at step t is what `Laws.predict` gave at step t - 1 from the c measured there: if delta is zero and the
    optimiser did what it says, c - predicted_c is rounding. It needs no chain of predictions, so it can be recorded at
    any steps, if the one before is known to be followed by a recorded one.

    Args:
        laws: The laws.
        wanted: Positions of those that are recorded.
    """

    def __init__(self, laws: Laws, wanted: Sequence[int]) -> None:
        """Nothing is predicted yet."""
        self.laws = laws
        self.wanted = torch.tensor(list(wanted), dtype=torch.int64)
        self.unpredictable = ""  # why c cannot be predicted
        self._predicted: tuple[int, Tensor] | None = None

    def measure(
        self, step: int, optimizers: Sequence[Optimizer], unscale: Tensor | float | None, *, foresee: bool
    ) -> dict[str, Tensor]:
        """delta and c of each wanted law, and c as predicted if the step before foresaw it.

        Args:
            step: The step.
            optimizers: Those that make it.
            unscale: What gradients are multiplied by, where a gradient scaler has not done so yet.
            foresee: Whether the next step is recorded, so that its c is to be predicted.
        """
        before, self._predicted = self._predicted, None
        delta, c, predicted = self._observed(optimizers if foresee else (), unscale)
        if predicted is not None:
            self._predicted = (step + 1, predicted)
        columns = {"delta": delta, "c": c}
        if before is not None and before[0] == step:
            columns["predicted_c"] = before[1]
        if len(self.wanted) < len(self.laws):
            columns = {name: values[self.wanted.to(values.device)] for name, values in columns.items()}
        return columns

    def _observed(
        self, optimizers: Sequence[Optimizer], unscale: Tensor | float | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        gradients = None
        if unscale is not None:
            parameters = self.laws.parameters.items()
            gradients = {name: tensor.grad * unscale for name, tensor in parameters if tensor.grad is not None}
        if len(optimizers) == 1 and not self.unpredictable:
            try:
                return self.laws.observe(gradients, optimizers[0])
            except OptimizerError as error:
                self.unpredictable = str(error)
        elif len(optimizers) > 1:
            self.unpredictable = "several optimisers take one step together"
        return self.laws.observe(gradients)

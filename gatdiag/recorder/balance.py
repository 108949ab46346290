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

    def measure(self, step: int, unscale: Tensor | float | None) -> dict[str, Tensor]:
        """delta and c of each wanted law, c as predicted if the step before predicted it, and `all_c`, of all laws."""
        delta, c = self.laws.delta_and_c()
        columns = {"delta": delta if unscale is None else delta * unscale, "c": c}
        if self._predicted is not None and self._predicted[0] == step:
            columns["predicted_c"] = self._predicted[1]
        if len(self.wanted) < len(self.laws):
            columns = {name: values[self.wanted.to(values.device)] for name, values in columns.items()}
        return {**columns, "all_c": c}

    def predict(
        self, step: int, c: Tensor | None, optimizers: Sequence[Optimizer], unscale: Tensor | float | None
    ) -> None:
        """Predict c after the step that is about to be made.

        Args:
            step: The step.
            c: Of all laws, if it was measured already.
            optimizers: Those that make the step.
            unscale: What gradients are multiplied by, where a gradient scaler has not done so yet.
        """
        self._predicted = None
        if len(optimizers) != 1:
            self.unpredictable = "several optimisers take one step together, or one that is not torch's"
            return
        parameters = self.laws.parameters
        gradients = {name: tensor.grad for name, tensor in parameters.items() if tensor.grad is not None}
        if unscale is not None:
            gradients = {name: gradient * unscale for name, gradient in gradients.items()}
        try:
            predicted = self.laws.predict(self.laws.c() if c is None else c, gradients, optimizers[0])
        except OptimizerError as error:
            self.unpredictable = str(error)
            return
        self._predicted = (step + 1, predicted)

"""The events of a training, in the order in which they happen in a step."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer


class Listener(Protocol):
    """What hooks call. Exceptions would reach the training, so a listener contains its own.

    Attributes:
        has_begun_step: Whether the forward pass of the coming step has begun.
        counts_evaluations: Whether calls of the model without gradients are of interest.
    """

    has_begun_step: bool

    @property
    def counts_evaluations(self) -> bool:
        """See above."""

    def on_training(self) -> None:
        """The model or a layer is called, not by a backward pass and with gradients enabled: it may be training."""

    def on_model_start(self) -> None:
        """The model is called, as in `on_training`."""

    def on_repeated_model(self) -> None:
        """The model is called by a backward pass, as activation checkpointing does."""

    def on_layer_start(self, layer: str, module: nn.Module) -> None:
        """A layer is called, maybe by a backward pass."""

    def on_layer_end(
        self, layer: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any
    ) -> Any:
        """A layer has run. What this returns, unless it is None, is handed to `on_output_gradient`."""

    def on_model_end(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """The model has run."""

    def on_batch_norm(self, name: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        """A batch normalization has run."""

    def on_evaluation_start(self) -> None:
        """The model is called without gradients."""

    def on_evaluation_end(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The model has run without gradients."""

    def on_output_gradient(self, layer: str, run: Any, gradient: Tensor) -> None:
        """The gradient of a layer's output has been computed."""

    def on_step(self, optimizers: Sequence[Optimizer]) -> None:
        """Optimizers, to which more may be added, are about to move the weights."""

    def on_optimizer_joined(self, optimizer: Optimizer) -> None:
        """Another optimizer takes part in the step."""

    def on_step_end(self) -> None:
        """The weights have moved."""

    def on_closure_loss(self, loss: Any) -> None:
        """A closure that an optimizer has called has returned its loss."""

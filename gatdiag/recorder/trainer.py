"""What a LightningModule logs with `self.log`, read from its trainer; Lightning is not imported."""

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

_LOSS = re.compile(r"(?i)(?!val|test|predict).*loss(_step)?")
_PLAIN = re.compile(r"(?i)train(ing)?.?loss(_step)?")


class TrainerMetrics:
    """The metrics of the trainer that a model is attached to, if it is a LightningModule that is.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        """Nothing is read yet."""
        self._model = model
        self._trainer: Any = None
        self._read: dict[str, Tensor] = {}  # kept, so that their memory is not that of later ones

    @property
    def batches_per_step(self) -> int:
        """How many batches a step accumulates; the loss of each is divided by it."""
        return int(getattr(self._trainer, "accumulate_grad_batches", 1))

    def news(self) -> dict[str, Tensor]:
        """The values that were logged since the last call, by the trainer before, too, if there is another now."""
        before, self._trainer = self._trainer, getattr(self._model, "_trainer", None)
        metrics: dict[str, Any] = {}
        for trainer in (before, self._trainer):
            metrics |= getattr(trainer, "callback_metrics", None) or {}
        tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
        new = {name: value for name, value in tensors.items() if self._is_new(name, value)}
        self._read |= new
        return new

    def _is_new(self, name: str, value: Tensor) -> bool:
        read = self._read.get(name)
        return read is None or read.data_ptr() != value.data_ptr()


def training_loss(names: Iterable[str]) -> str | None:
    """Which of the logged values is the loss of training; None if it cannot be told.

    Example:
        >>> training_loss(["val_loss", "train_loss", "train_kl_loss", "accuracy"])
        'train_loss'
        >>> training_loss(["train/loss"]), training_loss(["ce_loss", "val_loss"]), training_loss(["g_loss", "d_loss"])
        ('train/loss', 'ce_loss', None)
    """
    losses = [name for name in names if _LOSS.fullmatch(name)]
    of_training = [name for name in losses if name.lower().startswith("train")]
    plain = [name for name in of_training if _PLAIN.fullmatch(name)]
    return next((some[0] for some in (plain[:1], of_training, losses) if len(some) == 1), None)

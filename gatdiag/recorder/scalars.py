"""Logged values -> scalars of the table `steps`, from numbers, tensors and metric objects; also those of Lightning."""

import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor, nn

from gatdiag.errors import InputError
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.measure.parameters import ParameterMeasurer
from gatdiag.recorder.writer import Writer

_LOSS = re.compile(r"(?i)(?!val|test|predict).*loss(_step)?")
_PLAIN = re.compile(r"(?i)train(ing)?.?loss(_step)?")
_PLAIN_TYPES = frozenset({Tensor, float})


def flatten(mapping: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of a mapping; nested ones are joined by slashes, as in "train/loss"."""
    if not isinstance(mapping, Mapping):
        kind = type(mapping).__name__
        raise InputError(f'log() expects log(loss=...) or log({{"loss": ...}}), got an argument of type {kind}')
    for key, value in mapping.items():
        name = prefix + (str.__str__(key) if isinstance(key, str) else str(key))
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}/")
        else:
            yield name, value


def are_plain(values: Iterable[Any]) -> bool:
    """True if each value is a tensor or a float; a quick test for the usual case."""
    return _PLAIN_TYPES.issuperset(map(type, values))


def to_scalar(name: str, value: Any) -> float | Tensor:
    """Convert a logged value to a float, or to a detached copy if it is on an accelerator.

    Raises:
        InputError: It is not a single number.
    """
    if not isinstance(value, Tensor) and callable(compute := getattr(value, "compute", None)):
        value = compute()
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex() and not value.is_meta:
        return float(value.item()) if value.is_cpu else value.detach().reshape(()).clone()
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        value = value.reshape(())[()]
    if isinstance(value, Real | np.bool_):
        return float(value)
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""
    raise InputError(
        f"log({name}=...) expects a number, or a tensor with one element, got {type(value).__name__}{shape}"
    )


class ScalarLog:
    """The scalars of a run: those that the loop logs, that a trainer logs, and the loss.

    A loss that is logged counts; else the one that `backward()` was called on, then that of a closure, then that of a
    trainer.

    Args:
        model: The model.
        guard: Contains failures.
        best: Name of a scalar, at whose best value the parameters are saved, and whether larger is better.

    Attributes:
        writer: None until the first step.
        parameters: What is saved at the best value; None until the first step.
    """

    def __init__(self, model: nn.Module, guard: Guard, best: tuple[str, bool] | None) -> None:
        self._model, self._guard, self._best = model, guard, best
        self._trainer = _TrainerMetrics(model)
        self._logs_loss = self._is_loss_known = False
        self.writer: Writer | None = None
        self._early: list[
            tuple[dict[str, float | Tensor], int]
        ] = []  # values and their steps, before there is a writer
        self.parameters: ParameterMeasurer | None = None

    def open(self, writer: Writer) -> None:
        """Write to a run from now on, first what was logged before."""
        self.writer, early, self._early = writer, self._early, []
        for values, step in early:
            self._write(values, step)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Log what the loop has logged."""
        self._logs_loss |= "loss" in values
        self._write(values, step)

    def log_closure_loss(self, loss: Any, step: int) -> None:
        """Log what a closure has returned."""
        if isinstance(loss, Tensor | float):
            self.add_measured({"loss": loss * self._trainer.batches_per_step}, step)

    def add_measured(self, values: Mapping[str, Any], step: int) -> None:
        """Log a loss, unless the loop logs it or a better one is known."""
        if self.writer is None or self._logs_loss or not values or "loss" in self.writer.row(step):
            return
        self._is_loss_known = True
        self._write(values, step)

    def log_trainer(self, step: int) -> None:
        """Log what a trainer has logged since the last call."""
        if "_trainer" not in vars(self._model):
            return
        values = self._guard("metrics logged by the trainer", self._trainer.take_new)
        if not values:
            return
        loss = None if self._is_loss_known or self._logs_loss else find_training_loss(values)
        self._write(values if loss is None else {**values, "loss": values[loss]}, step)

    def _write(self, given: Mapping[str, Any], step: int) -> None:
        values: dict[str, float | Tensor] = {}
        for name, value in given.items():
            if self.writer is None or self.writer.can_log(name):
                number = self._guard(f"values of {name!r}", to_scalar, name, value)
                if number is not None:
                    values[name] = number
        if self.writer is None:
            self._early.append((values, step))
            return
        self.writer.row(step).update(values)
        if self._best is not None and self._best[0] in values and self.parameters is not None:
            value = float(values[self._best[0]])
            self._guard("best parameters", self.writer.update_best, *self._best, value, step, self.parameters)


class _TrainerMetrics:
    """Metrics that a LightningModule logs with `self.log`, read from its trainer without importing Lightning."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._trainer: Any = None
        self._read: dict[str, Tensor] = {}  # kept alive, so that new values have other memory addresses

    @property
    def batches_per_step(self) -> int:
        """Number of batches that a step accumulates, by which Lightning divides each loss."""
        return int(getattr(self._trainer, "accumulate_grad_batches", 1))

    def take_new(self) -> dict[str, Tensor]:
        """The values that were logged since the last call, also by the previous trainer if it was replaced."""
        before, self._trainer = self._trainer, vars(self._model).get("_trainer")
        if before is None and self._trainer is None:
            return {}
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


def find_training_loss(names: Iterable[str]) -> str | None:
    """The name of the training loss among the logged values; None if it is ambiguous.

    Example:
        >>> find_training_loss(["val_loss", "train_loss", "train_kl_loss", "accuracy"])
        'train_loss'
        >>> find_training_loss(["ce_loss", "val_loss"])
        'ce_loss'
        >>> find_training_loss(["g_loss", "d_loss"]) is None
        True
    """
    losses = [name for name in names if _LOSS.fullmatch(name)]
    of_training = [name for name in losses if name.lower().startswith("train")]
    plain = [name for name in of_training if _PLAIN.fullmatch(name)]
    return next((some[0] for some in (plain[:1], of_training, losses) if len(some) == 1), None)

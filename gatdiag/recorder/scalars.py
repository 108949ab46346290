"""Logged values -> scalars, from numbers, tensors and metric objects; also those that Lightning logs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor, nn

from gatdiag.errors import InputError

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


class TrainerMetrics:
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

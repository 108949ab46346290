"""Masked tensors -> rows in the store, without making the host wait for the device at each step.

What is on the CPU is written at once. What is on an accelerator waits, with all that comes after it, until a second
has passed; then everything crosses in a single copy.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Columns: TypeAlias = dict[str, Any]  # column -> Tensor, Masked, array or number
Write: TypeAlias = Callable[[str, Columns], None]

_SECONDS = 1.0
_MOST = 2048  # rows waiting at a time


@dataclass(frozen=True)
class Masked:
    """A column some of whose entries were not measured."""

    values: Tensor | np.ndarray[Any, Any]
    where: np.ndarray[Any, np.dtype[np.bool_]]


def masked(values: Any, where: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
    """The values, of which only some were measured."""
    return values if bool(where.all()) else Masked(values, where)


def scaled(column: Any, factor: Any) -> Any:
    """A column times a number."""
    return Masked(column.values * factor, column.where) if isinstance(column, Masked) else column * factor


class Outbox:
    """Passes rows on in the order in which they were put.

    Args:
        write: Takes a table and its columns on the host.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: list[tuple[str, Columns]] = []
        self._since = 0.0

    def put(self, table: str, columns: Columns) -> None:
        """Write the rows now if all of them are on the host, else later."""
        if not self._waiting:
            if not any(map(_is_away, columns.values())):
                self._write(table, {name: _on_host(value, {}) for name, value in columns.items()})
                return
            self._since = time.monotonic()
        self._waiting.append((table, columns))
        if len(self._waiting) >= _MOST or time.monotonic() - self._since >= _SECONDS:
            self.drain()

    def drain(self) -> None:
        """Write all that is waiting."""
        waiting, self._waiting = self._waiting, []
        arrived = _crossed([value for _, columns in waiting for value in columns.values() if _is_away(value)])
        for table, columns in waiting:
            self._write(table, {name: _on_host(value, arrived) for name, value in columns.items()})


def _is_away(value: Any) -> bool:
    value = value.values if isinstance(value, Masked) else value
    return isinstance(value, Tensor) and not value.is_cpu


def _crossed(values: list[Any]) -> Mapping[int, Tensor]:
    """id of each tensor -> its copy on the host; one transfer for each device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for value in values:
        tensor: Any = value.values if isinstance(value, Masked) else value
        by_device.setdefault(tensor.device, []).append(tensor)
    arrived: dict[int, Tensor] = {}
    for tensors in by_device.values():
        flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors]).cpu()
        pieces = flat.split([tensor.numel() for tensor in tensors])
        arrived |= {id(tensor): piece.reshape(tensor.shape) for tensor, piece in zip(tensors, pieces, strict=True)}
    return arrived


def _on_host(value: Any, arrived: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Masked):
        return np.ma.masked_array(_on_host(value.values, arrived), mask=~value.where)
    if not isinstance(value, Tensor):
        return value
    array = arrived.get(id(value), value).detach().double().numpy()
    return array if array.ndim else float(array)

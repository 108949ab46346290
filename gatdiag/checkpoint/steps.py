"""The step and the epoch at which a checkpoint was saved: from its contents, else from its name."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gatdiag.checkpoint.optimizer import OptimizerState

_STEPS = ("global_step", "step", "steps", "iteration", "iter", "train_step")
_EPOCHS = ("epoch", "current_epoch")
_NESTED = ("state", "trainer_state", "meta", "train_state")
_NUMBER_AFTER = r"(?:^|[^a-z])(?:{})[=_-]?(\d{{1,15}})(?!\d)"
_STEP_IN_NAME = re.compile(_NUMBER_AFTER.format("checkpoint|ckpt|steps?|iteration|iter|it"), re.IGNORECASE)
_EPOCH_IN_NAME = re.compile(_NUMBER_AFTER.format("epoch|ep|e"), re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.vV])(\d{1,15})(?![\d.]*\d)")
_DTYPE = re.compile(r"(?<![a-z])(?:b?float|b?fp|u?int|bf|complex)\d+", re.IGNORECASE)
_MAX_COUNT = 2**53


def read_step(data: Any, optimizer: OptimizerState | None, path: Path) -> int | None:
    """Optimizer steps taken: from the file, else its optimizer state, else its name; 0 if the optimizer is new."""
    step = _read_count(data, _STEPS)
    if step is None and optimizer is not None:
        steps = [_as_count(moments.get("step")) for moments in optimizer.moments.values()]
        step = max((taken for taken in steps if taken is not None), default=None)
    if step is None:
        step = parse_step(path)
    return 0 if step is None and optimizer is not None and optimizer.is_fresh else step


def read_epoch(data: Any, path: Path) -> int | None:
    """Epochs trained: from the file, else from its name."""
    epoch = _read_count(data, _EPOCHS)
    return epoch if epoch is not None else parse_epoch(path)


def parse_step(path: Path) -> int | None:
    """The step in a file name: the number after "step" or the like, else the last one, except for epochs and dtypes.

    Example:
        >>> parse_step(Path("epoch=3-step=500.ckpt")), parse_step(Path("gat_100.pt")), parse_step(Path("e3.pt"))
        (500, 100, None)
    """
    name = _DTYPE.sub("-", _stem(path))
    found = _STEP_IN_NAME.findall(name) or _NUMBER.findall(_EPOCH_IN_NAME.sub("-", name))
    if not found and not _EPOCH_IN_NAME.search(name):
        found = _STEP_IN_NAME.findall(path.parent.name)  # checkpoint-500/model.safetensors
    return int(found[-1]) if found else None


def parse_epoch(path: Path) -> int | None:
    """The epoch in a file name.

    Example:
        >>> parse_epoch(Path("epoch=3-step=500.ckpt")), parse_epoch(Path("gat_100.pt"))
        (3, None)
    """
    found = _EPOCH_IN_NAME.findall(_stem(path))
    return int(found[-1]) if found else None


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else path.stem.removesuffix(".safetensors.index")


def _read_count(data: Any, keys: tuple[str, ...]) -> int | None:
    if not isinstance(data, Mapping):
        return None
    places = [data, *(data[key] for key in _NESTED if isinstance(data.get(key), Mapping))]
    counts = (_as_count(place.get(key)) for place in places for key in keys)
    return next((count for count in counts if count is not None), None)


def _as_count(value: Any) -> int | None:
    """A non-negative integer, from a number or a tensor with one element; None for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_COUNT:
        return None
    return int(value) if value == int(value) else None

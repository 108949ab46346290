"""How far training was when a checkpoint was saved: as the file says it, and as its name does."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gatdiag.checkpoint.checkpoint import OptimizerState

_STEPS = (
    *("global_step", "global_steps", "step", "steps", "iteration", "iter"),
    *("num_steps", "n_iter", "it", "train_step"),
)
_EPOCHS = ("epoch", "current_epoch", "epochs", "last_epoch", "n_epoch")
_NESTED = ("state", "trainer_state", "meta", "metadata", "train_state")
_AFTER = r"(?:^|[^a-z])(?:{})[=_-]?(\d{{1,15}})(?!\d)"
_STEP_IN_NAME = re.compile(_AFTER.format("global_step|step|steps|iteration|iter|it"), re.IGNORECASE)
_EPOCH_IN_NAME = re.compile(_AFTER.format("epoch|ep|e"), re.IGNORECASE)
_STEP_IN_FOLDER = re.compile(_AFTER.format("checkpoint|ckpt|global_step|step|iteration|iter"), re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.vV])(\d{1,15})(?![\d.]*\d)")
_NUMBER_TYPE = re.compile(r"(?<![a-z])(?:b?float|b?fp|u?int|bf|complex)\d+", re.IGNORECASE)
_LARGEST = 2**53


def step_of(data: Any, optimizer: OptimizerState | None, path: Path) -> int | None:
    """Steps taken: from the file, else its optimizer, else its name."""
    stored = _stored(data, _STEPS)
    if stored is None and optimizer is not None:
        taken = [_whole(moments.get("step")) for moments in optimizer.moments.values()]
        stored = max((step for step in taken if step is not None), default=None)
    return stored if stored is not None else step_in_name(path)


def epoch_of(data: Any, path: Path) -> int | None:
    """Epochs trained: from the file, else from its name."""
    stored = _stored(data, _EPOCHS)
    return stored if stored is not None else epoch_in_name(path)


def step_in_name(path: Path) -> int | None:
    """The step that a name tells: after a word for it, else its last number, if that is no epoch and no number type.

    Example:
        >>> step_in_name(Path("epoch=3-step=500.ckpt")), step_in_name(Path("gat_100.pt")), step_in_name(Path("e3.pt"))
        (500, 100, None)
    """
    name = _NUMBER_TYPE.sub("-", _stem(path))
    found = _STEP_IN_NAME.findall(name) or _NUMBER.findall(_EPOCH_IN_NAME.sub("-", name))
    if not found and not _EPOCH_IN_NAME.search(name):
        found = _STEP_IN_FOLDER.findall(path.parent.name)  # checkpoint-500/model.safetensors
    return int(found[-1]) if found else None


def epoch_in_name(path: Path) -> int | None:
    """The epoch that a name tells.

    Example:
        >>> epoch_in_name(Path("epoch=3-step=500.ckpt")), epoch_in_name(Path("gat_100.pt"))
        (3, None)
    """
    found = _EPOCH_IN_NAME.findall(_stem(path))
    return int(found[-1]) if found else None


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else path.stem.removesuffix(".safetensors.index")


def _stored(data: Any, keys: tuple[str, ...]) -> int | None:
    if not isinstance(data, Mapping):
        return None
    places = [data, *(data[key] for key in _NESTED if isinstance(data.get(key), Mapping))]
    numbers = (_whole(place.get(key)) for place in places for key in keys)
    return next((number for number in numbers if number is not None), None)


def _whole(value: Any) -> int | None:
    """A count, if it is one: a number or a tensor with one entry, whole and not negative."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        return None
    return int(value) if value == int(value) else None

"""Writes a checkpoint again with other tensors, and everything else in it as it was."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatdiag.checkpoint.opening import Checkpoint, read_contents, reading, shown_path
from gatdiag.checkpoint.optimizer import named_states, optimizers
from gatdiag.checkpoint.safetensors_file import positions
from gatdiag.checkpoint.state_dict import find_weights
from gatdiag.errors import InputError
from gatdiag.names import quote
from gatdiag.run.files import atomic_write

Moments = Mapping[str, Mapping[str, Tensor]]


def write_checkpoint(
    checkpoint: Checkpoint,
    tensors: Mapping[str, Tensor],
    out: str | os.PathLike[str],
    *,
    moments: Moments | None = None,
    drop_optimizer: bool = False,
    in_place: bool = False,
) -> Path:
    """Writes a checkpoint again with some tensors replaced.

    All else is carried over: other keys, the epoch, the scheduler, averages of the weights, metadata; and of the
    tensors the dtype, the layout in memory, and which of them share it. The file is written beside its place and then
    put there: it is whole, or what was there before stays.

    Args:
        checkpoint: As it was opened; its file is read again.
        tensors: Name -> new values of the same shape, for the tensors to replace.
        out: The file to write. One that exists is replaced, unless it is the checkpoint's own; of a link, the file that
            it leads to.
        moments: Parameter's name -> {"exp_avg": ..., ...}: new values for the first optimizer's state.
        drop_optimizer: Leave all optimizers without state, as they are before their first step; settings stay.
        in_place: Allow `out` to be the checkpoint's own file.

    Returns:
        The file written.

    Raises:
        InputError: A name or a shape does not fit, a value is too large for the number type in the file, the format
            cannot be written, or `out` is the checkpoint's own file, or none at all: a folder, a device, a pipe.
        OSError: It could not be written.
    """
    target = Path(out)
    _check_target(checkpoint, target, in_place=in_place)
    place = target.resolve()
    with reading(checkpoint.path):
        for name, new in tensors.items():
            _check_fit(name, checkpoint.tensors.get(name), new)
        if moments and checkpoint.optimizer is None:
            raise InputError("there is no optimizer in it whose state could be replaced")
    if checkpoint.format == "safetensors":
        with atomic_write(place, durable=True) as part:
            _write_safetensors(checkpoint, tensors, part)
        return target
    _, data = read_contents(checkpoint.path, mapped=False)
    with reading(checkpoint.path), torch.no_grad():
        _replace(find_weights(data).tensors, tensors)
        _replace_moments(data, checkpoint, moments or {})
        for optimizer in optimizers(data) if drop_optimizer else ():
            optimizer["state"] = {}
    with atomic_write(place, durable=True) as part:
        _save(data, part, legacy=checkpoint.format == "torch (legacy)")
        shutil.copymode(checkpoint.path, part)
    return target


def _save(data: Any, part: Path, *, legacy: bool) -> None:
    try:
        with part.open("wb") as file:  # torch would write the name of a path into the archive
            torch.save(data, file, _use_new_zipfile_serialization=not legacy)
    except RecursionError as error:
        raise InputError("what is in it is nested too deeply to be written again") from error
    except RuntimeError as error:  # what torch makes of a disk that is full
        line = str(error).partition("\n")[0]
        raise OSError(f"the disk is full, or no file may be written there (torch.save: {line})") from error


def _check_target(checkpoint: Checkpoint, target: Path, *, in_place: bool) -> None:
    if checkpoint.format not in ("torch", "torch (legacy)", "safetensors"):
        raise InputError(
            f"{shown_path(checkpoint.path)} is a checkpoint in several files ({checkpoint.format}), which is read but "
            "not written: save it as one file first"
        )
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"Expected the name of a file in a folder that exists, got {shown_path(target)}")
    if target.exists() and not target.is_file():  # a file would take the place of the device
        raise InputError(f"{shown_path(target)} is no regular file: give another name")
    if target.exists() and target.samefile(checkpoint.path) and not in_place:
        raise InputError(f"{shown_path(target)} is the checkpoint itself: give another name, or in_place=True")


def _check_fit(name: str, old: Any, new: Tensor) -> Tensor:
    """The tensor to replace."""
    if not isinstance(old, Tensor):
        raise InputError(f"there is no tensor {quote(name)} in it to replace")
    if old.shape != new.shape:
        raise InputError(f"expected {quote(name)} of shape {tuple(old.shape)}, got {tuple(new.shape)}")
    if _is_too_large(new.detach(), old.dtype):
        raise InputError(f"the new values of {quote(name)} are too large for {old.dtype}, as which it is in the file")
    return old


def _is_too_large(tensor: Tensor, dtype: torch.dtype) -> bool:
    """True where a finite value would become an infinite one, or be held at the largest there is."""
    if not (tensor.is_floating_point() and dtype.is_floating_point) or tensor.dtype.itemsize <= dtype.itemsize:
        return False
    size = tensor.abs()
    return bool((size.isfinite() & (size > torch.finfo(dtype).max)).any())


def _replace(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    """Writes into the memory of the old ones, so that what shares it still does."""
    for name, tensor in new.items():
        old[name].detach().copy_(tensor)
    for name, tensor in new.items():
        if not torch.equal(_raw(old[name], old[name].dtype), _raw(tensor, old[name].dtype)):
            raise InputError(f"{quote(name)} shares its memory with another tensor, and got other values than that one")


def _replace_moments(data: Any, checkpoint: Checkpoint, moments: Moments) -> None:
    if not moments:
        return
    found = optimizers(data)
    states = named_states(found[0], checkpoint.tensors) if found else None
    for name, state in moments.items():
        for key, new in state.items():
            old = (states or {}).get(name, {}).get(key)
            _check_fit(f"{key} of {name}", old, new).copy_(new)


def _write_safetensors(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], part: Path) -> None:
    """Copies the file and writes over the bytes of the tensors, so that no other byte of it changes."""
    shutil.copy(checkpoint.path, part)
    places = positions(part)
    with part.open("r+b") as file:
        for name, new in tensors.items():
            file.seek(places[checkpoint.keys[name]])
            file.write(_raw(new, checkpoint.tensors[name].dtype).numpy().data)


def _raw(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes of a tensor, row by row."""
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu", dtype)
    return plain.contiguous().reshape(-1).view(torch.uint8)

"""Write a checkpoint again with some tensors replaced and everything else unchanged."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatdiag.checkpoint.opening import Checkpoint, convert_errors, format_path, read_contents
from gatdiag.checkpoint.optimizer import find_optimizers, match_states
from gatdiag.checkpoint.safetensors_file import read_offsets
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
    """Write a checkpoint again with some tensors replaced.

    Everything else is unchanged: other keys, epoch, scheduler, averages of the weights, metadata, and the dtypes,
    memory layout and sharing of the tensors. New values are rounded to the dtypes of the file (`round_to_file`). The
    file is written atomically: completely, or not at all.

    Args:
        checkpoint: An open checkpoint; its file is read again.
        tensors: Name -> new values, of the same shape.
        out: The file to write. An existing file is replaced, unless it is the checkpoint's own. Links are followed.
        moments: Parameter name -> {"exp_avg": ..., ...}: new values for the state of the first optimizer.
        drop_optimizer: Remove the state of all optimizers, but keep their settings.
        in_place: Allow `out` to be the checkpoint's own file.

    Returns:
        The file written.

    Raises:
        InputError: A name or shape does not match, a value is too large for the dtype in the file, the format cannot
            be written, or `out` is the checkpoint's own file or not a regular file.
        OSError: The file cannot be written.
    """
    target = Path(out)
    _check_target(checkpoint, target, in_place=in_place)
    place = target.resolve()
    tensors = round_to_file(checkpoint, tensors)
    with convert_errors(checkpoint.path):
        if moments and checkpoint.optimizer is None:
            raise InputError("it has no optimizer state to replace")
    if checkpoint.format == "safetensors":
        with atomic_write(place, durable=True) as part:
            _write_safetensors(checkpoint, tensors, part)
        return target
    _, data = read_contents(checkpoint.path)
    with convert_errors(checkpoint.path), torch.no_grad():
        _replace(find_weights(data).tensors, tensors)
        _replace_moments(data, checkpoint, moments or {})
        for optimizer in find_optimizers(data) if drop_optimizer else ():
            optimizer["state"] = {}
    with atomic_write(place, durable=True) as part:
        _save(data, part, legacy=checkpoint.format == "torch (legacy)")
        shutil.copymode(checkpoint.path, part)
    return target


def round_to_file(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """New values of tensors as `write_checkpoint` writes them: rounded to the dtypes in the file.

    Raises:
        InputError: A name or shape does not match, or a value is too large for the dtype in the file.
    """
    with convert_errors(checkpoint.path):
        return {name: _round_to(name, checkpoint.tensors.get(name), new) for name, new in tensors.items()}


def _save(data: Any, part: Path, *, legacy: bool) -> None:
    try:
        with part.open("wb") as file:  # given a path, torch would write its name into the archive
            torch.save(data, file, _use_new_zipfile_serialization=not legacy)
    except RuntimeError as error:  # torch's error for a full disk
        line = str(error).partition("\n")[0]
        raise OSError(f"the disk is full, or not writable (torch.save: {line})") from error


def _check_target(checkpoint: Checkpoint, target: Path, *, in_place: bool) -> None:
    if checkpoint.format not in ("torch", "torch (legacy)", "safetensors"):
        raise InputError(
            f"{format_path(checkpoint.path)} is a checkpoint in several files ({checkpoint.format}), which can be read "
            "but not written: save it as one file first"
        )
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise InputError(f"Expected the name of a file in an existing folder, got {format_path(target)}")
    if target.exists() and target.samefile(checkpoint.path) and not in_place:
        raise InputError(
            f"{format_path(target)} is the checkpoint itself: give another name, or write it with in_place=True "
            "(--in-place instead of a name)"
        )


def _round_to(name: str, old: Any, new: Tensor, remedy: str = "") -> Tensor:
    """The new tensor in the dtype of the one that it replaces."""
    if not isinstance(old, Tensor):
        raise InputError(f"there is no tensor {quote(name)} in it to replace")
    if old.shape != new.shape:
        raise InputError(f"expected {quote(name)} of shape {tuple(old.shape)}, got {tuple(new.shape)}")
    rounded = new.detach().to(old.dtype)
    if new.is_floating_point() and not torch.equal(new.isfinite(), rounded.isfinite()):
        raise InputError(
            f"the new values of {quote(name)} are too large for {old.dtype}, its dtype in the file{remedy}"
        )
    return rounded


def _replace(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    """Copy values in place, so that shared memory stays shared."""
    for name, tensor in new.items():
        old[name].detach().copy_(tensor)
    for name, tensor in new.items():
        if not torch.equal(_to_bytes(old[name], old[name].dtype), _to_bytes(tensor, old[name].dtype)):
            raise InputError(f"{quote(name)} shares its memory with another tensor, but their new values differ")


def _replace_moments(data: Any, checkpoint: Checkpoint, moments: Moments) -> None:
    if not moments:
        return
    found = find_optimizers(data)
    states = match_states(found[0], checkpoint.tensors) if found else None
    for name, state in moments.items():
        for key, new in state.items():
            old: Any = (states or {}).get(name, {}).get(key)
            remedy = ": drop the optimizer's state (drop_optimizer=True, or --moments drop)"
            rounded = _round_to(f"{key} of {name}", old, new, remedy)
            old.copy_(rounded)


def _write_safetensors(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], part: Path) -> None:
    """Copy the file and overwrite the bytes of the tensors; no other byte changes."""
    shutil.copy(checkpoint.path, part)
    offsets = read_offsets(part)
    with part.open("r+b") as file:
        for name, new in tensors.items():
            file.seek(offsets[checkpoint.keys[name]])
            file.write(_to_bytes(new, checkpoint.tensors[name].dtype).numpy().data)


def _to_bytes(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes of a tensor in row-major order, as uint8."""
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu", dtype)
    return plain.contiguous().reshape(-1).view(torch.uint8)

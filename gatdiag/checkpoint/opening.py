"""Opens a saved checkpoint of any format, without running anything that hides in it.

Formats are recognized by what they hold, never by their suffix. Each has one file with a function that reads it;
whatever is wrong with a file becomes one `InputError`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from gatdiag.checkpoint import distributed, safetensors_file, torch_file
from gatdiag.checkpoint.checkpoint import Checkpoint, Contents, reading
from gatdiag.checkpoint.optimizer import optimizer_state
from gatdiag.checkpoint.progress import epoch_of, step_of
from gatdiag.checkpoint.state_dict import find_weights
from gatdiag.errors import InputError
from gatdiag.names import quoted

_REPEATED: Final = 1 << 20  # bytes up to which a tensor may repeat what its storage holds
_LONGEST_EMPTY: Final = 1 << 24  # an axis beside one of length 0 costs the file nothing, and its reader a number each
_HEAD = 64  # bytes that tell the formats apart
_FILES: tuple[tuple[Callable[[bytes], bool], Callable[..., Contents]], ...] = (
    (lambda head: head.startswith(torch_file.ZIP), torch_file.read_torch),
    (lambda head: head.startswith(torch_file.LEGACY), torch_file.read_legacy),
    (safetensors_file.looks_like, safetensors_file.read_safetensors),
)


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a saved checkpoint.

    Reads files of torch.save (Lightning's too), old and new, safetensors in one file or several, and folders of
    torch.distributed.checkpoint. What a pickle asks for is read before anything is loaded; a file that asks for more
    than tensors and plain values is refused, and so is one that claims more than it holds.

    Args:
        path: The file; or the folder, or the index, of a checkpoint in several files.

    Returns:
        The checkpoint. Tensors stay on disk until they are used where the format allows it.

    Raises:
        InputError: It cannot be read, is damaged, needs more than weights-only loading, or holds no model.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "gat.pt")
        ...     torch.save({"model": {"module.lin.weight": torch.eye(2)}, "epoch": 3}, path)
        ...     checkpoint = open_checkpoint(path)
        ...     list(checkpoint.tensors), checkpoint.within, checkpoint.epoch
        (['lin.weight'], ('model',), 3)
    """
    path = Path(path)
    contents = read_contents(path)
    with reading(path):
        weights = find_weights(contents.data)
        # Of the class: a file can give a tensor an attribute of that name.
        tensors = {name: Tensor.detach(tensor) for name, tensor in weights.tensors.items()}
        optimizer, notes = optimizer_state(contents.data, tensors)
        moments = {} if optimizer is None else optimizer.moments
        for name, tensor in [*tensors.items(), *((name, t) for state in moments.values() for name, t in state.items())]:
            _check_readable(name, tensor)
        return Checkpoint(
            path=path,
            format=contents.format,
            tensors=tensors,
            keys=weights.keys,
            within=weights.within,
            step=step_of(contents.data, optimizer, path),
            epoch=epoch_of(contents.data, path),
            optimizer=optimizer,
            notes=(*contents.notes, *weights.notes, *notes),
        )


def _check_readable(name: str, tensor: Tensor) -> None:
    """Raises where a tensor that was loaded cannot be worked with."""
    if not tensor.numel() and max(tensor.shape, default=0) > _LONGEST_EMPTY:
        raise InputError(f"{quoted(name)} holds no numbers, and claims the shape {list(tensor.shape)}")
    if tensor.layout == torch.strided and not tensor.is_meta:
        size, held = tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()
        if size > max(held, _REPEATED):
            raise InputError(f"{quoted(name)} repeats its {held:,} bytes up to {size:,}: save a copy of it")
    if tensor.is_quantized:
        tensor.dequantize()  # fails on zero points that are out of range
    elif tensor.dtype.itemsize == 1 and not tensor.is_meta:
        try:
            tensor.flatten()[:1].double()
        except RuntimeError as error:  # such as two numbers of four bits in a byte
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{quoted(name)} is of the type {kind}, which torch cannot convert on the CPU") from error


def read_contents(path: Path, *, mapped: bool = True) -> Contents:
    """Reads a file or a folder of any format.

    Args:
        path: The file; or the folder of a distributed or a sharded checkpoint, or the index of one.
        mapped: Leave tensors on disk until they are used.

    Raises:
        InputError: It cannot be read; the message names it and says why.
    """
    with reading(path):
        return _reader(path)(path, mapped=mapped)


def is_checkpoint(path: Path) -> bool:
    """True where a file or a folder begins like a checkpoint; it may still be damaged."""
    try:
        _reader(path)
    except (InputError, OSError):
        return False
    return True


def _reader(path: Path) -> Callable[..., Contents]:
    if path.is_dir():
        return _folder_reader(path)
    if not path.is_file():
        raise InputError("there is no such file" if not path.exists() else "it is no regular file")
    if path.name.endswith(".index.json"):
        return safetensors_file.read_sharded
    with path.open("rb") as file:
        head = file.read(_HEAD)
    for begins, read in _FILES:
        if begins(head):
            return read
    if head[:1] == b"\x80":
        raise InputError("it is a pickle, but not one of torch.save: expected the state_dict() saved by torch.save")
    raise InputError(
        "it is empty"
        if not head
        else "it is no checkpoint: expected a file of torch.save or safetensors, or a folder of "
        "torch.distributed.checkpoint"
    )


def _folder_reader(path: Path) -> Callable[..., Contents]:
    if (path / distributed.METADATA).is_file():
        return distributed.read_distributed
    if len(indices := list(path.glob("*.safetensors.index.json"))) == 1:
        return lambda folder, *, mapped: safetensors_file.read_sharded(indices[0], mapped=mapped)
    raise InputError("it is a folder without the .metadata or the index that a checkpoint in several files has")

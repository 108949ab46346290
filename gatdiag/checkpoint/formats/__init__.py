"""The formats of checkpoints, told apart by what they hold, never by their suffix.

Each has one function that reads it; whatever is wrong with a file becomes one `InputError`. Nothing in a file is ever
executed: what a pickle asks for is listed first (`pickle_scan`), then torch's weights-only loader reads it.
"""

from collections.abc import Callable
from pathlib import Path

from gatdiag.checkpoint.formats import distributed, safetensors_file, torch_file
from gatdiag.checkpoint.formats.contents import Contents, NoModelError, reading, shown_path
from gatdiag.errors import InputError

__all__ = ["Contents", "NoModelError", "is_checkpoint", "read_contents", "reading", "shown_path"]

_HEAD = 64  # bytes that tell the formats apart
_FILES: tuple[tuple[Callable[[bytes], bool], Callable[..., Contents]], ...] = (
    (lambda head: head.startswith(torch_file.ZIP), torch_file.read_torch),
    (lambda head: head.startswith(torch_file.LEGACY), torch_file.read_legacy),
    (safetensors_file.looks_like, safetensors_file.read_safetensors),
)


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
    """Whether a file or a folder begins like a checkpoint; it may still be damaged."""
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

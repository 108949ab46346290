"""Open a saved checkpoint of any format without executing anything in it.

Formats are recognized by content, never by suffix. Whatever is wrong with a file becomes an `InputError`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never, TypeAlias

from torch import Tensor

from gatdiag.checkpoint import safetensors_file, torch_file
from gatdiag.checkpoint.optimizer import OptimizerState, read_optimizer_state
from gatdiag.checkpoint.state_dict import NoModelError, find_weights
from gatdiag.checkpoint.steps import read_epoch, read_step
from gatdiag.checkpoint.torch_file import SAVE_WEIGHTS, first_sentence
from gatdiag.errors import InputError

PathLike = str | os.PathLike[str]
Reader: TypeAlias = tuple[str, Callable[[Path], Any]]  # format, function that reads it

_HEAD = 64  # bytes by which formats are recognized
_DISTRIBUTED = ".metadata"  # the file by which a folder of torch.distributed.checkpoint is recognized


class UnknownFormatError(InputError):
    """A file or folder that does not look like a checkpoint."""


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """A saved checkpoint.

    Attributes:
        path: The file or folder.
        format: "torch", "torch (legacy)", "safetensors" or "safetensors (sharded)".
        tensors: Name -> tensor on the CPU, in the order of the file (sorted by name for safetensors, which has no
            order). Memory-mapped where the format allows, so the file must not change while they are used. Only dense
            tensors of the usual dtypes; a note lists the others.
        keys: Name -> key in the file, which differs if a wrapper added a prefix.
        within: Keys that lead to the state dict, such as ("state_dict",); () if the file is a state dict.
        step: Optimizer steps taken, from the file, else its optimizer state, else its name; None if unknown.
        epoch: From the file, else its name; None if unknown.
        optimizer: Optimizer state; None if there is none.
        notes: Notes for the user: prefixes removed, entries left out, other state dicts in the file.
    """

    path: Path
    format: str
    tensors: Mapping[str, Tensor]
    keys: Mapping[str, str]
    within: tuple[str, ...]
    step: int | None
    epoch: int | None
    optimizer: OptimizerState | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        """For example ``Checkpoint('epoch4.pt', torch, 12 tensors)``."""
        count = len(self.tensors)
        return f"Checkpoint({str(self.path)!r}, {self.format}, {count} tensor{'s' * (count != 1)})"

    @property
    def position(self) -> int | None:
        """The step, else the epoch, at which it was saved."""
        return self.epoch if self.step is None else self.step

    @property
    def scalars(self) -> dict[str, float]:
        """What the run logs at its step: the epoch, if it is known."""
        return {} if self.epoch is None else {"epoch": self.epoch}


def open_checkpoint(path: PathLike) -> Checkpoint:
    """Open a saved checkpoint.

    Reads files of torch.save (also before version 1.6, and Lightning's), and safetensors in one or several files.
    Torch's weights-only loader and safetensors decide what is read; nothing in a file is executed.

    Args:
        path: The file; for a checkpoint in several files, its folder or index.

    Returns:
        The checkpoint. Where the format allows it, tensors are read from disk on first use.

    Raises:
        InputError: It cannot be read, is damaged, needs more than weights-only loading, or contains no model.

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
    kind, data = read_contents(path)
    with convert_errors(path):
        weights = find_weights(data)
        # not tensor.detach(): a file can set an attribute of that name
        tensors = {name: Tensor.detach(tensor) for name, tensor in weights.tensors.items()}
        optimizer, notes = read_optimizer_state(data, tensors)
        return Checkpoint(
            path=path,
            format=kind,
            tensors=tensors,
            keys=weights.keys,
            within=weights.within,
            step=read_step(data, optimizer, path),
            epoch=read_epoch(data, path),
            optimizer=optimizer,
            notes=(*weights.notes, *notes),
        )


# --- files ------------------------------------------------------------------------------------------------------------


def read_contents(path: Path) -> tuple[str, Any]:
    """The format of a file or folder, as in `Checkpoint`, and the saved object."""
    with convert_errors(path):
        kind, read = _find_reader(path)
        return kind, read(path)


def is_checkpoint(path: Path) -> bool:
    """True if a file or folder looks like a checkpoint; it may still be damaged."""
    try:
        _find_reader(path)
    except (InputError, OSError):
        return False
    return True


def _find_reader(path: Path) -> Reader:
    if path.is_dir():
        return _find_folder_reader(path)
    if not path.is_file():
        raise UnknownFormatError("no such file, or not a regular one")
    if path.name.endswith(".index.json"):
        return "safetensors (sharded)", safetensors_file.read_sharded
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(torch_file.ZIP_MAGIC):
        return "torch", torch_file.read_torch
    if head.startswith(torch_file.LEGACY_MAGIC):
        return "torch (legacy)", torch_file.read_in_memory
    if safetensors_file.is_safetensors(head):
        return "safetensors", safetensors_file.read_safetensors
    if head.startswith(b"\x80"):
        raise UnknownFormatError(f"it is a pickle not written by torch.save: {SAVE_WEIGHTS}")
    raise UnknownFormatError(f"it is not a checkpoint of torch.save or safetensors: {SAVE_WEIGHTS}")


def _find_folder_reader(path: Path) -> Reader:
    if (path / _DISTRIBUTED).is_file():
        return "distributed", _refuse_distributed
    if len(indices := [index for index in path.glob("*.safetensors.index.json") if index.is_file()]) == 1:
        return "safetensors (sharded)", lambda _: safetensors_file.read_sharded(indices[0])
    raise UnknownFormatError("expected a folder with the *.safetensors.index.json of a checkpoint")


def _refuse_distributed(path: Path) -> Never:
    convert = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
    raise NoModelError(
        f"it is a folder of torch.distributed.checkpoint: convert it with {convert} {format_path(path)} FILE"
    )


@contextmanager
def convert_errors(path: Path) -> Iterator[None]:
    """Turn any error while a file is read into an InputError of one line that names the file.

    The libraries that read files document no errors: a damaged file can make them raise anything.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        reason = "its name is not valid UTF-8, in which torch and safetensors open files: rename it"
        raise InputError(f"Cannot read {format_path(path)}: {reason}") from error
    try:
        yield
    except InputError as error:
        raise type(error)(f"Cannot read {format_path(path)}: {error}") from error
    except OSError as error:
        raise InputError(f"Cannot read {format_path(path)}: {error.strerror or error}") from error
    except Exception as error:
        reason = f"it is damaged or no checkpoint ({type(error).__name__}: {first_sentence(str(error))})"
        raise InputError(f"Cannot read {format_path(path)}: {reason}: {SAVE_WEIGHTS}") from error


def format_path(path: Path) -> str:
    """A path in quotes and in ASCII, for messages."""
    return ascii(str(path))

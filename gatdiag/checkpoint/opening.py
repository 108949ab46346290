"""Saved checkpoints of any format, without running anything that hides in them: one, or a series in order of its steps.

Formats are recognized by what they hold, never by their suffix. Each has one file with a function that reads it;
whatever is wrong with a file becomes one `InputError`.
"""

import glob
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from torch import Tensor

from gatdiag.checkpoint import distributed, safetensors_file, torch_file
from gatdiag.checkpoint.optimizer import OptimizerState, optimizer_state
from gatdiag.checkpoint.state_dict import NoModelError, find_weights
from gatdiag.errors import InputError
from gatdiag.names import quote

PathLike = str | os.PathLike[str]
Reader: TypeAlias = tuple[str, Callable[[Path], Any]]  # name of the format, and what reads it

_REPEATED: Final = 1 << 20  # bytes up to which a tensor may repeat what its storage holds
_LONGEST_EMPTY: Final = 1 << 24  # an axis beside one of length 0 costs the file nothing, and its reader a number each
_HEAD = 64  # bytes that tell the formats apart

_STEPS = ("global_step", "step", "steps", "iteration", "iter", "train_step")
_EPOCHS = ("epoch", "current_epoch")
_NESTED = ("state", "trainer_state", "meta", "train_state")
_AFTER = r"(?:^|[^a-z])(?:{})[=_-]?(\d{{1,15}})(?!\d)"
_STEP_IN_NAME = re.compile(_AFTER.format("checkpoint|ckpt|steps?|iteration|iter|it"), re.IGNORECASE)
_EPOCH_IN_NAME = re.compile(_AFTER.format("epoch|ep|e"), re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.vV])(\d{1,15})(?![\d.]*\d)")
_NUMBER_TYPE = re.compile(r"(?<![a-z])(?:b?float|b?fp|u?int|bf|complex)\d+", re.IGNORECASE)
_BEGINNING = re.compile(r"(?<![a-z])(init|initial|initiali[sz]ation|fresh|start|untrained)(?![a-z])", re.IGNORECASE)
_LARGEST = 2**53


@dataclass(frozen=True)
class Checkpoint:
    """A saved checkpoint.

    Attributes:
        path: The file, or the folder where the format is one.
        format: "torch", "torch (legacy)", "safetensors", "safetensors (sharded)" or "distributed".
        tensors: Name -> tensor, on the CPU, in the order of the file (safetensors keep none: there numbers within names
            order it). Memory-mapped where the format allows, so the file must not change while they are used. Dense
            ones of usual types; all others are left out with a note.
        keys: Name -> key in the file, which differs where a wrapper left its prefix.
        within: Keys that lead to the state dict: ("state_dict",), or () where the file is one.
        step: Optimizer steps taken, as the file says it, else its optimizer, else its name; None if nothing does.
        epoch: As the file or its name says it.
        optimizer: None if there is none.
        notes: Remarks for the reader: prefixes taken off, entries left out, what else could have been meant.
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

    @property
    def position(self) -> int | None:
        """Where in the training it was saved: its step, else its epoch."""
        return self.epoch if self.step is None else self.step


def open_checkpoint(path: PathLike) -> Checkpoint:
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
    kind, data = read_contents(path)
    with reading(path):
        weights = find_weights(data)
        # Of the class: a file can give a tensor an attribute of that name.
        tensors = {name: Tensor.detach(tensor) for name, tensor in weights.tensors.items()}
        optimizer, notes = optimizer_state(data, tensors)
        moments = {} if optimizer is None else optimizer.moments
        for name, tensor in [*tensors.items(), *((name, t) for state in moments.values() for name, t in state.items())]:
            _check_readable(name, tensor)
        return Checkpoint(
            path=path,
            format=kind,
            tensors=tensors,
            keys=weights.keys,
            within=weights.within,
            step=step_of(data, optimizer, path),
            epoch=epoch_of(data, path),
            optimizer=optimizer,
            notes=(*weights.notes, *notes),
        )


def _check_readable(name: str, tensor: Tensor) -> None:
    """Raises where a tensor that was loaded cannot be worked with."""
    if not tensor.numel() and max(tensor.shape, default=0) > _LONGEST_EMPTY:
        raise InputError(f"{quote(name)} is empty, and claims the shape {list(tensor.shape)}")
    size, held = tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()
    if size > max(held, _REPEATED):
        raise InputError(f"{quote(name)} repeats its {held:,} bytes up to {size:,}: save a copy of it")


# --- files ------------------------------------------------------------------------------------------------------------


def read_contents(path: Path, *, mapped: bool = True) -> tuple[str, Any]:
    """Reads a file or a folder of any format.

    Args:
        path: The file; or the folder of a distributed or a sharded checkpoint, or the index of one.
        mapped: Leave tensors on disk until they are used.

    Returns:
        Name of the format, as in `Checkpoint`, and the object that was saved, usually a dictionary.

    Raises:
        InputError: It cannot be read; the message names it and says why.
    """
    with reading(path):
        kind, read = _reader(path, mapped=mapped)
        return kind, read(path)


def is_checkpoint(path: Path) -> bool:
    """True where a file or a folder begins like a checkpoint; it may still be damaged."""
    try:
        _reader(path)
    except (InputError, OSError):
        return False
    return True


def _reader(path: Path, *, mapped: bool = True) -> Reader:
    if path.is_dir():
        return _folder_reader(path)
    if not path.is_file():
        raise InputError("there is no such file" if not path.exists() else "it is no regular file")
    if path.name.endswith(".index.json"):
        return "safetensors (sharded)", safetensors_file.read_sharded
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(torch_file.ZIP):
        return "torch", partial(torch_file.read_torch, mapped=mapped)
    if head.startswith(torch_file.LEGACY):
        return "torch (legacy)", torch_file.read_legacy
    if safetensors_file.looks_like(head):
        return "safetensors", safetensors_file.read_safetensors
    if head[:1] == b"\x80":
        raise InputError("it is a pickle, but not one of torch.save: expected the state_dict() saved by torch.save")
    raise InputError(
        "it is empty"
        if not head
        else "it is no checkpoint: expected a file of torch.save or safetensors, or a folder of "
        "torch.distributed.checkpoint"
    )


def _folder_reader(path: Path) -> Reader:
    if (path / distributed.METADATA).is_file():
        return "distributed", distributed.read_distributed
    if len(indices := [one for one in path.glob("*.safetensors.index.json") if one.is_file()]) == 1:
        return "safetensors (sharded)", lambda _: safetensors_file.read_sharded(indices[0])
    raise InputError("it is a folder without the .metadata or the index that a checkpoint in several files has")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Names the file in whatever goes wrong while it is read, on one line.

    Raises:
        InputError: In place of any other error. The libraries that read files promise no kinds of errors: what a
            damaged file makes them raise is whatever it happened to hit.
    """
    try:
        yield
    except InputError as error:
        raise type(error)(f"Cannot read {shown_path(path)}: {error}") from error
    except OSError as error:
        raise InputError(f"Cannot read {shown_path(path)}: {error.strerror or quote(error)}") from error
    except MemoryError as error:
        raise InputError(f"Cannot read {shown_path(path)}: it does not fit into memory") from error
    except Exception as error:
        line = quote(str(error).partition("\n")[0])
        raise InputError(f"Cannot read {shown_path(path)}: it is damaged ({type(error).__name__}: {line})") from error


def shown_path(path: Path) -> str:
    """A path as a message shows it."""
    return ascii(str(path))


# --- steps and epochs -------------------------------------------------------------------------------------------------


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
    """The step in a name: after a word for it, else its last number, unless that is an epoch or part of a type.

    Example:
        >>> step_in_name(Path("epoch=3-step=500.ckpt")), step_in_name(Path("gat_100.pt")), step_in_name(Path("e3.pt"))
        (500, 100, None)
    """
    name = _NUMBER_TYPE.sub("-", _stem(path))
    found = _STEP_IN_NAME.findall(name) or _NUMBER.findall(_EPOCH_IN_NAME.sub("-", name))
    if not found and not _EPOCH_IN_NAME.search(name):
        found = _STEP_IN_NAME.findall(path.parent.name)  # checkpoint-500/model.safetensors
    return int(found[-1]) if found else None


def epoch_in_name(path: Path) -> int | None:
    """The epoch in a name.

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
    """A count: a number, or a tensor with one entry, that is whole and not negative; None for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        return None
    return int(value) if value == int(value) else None


# --- series -----------------------------------------------------------------------------------------------------------


def series(sources: PathLike | Iterable[PathLike]) -> list[Path]:
    """The checkpoints that files, globs and folders name, each once, in order of the step.

    Names alone settle the order where each has another step (or, without steps, another epoch); otherwise each file
    is opened for it, one at a time. Those that agree stay in order of their names; those without any step come last, or
    first if their names say so ("init", "fresh").

    Args:
        sources: Files, patterns such as "ckpt/*.pt", or folders: one that is a checkpoint itself, or one whose entries
            are. What is no checkpoint in a folder is skipped, with a warning where it looks like one (an
            optimizer's state, say); a file that is named is not.

    Raises:
        InputError: There is none, or one that has to be opened cannot be read.
    """
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    found = {os.path.realpath(path): path for source in given for path in _entries(source)}
    paths = sorted(found.values(), key=str)
    if not paths:
        raise InputError("Expected checkpoints, got no paths")
    if len(paths) == 1:
        return paths
    for known in ([step_in_name(path) for path in paths], [epoch_in_name(path) for path in paths]):
        if None not in known and len(set(known)) == len(known):
            return [path for _, path in sorted(zip(known, paths, strict=True))]
    return sorted(paths, key=_when_saved)


def _when_saved(path: Path) -> tuple[float, float]:
    checkpoint = open_checkpoint(path)
    place = float("-inf" if _BEGINNING.search(path.stem) else "inf")  # "init.pt" and "final.pt" without any step
    step = checkpoint.step if checkpoint.step is not None else place
    return (step, checkpoint.epoch if checkpoint.epoch is not None else place)


def _entries(source: PathLike) -> list[Path]:
    path = Path(source)
    if path.is_dir() and not is_checkpoint(path):
        return _inside(path)
    if path.exists() or not glob.has_magic(str(source)):
        return [path]
    matches = [Path(match) for match in glob.glob(str(source), recursive=True)]  # noqa: PTH207 - absolute patterns
    if not matches:
        raise InputError(f"Expected checkpoints, and nothing matches {shown_path(path)}")
    return matches


def _inside(folder: Path) -> list[Path]:
    """The checkpoints in a folder; InputError where there is none, or one is damaged."""
    found, refused = [], []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or not is_checkpoint(entry):
            continue
        try:
            open_checkpoint(entry)
            found.append(entry)
        except NoModelError as error:
            refused.append(error)
    if not found:
        nothing = InputError(f"Expected checkpoints in the folder {shown_path(folder)}, and there are none")
        raise refused[0] if refused else nothing
    for reason in refused:
        warnings.warn(f"Skipped: {reason}", stacklevel=3)
    return found

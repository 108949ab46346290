"""Open saved checkpoints of any format without executing anything in them, and list those of a series in order.

Formats are recognized by content, never by suffix. Whatever is wrong with a file becomes an `InputError`.
"""

import glob
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from torch import Tensor

from gatdiag.checkpoint import distributed, safetensors_file, torch_file
from gatdiag.checkpoint.optimizer import OptimizerState, read_optimizer_state
from gatdiag.checkpoint.state_dict import NoModelError, find_weights
from gatdiag.errors import InputError
from gatdiag.names import quote

PathLike = str | os.PathLike[str]
Reader: TypeAlias = tuple[str, Callable[[Path], Any]]  # format, function that reads it

_MAX_EXPANDED: Final = 1 << 20  # bytes up to which a tensor may be larger than its storage (stride 0)
_MAX_EMPTY_AXIS: Final = 1 << 24  # next to an axis of length 0: nothing in the file, but memory per row when measured
_HEAD = 64  # bytes by which formats are recognized

_STEPS = ("global_step", "step", "steps", "iteration", "iter", "train_step")
_EPOCHS = ("epoch", "current_epoch")
_NESTED = ("state", "trainer_state", "meta", "train_state")
_NUMBER_AFTER = r"(?:^|[^a-z])(?:{})[=_-]?(\d{{1,15}})(?!\d)"
_STEP_IN_NAME = re.compile(_NUMBER_AFTER.format("checkpoint|ckpt|steps?|iteration|iter|it"), re.IGNORECASE)
_EPOCH_IN_NAME = re.compile(_NUMBER_AFTER.format("epoch|ep|e"), re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.vV])(\d{1,15})(?![\d.]*\d)")
_DTYPE = re.compile(r"(?<![a-z])(?:b?float|b?fp|u?int|bf|complex)\d+", re.IGNORECASE)
_INITIAL = re.compile(r"(?<![a-z])(init|initial|initiali[sz]ation|fresh|start|untrained)(?![a-z])", re.IGNORECASE)
_MAX_COUNT = 2**53


@dataclass(frozen=True)
class Checkpoint:
    """A saved checkpoint.

    Attributes:
        path: The file or folder.
        format: "torch", "torch (legacy)", "safetensors", "safetensors (sharded)" or "distributed".
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

    @property
    def position(self) -> int | None:
        """The step, else the epoch, at which it was saved."""
        return self.epoch if self.step is None else self.step


def open_checkpoint(path: PathLike) -> Checkpoint:
    """Open a saved checkpoint.

    Reads files of torch.save (also before version 1.6, and Lightning's), safetensors in one or several files, and
    folders of torch.distributed.checkpoint. Pickles are checked before anything is loaded: files that need more than
    tensors and plain values, or claim more data than they contain, are refused.

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
        moments = {} if optimizer is None else optimizer.moments
        for state in (tensors, *moments.values()):
            _check_sizes(state)
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


def _check_sizes(tensors: Mapping[str, Tensor]) -> None:
    """Raise InputError for shapes that would take far more memory than the file."""
    for name, tensor in tensors.items():
        if not tensor.numel() and max(tensor.shape, default=0) > _MAX_EMPTY_AXIS:
            raise InputError(f"{quote(name)} is empty but has shape {list(tensor.shape)}")
        size, stored = tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()
        if size > max(stored, _MAX_EXPANDED):
            raise InputError(f"{quote(name)} expands {stored:,} bytes to {size:,}: save tensor.clone() instead")


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
        raise InputError("no such file, or not a regular one")
    if path.name.endswith(".index.json"):
        return "safetensors (sharded)", safetensors_file.read_sharded
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(torch_file.ZIP_MAGIC):
        return "torch", torch_file.read_torch
    if head.startswith(torch_file.LEGACY_MAGIC):
        return "torch (legacy)", torch_file.read_legacy
    if safetensors_file.is_safetensors(head):
        return "safetensors", safetensors_file.read_safetensors
    if head.startswith(b"\x80"):
        raise InputError("it is a pickle not written by torch.save: save the state_dict() with torch.save")
    raise InputError("not a checkpoint: expected a file of torch.save or safetensors, or a folder of a checkpoint")


def _find_folder_reader(path: Path) -> Reader:
    if (path / distributed.METADATA).is_file():
        return "distributed", distributed.read_distributed
    if len(indices := [index for index in path.glob("*.safetensors.index.json") if index.is_file()]) == 1:
        return "safetensors (sharded)", lambda _: safetensors_file.read_sharded(indices[0])
    raise InputError("expected a checkpoint folder, but it has no .metadata file and no *.safetensors.index.json")


@contextmanager
def convert_errors(path: Path) -> Iterator[None]:
    """Turn any error while a file is read into an InputError of one line that names the file.

    The libraries that read files document no errors: a damaged file can make them raise anything.
    """
    try:
        yield
    except InputError as error:
        raise type(error)(f"Cannot read {format_path(path)}: {error}") from error
    except Exception as error:
        line = quote(str(error).partition("\n")[0])
        reason = error.strerror if isinstance(error, OSError) else f"it is damaged ({type(error).__name__}: {line})"
        raise InputError(f"Cannot read {format_path(path)}: {reason}") from error


def format_path(path: Path) -> str:
    """A path in quotes and in ASCII, for messages."""
    return ascii(str(path))


# --- steps and epochs -------------------------------------------------------------------------------------------------


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


# --- series -----------------------------------------------------------------------------------------------------------


def list_checkpoints(sources: PathLike | Iterable[PathLike]) -> list[Path]:
    """List the checkpoints that files, glob patterns and folders name, without duplicates, in order of their steps.

    File names decide the order if each has a different step (or else epoch); otherwise each file is opened, one at a
    time. Ties are sorted by name. Checkpoints without a step come last, or first if their name says so ("init",
    "fresh").

    Args:
        sources: Files, patterns such as "ckpt/*.pt", or folders: a checkpoint folder, or a folder of checkpoints.
            Other files in a folder are skipped, with a warning for checkpoints without a model (such as the state of
            an optimizer).

    Raises:
        InputError: There is no checkpoint, or one that has to be opened cannot be read.
    """
    listed = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    found = {os.path.realpath(path): path for source in listed for path in _expand(source)}
    paths = sorted(found.values(), key=str)
    if not paths:
        raise InputError("Expected checkpoints, got no paths")
    if len(paths) == 1:
        return paths
    for known in ([parse_step(path) for path in paths], [parse_epoch(path) for path in paths]):
        if None not in known and len(set(known)) == len(known):
            return [path for _, path in sorted(zip(known, paths, strict=True))]
    return sorted(paths, key=_training_position)


def _training_position(path: Path) -> tuple[float, float]:
    checkpoint = open_checkpoint(path)
    missing = float("-inf" if _INITIAL.search(path.stem) else "inf")  # "init.pt" and "final.pt" without any step
    step = checkpoint.step if checkpoint.step is not None else missing
    return (step, checkpoint.epoch if checkpoint.epoch is not None else missing)


def _expand(source: PathLike) -> list[Path]:
    path = Path(source)
    if path.is_dir() and not is_checkpoint(path):
        return _list_folder(path)
    if path.exists() or not glob.has_magic(str(source)):
        return [path]
    matches = [Path(match) for match in glob.glob(str(source), recursive=True)]  # noqa: PTH207 - absolute patterns
    if not matches:
        raise InputError(f"Expected checkpoints, but nothing matches {format_path(path)}")
    return matches


def _list_folder(folder: Path) -> list[Path]:
    """The checkpoints in a folder; raises InputError if there is none, or one is damaged."""
    found, errors = [], []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or not is_checkpoint(entry):
            continue
        try:
            open_checkpoint(entry)
            found.append(entry)
        except NoModelError as error:
            errors.append(error)
    if not found:
        raise errors[0] if errors else InputError(f"Expected checkpoints in {format_path(folder)}, found none")
    for reason in errors:
        warnings.warn(f"Skipped: {reason}", stacklevel=3)
    return found

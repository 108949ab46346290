"""Open the checkpoints that files, glob patterns and folders name, each once, in the order of their steps."""

import glob
import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

from gatdiag.checkpoint.opening import (
    Checkpoint,
    PathLike,
    UnknownFormatError,
    format_path,
    is_checkpoint,
    open_checkpoint,
)
from gatdiag.checkpoint.state_dict import NoModelError
from gatdiag.errors import InputError

_INITIAL = re.compile(r"(?<![a-z])(init|initial|initiali[sz]ation|fresh|start|untrained)(?![a-z])", re.IGNORECASE)


def open_all(sources: PathLike | Iterable[PathLike]) -> list[Checkpoint]:
    """Open checkpoints, each file once, sorted by step, epoch and name.

    Checkpoints without a step come last, or first if their name says so ("init", "fresh").

    Args:
        sources: Files, patterns such as "ckpt/*.pt", or folders: a checkpoint folder, or a folder of checkpoints.
            Other files in a folder are skipped, with a warning for checkpoints without a model (such as the state of
            an optimizer).

    Raises:
        InputError: There is no checkpoint, or one cannot be read.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (10, 9):
        ...         torch.save({"weight": torch.eye(2)}, Path(folder, f"gat_{step}.pt"))
        ...     [checkpoint.step for checkpoint in open_all(folder)]
        [9, 10]
    """
    opened: dict[str, Checkpoint] = {}
    for source in [sources] if isinstance(sources, str | os.PathLike) else sources:
        path = Path(source)
        if path.is_dir() and not is_checkpoint(path):
            _open_folder(path, opened)
        else:
            for match in _expand(path):
                _open_once(match, opened)
    if not opened:
        raise InputError("Expected checkpoints, got no paths")
    return sorted(opened.values(), key=_training_position)


def _open_once(path: Path, opened: dict[str, Checkpoint]) -> None:
    """Open a checkpoint unless it was opened already, under this or another name."""
    place = os.path.realpath(path)
    if place not in opened:
        opened[place] = open_checkpoint(path)


def _open_folder(folder: Path, opened: dict[str, Checkpoint]) -> None:
    """Open the checkpoints in a folder; raises InputError if there is none, or one is damaged."""
    found, without_model = 0, []
    for entry in sorted(folder.iterdir()):
        if not entry.name.startswith("."):
            try:
                _open_once(entry, opened)
                found += 1
            except UnknownFormatError:
                continue
            except NoModelError as error:
                without_model.append(error)
    if not found:
        raise next(iter(without_model), InputError(f"Expected checkpoints in {format_path(folder)}, found none"))
    for reason in without_model:
        warnings.warn(f"gatdiag: skipped: {reason}", stacklevel=3)


def _expand(path: Path) -> list[Path]:
    """The paths that match a pattern, or the path itself."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - absolute patterns
    if not matches:
        raise InputError(f"Expected checkpoints, but nothing matches {format_path(path)}")
    return matches


def _training_position(checkpoint: Checkpoint) -> tuple[float, float, str]:
    missing = float("-inf" if _INITIAL.search(checkpoint.path.stem) else "inf")  # "init.pt", "final.pt"
    step, epoch = (missing if known is None else known for known in (checkpoint.step, checkpoint.epoch))
    return step, epoch, str(checkpoint.path)

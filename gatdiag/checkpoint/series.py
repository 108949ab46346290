"""Checkpoints of one training run, in the order in which they were saved."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from gatdiag.checkpoint.formats import is_checkpoint, shown_path
from gatdiag.checkpoint.opening import open_checkpoint
from gatdiag.checkpoint.progress import epoch_in_name, step_in_name
from gatdiag.errors import InputError

PathLike = str | os.PathLike[str]


def series(sources: PathLike | Iterable[PathLike]) -> list[Path]:
    """The checkpoints that files, globs and folders name, each once, in order of the step.

    Names alone settle the order where each tells another step (or, without steps, another epoch); otherwise each file
    is opened for it, one at a time. Those that agree stay in order of their names.

    Args:
        sources: Files, patterns such as "ckpt/*.pt", or folders: one that is a checkpoint itself, or one whose entries
            are. What is no checkpoint in a folder is passed over; a file that is named is not.

    Raises:
        InputError: There is none, or one that has to be opened cannot be read.
    """
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    found = {path.resolve(): path for source in given for path in _entries(source)}
    paths = sorted(found.values(), key=str)
    if not paths:
        raise InputError("Expected checkpoints, got no paths")
    if len(paths) == 1:
        return paths
    for told in ([step_in_name(path) for path in paths], [epoch_in_name(path) for path in paths]):
        if None not in told and len(set(told)) == len(told):
            return [path for _, path in sorted(zip(told, paths, strict=True))]
    return sorted(paths, key=_saved)


def _saved(path: Path) -> tuple[float, float]:
    checkpoint = open_checkpoint(path)
    last = float("inf")  # such as "final.pt" without any step
    step = checkpoint.step if checkpoint.step is not None else last
    return (step, checkpoint.epoch if checkpoint.epoch is not None else last)


def _entries(source: PathLike) -> list[Path]:
    path = Path(source)
    if path.is_dir() and not is_checkpoint(path):
        found = [entry for entry in path.iterdir() if not entry.name.startswith(".") and is_checkpoint(entry)]
        if not found:
            raise InputError(f"Expected checkpoints in the folder {shown_path(path)}, and there are none")
        return found
    if path.exists() or not glob.has_magic(str(source)):
        return [path]
    matches = [Path(match) for match in glob.glob(str(source), recursive=True)]  # noqa: PTH207 - absolute patterns
    if not matches:
        raise InputError(f"Expected checkpoints, and nothing matches {shown_path(path)}")
    return matches

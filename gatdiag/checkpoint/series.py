"""Checkpoints of one training run, in the order in which they were saved."""

import glob
import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

from gatdiag.checkpoint.checkpoint import NoModelError, shown_path
from gatdiag.checkpoint.opening import is_checkpoint, open_checkpoint
from gatdiag.checkpoint.progress import epoch_in_name, step_in_name
from gatdiag.errors import InputError

PathLike = str | os.PathLike[str]

_BEGINNING = re.compile(r"(?<![a-z])(init|initial|initiali[sz]ation|fresh|start|untrained)(?![a-z])", re.IGNORECASE)


def series(sources: PathLike | Iterable[PathLike]) -> list[Path]:
    """The checkpoints that files, globs and folders name, each once, in order of the step.

    Names alone settle the order where each tells another step (or, without steps, another epoch); otherwise each file
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
    return sorted(paths, key=_saved)


def _saved(path: Path) -> tuple[float, float]:
    checkpoint = open_checkpoint(path)
    first = _BEGINNING.search(path.stem) is not None
    place = float("-inf" if first else "inf")  # such as "init.pt" and "final.pt" without any step
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
    """The checkpoints in a folder.

    Raises:
        InputError: There is none, or one is damaged.
    """
    looking = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".") and is_checkpoint(entry)]
    others: dict[Path, NoModelError] = {}
    for entry in looking:
        try:
            open_checkpoint(entry)
        except NoModelError as error:
            others[entry] = error
    if looking and len(others) == len(looking):
        raise next(iter(others.values()))
    if not looking:
        raise InputError(f"Expected checkpoints in the folder {shown_path(folder)}, and there are none")
    for reason in others.values():
        warnings.warn(f"Skipped: {reason}", stacklevel=3)
    return [entry for entry in looking if entry not in others]

"""The page on disk: written whole or not at all, and never over somebody else's file; what its runs are called."""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gatdiag.errors import InputError
from gatdiag.report.page import GENERATOR, render_page
from gatdiag.run import Run, load
from gatdiag.run.layout import replacing

PathLike = str | os.PathLike[str]
Runs = Run | PathLike | Iterable[Run | PathLike]
_HEAD = 4096  # characters in which a page of ours has named its maker


def write_report(runs: Runs, path: PathLike, *, title: str | None = None, overwrite: bool = False) -> Path:
    """Writes one self-contained HTML page about one run, or about several and how they compare.

    The page loads nothing from anywhere: figures, style and script are in it. It is written beside its place and then
    put there, so that an older page stays whole until the new one is.

    Args:
        runs: A run or the folder of one, or several of either, in the order in which they are to be compared.
        path: The file to write; its folder is made if it does not exist.
        title: The page's heading; by default the names of the runs.
        overwrite: Replace whatever file is there. Without it only an earlier report of gatdiag is replaced.

    Returns:
        The file.

    Raises:
        InputError: There is no run, a folder holds none, or the file is there and no report of gatdiag.
        OSError: The file cannot be written.

    Example:
        >>> write_report("no such run", "report.html")
        Traceback (most recent call last):
        gatdiag.errors.InputError: ...
    """
    target = Path(path)
    opened = open_runs(runs)
    check_target(target, overwrite=overwrite)
    text = render_page(opened, title)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as part:
        part.write_bytes(text.encode("utf-8", "replace"))
    return target


def open_runs(runs: Runs) -> list[Run]:
    """All runs opened, in order, each once and under names that differ.

    Raises:
        InputError: There is none, or a folder holds none.
    """
    given = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    if not given:
        raise InputError("A report is about at least one run, got none")
    return unique_labels([run if isinstance(run, Run) else load(run) for run in given])


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raises InputError where writing the page would destroy something that gatdiag did not make."""
    if target.is_dir():
        raise InputError(f"Expected the name of a file for the report, got the folder {str(target)!r}")
    if target.exists() and not target.is_file():  # a file would take the place of the device
        raise InputError(f"Expected the name of a file for the report, got {str(target)!r}, which is no regular file")
    if overwrite or not target.exists():
        return
    with target.open(encoding="utf-8", errors="replace") as file:
        head = file.read(_HEAD)
    if f'<meta name="generator" content="{GENERATOR} ' not in head:
        raise InputError(
            f"{str(target)!r} exists and is no report of gatdiag: choose another name, or say overwrite=True"
        )


class _Labeled(Run):
    """A run under another name than that in its meta data."""

    def __init__(self, folder: Path, label: str) -> None:
        super().__init__(folder)
        self._label = label

    @property
    def name(self) -> str:
        return self._label


def unique_labels(runs: Sequence[Run]) -> list[Run]:
    """The runs in order, each folder once; those of the same name called by the shortest path that tells them apart.

    Warns where a folder was given more than once.
    """
    by_folder: dict[Path, Run] = {}
    for run in runs:
        if by_folder.setdefault(run.folder.resolve(), run) is not run:
            warnings.warn(f"{run.folder} was given more than once: it is shown once", stacklevel=3)
    times = Counter(run.name for run in by_folder.values())
    found = []
    for folder, run in by_folder.items():
        alike = [other for other, named in by_folder.items() if named.name == run.name]
        found.append(run if times[run.name] == 1 else _Labeled(run.folder, _label(run.name, folder, alike)))
    return found


def _label(name: str, folder: Path, alike: Sequence[Path]) -> str:
    longest = max(len(path.parts) for path in alike)
    for length in range(1, longest + 1):
        ends = [path.parts[-length:] for path in alike]
        if len({*ends}) == len(ends):
            break
    path = "/".join(folder.parts[-length:])
    return path if folder.name == name else f"{name} ({path})"

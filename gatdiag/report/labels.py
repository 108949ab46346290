"""What runs are called on a page about several: each once, and no two alike."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gatdiag.run import Run


class _Labelled(Run):
    """A run under another name than that in its meta data."""

    def __init__(self, folder: Path, label: str) -> None:
        super().__init__(folder)
        self._label = label

    @property
    def name(self) -> str:
        return self._label


def told_apart(runs: Sequence[Run]) -> list[Run]:
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
        found.append(run if times[run.name] == 1 else _Labelled(run.folder, _label(run.name, folder, alike)))
    return found


def _label(name: str, folder: Path, alike: Sequence[Path]) -> str:
    longest = max(len(path.parts) for path in alike)
    for length in range(1, longest + 1):
        ends = [path.parts[-length:] for path in alike]
        if len({*ends}) == len(ends):
            break
    path = "/".join(folder.parts[-length:])
    return path if folder.name == name else f"{name} ({path})"

"""A grid of settings -> trainings, in processes or on a cluster, each result written once; a table of means."""

import hashlib
import json
import os
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import filelock
import pandas as pd
from scipy.special import stdtrit

from gatdiag.errors import GatdiagError, InputError
from gatdiag.experiments.experiment import Result, document, run_experiment
from gatdiag.experiments.pool import THIS_PROCESS, Pool
from gatdiag.experiments.settings import Experiment
from gatdiag.recorder import Every
from gatdiag.run import load
from gatdiag.run.files import META, atomic_write

_CELLS: Final = "cells"
_RUNS: Final = "runs"
_LOCK: Final = "sweep.lock"
_KINDS: Final[Mapping[type, tuple[type, ...]]] = {int: (int,), float: (float, int), bool: (bool,), str: (str,)}


def read_grid(file: str | os.PathLike[str]) -> tuple[Experiment, ...]:
    """The cells of a grid: a TOML file with settings by name, each a value or a list of values.

    Every combination is a cell; the last setting in the file changes fastest, and all that are not named have their
    defaults (`gatdiag.experiments.settings.Experiment`). Of combinations that train alike, as where a learning rate is
    0 and the paper's, the first is the cell.

    Raises:
        InputError: The file is no TOML, names no setting or one that does not exist, or a combination makes no sense.
    """
    try:
        written = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:  # of too many digits, too
        raise InputError(f"{file} is no grid: expected TOML, such as layers = [2, 5] ({error})") from error
    if not written:
        raise InputError(f"{file} is empty: expected settings, such as layers = [2, 5]")
    known = {one.name: type(one.default) for one in fields(Experiment)}
    axes: dict[str, list[Any]] = {}
    for name, given in written.items():
        values = given if isinstance(given, list) else [given]
        if name not in known:
            raise InputError(f"{file}: no setting is called {name!r}: expected some of {', '.join(known)}")
        if not values or any(type(value) not in _KINDS[known[name]] for value in values):
            raise InputError(f"{file}: expected {name} to be {known[name].__name__} or a list of such, got {given!r}")
        axes[name] = values
    return grid(**axes)


def grid(**settings: Any) -> tuple[Experiment, ...]:
    """The cells of a grid: settings by name, each a value or a list, tuple or range of values.

    Every combination is a cell, as `read_grid` says.

    Example:
        >>> [(cell.layers, cell.seed) for cell in grid(layers=[2, 5], seed=range(2))]
        [(2, 0), (2, 1), (5, 0), (5, 1)]
    """
    real = {one.name for one in fields(Experiment) if type(one.default) is float}
    axes: list[list[Any]] = []
    for name, given in settings.items():
        values = given if isinstance(given, list | tuple | range) else [given]
        try:
            axes.append([float(value) if name in real else value for value in values])
        except OverflowError as error:
            raise InputError(f"Expected {name} to be finite, got a number beyond all floats") from error
    alike: dict[Experiment, Experiment] = {}
    for combination in product(*axes):
        cell = Experiment(**dict(zip(settings, combination, strict=True)))
        alike.setdefault(cell.resolved, cell)
    return tuple(alike.values())


def sweep(
    cells: Sequence[Experiment],
    folder: str | os.PathLike[str],
    root: str | os.PathLike[str] = "data",
    *,
    pool: Pool = THIS_PROCESS,
    watched: Collection[Experiment] = (),
    every: Every = "auto",
    on_cell: Callable[[Experiment, str], None] = lambda cell, outcome: None,
) -> dict[Experiment, str]:
    """Train each cell that has no result in the folder yet; killed at any instant, it goes on where it was.

    Args:
        cells: What to train.
        folder: Holds a file for each cell that is done (``cells/KEY.json``: see
            `gatdiag.experiments.experiment.document`), which is written whole, once, and never again.
        root: Folder of the data sets; workers of a cluster read it at the same place.
        pool: Where they run. The results are the same everywhere.
        watched: The cells whose runs are recorded, in ``runs/KEY``. One whose run is not there, or was killed, is
            trained again. Workers of a cluster write the runs, so they need the folder at the same place.
        every: Which of their steps, as `gatdiag.watch` has it.
        on_cell: Called with each cell and what became of it: ``kept`` (it was done before), ``done``, or what
            was wrong.

    Returns:
        The cells that failed, and why: type, message and place of the error. They are tried again next time.

    Raises:
        InputError: Another sweep writes to the folder, there is a file in its place, there is no such cluster, or a
            worker was killed.
    """
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for the sweep, but {folder} is a file")
    (folder / _CELLS).mkdir(parents=True, exist_ok=True)
    failed: dict[Experiment, str] = {}
    with _locked(folder):
        waiting, recorded = [], {*watched}
        for cell in cells:
            run = run_folder(cell, folder) if cell in recorded else None
            if _file(folder, cell).exists() and (run is None or is_recorded(cell, folder)):
                on_cell(cell, "kept")
            else:
                waiting.append((cell, run))
        with pool.map(partial(_train_cell, root=Path(root).absolute(), every=every), waiting) as done:
            for (cell, run), outcome in done:
                error = outcome if isinstance(outcome, str) else _keep(cell, outcome, folder, run)
                if error:
                    failed[cell] = error
                on_cell(cell, error or "done")
    return failed


def table_row(cell: Experiment, one: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a cell and its result.

    The number of its epochs is ``epochs_trained``: the setting has the other name.
    """
    result = {"epochs_trained" if name == "epochs" else name: value for name, value in one["result"].items()}
    return {**asdict(cell.resolved), **result}


def documents(cells: Sequence[Experiment], folder: str | os.PathLike[str]) -> dict[Experiment, dict[str, Any]]:
    """What is kept of each of these cells that is done: see `gatdiag.experiments.experiment.document`.

    Raises:
        InputError: A file is damaged, or is not of its cell.
    """
    files = {cell: _file(Path(folder), cell) for cell in cells}
    return {cell: _read(file, cell) for cell, file in files.items() if file.exists()}


def _read(file: Path, cell: Experiment) -> dict[str, Any]:
    settings = asdict(cell.resolved)
    try:
        one: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        is_its = (
            one["settings"].items() <= settings.items()
            and one["result"].keys() == {field.name for field in fields(Result)}
            and all(value is None or isinstance(value, float | int) for value in one["result"].values())
            and all(isinstance(version, str) for version in one["versions"].values())
        )
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        is_its = False
    if not is_its:
        raise InputError(f"{file} is not the result of its training: delete it, and the training is done again")
    return one


def summarize(cells: Sequence[Experiment], folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Means over seeds, a row for each combination of the settings that differ between these cells.

    ``test_accuracy`` is that of the best epoch by validation, ``ci95`` half the width of the 95 % confidence interval
    of its mean by Student's t (NaN for one seed), ``last_test_accuracy`` that of the last epoch, ``epochs_trained``
    how many there were, at most the setting ``epochs``; ``seeds`` is how many trainings there are.
    """
    table = pd.DataFrame([table_row(cell, one) for cell, one in documents(cells, folder).items()])
    if table.empty:
        return table
    groups = table.groupby(varied(cells, "seed"), sort=False, dropna=False)
    means = groups[["test_accuracy", "last_test_accuracy", "epochs_to_best", "epochs_trained", "converged"]].mean()
    count, error = groups.size(), groups["test_accuracy"].sem()
    means.insert(0, "seeds", count)
    means.insert(2, "ci95", error * stdtrit(count - 1, 0.975))
    return means.reset_index()


def varied(cells: Sequence[Experiment], *besides: str) -> list[str]:
    """The settings, besides these, in which cells differ; the graph, if there are none."""
    names = [one.name for one in fields(Experiment) if one.name not in besides]
    return [name for name in names if len({getattr(cell, name) for cell in cells}) > 1] or ["data"]


def cell_key(cell: Experiment) -> str:
    """The name of a cell's file: a digest of its settings that are not the defaults, so that a new one changes none."""
    return hashlib.sha256(json.dumps(cell.chosen, sort_keys=True).encode()).hexdigest()[:16]


def run_folder(cell: Experiment, folder: str | os.PathLike[str]) -> Path:
    """Where the run of a cell is, if its training was watched."""
    return Path(folder) / _RUNS / cell_key(cell)


def is_recorded(cell: Experiment, folder: str | os.PathLike[str]) -> bool:
    """True if the run of a cell was recorded to its end.

    Raises:
        InputError: The run cannot be read.
    """
    run = run_folder(cell, folder)
    try:
        return (run / META).exists() and load(run).status == "finished"
    except InputError as error:
        raise InputError(f"{run} cannot be read: delete this folder, and it is recorded again ({error})") from error


def _file(folder: Path, cell: Experiment) -> Path:
    return folder / _CELLS / f"{cell_key(cell)}.json"


def _train_cell(waiting: tuple[Experiment, Path | None], root: Path, every: Every) -> dict[str, Any] | str:
    """Train a cell, whose run is written there; returns the document of the cell, or what was wrong."""
    cell, run = waiting
    try:
        result = run_experiment(cell, root, run, every=every, overwrite=True)
    except Exception as error:
        return _reason(error)
    return document(cell, result)


def _keep(cell: Experiment, done: dict[str, Any], folder: Path, run: Path | None) -> str:
    """Write what a worker returned; what is wrong with that, or nothing."""
    if run is not None and not run.is_dir():
        return f"its run is not in {run}: to record, all workers need this folder at this place"
    try:
        with atomic_write(_file(folder, cell), durable=True) as part:
            part.write_text(json.dumps(done, indent=1) + "\n")
    except OSError as error:
        return f"its result could not be written: {error}"
    return ""


def _reason(error: Exception) -> str:
    """Type and message, and where it was raised if that was not on purpose."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, GatdiagError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno}, in {last.name})"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        with filelock.FileLock(folder / _LOCK, timeout=0):
            yield
    except filelock.Timeout:
        raise InputError(f"Another sweep writes to {folder}: wait for it, or give another folder") from None

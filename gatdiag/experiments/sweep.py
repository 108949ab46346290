"""Trains a grid of settings, in processes or on a cluster, and summarizes the results in a table."""

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

from gatdiag.errors import GatdiagError, InputError
from gatdiag.experiments.experiment import Result, make_document, run_experiment
from gatdiag.experiments.pool import THIS_PROCESS, Pool
from gatdiag.experiments.settings import Experiment
from gatdiag.recorder import Every
from gatdiag.run import load
from gatdiag.run.files import META, atomic_write
from gatdiag.summary import confidence_half_width

_CELLS: Final = "cells"
_RUNS: Final = "runs"
_LOCK: Final = "sweep.lock"
_RESULT: Final = {one.name for one in fields(Result)}
_ACCEPTED: Final[Mapping[type, tuple[type, ...]]] = {int: (int,), float: (float, int), bool: (bool,), str: (str,)}


def read_grid(file: str | os.PathLike[str]) -> tuple[Experiment, ...]:
    """The cells of a grid in a TOML file, which gives settings by name, each a value or a list of values.

    Every combination is a cell. The last setting in the file changes fastest; settings that are not named have their
    defaults (`gatdiag.experiments.settings.Experiment`). Of combinations with equal trainings, such as a learning rate
    of 0 and that of the paper, only the first is kept.

    Raises:
        InputError: The file is not TOML, names no setting or an unknown one, or a combination is invalid.
    """
    try:
        written = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:  # also raised for numbers of too many digits
        raise InputError(f"{file} is not a grid: expected TOML, such as layers = [2, 5] ({error})") from error
    if not written:
        raise InputError(f"{file} is empty: expected settings, such as layers = [2, 5]")
    known = {one.name: type(one.default) for one in fields(Experiment)}
    axes: dict[str, list[Any]] = {}
    for name, given in written.items():
        values = given if isinstance(given, list) else [given]
        if name not in known:
            raise InputError(f"{file}: no setting is called {name!r}: expected some of {', '.join(known)}")
        if not values or any(type(value) not in _ACCEPTED[known[name]] for value in values):
            raise InputError(f"{file}: expected {name} to be {known[name].__name__} or a list of these, got {given!r}")
        axes[name] = values
    return grid(**axes)


def grid(**settings: Any) -> tuple[Experiment, ...]:
    """The cells of a grid of settings by name, each a value or a list, tuple or range of values; see `read_grid`.

    Example:
        >>> [(cell.layers, cell.seed) for cell in grid(layers=[2, 5], seed=range(2))]
        [(2, 0), (2, 1), (5, 0), (5, 1)]
    """
    floats = {one.name for one in fields(Experiment) if type(one.default) is float}
    axes: list[list[Any]] = []
    for name, given in settings.items():
        values = given if isinstance(given, list | tuple | range) else [given]
        axes.append([float(value) if name in floats else value for value in values])
    by_training: dict[Experiment, Experiment] = {}
    for combination in product(*axes):
        cell = Experiment(**dict(zip(settings, combination, strict=True)))
        by_training.setdefault(cell.resolved, cell)
    return tuple(by_training.values())


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
    """Train each cell that has no result in the folder yet; if killed at any time, the next call resumes.

    Args:
        cells: What to train.
        folder: Receives one file per result (``cells/KEY.json``, see `gatdiag.experiments.experiment.make_document`),
            which is written atomically, and not again.
        root: Data set folder; workers of a cluster need it at the same path.
        pool: Where to train. The results are the same everywhere.
        watched: Cells whose runs are recorded, in ``runs/KEY``. If the run is missing or incomplete, the cell is
            trained again. Workers of a cluster write the runs, so they need the folder at the same path.
        every: Which steps to record; passed to `gatdiag.watch`.
        on_cell: Called with each cell and its outcome: ``kept`` (from an earlier call), ``done``, or the error.

    Returns:
        The cells that failed, with type, message and place of the error. They are retried by the next call.

    Raises:
        InputError: Another sweep writes to the folder, the folder is a file, a run in it cannot be read, there is no
            such cluster, or a worker was killed.
    """
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for the sweep, but {folder} is a file")
    (folder / _CELLS).mkdir(parents=True, exist_ok=True)
    failed: dict[Experiment, str] = {}
    with _lock(folder):
        waiting, recorded = [], {*watched}
        for cell in cells:
            run = run_folder(cell, folder) if cell in recorded else None
            if _result_file(folder, cell).exists() and (run is None or is_recorded(cell, folder)):
                on_cell(cell, "kept")
            else:
                waiting.append((cell, run))
        with pool.map(partial(_train_cell, root=Path(root).absolute(), every=every), waiting) as done:
            for (cell, run), outcome in done:
                error = outcome if isinstance(outcome, str) else _save_result(cell, outcome, folder, run)
                if error:
                    failed[cell] = error
                on_cell(cell, error or "done")
    return failed


def table_row(cell: Experiment, one: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and result of a cell; the number of epochs is called ``epochs_trained``, unlike the setting."""
    result = {"epochs_trained" if name == "epochs" else name: value for name, value in one["result"].items()}
    return {**asdict(cell.resolved), **result}


def read_results(cells: Sequence[Experiment], folder: str | os.PathLike[str]) -> dict[Experiment, dict[str, Any]]:
    """The documents of those cells that are done; see `gatdiag.experiments.experiment.make_document`.

    Raises:
        InputError: A file is damaged, or belongs to another cell.
    """
    files = {cell: _result_file(Path(folder), cell) for cell in cells}
    return {cell: _read_result(file, cell) for cell, file in files.items() if file.exists()}


def _read_result(file: Path, cell: Experiment) -> dict[str, Any]:
    try:
        one: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        is_of_cell = type(cell)(**one["settings"]) == cell.resolved and {*one["result"]} == _RESULT
    except (ValueError, KeyError, TypeError, InputError):
        is_of_cell = False
    if not is_of_cell:
        raise InputError(f"{file} is not the result of its training: delete it, and the training is repeated")
    return one


def summarize(cells: Sequence[Experiment], folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Means over seeds: one row per combination of the settings that differ between the cells.

    ``test_accuracy`` is that of the best epoch by validation accuracy, ``ci95`` half the width of the 95% confidence
    interval of its mean by Student's t (NaN for one seed), ``last_test_accuracy`` that of the last epoch,
    ``epochs_trained`` the number of epochs, at most the setting ``epochs``; ``seeds`` is the number of trainings.
    """
    table = pd.DataFrame([table_row(cell, one) for cell, one in read_results(cells, folder).items()])
    if table.empty:
        return table
    groups = table.groupby(varied_settings(cells, "seed"), sort=False, dropna=False)
    means = groups[["test_accuracy", "last_test_accuracy", "epochs_to_best", "epochs_trained", "converged"]].mean()
    means.insert(0, "seeds", groups.size())
    means.insert(2, "ci95", confidence_half_width(groups["test_accuracy"].std(), groups.size()))
    return means.reset_index()


def varied_settings(cells: Sequence[Experiment], *ignored: str) -> list[str]:
    """The settings in which cells differ, but for the ignored ones; if there are none, the graph."""
    names = [one.name for one in fields(Experiment) if one.name not in ignored]
    return [name for name in names if len({getattr(cell, name) for cell in cells}) > 1] or ["data"]


def cell_key(cell: Experiment) -> str:
    """Name of a cell's file: a digest of its non-default settings, which does not change when a setting is added."""
    return hashlib.sha256(json.dumps(cell.non_defaults, sort_keys=True).encode()).hexdigest()[:16]


def run_folder(cell: Experiment, folder: str | os.PathLike[str]) -> Path:
    """Folder of the run of a cell, if its training was watched."""
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


def _result_file(folder: Path, cell: Experiment) -> Path:
    return folder / _CELLS / f"{cell_key(cell)}.json"


def _train_cell(waiting: tuple[Experiment, Path | None], root: Path, every: Every) -> dict[str, Any] | str:
    """Train a cell and record its run, if any; returns the document of the result, or an error message."""
    cell, run = waiting
    try:
        result = run_experiment(cell, root, run, every=every, overwrite=True)
    except Exception as error:
        return _describe_error(error)
    return make_document(cell, result)


def _save_result(cell: Experiment, done: dict[str, Any], folder: Path, run: Path | None) -> str:
    """Write the document that a worker returned; returns an error message, or an empty string."""
    if run is not None and not run.is_dir():
        return f"its run is not in {run}: to record runs, all workers need this folder at the same path"
    try:
        with atomic_write(_result_file(folder, cell), durable=True) as part:
            part.write_text(json.dumps(done, indent=1) + "\n")
    except OSError as error:
        return f"its result could not be written: {error}"
    return ""


def _describe_error(error: Exception) -> str:
    """Type and message, and the place of an error that gatdiag did not raise on purpose."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, GatdiagError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno}, in {last.name})"


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    try:
        with filelock.FileLock(folder / _LOCK, timeout=0):
            yield
    except filelock.Timeout:
        raise InputError(f"Another sweep writes to {folder}: wait for it, or give another folder") from None

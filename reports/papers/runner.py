"""Trains what a name lacks, and keeps the results in its results.csv.

A training with a row in results.csv is done; delete the row to have it trained again. Trainings that are missing are a
sweep of `gatdiag.experiments.sweep` in the folder ``trainings`` next to the reports (not under version control), which
resumes where it was killed, and has the recorded runs that figures are drawn from.
"""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import pandas as pd

from gatdiag.experiments.experiment import Result
from gatdiag.experiments.pool import THIS_PROCESS, Pool
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import is_recorded, read_results, run_folder, sweep, table_row, varied_settings
from gatdiag.run import load
from gatdiag.run.files import atomic_write
from reports.papers.study import Measured, Study, trainings_of

Row: TypeAlias = dict[str, Any]
REPORTS: Final = Path(__file__).parents[1]
TABLE: Final = "results.csv"
TRAININGS: Final = "trainings"
DEFAULTS: Final = {one.name: one.default for one in fields(Experiment)}
_RESULT: Final = ["epochs_trained" if one.name == "epochs" else one.name for one in fields(Result)]
_ALWAYS_SHOWN: Final = ("model", "data", "layers", "initialization")


# --- results.csv ------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """The output of a git command in this checkout; "" without git."""
    try:
        done = subprocess.run(["git", "-C", str(REPORTS), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def commit_of_code() -> str:
    """The commit that is checked out, and whether the code has been changed since."""
    changed = git("status", "--porcelain", "--", ":/gatdiag", ":/reports/papers")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" (with changes)" if changed else "")


def commit_of_file(file: Path) -> str:
    """The last commit that changed a file."""
    return git("log", "-1", "--format=%h", "--", str(file.resolve())) or "unknown"


def read_table(file: Path) -> pd.DataFrame:
    """A results.csv, with the commit that each row was measured at, or by which it was committed; empty if absent."""
    if not file.exists():
        return pd.DataFrame()
    table = pd.read_csv(file, keep_default_na=False, na_values=[""], dtype={"commit": str})
    return table if "commit" in table else table.assign(commit=commit_of_file(file))


def _records(table: pd.DataFrame) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Write a results.csv, with six digits."""
    with atomic_write(file) as part:
        table.to_csv(part, index=False, float_format="%.6g")


def settings_key(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two trainings the same; numbers have six digits, as in the file."""
    values = (settings[name] for name in DEFAULTS if name != "device")
    return tuple(f"{value:.6g}" if isinstance(value, int | float) else value for value in values)


def cell_key(cell: Experiment) -> tuple[Any, ...]:
    """The key of a training in the table."""
    return settings_key(asdict(cell.resolved))


def known_rows(study: Study, reports: Path) -> dict[tuple[Any, ...], Row]:
    """The rows of a study's results.csv by key and, unless it measures more than a result, of all others."""
    others = [] if study.measure else sorted(reports.glob(f"*/{TABLE}"))
    rows: dict[tuple[Any, ...], Row] = {}
    for file in (reports / study.name / TABLE, *others):
        table = read_table(file)
        if {*DEFAULTS, *_RESULT} <= {*table}:
            for row in _records(table):
                rows.setdefault(settings_key(row), row)
    return rows


# --- trainings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """The trainings of a name, and what they gave.

    Attributes:
        study: What they are for.
        full: Whether they are the paper's protocol.
        cells: The trainings.
        rows: Settings, result, measurements and commit of each finished training.
        runs: The run folder of each recorded training that is at hand.
        failed: The trainings that failed, and why.
        others: As `rows`, for the trainings with other seeds.
    """

    study: Study
    full: bool
    cells: tuple[Experiment, ...]
    rows: Mapping[Experiment, Row]
    runs: Mapping[Experiment, Path] = field(default_factory=dict)
    failed: Mapping[Experiment, str] = field(default_factory=dict)
    others: Mapping[Experiment, Row] = field(default_factory=dict)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per finished training."""
        return pd.DataFrame(self.rows.values())

    @cached_property
    def groups(self) -> list[list[Experiment]]:
        """The trainings that differ only in their seed."""
        groups: dict[tuple[Any, ...], list[Experiment]] = {}
        for cell in self.cells:
            groups.setdefault(tuple(self.settings(cell).values()), []).append(cell)
        return [*groups.values()]

    @cached_property
    def _varied(self) -> list[str]:
        return varied_settings(self.cells, "seed")

    def settings(self, cell: Experiment) -> dict[str, Any]:
        """The settings of a training that vary, without the seed."""
        return {name: getattr(cell, name) for name in self._varied}

    @cached_property
    def telling(self) -> list[str]:
        """The varying settings without those that follow from others."""
        names = self._varied
        for name in reversed(self._varied):
            rest = [other for other in names if other != name]
            told = {tuple(getattr(cells[0], other) for other in rest) for cells in self.groups}
            if name not in _ALWAYS_SHOWN and len(told) == len(self.groups):
                names = rest
        return names

    def label(self, cell: Experiment) -> str:
        """The telling settings as text; most are omitted at their default."""
        settings = {name: getattr(cell, name) for name in self.telling}
        return ", ".join(_format(name, value) for name, value in (notable(settings) or settings).items())


def notable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that differ from the default, and those that are always shown."""
    return {name: value for name, value in settings.items() if name in _ALWAYS_SHOWN or value != DEFAULTS[name]}


def _format(name: str, value: Any) -> str:
    if value is True:
        return name
    return value if isinstance(value, str) and value != "none" else f"{name} {value}"


def train_missing(
    study: Study,
    reports: Path = REPORTS,
    root: Path = Path("data"),
    *,
    full: bool = False,
    train: bool = True,
    pool: Pool = THIS_PROCESS,
    on_cell: Callable[[], None] = lambda: None,
    trainings: Path | None = None,
) -> Results:
    """Do the trainings of a study that have no row yet, if ``train``, and write its results.csv.

    It can be killed and repeated at any time. Rows of its results.csv that belong to other trainings stay there.

    Args:
        study: The study.
        reports: Folder of the reports.
        root: Folder of the data sets.
        full: The protocol of the paper, else what takes ten minutes.
        train: Whether to train what is missing.
        pool: Where trainings run.
        on_cell: Called for each training that is done.
        trainings: Folder of the trainings; by default beside the reports.

    Raises:
        InputError: Another process trains there, or a worker was killed.
    """
    cells = trainings_of(study, full=full)
    known, folder = known_rows(study, reports), trainings or reports / TRAININGS
    missing = tuple(cell for cell in cells if cell_key(cell) not in known)
    failed: Mapping[Experiment, str] = {}
    for _ in range(len(cells) - len(missing)):
        on_cell()
    if train and missing:
        watched = missing if study.record else ()
        failed = sweep(
            missing, folder, root, pool=pool, watched=watched, every=study.every, on_cell=lambda *_: on_cell()
        )
    runs = {cell: run_folder(cell, folder) for cell in cells if study.record and is_recorded(cell, folder)}
    known.update((cell_key(cell), row) for cell, row in _new_rows(study, missing, folder, runs))
    _write_results(_sort_rows(study, known, full=full), reports / study.name / TABLE)
    written = known_rows(study, reports)  # with the digits of the file, so that the page is the same when written again
    return _sort_rows(study, written, full=full, runs=runs, failed=failed)


def known_results(study: Study, reports: Path = REPORTS) -> Results:
    """The results of the paper's protocol that are in results.csv; writes nothing."""
    return _sort_rows(study, known_rows(study, reports), full=True)


def _sort_rows(study: Study, known: Mapping[tuple[Any, ...], Row], *, full: bool, **more: Any) -> Results:
    rows = {cell: known[cell_key(cell)] for cell in trainings_of(study, full=full) if cell_key(cell) in known}
    cells = study.full if full else study.quick
    others = {cell: row for cell, row in rows.items() if cell in study.other_seeds}
    return Results(study, full, cells, {cell: rows[cell] for cell in cells if cell in rows}, others=others, **more)


def _new_rows(
    study: Study, cells: Sequence[Experiment], folder: Path, runs: Mapping[Experiment, Path]
) -> Iterator[tuple[Experiment, Row]]:
    """The rows of those trainings that the sweep has done; what is measured on runs needs the run."""
    for cell, document in read_results(cells, folder).items():
        if study.measure is None:
            yield cell, {**table_row(cell, document), "commit": commit_of_code()}
        elif cell in runs:
            yield cell, {**table_row(cell, document), **study.measure(load(runs[cell])), "commit": commit_of_code()}


def _write_results(results: Results, file: Path) -> None:
    """Write the rows of these trainings, and after them those of others that the file has."""
    trained = {cell_key(cell) for cell in (*results.rows, *results.others)}
    rows = [*results.rows.values(), *results.others.values()]
    rows += [*(row for row in _records(read_table(file)) if settings_key(row) not in trained)]
    if rows:
        known = {*DEFAULTS, *_RESULT, "commit"}
        measured = [name for name in rows[0] if name not in known] if results.study.measure else []
        file.parent.mkdir(parents=True, exist_ok=True)
        write_table(pd.DataFrame(rows)[[*DEFAULTS, *_RESULT, *measured, "commit"]], file)


def measure_script(study: Study, reports: Path, root: Path, *, train: bool) -> Measured:
    """What the script of a study measures, or measured when it last ran; writes its results.csv."""
    file = reports / study.name / TABLE
    if not (train and study.script):
        return read_table(file), {}
    table, pictures = study.script(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_table(table.assign(commit=commit_of_code()), file)
    return read_table(file), pictures

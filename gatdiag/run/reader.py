"""Read a run folder. Needs no torch, and pandas only for tables."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from safetensors import SafetensorError
from safetensors.numpy import load_file

import gatdiag
from gatdiag.card import card
from gatdiag.errors import InputError
from gatdiag.names import join_names, number
from gatdiag.quantities import Quantity, TableName
from gatdiag.roles import ROLES
from gatdiag.run import files, meta, tables
from gatdiag.run.laws import RecordedLaws

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Format = Literal["csv", "parquet"]
Arrays = dict[str, np.ndarray[Any, Any]]

_MAX_TRIES = 20  # to read a table of a run that is being sealed, resumed or overwritten


class Run:
    """A recorded run. Made by `load`.

    A table is read on first access and then kept; those of a run that is being recorded are read at once, so that they
    are of one moment. Load the run again to see what has been recorded since. Columns are float64, with NaN for both
    what was not measured and what is undefined (`arrow` distinguishes them), categoricals for names, and Int32 for
    `neuron`.

    Attributes:
        folder: The run folder.
        meta: The contents of meta.json when the last table was read.
    """

    def __init__(self, folder: Path, pending: Sequence[Mapping[str, float]] = ()) -> None:
        """Use `load`; the recorder also passes rows of `steps` that are not on the disk yet."""
        self.folder, self._pending = folder, pending
        self.meta = meta.read(folder)
        self._laws: RecordedLaws | None = None
        self._frames: dict[str, pd.DataFrame] = {}
        self._measured: dict[str, dict[str, pa.ChunkedArray]] = {}
        self._kept: dict[TableName, list[pa.Table]] = {}
        if not self.meta["sealed"] and self.is_live:
            self._keep_all()

    def __repr__(self) -> str:
        """For example ``Run('runs/gat10', finished)``."""
        return f"Run({str(self.folder)!r}, {self.status})"

    def _repr_html_(self) -> str:
        layers = self.layer_names
        steps = f"{len(self.steps):,} recorded, the last at {self.steps['step'].max():,}" if len(self.steps) else "none"
        rows = {
            "model": self.meta["model"] or "unknown",
            "optimizer": ", ".join(dict.fromkeys(str(one["class"]) for one in self.meta["optimizers"])) or "none",
            "steps": steps,
            "layers": join_names(layers, 4) or "none",
            "logged": join_names(map(self._first_and_last, self.logged_names), 4) or "nothing",
            "folder": self.folder,
        }
        return card(f"Run {self.name}, {self.status}", rows=rows.items())

    def _first_and_last(self, name: str) -> str:
        """A logged scalar with its first and its last value."""
        values = self.steps[name].dropna()
        return f"{name} {number(values.iloc[0], 4)} → {number(values.iloc[-1], 4)}" if len(values) else name

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page about this run, as `gatdiag.report`."""
        return gatdiag.report(self, path)

    def plot(self, name: str = "overview", **options: Any) -> "Figure":
        """Draw one of `gatdiag.figures.FIGURES`, with the options of its data; returns the matplotlib figure.

        Raises:
            InputError: There is no such figure, or it compares several runs.
        """
        drawn: Figure = gatdiag.figures.plot(name, self, **options)
        return drawn

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.meta["name"])

    @property
    def status(self) -> str:
        """One of "recording" (also if its process was killed, see `is_live`), "finished", "failed", "interrupted"."""
        return str(self.meta["status"])

    @property
    def is_live(self) -> bool:
        """Whether a process is recording it now."""
        return files.is_locked(self.folder)

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the recorded layers, in structure order."""
        return meta.layer_names(self.meta)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the recorded parameters, in structure order."""
        return meta.parameter_names(self.meta)

    @property
    def steps(self) -> "pd.DataFrame":
        """One row per step: step, time, gradient norms, learning rates, and every logged scalar."""
        return self._frame("steps")

    @property
    def layers(self) -> "pd.DataFrame":
        """One row per step and layer: measurements of its output X and of dLoss/dX."""
        return self._frame("layers")

    @property
    def parameters(self) -> "pd.DataFrame":
        """One row per step and parameter: norms, gradients, and change since the start."""
        return self._frame("parameters")

    @property
    def neurons(self) -> "pd.DataFrame":
        """One row per step and conservation law: delta, c, and the predicted c."""
        return self._frame("neurons")

    @property
    def laws(self) -> RecordedLaws:
        """The conservation laws with their terms; `laws.c(run.snapshot("final"))` is c of these weights."""
        if self._laws is None or self._laws.entries is not self.meta["laws"]["found"]:
            try:
                self._laws = RecordedLaws(self.meta["laws"]["found"])
            except (ValueError, LookupError) as error:
                raise InputError(f"{self.folder / files.META} is damaged: {error}; restore it from a copy") from error
        return self._laws

    @property
    def logged_names(self) -> tuple[str, ...]:
        """Names of the scalars that were logged."""
        return tuple(name for name in self.steps.columns if tables.is_logged(name))

    def arrow(self, table: TableName) -> pa.Table:
        """A table in Arrow: null where nothing was measured, NaN where the result is undefined.

        Raises:
            InputError: There is no such table, or its file is damaged.
        """
        if table not in tables.ROWS:
            raise InputError(f"Expected the name of a table ({', '.join(tables.ROWS)}), got {table!a}")
        pieces = self._read(table)
        if table == "steps" and self._pending:
            pieces.append(tables.table_from_rows(self._pending))
        # without empty pieces, for each of which pyarrow 18 would write a CSV header
        pieces = [piece for piece in pieces if len(piece)] or pieces[:1] or [tables.schema(table).empty_table()]
        return pa.concat_tables(pieces, promote_options="default")

    def is_measured(self, table: TableName, column: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each row of a table, whether the column was measured there. A measured value may be NaN.

        Returns:
            (rows,). All False if there is no such column.
        """
        frame = self._frame(table)
        if column in self._measured[table]:
            known: np.ndarray[Any, np.dtype[np.bool_]] = self._measured[table][column].to_numpy()
            return known
        return np.full(len(frame), column in frame.columns)

    def _frame(self, name: TableName) -> "pd.DataFrame":
        if name not in self._frames:
            table = self.arrow(name)
            columns = zip(table.schema.names, table.columns, strict=True)
            self._measured[name] = {key: column.is_valid() for key, column in columns if column.null_count}
            frame = _to_pandas(table, self.layer_names, self.parameter_names)
            self._check_unique(name, frame)
            self._frames[name] = frame
        return self._frames[name]

    def _check_unique(self, name: TableName, frame: "pd.DataFrame") -> None:
        """Raise `InputError` if rows of a table are about the same, but for a row that is replaced while it is read."""
        keys = ["step", *tables.IDENTITY[name]]
        repeated = frame.duplicated(keys)
        if repeated.any() and not self.is_live:
            row = frame.loc[repeated, keys].iloc[0]
            what = "".join(f" and {key} {row[key]}" for key in keys[1:])
            raise InputError(
                f"The table {name} of {self.folder} is damaged: expected one row per step{tables.ROWS[name]}, but "
                f"there are several of step {row['step']}{what}; restore it from a copy"
            )

    # Readers do not lock. The process that holds the lock changes the files of a run in this order:
    #
    #   seal      each TABLE.parquet is written atomically; meta.json is replaced (sealed); the streams are deleted
    #   resume    the streams are written; meta.json is replaced (not sealed, `resumed_at` one longer); the Parquet
    #             files are deleted
    #
    # So the files that meta.json stands for exist, and a file that was opened can be read to its end. If one is missing
    # and meta.json has changed, the run was sealed or resumed in between, so try again: nothing was read yet, and
    # meta.json never returns to an earlier state, because `resumed_at` only grows. If meta.json has not changed, a run
    # that is not sealed has no rows in this table yet; a sealed run has lost the file, or is being overwritten.
    def _read(self, name: TableName) -> list[pa.Table]:
        if name in self._kept:
            return [*self._kept[name]]
        for _ in range(_MAX_TRIES):
            if not self.meta["sealed"]:
                self.meta = meta.read(self.folder)
            try:
                return list(tables.read(self.folder, name, is_sealed=self.meta["sealed"]))
            except FileNotFoundError:
                before, self.meta = self.meta, meta.read(self.folder)
                if before == self.meta and not before["sealed"]:
                    return []
        raise InputError(f"{files.parquet_path(self.folder, name)} is missing, though the run was sealed")

    def _keep_all(self) -> None:
        """Read all tables, then meta.json, which describes a layer before there are rows of it."""
        kept = {name: self._read(name) for name in tables.ROWS}
        self.meta = meta.read(self.folder)
        if not self.meta["sealed"]:  # otherwise it has ended meanwhile, and its tables stay as they are
            self._kept = kept

    def quantity(self, table: TableName, column: str) -> Quantity:
        """The description of a column that is stored in the run; for a logged scalar, only its name.

        The equation is that of the catalog if it has the column: older runs hold LaTeX.
        """
        entries = (entry for entry in self.meta["quantities"] if (entry.get("table"), entry["name"]) == (table, column))
        known: dict[str, object] = next(entries, {})
        texts: dict[str, Any] = {key: str(known.get(key) or "") for key in ("unit", "equation", "paper", "high", "low")}
        in_catalog = {each.name: each.equation for each in tables.measured_columns(table)}
        texts["equation"] = in_catalog.get(column, texts["equation"])
        return Quantity(column, table, label=str(known.get("label") or column), **texts)

    def snapshot(self, name: str) -> Arrays | None:
        """The parameters by name.

        Args:
            name: "initial", "best" or "final".

        Returns:
            Name -> values; None if the run has no such snapshot.

        Raises:
            InputError: The name is none of these, or the file is damaged.
        """
        path = files.snapshot_path(self.folder, name)
        files.check_regular(path)
        if not path.exists():
            return None
        try:
            tensors: Arrays = load_file(path)
        except (SafetensorError, *tables.BROKEN) as error:
            raise InputError(f"{path} is damaged: expected tensors in the safetensors format ({error})") from error
        return tensors


def load(folder: str | os.PathLike[str]) -> Run:
    """Open a run: finished, killed, or still being recorded. Needs no torch.

    Args:
        folder: The run folder that was given to `watch`, or a folder with one run inside, as `gatdiag run` makes it.

    Raises:
        InputError: The folder holds no run or several, its meta.json is damaged, or its schema is that of another
            gatdiag.
    """
    return Run(files.run_folder(Path(folder)))


def _to_pandas(table: pa.Table, layers: Iterable[str], parameters: Iterable[str]) -> "pd.DataFrame":
    """A table with categoricals in structure order for names, and NaN for null."""
    import pandas as pd  # slow to import, and recording does not need it

    # no threads, because the process may be a training that reads its own run and is forked later
    frame: pd.DataFrame = table.unify_dictionaries().to_pandas(
        types_mapper={pa.int32(): pd.Int32Dtype()}.get, use_threads=False
    )
    if "law" in frame:
        frame["law"] = frame["law"].astype(np.int32)  # never null
    for name, known in (("layer", layers), ("parameter", parameters), ("role", ROLES)):
        if name in frame:
            column = frame[name].cat
            names = dict.fromkeys([*known, *column.categories])
            frame[name] = column.set_categories(pd.Index(list(names), dtype=str))
    return frame


def export(run: Run, folder: str | os.PathLike[str], format: Format, *, overwrite: bool = False) -> Path:
    """Write the four tables and meta.json to a folder.

    With Parquet, the folder can be loaded as a run, without snapshots. In CSV, numbers have all digits of the float64;
    NaN is ``nan``, infinity is ``inf`` or ``-inf``, and what was not measured is empty. pandas reads both ``nan`` and
    empty as NaN. After an error no file has changed.

    Args:
        run: The run, which may still be recording.
        folder: Created, with its parents, if it does not exist.
        format: "csv" or "parquet".
        overwrite: Whether to replace existing files of these five names. Other files are never changed.

    Returns:
        The folder.

    Raises:
        InputError: The format is not one of these, a file exists already, or the folder is that of the run.
        OSError: A file cannot be written.
    """
    if format not in ("csv", "parquet"):
        raise InputError(f"Expected the format csv or parquet, got {format!a}")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder to export to, but {folder} is a file")
    if folder.exists() and folder.samefile(run.folder):
        raise InputError(f"{folder} is the folder of the run itself; export to another folder")
    names = [files.META, *(f"{table}.{format}" for table in tables.ROWS)]
    if (existing := [name for name in names if (folder / name).exists()]) and not overwrite:
        held = ", ".join(existing)
        raise InputError(
            f"{folder} already holds {held}: replace them with overwrite=True (--overwrite), or choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as parts:  # which replace the files once all of them are written
        for name in tables.ROWS:
            _export_table(run, name, parts.enter_context(files.atomic_write(folder / f"{name}.{format}")), format)
        meta.write(folder, {**run.meta, "sealed": True})
    return folder


def _export_table(run: Run, name: TableName, path: Path, format: Format) -> None:
    table = run.arrow(name)
    if format == "parquet":
        tables.write_parquet(path, name, iter([table]))
        return
    plain = [f.with_type(pa.string()) if pa.types.is_dictionary(f.type) else f for f in table.schema]
    csv.write_csv(table.cast(pa.schema(plain)), path)

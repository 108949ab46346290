"""The reading side of a run folder. No torch, and no pandas until a table is asked for."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gatdiag.errors import InputError
from gatdiag.quantities import Quantity, TableName
from gatdiag.roles import ROLES
from gatdiag.run import files, meta, tables
from gatdiag.run.laws import RecordedLaws

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "parquet"]
Arrays = dict[str, np.ndarray[Any, Any]]

_TRIES = 20  # of a table whose run is sealed, resumed or begun anew this very moment


class Run:
    """One recorded run, read from its folder; made by `load`.

    Each table is read when it is first asked for, and is then a copy of what was on the disk at that moment, in pandas'
    own types: float64 with NaN both for what was not measured and for what is undefined (`arrow` keeps them apart),
    categoricals for names, Int32 for `neuron`. To see more of a run that is still being recorded, load it again.

    Attributes:
        folder: Where it is.
        meta: What stands in meta.json. As it was when the last table was read, because the tables refer to it.
    """

    def __init__(self, folder: Path, waiting: Sequence[Mapping[str, float]] = ()) -> None:
        """For `load`, and for the recorder, which knows rows of `steps` that are not on the disk yet."""
        self.folder, self._waiting = folder, waiting
        self.meta = meta.read(folder)
        self._laws: RecordedLaws | None = None
        self._frames: dict[str, pd.DataFrame] = {}
        self._measured: dict[str, dict[str, pa.ChunkedArray]] = {}
        self._problems: dict[str, None] = {}

    def __repr__(self) -> str:
        """For example ``Run('runs/gat10', finished)``."""
        return f"Run({str(self.folder)!r}, {self.status})"

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.meta["name"])

    @property
    def status(self) -> str:
        """Either "recording", also if its process was killed (see `is_live`); "finished", "failed" or "interrupted"."""
        return str(self.meta["status"])

    @property
    def is_live(self) -> bool:
        """True if a process is recording it right now."""
        return files.is_locked(self.folder)

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems in reading the tables asked for so far, in words."""
        return tuple(self._problems)

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
        """One row a step: step, time, gradient norms, learning rates, and every logged scalar."""
        return self._frame("steps")

    @property
    def layers(self) -> "pd.DataFrame":
        """One row a step and layer: what was measured on its output and on the loss's gradient of that output."""
        return self._frame("layers")

    @property
    def parameters(self) -> "pd.DataFrame":
        """One row a step and parameter: norms, gradients, and change since the start."""
        return self._frame("parameters")

    @property
    def neurons(self) -> "pd.DataFrame":
        """One row a step and conservation law: delta, c, and the c that was predicted."""
        return self._frame("neurons")

    @property
    def laws(self) -> RecordedLaws:
        """The recorded conservation laws with their terms; `laws.c(run.snapshot("final"))` is c at these weights.

        Raises:
            InputError: They are damaged in meta.json.
        """
        if self._laws is None or self._laws.entries is not self.meta["laws"]["found"]:
            self._laws = RecordedLaws(self.meta["laws"]["found"], str(self.folder / files.META))
        return self._laws

    @property
    def logged(self) -> tuple[str, ...]:
        """Names of the scalars that the user logged."""
        return tuple(name for name in self.steps.columns if tables.is_logged(name))

    def arrow(self, table: TableName) -> pa.Table:
        """A table for Arrow: as in the sealed Parquet files, null where nothing was measured apart from NaN.

        Raises:
            InputError: There is no such table.
        """
        if table not in tables.ROWS:
            raise InputError(f"The tables of a run are {', '.join(tables.ROWS)}, got {table!a}")
        damages: list[tables.Damage] = []
        found = self._read(table, damages)
        if table == "steps" and self._waiting:
            found.append(tables.of_rows(self._waiting))
        self._problems |= dict.fromkeys(damage.text for damage in damages)
        if lost := [damage.text for damage in damages if damage.is_loss]:
            warnings.warn(f"{self.folder}: not all of the run can be read: {'; '.join(lost)}", stacklevel=4)
        # without empty pieces, for each of which pyarrow 18 would write the head of CSV
        rows = [piece for piece in found if len(piece)] or found[:1] or [tables.schema(table).empty_table()]
        return pa.concat_tables(rows, promote_options="default")

    def is_measured(self, table: TableName, column: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each row of a table of pandas, whether the column was measured there; a measured value may be NaN.

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
            self._frames[name] = _frame(table, self.layer_names, self.parameter_names)
        return self._frames[name]

    # A reader takes no lock. The process that holds it changes the files of a run in this order:
    #
    #   seal      each TABLE.parquet is written whole; meta.json is replaced: sealed; the streams are deleted
    #   resume    the streams are written; meta.json is replaced: not sealed, `resumed_at` one longer; the Parquet files
    #             are deleted
    #
    # So what meta.json names is there, and a file that was opened can be read to its end. If one is missing, and
    # meta.json is another than before, the files of the other kind may count by now. To try again is safe: nothing was
    # read yet, and meta.json never becomes what it was before, for `resumed_at` only grows. If it is the same, a run
    # that is not sealed has no rows in this table yet; one that is sealed has lost the file, or is just being begun
    # anew, for which its files are deleted first. (What goes unseen is a run that is sealed and resumed between the
    # lines that read meta.json and open a stream: that stream may be a part of it as yet.)
    def _read(self, name: TableName, damages: list[tables.Damage]) -> list[pa.Table]:
        for _ in range(_TRIES):
            if not self.meta["sealed"]:
                self.meta = meta.read(self.folder)
            try:
                return list(tables.read(self.folder, name, damages, is_sealed=self.meta["sealed"]))
            except FileNotFoundError:
                before, self.meta = self.meta, meta.read(self.folder)
                if before == self.meta and not before["sealed"]:
                    return []
        path = files.sealed(self.folder, name)
        damages.append(tables.Damage(path, f"{path.name} is missing, though the run was sealed", is_loss=True))
        return []

    def quantity(self, table: TableName, column: str) -> Quantity:
        """Description of a column, as the run gives it; of a logged scalar its name alone."""
        entries = (entry for entry in self.meta["quantities"] if (entry.get("table"), entry["name"]) == (table, column))
        known: dict[str, object] = next(entries, {})
        texts: dict[str, Any] = {key: str(known.get(key) or "") for key in ("unit", "equation", "paper", "high", "low")}
        return Quantity(column, table, label=str(known.get("label") or column), **texts)

    def snapshot(self, name: str) -> Arrays | None:
        """The parameters "initial", at the "best" step or "final", by name; None if there is no such snapshot.

        Raises:
            InputError: The name is another one, or the file is damaged.
        """
        path = files.snapshot(self.folder, name)
        if not path.is_file():
            return None
        try:
            tensors: Arrays = load_file(path)
        except (SafetensorError, *tables.BROKEN) as error:
            raise InputError(f"{path} is damaged: expected tensors in the safetensors format ({error})") from error
        return tensors


def load(folder: str | os.PathLike[str]) -> Run:
    """Opens a run: finished, killed, or still being recorded. Needs no torch.

    Args:
        folder: Of the run, as it was given to `watch`.

    Raises:
        InputError: The folder holds no run, its meta.json is damaged, or another version of gatdiag recorded it.
    """
    return Run(Path(folder))


# --- as pandas has it -------------------------------------------------------------------------------------------------


def _frame(table: pa.Table, layers: Iterable[str], parameters: Iterable[str]) -> "pd.DataFrame":
    """Names as categoricals in structure order; null as NaN."""
    import pandas as pd  # slow to load, and recording does not need it

    # without threads of its own, for a training may read its run while it goes on, and be forked
    frame: pd.DataFrame = table.unify_dictionaries().to_pandas(
        types_mapper={pa.int32(): pd.Int32Dtype()}.get, use_threads=False
    )
    if "law" in frame:
        frame["law"] = frame["law"].astype(np.int32)  # of which none is missing
    for name, known in (("layer", layers), ("parameter", parameters), ("role", ROLES)):
        if name in frame:
            column = frame[name].cat
            names = dict.fromkeys([*known, *column.categories])
            frame[name] = column.set_categories(pd.Index(list(names), dtype=str))
    return frame


# --- for other tools --------------------------------------------------------------------------------------------------


def export(run: Run, folder: str | os.PathLike[str], format: Format, *, overwrite: bool = False) -> Path:
    """Writes the four tables and meta.json into a folder.

    Parquet files are those of a sealed run, so the folder can be loaded as one (without its snapshots). In CSV, numbers
    have as many digits as it takes to read the same float64 back; NaN is ``nan``, infinity ``inf`` and ``-inf``; what
    was not measured is empty. pandas reads ``nan`` and empty alike as NaN, and ``inf`` as infinity.

    Args:
        run: The run; what is on the disk now, if it is still being recorded.
        folder: Made with its parents if it does not exist.
        format: "csv" or "parquet".
        overwrite: Replace files of these five names that are there; other files are left alone in any case.

    Returns:
        The folder.

    Raises:
        InputError: The format is another one, a file is there already, or the folder is that of the run.
        OSError: A file cannot be written.
    """
    if format not in ("csv", "parquet"):
        raise InputError(f"A run is exported to csv or parquet, got {format!a}")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder to export to, but {folder} is a file")
    if folder.exists() and folder.samefile(run.folder):
        raise InputError(f"{folder} is the folder of the run itself; give another one to export to")
    names = [files.META, *(f"{table}.{format}" for table in tables.ROWS)]
    if (there := [name for name in names if (folder / name).exists()]) and not overwrite:
        raise InputError(f"{folder} already holds {', '.join(there)}; say overwrite=True to replace them")
    folder.mkdir(parents=True, exist_ok=True)
    for name in tables.ROWS:
        table, path = run.arrow(name), folder / f"{name}.{format}"
        if format == "parquet":
            tables.write_parquet(path, name, iter([table]))
            continue
        plain = [f.with_type(pa.string()) if pa.types.is_dictionary(f.type) else f for f in table.schema]
        with files.atomic_write(path) as part:
            csv.write_csv(table.cast(pa.schema(plain)), part)
    meta.write(folder, {**run.meta, "sealed": True})
    return folder

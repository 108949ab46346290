"""The reading side of a run folder."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gatdiag.errors import InputError
from gatdiag.quantities import Quantity, TableName
from gatdiag.run import layout, lock, meta, parquet, snapshots, tables
from gatdiag.run.laws import RecordedLaws
from gatdiag.run.legend import Legend
from gatdiag.run.schema import TABLES, is_logged

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """One recorded run, read from its folder; made by `load`.

    Each table is read when it is first asked for, and is then a copy of what was on the disk at that moment, in pandas'
    own types: float64 with NaN both for what was not measured and for what is undefined (`arrow` keeps them apart),
    categoricals for names, Int32 for `neuron`. To see more of a run that is still being recorded, load it again.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        """For `load`."""
        self.folder = folder
        self._legend = Legend.read(folder)
        self._laws: RecordedLaws | None = None
        self._frames: dict[str, pd.DataFrame] = {}
        self._problems: dict[str, None] = {}

    def __repr__(self) -> str:
        """For example ``Run('runs/gat10', finished)``."""
        return f"Run({str(self.folder)!r}, {self.status})"

    @property
    def meta(self) -> meta.Meta:
        """What stands in meta.json. As it was when the last table was read, because the tables refer to it."""
        return self._legend.contents

    @property
    def name(self) -> str:
        """What the run is called."""
        return str(self.meta["name"])

    @property
    def status(self) -> str:
        """Either "recording", also if its process was killed (see `is_live`); "finished", "failed" or "interrupted"."""
        return str(self.meta["status"])

    @property
    def is_live(self) -> bool:
        """Whether a process is recording it right now."""
        return lock.is_held(self.folder)

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read of the tables asked for so far, in words."""
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
            self._laws = RecordedLaws(self.meta["laws"]["found"], str(self.folder / layout.META))
        return self._laws

    @property
    def logged(self) -> tuple[str, ...]:
        """Names of the scalars that the user logged."""
        return tuple(name for name in self.steps.columns if is_logged(name))

    def _frame(self, name: TableName) -> "pd.DataFrame":
        if name not in self._frames:
            from gatdiag.run.frames import to_frame  # pandas is slow to load, and recording does not need it

            rows, batches = self._read(name)
            self._frames[name] = to_frame(batches, rows.schema, rows.table, rows.legend.names)
        return self._frames[name]

    def arrow(self, table: TableName) -> pa.Table:
        """A table for Arrow: as in the sealed Parquet files, null where nothing was measured apart from NaN.

        Raises:
            InputError: There is no such table.
        """
        if table not in TABLES:
            raise InputError(f"The tables of a run are {', '.join(TABLES)}, got {table!a}")
        rows, batches = self._read(table)
        names = rows.legend.names
        schema = parquet.named_schema(rows.schema, rows.table, names)
        return pa.Table.from_batches([parquet.named(batch, rows.table, names) for batch in batches], schema)

    def _read(self, name: TableName) -> tuple[tables.Rows, list[pa.RecordBatch]]:
        rows = tables.open_table(self.folder, name, self._legend)
        self._legend = rows.legend
        lost: list[str] = []

        def report(text: str, is_loss: bool) -> None:
            self._problems[text] = None
            if is_loss:
                lost.append(text)

        batches = list(rows.batches(report, at_once=True))
        if not rows.has_files and any(layout.parquet(self.folder, other).exists() for other in TABLES):
            report(f"{layout.parquet(self.folder, name).name} is missing, though the run was sealed", True)
        if lost:
            warnings.warn(f"{self.folder}: not all of the run can be read: {'; '.join(lost)}", stacklevel=4)
        return rows, batches

    def quantity(self, table: TableName, column: str) -> Quantity:
        """What is known about a column, as the run says it; for a logged scalar its name alone."""
        entries = (entry for entry in self.meta["quantities"] if (entry.get("table"), entry["name"]) == (table, column))
        known: dict[str, object] = next(entries, {})
        texts: dict[str, Any] = {key: str(known.get(key) or "") for key in ("unit", "equation", "paper", "high", "low")}
        return Quantity(column, table, label=str(known.get("label") or column), **texts)

    def snapshot(self, name: str) -> snapshots.Arrays | None:
        """The parameters "initial", at the "best" step or "final", by name; None if there is no such snapshot.

        Raises:
            InputError: The name is another one, or the file is damaged.
        """
        return snapshots.read(self.folder, name)


def load(folder: str | os.PathLike[str]) -> Run:
    """Opens a run: finished, killed, or still being recorded. Needs no torch.

    Args:
        folder: Of the run, as it was given to `watch`.

    Raises:
        InputError: The folder holds no run, its meta.json is damaged, or a newer gatdiag recorded it.
    """
    return Run(Path(folder))

"""What was measured and what was not: in pandas both an absent value and an undefined one are NaN."""

from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gatdiag.quantities import TableName
from gatdiag.run import Run

_TABLES: WeakKeyDictionary[Run, dict[str, pa.Table]] = WeakKeyDictionary()


def measured(run: Run, table: TableName, column: str) -> NDArray[np.bool_]:
    """For each row of a table, whether the column was measured there; a measured value may be NaN.

    Returns:
        (rows,) as in `getattr(run, table)`. All False if there is no such column.
    """
    frame = getattr(run, table)
    if column not in frame.columns:
        return np.zeros(len(frame), bool)
    present: NDArray[np.bool_] = ~np.isnan(frame[column].to_numpy(np.float64))
    if present.all() or (table == "neurons" and present.any()):  # all rows of a law are measured together
        return np.ones(len(frame), bool)
    known = _TABLES.setdefault(run, {})
    if table not in known:
        known[table] = run.arrow(table)
    valid = known[table].column(column).is_valid().to_numpy()[: len(frame)]  # a live run may have grown since
    present[: len(valid)] |= valid
    return present


def recorded(run: Run, table: TableName, column: str) -> bool:
    """Whether a column was measured at all."""
    return bool(measured(run, table, column).any())

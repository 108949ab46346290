"""A run written out for other tools."""

import os
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv as pc

from gatdiag.errors import InputError
from gatdiag.run import layout, meta, parquet, tables
from gatdiag.run.legend import Legend
from gatdiag.run.run import Run
from gatdiag.run.schema import TABLES

Format = Literal["csv", "parquet"]


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
    _check_free(run, folder, [layout.META, *(f"{name}.{format}" for name in TABLES)], overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    legend = Legend.read(run.folder)
    for name, table in TABLES.items():
        rows = tables.open_table(run.folder, name, legend)
        legend, path = rows.legend, folder / f"{name}.{format}"
        if format == "parquet":
            parquet.write(path, table, rows.schema, rows.batches(_ignore), legend.names, rows.covers)
        else:
            _write_csv(path, rows)
    meta.write(folder, {key: meta.encode(value) for key, value in legend.contents.items()})
    return folder


def _check_free(run: Run, folder: Path, files: list[str], *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder to export to, but {folder} is a file")
    if folder.exists() and folder.samefile(run.folder):
        raise InputError(f"{folder} is the folder of the run itself; give another one to export to")
    there = [name for name in files if (folder / name).exists()]
    if there and not overwrite:
        raise InputError(f"{folder} already holds {', '.join(there)}; say overwrite=True to replace them")


def _write_csv(path: Path, rows: tables.Rows) -> None:
    names = rows.legend.names
    out = pa.schema([_plain(field) for field in parquet.named_schema(rows.schema, rows.table, names)])
    with layout.replacing(path) as part, pc.CSVWriter(part, out) as writer:
        for batch in rows.batches(_ignore):
            writer.write_batch(parquet.named(batch, rows.table, names).cast(out))


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _ignore(text: str, is_loss: bool) -> None:
    """Reading the run's tables says what could not be read; here all that can be is written."""

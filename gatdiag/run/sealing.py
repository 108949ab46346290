"""Sealing: each table becomes one Parquet file, and the streams it was recorded in are deleted."""

import os
from pathlib import Path

from gatdiag.run import layout, meta, parquet, tables
from gatdiag.run.lock import Lock
from gatdiag.run.schema import TABLES

_KILLED = "the process ended without closing the run"


def seal_tables(folder: Path) -> list[str]:
    """Writes the Parquet files, then deletes the streams; what could not be read is returned in words.

    Each Parquet file says which segments it takes the place of, so that being killed between any two steps leaves a
    folder that reads the same and can be sealed again.
    """
    problems: list[str] = []
    replaced = layout.abandoned(folder)
    legend = None
    for name, table in TABLES.items():
        rows = tables.open_table(folder, name, legend)
        legend = rows.legend
        path = layout.parquet(folder, name)
        replaced += layout.streams(folder, name).values()
        if rows.is_sealed:
            continue
        if rows.broken:
            path.replace(layout.damaged(path))
        batches = rows.batches(lambda text, _: problems.append(text))
        parquet.write(path, table, rows.schema, batches, legend.names, rows.covers)
    for path in replaced:
        path.unlink(missing_ok=True)
    return problems


def notes_on(problems: list[str]) -> list[str]:
    """What meta.json says about rows that were lost before the run was sealed."""
    return [f"found when the run was sealed: {text}" for text in problems]


def seal(folder: str | os.PathLike[str]) -> None:
    """Seals a run whose process was killed before it could.

    Args:
        folder: Of the run. A sealed run is left as it is.

    Raises:
        InputError: There is no such run, or it is being recorded.
        OSError: The folder cannot be written.
    """
    folder = Path(folder)
    meta.read(folder)
    lock = Lock(folder)
    try:
        contents = meta.read(folder)
        problems = seal_tables(folder)
        contents["notes"] += notes_on(problems)
        if contents["status"] == "recording":
            contents.update(status="interrupted", error=_KILLED, ended=meta.now())
        if contents != meta.read(folder):
            meta.write(folder, {key: meta.encode(value) for key, value in contents.items()}, durable=True)
    finally:
        lock.release()

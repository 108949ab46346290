"""The writing side of a run folder."""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gatdiag.errors import InputError
from gatdiag.quantities import TableName
from gatdiag.run import claim, layout, meta, sealing, snapshots, tables
from gatdiag.run.lock import Lock
from gatdiag.run.names import Names, check_growth
from gatdiag.run.pending import Pending
from gatdiag.run.schema import TABLES
from gatdiag.run.stream import Segment
from gatdiag.run.ticker import Ticker

PathLike = str | os.PathLike[str]
Ending = Literal["finished", "failed", "interrupted"]

SECONDS_BETWEEN_WRITES = 1.0
MOST_BUFFERED = 4 * 2**20
MOST_KEPT_WHEN_FAILING = 64 * 2**20


class Store:
    """Writes one run. Made by `create` or `resume`, ended by `seal` or `close`.

    Rows are buffered and written as one record batch a table when a second has passed since the last write or 4 MiB
    are waiting, so that a process killed at any instant loses at most that. `OSError` comes out of `append`, `flush`,
    `update_meta`, `save_snapshot` and `seal` as it is (disk full, folder deleted). The rows that could not be written
    stay buffered, up to 64 MiB a table, and are written by a later call if that has become possible.

    Attributes:
        folder: Where the run is.
        next_step: The step after the last one recorded; where a resumed run goes on.
        lost_rows: How many rows had to be given up because they could not be written for too long.

    Example:
        >>> import tempfile
        >>> store = Store.create(tempfile.mkdtemp() + "/run", {"model": "Sequential"})
        >>> store.append("steps", {"step": 0, "loss": 0.7})
        >>> store.append("steps", {"step": 1, "loss": 0.6})
        >>> store.seal("finished")
        >>> store.next_step
        2
    """

    def __init__(self, folder: Path, lock: Lock, contents: meta.Meta, segments: Mapping[TableName, int]) -> None:
        """For `create` and `resume`."""
        self.folder = folder
        self.next_step = 0
        self.lost_rows = 0
        self._lock = lock
        self._process = os.getpid()
        self._meta = contents
        self._texts = {key: meta.encode(value) for key, value in contents.items()}
        self._names = Names.of(contents)
        self._pending = {name: Pending(table) for name, table in TABLES.items()}
        self._numbers = dict(segments)
        self._open: dict[TableName, Segment] = {}
        self._last_write = time.monotonic()
        self._turn = threading.RLock()  # the ticker writes from a thread of its own
        self._ticker = Ticker(SECONDS_BETWEEN_WRITES / 2, self._tick)

    @classmethod
    def create(cls, folder: PathLike, meta_data: Mapping[str, Any], *, overwrite: bool = False) -> "Store":
        """Begins a run in a new or empty folder.

        Args:
            folder: Made with its parents if it does not exist.
            meta_data: Keys of meta.json; those that are missing are filled in.
            overwrite: Delete the run that is there, if one is; other files are never deleted.

        Raises:
            InputError: The folder holds a run or anything else, or is being written to; or the meta data are wrong.
            OSError: The folder cannot be made or written.
        """
        folder = Path(folder)
        contents = meta.new(folder, meta_data)
        claim.check_free(folder, overwrite=overwrite)
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
        try:
            claim.check_free(folder, overwrite=overwrite)
            claim.delete_run(folder)
            store = cls(folder, lock, contents, dict.fromkeys(TABLES, 0))
            meta.write(folder, store._texts, durable=True)
        except BaseException:
            lock.release()
            raise
        return store

    @classmethod
    def resume(cls, folder: PathLike, step: int | None = None) -> "Store":
        """Continues a run that was finished, failed or killed.

        Args:
            folder: Of the run.
            step: The first step that will be recorded now; rows of this and later steps that are there already are
                superseded: never shown again, and gone once the run is sealed. None for the one after the last.

        Raises:
            InputError: There is no such run, it is being recorded, or the step is negative.
            OSError: The folder cannot be written.
        """
        folder = Path(folder)
        if step is not None and (
            isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= meta.LARGEST_STEP
        ):
            raise InputError(f"The step to resume at should be a whole number from 0, got {step!a}")
        meta.read(folder)
        lock = Lock(folder)
        try:
            contents = meta.read(folder)
            segments = {name: tables.next_segment(folder, name) for name in TABLES}
            first = tables.next_step(folder) if step is None else step
            contents["resumed_at"].append(first)
            contents["segment_starts"].append(segments)
            contents.update(status="recording", error=None, ended=None)
            store = cls(folder, lock, contents, segments)
            store.next_step = first
            meta.write(folder, store._texts, durable=True)
        except BaseException:
            lock.release()
            raise
        return store

    @property
    def meta(self) -> meta.Meta:
        """The meta data as they are now; change them with `update_meta`."""
        return self._meta

    def append(self, table: TableName, columns: Mapping[str, Any]) -> None:
        """Adds rows to a table; see `Pending.add` for what the columns may be.

        Args:
            table: Which of the four.
            columns: Column -> array, number or None. Columns of the schema that are absent become null; `steps` takes
                any further columns of numbers.

        Raises:
            InputError: The columns do not fit the table, or the store is closed.
            OSError: It was time to write, and that failed.
        """
        self._check_open()
        if table not in self._pending:
            raise InputError(f"The tables of a run are {', '.join(TABLES)}, got {table!a}")
        self._ticker.start()
        with self._turn:
            waiting = self._pending[table]
            waiting.add(columns, self._names.count(table))
            self.next_step = max(self.next_step, int(np.max(columns["step"], initial=-1)) + 1)
            if waiting.size > MOST_BUFFERED or time.monotonic() - self._last_write >= SECONDS_BETWEEN_WRITES:
                self.flush()

    def _tick(self) -> None:
        """Write what has waited for a second although no row came after it."""
        with self._turn:
            if self._lock.is_released or self._process != os.getpid():
                self._ticker.stop()
            elif time.monotonic() - self._last_write >= SECONDS_BETWEEN_WRITES:
                # What fails here stays buffered, fails again in the next append, and is told there.
                with contextlib.suppress(OSError):
                    self.flush()

    def flush(self) -> None:
        """Hands all buffered rows to the operating system.

        Raises:
            OSError: That failed for at least one table.
        """
        self._check_open()
        failure: OSError | None = None
        with self._turn:
            self._last_write = time.monotonic()
            for name, waiting in self._pending.items():
                try:
                    self._write(name, waiting)
                except OSError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _write(self, name: TableName, waiting: Pending) -> None:
        self._settle(name, waiting)
        last = waiting.last
        if last is None:
            return
        try:
            segment = self._segment(name, waiting)
            segment.write(waiting.batch(segment.schema), last)
        except OSError:
            if waiting.size > MOST_KEPT_WHEN_FAILING:
                self.lost_rows += waiting.rows
                waiting.drop_through(last)
            raise
        waiting.drop_through(last)

    def _settle(self, name: TableName, waiting: Pending) -> None:
        """Finds out what became of a write that an exception or an interrupt cut short."""
        segment = self._open.get(name)
        if segment is None:
            return
        if segment.is_whole():
            waiting.drop_through(segment.last)
        if not segment.is_usable:
            self._open.pop(name).abandon()

    def _segment(self, name: TableName, waiting: Pending) -> Segment:
        """The segment to write to: the open one, or a new one if there is none or it lacks a column."""
        segment = self._open.get(name)
        schema = TABLES[name].stream_schema(list(waiting.further))
        if segment is not None and len(segment.schema) == len(schema):
            return segment
        if segment is not None:
            self._open.pop(name).close()
        number = self._numbers[name]
        self._numbers[name] += 1
        self._open[name] = Segment(layout.stream(self.folder, name, number), schema)
        return self._open[name]

    def update_meta(self, **changes: Any) -> None:
        """Replaces keys of meta.json, and writes it at once.

        Raises:
            InputError: A value has the wrong type, or the change would give rows already recorded another meaning.
            OSError: It could not be written; it will be with the next change.
        """
        self._check_open()
        self._change_meta(changes)

    def _change_meta(self, changes: Mapping[str, Any], *, durable: bool = False) -> None:
        changes = meta.plain(changes)
        changed = {**self._meta, **changes}
        meta.check(changed, "the meta data of the run", changes.keys())
        if self.next_step and {"structure", "laws"} & changes.keys():
            check_growth(self._meta, changed)
        self._meta = changed
        self._texts.update({key: meta.encode(value) for key, value in changes.items()})
        self._names = Names.of(changed) if {"structure", "laws"} & changes.keys() else self._names
        meta.write(self.folder, self._texts, durable=durable)

    def save_snapshot(self, name: str, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Writes the parameters as "initial", "best" or "final", whole or not at all.

        Raises:
            InputError: Another name.
            OSError: It could not be written; the previous snapshot of this name is as it was.
        """
        self._check_open()
        snapshots.write(self.folder, name, tensors)

    def seal(self, status: Ending, error: str | None = None) -> None:
        """Ends the run: what is buffered is written, each table becomes one Parquet file, the streams are deleted.

        If it fails or is killed on the way, nothing is lost: the run can be read, and sealed again. Both forms of the
        tables are on the disk for a moment. Sealing a sealed run changes nothing.

        Args:
            status: How the run ended.
            error: Type and message of the exception that ended it, on one line.

        Raises:
            OSError: Something could not be written.
        """
        if self._lock.is_released:
            return
        self._ticker.stop()
        try:
            self.flush()
        finally:
            self._change_meta({"status": status, "error": error, "ended": meta.now()})
        self._close_segments()
        notes = sealing.notes_on(sealing.seal_tables(self.folder))
        if self.lost_rows:
            notes.append(f"{self.lost_rows} rows could not be written and are lost")
        self._change_meta({"notes": [*self._meta["notes"], *notes]}, durable=True)
        self._lock.release()

    def close(self) -> None:
        """Writes what is buffered and ends writing without sealing: the run stays as a killed one would be.

        Raises:
            OSError: The buffered rows could not be written. The store is closed all the same.
        """
        if self._lock.is_released:
            return
        self._ticker.stop()
        try:
            self.flush()
            self._close_segments()
        finally:
            for segment in self._open.values():
                segment.abandon()
            self._lock.release()

    def _close_segments(self) -> None:
        with self._turn:
            while self._open:
                self._open.popitem()[1].close()

    def _check_open(self) -> None:
        if self._lock.is_released:
            raise InputError(f"The recording of {self.folder} has ended; Store.resume continues it")
        if self._process != os.getpid():
            raise InputError(f"{self.folder} is recorded by process {self._process}; this is a fork of it")

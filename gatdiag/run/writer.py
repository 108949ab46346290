"""The writing side of a run folder."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError
from safetensors.numpy import save_file

from gatdiag.errors import InputError
from gatdiag.quantities import TableName
from gatdiag.run import files, meta, tables
from gatdiag.run.meta import MAX_STEP
from gatdiag.run.streams import Lines, Stream

if TYPE_CHECKING:
    from filelock import BaseFileLock

PathLike = str | os.PathLike[str]
Ending = Literal["finished", "failed", "interrupted"]

_KILLED = "the process ended without closing the run"


class Store:
    """Writes one run. Made by `create` or `resume`, ended by `seal` or `close`.

    Rows are written when they are appended: a process killed at any instant loses none that were. `OSError` comes out
    of `append`, `flush`, `update_meta`, `save_snapshot` and `seal` as it is (disk full, folder deleted); rows that
    could not be written wait, up to 64 MiB a table, and are written once that is possible.

    Attributes:
        folder: Where the run is.
        meta: The metadata as they are now; change them with `update_meta`.
        next_step: The step after the last one recorded; where a resumed run goes on.

    Example:
        >>> import tempfile
        >>> store = Store.create(tempfile.mkdtemp() + "/run", {"model": "Sequential"})
        >>> store.append("steps", {"step": 0, "loss": 0.7})
        >>> store.append("steps", {"step": 1, "loss": 0.6})
        >>> store.seal("finished")
        >>> store.next_step
        2
    """

    def __init__(self, folder: Path, lock: "BaseFileLock", contents: meta.Meta) -> None:
        """For `create` and `resume`."""
        self.folder, self.meta = folder, contents
        self.next_step = 0
        self._lock, self._is_open, self._process = lock, True, os.getpid()
        self._streams: dict[TableName, Stream | Lines] = {}

    @classmethod
    def create(cls, folder: PathLike, meta_data: Mapping[str, Any], *, overwrite: bool = False) -> "Store":
        """Begins a run in a new or empty folder.

        Args:
            folder: Made with its parents if it does not exist.
            meta_data: Keys of meta.json; those that are missing are filled in.
            overwrite: Delete the run that is there, if one is; other files are never deleted.

        Raises:
            InputError: The folder holds a run or anything else, or is being written to; or the metadata are wrong.
            OSError: The folder cannot be made or written.
        """
        if not os.fspath(folder):
            raise InputError("Expected the folder of a new run, got an empty path; the current folder is '.'")
        folder = Path(folder)
        contents = meta.new(folder, meta_data)
        files.check_free(folder, overwrite=overwrite)
        folder.mkdir(parents=True, exist_ok=True)
        lock = files.lock(folder)
        try:
            files.check_free(folder, overwrite=overwrite)
            files.delete_run(folder)
            meta.write(folder, contents, durable=True)
        except BaseException:
            lock.release()
            raise
        return cls(folder, lock, contents)

    @classmethod
    def resume(cls, folder: PathLike, step: int | None = None) -> "Store":
        """Continues a run that was finished, failed or killed: the rows before a step are written anew.

        Args:
            folder: Of the run.
            step: The first step that will be recorded now; rows of this and later steps are dropped. None for the one
                after the last.

        Raises:
            InputError: There is no such run, it is being recorded, or the step is negative.
            OSError: The folder cannot be written.
        """
        folder = Path(folder)
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEP):
            raise InputError(f"The step to resume at should be a whole number from 0, got {step!a}")
        meta.read(folder)
        lock = files.lock(folder)
        try:
            contents = meta.read(folder)
            _seal(folder, contents)  # so that from here on meta.json alone says which files count
            store = cls(folder, lock, contents)
            store._write_anew(step)
        except BaseException:
            lock.release()
            raise
        return store

    def _write_anew(self, step: int | None) -> None:
        damages: list[tables.Damage] = []
        for name in tables.ROWS:
            for rows in _readable(self.folder, name, damages, is_sealed=True):
                kept = rows if step is None else rows.filter(pc.less(rows.column("step"), step))
                if kept.num_rows:
                    self.next_step = max(self.next_step, pc.max(kept.column("step")).as_py() + 1)
                    self._stream(name).write(self._stream(name).copied(kept))
        if step is not None:
            self.next_step = step
        self.meta |= {"sealed": False, "status": "recording", "error": None, "ended": None}
        self.meta["resumed_at"].append(self.next_step)
        self.meta["notes"] += [damage.text for damage in damages]
        meta.write(self.folder, self.meta, durable=True)
        _remove(self.folder, files.sealed, damages)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def append(self, table: TableName, columns: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Adds the rows of a step, or of several, to a table.

        Args:
            table: Which of the four.
            columns: "step" -> the number of the step, or of each row's step; "layer", "parameter" or "law" -> the
                positions in the structure of what the rows are about; and measured column -> numbers, one a row
                (masked entries are null) or one for all rows; None is the same as leaving the column out. Of
                `steps`: a row, "step" and any further columns -> a number, or a list of rows.

        Raises:
            InputError: The columns do not fit the table, or the store is closed.
            OSError: Rows could not be written; they wait for the next call.
        """
        self._check_open()
        if table not in tables.ROWS:
            raise InputError(f"The tables of a run are {', '.join(tables.ROWS)}, got {table!a}")
        given = [row.get("step") for row in ([columns] if isinstance(columns, Mapping) else columns)]
        steps = np.asarray(given[0] if len(given) == 1 else given)
        if steps.dtype.kind not in "iu" or not steps.size or not 0 <= steps.min() <= steps.max() <= MAX_STEP:
            raise InputError(f"Every row of {table} needs a step, a whole number from 0, got {steps.tolist()!a}")
        stream = self._stream(table)
        try:
            rows = stream.encoded(columns)
        except (TypeError, ValueError, LookupError) as error:
            raise InputError(f"The columns do not fit the table {table}: {error!r}") from error
        self.next_step = max(self.next_step, int(steps.max()) + 1)
        stream.write(rows)

    def flush(self) -> None:
        """Write all rows that wait for room on the disk.

        Raises:
            OSError: That failed for at least one table; its rows wait for the next call.
        """
        self._check_open()
        with contextlib.ExitStack() as each:  # although another one fails
            for stream in self._streams.values():
                each.callback(stream.write)

    def _stream(self, table: TableName) -> Stream | Lines:
        if table not in self._streams:
            path = files.stream(self.folder, table)
            keys = None if table == "steps" else tables.named(table, self.meta)
            self._streams[table] = Lines(path) if keys is None else Stream(path, table, keys)
        return self._streams[table]

    # --- the rest -----------------------------------------------------------------------------------------------------

    def update_meta(self, **changes: Any) -> None:
        """Replaces keys of meta.json, and writes it at once.

        Raises:
            InputError: A value has the wrong type, or the change would give rows already recorded another meaning.
            OSError: It could not be written; it will be with the next change.
        """
        self._check_open()
        changed = {**self.meta, **meta.to_json(changes)}
        meta.check(changed, "the metadata of the run")
        if "laws" in changes and self.next_step:
            before, after = (tables.named("neurons", each).to_pylist() for each in (self.meta, changed))
            if after[: len(before)] != before:
                raise InputError("The laws of a run cannot change once rows are recorded; more may be added at the end")
        self.meta = changed
        for table, stream in self._streams.items():
            if isinstance(stream, Stream) and {"structure", "laws"} & changes.keys():
                stream.keys = tables.named(table, changed)
        meta.write(self.folder, self.meta)

    def save_snapshot(self, name: str, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Writes the parameters as "initial", "best" or "final", whole or not at all.

        Raises:
            InputError: Another name.
            OSError: It could not be written; the previous snapshot of this name is as it was.
        """
        self._check_open()
        path = files.snapshot(self.folder, name)
        with files.atomic_write(path) as part:
            try:
                save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, part)
            except SafetensorError as error:
                raise OSError(f"{path} could not be written: {error}") from error

    def seal(self, status: Ending, error: str | None = None) -> None:
        """Ends the run: each table becomes one Parquet file, the streams are deleted.

        If it fails or is killed on the way, nothing is lost: the run can be read, and sealed again. Both forms of the
        tables are on the disk for a moment. Sealing a sealed run changes nothing.

        Args:
            status: How the run ended.
            error: Type and message of the exception that ended it, on one line.

        Raises:
            OSError: Something could not be written.
        """
        if not self._is_open:
            return
        self._check_open()
        try:
            self.flush()
        finally:
            lost = sum(stream.lost for stream in self._streams.values())
            notes = [f"{lost} batches of rows could not be written and are lost"] if lost else []
            notes = list(dict.fromkeys([*self.meta["notes"], *notes]))
            self.update_meta(status=status, error=error, ended=meta.now(), notes=notes)
        self._close_streams()
        _seal(self.folder, self.meta)
        self._release()

    def close(self) -> None:
        """Ends writing without sealing: the run stays as a killed one would be.

        Raises:
            OSError: Rows that wait could not be written. The store is closed all the same.
        """
        if not self._is_open:
            return
        try:
            self.flush()
        finally:
            self._close_streams()
            self._release()

    def _close_streams(self) -> None:
        while self._streams:
            self._streams.popitem()[1].close()

    def _release(self) -> None:
        self._is_open = False
        self._lock.release()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InputError(f"The recording of {self.folder} has ended; Store.resume continues it")
        if self._process != os.getpid():
            raise InputError(f"{self.folder} is recorded by process {self._process}; this is a fork of it")


# --- sealing ----------------------------------------------------------------------------------------------------------


def seal(folder: PathLike) -> None:
    """Seals a run whose process was killed before it could.

    Args:
        folder: Of the run. A sealed run is left as it is.

    Raises:
        InputError: There is no such run, or it is being recorded.
        OSError: The folder cannot be written.
    """
    folder = Path(folder)
    meta.read(folder)
    lock = files.lock(folder)
    try:
        _seal(folder, meta.read(folder))
    finally:
        lock.release()


def _seal(folder: Path, contents: meta.Meta) -> None:
    """Streams -> Parquet files. What counts is said by meta.json, so it may be killed and called again at any time."""
    damages: list[tables.Damage] = []
    if not contents["sealed"]:
        for name in tables.ROWS:
            rows = _readable(folder, name, damages, is_sealed=False)
            tables.write_parquet(files.sealed(folder, name), name, rows)
        if contents["status"] == "recording":
            contents |= {"status": "interrupted", "error": _KILLED, "ended": meta.now()}
        contents["sealed"] = True
        contents["notes"] += [f"found when the run was sealed: {damage.text}" for damage in damages]
        meta.write(folder, contents, durable=True)
    _remove(folder, files.stream, damages)


def _readable(folder: Path, name: TableName, damages: list[tables.Damage], *, is_sealed: bool) -> Iterator[pa.Table]:
    with contextlib.suppress(FileNotFoundError):  # nothing was recorded in this table
        yield from tables.read(folder, name, damages, is_sealed=is_sealed)


def _remove(folder: Path, path_of: Callable[[Path, TableName], Path], damages: Iterable[tables.Damage]) -> None:
    """Deletes files that others have taken the place of; what could not be read whole is kept under another name."""
    lost = {damage.path for damage in damages if damage.is_loss}
    for path in (path_of(folder, name) for name in tables.ROWS):
        if path in lost and path.exists():
            path.replace(path.with_name(f"{path.name}.damaged"))
        path.unlink(missing_ok=True)
    for part in files.unfinished(folder):
        part.unlink()

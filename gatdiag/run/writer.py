"""Write a run folder."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError
from safetensors.numpy import save_file

from gatdiag.errors import InputError, TakenError
from gatdiag.names import escape_surrogates, join_names
from gatdiag.quantities import TableName
from gatdiag.run import files, meta, tables
from gatdiag.run.reader import Run
from gatdiag.run.streams import ArrowStream, JsonLines

if TYPE_CHECKING:
    from filelock import BaseFileLock

PathLike = str | os.PathLike[str]
Ending = Literal["finished", "failed", "interrupted"]

_KILLED = "the process ended without closing the run"


class Store:
    """Writes a run. Made by `create` or `resume`, ended by `seal` or `close`.

    Rows are written when they are appended, so that a kill at any instant does not lose them. If the disk is full,
    `OSError` is raised, and the rows are lost.

    Attributes:
        folder: The run folder.
        meta: The current metadata; use `update_meta` to change them.
        next_step: The step after the last recorded one.

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
        """Use `create` or `resume`."""
        self.folder, self.meta = folder, contents
        self.next_step = 0
        self._lock, self._is_open, self._process = lock, True, os.getpid()
        self._streams: dict[TableName, ArrowStream | JsonLines] = {}

    @classmethod
    def create(cls, folder: PathLike, meta_data: Mapping[str, Any], *, overwrite: bool = False) -> "Store":
        """Start a run in a new or empty folder.

        Args:
            folder: Created, with its parents, if it does not exist.
            meta_data: Keys of meta.json; missing keys get defaults.
            overwrite: Whether to delete an existing run. Other files are never deleted.

        Raises:
            TakenError: The folder holds a run, or one is being recorded to it.
            InputError: The folder holds other files, or the metadata cannot be JSON.
            OSError: The folder cannot be created or written.
        """
        folder = Path(folder)
        contents = meta.new(folder, meta_data)
        files.check_free(folder, overwrite=overwrite)
        folder.mkdir(parents=True, exist_ok=True)
        lock = files.acquire_lock(folder)
        try:
            files.check_free(folder, overwrite=overwrite)
            files.delete_run(folder)
            meta.write(folder, contents, durable=True)
        except BaseException:
            lock.release()
            raise
        return cls(folder, lock, contents)

    @classmethod
    def create_beside(cls, folder: PathLike, meta_data: Mapping[str, Any]) -> "Store":
        """Start a run as `create` does, or in a numbered sibling of a folder that holds a run: runs/a-2 for runs/a.

        One line on standard error names a sibling.

        Raises:
            InputError: The folder holds other files, or the metadata cannot be JSON.
            OSError: The folder cannot be created or written.
        """
        places = files.free_folders(Path(folder))
        while True:
            place = next(places)
            try:
                store = cls.create(place, meta_data)
            except TakenError:  # by another process since
                continue
            files.name_folder(Path(folder), place)
            return store

    @staticmethod
    def check(folder: PathLike, *, overwrite: bool = False, beside: bool = False) -> Path:
        """Where `create` or `create_beside` would start a run; raises what they would, and creates nothing."""
        for place in files.free_folders(Path(folder)) if beside else (Path(folder),):
            files.check_writable(place)
            try:
                files.check_free(place, overwrite=overwrite)
                files.check_unlocked(place)
            except TakenError:
                if beside:
                    continue
                raise
            break
        return place

    @staticmethod
    def check_resume(folder: PathLike, step: int | None = None) -> int:
        """The step at which `resume` would continue a run; raises what it would, and changes nothing."""
        _check_step(step)
        run = Run(Path(folder))
        files.check_unlocked(run.folder)
        files.check_writable(run.folder)
        if step is not None:
            return step
        return _step_after(run.arrow("steps"))

    @classmethod
    def resume(cls, folder: PathLike, step: int | None = None) -> "Store":
        """Continue a run that was finished, failed or killed.

        Args:
            folder: The run folder.
            step: The next step; rows of this and later steps are deleted. None for the step after the last one in the
                table `steps`: a kill may have left rows of later ones in the other tables.

        Raises:
            InputError: There is no such run, it is being recorded, or the step is not an integer from 0.
            OSError: The folder cannot be written.
        """
        folder = Path(folder)
        _check_step(step)
        meta.read(folder)
        lock = files.acquire_lock(folder)
        try:
            contents = meta.read(folder)
            _seal(folder, contents)  # the streams are not in use from here on
            store = cls(folder, lock, contents)
            store._rewrite_streams(step)
        except BaseException:
            lock.release()
            raise
        return store

    def _rewrite_streams(self, step: int | None) -> None:
        steps = [*_read_table(self.folder, "steps", is_sealed=True)]
        self.next_step = max(map(_step_after, steps), default=0) if step is None else step
        for name in tables.ROWS:
            for rows in steps if name == "steps" else _read_table(self.folder, name, is_sealed=True):
                kept = rows.filter(pc.less(rows.column("step"), self.next_step))
                if kept.num_rows:
                    self._stream(name).write(*self._stream(name).encode_table(kept))
        self.meta |= {"sealed": False, "status": "recording", "error": None, "ended": None}
        self.meta["resumed_at"].append(self.next_step)
        meta.write(self.folder, self.meta, durable=True)
        _delete(self.folder, [files.parquet_path(self.folder, name) for name in tables.ROWS])

    def append(self, table: TableName, columns: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Append rows of one or several steps to a table.

        Args:
            table: Name of the table.
            columns: For `steps`, a row (column -> number) or a list of rows. For the other tables, columns: "step" ->
                one number, or one per row; "layer", "parameter" or "law" -> positions in the structure, one per row;
                measured column -> one number, or one per row, null where masked. Missing columns and None are null.

        Raises:
            InputError: The store is closed.
            OSError: The rows could not be written.
        """
        self._check_open()
        rows = [columns] if isinstance(columns, Mapping) else columns
        stream = self._stream(table)
        stream.write(*stream.encode(columns))
        self.next_step = max([self.next_step, *(int(np.max(row["step"])) + 1 for row in rows)])

    def _stream(self, table: TableName) -> ArrowStream | JsonLines:
        if table not in self._streams:
            self._check_own()
            path = files.stream_path(self.folder, table)
            keys = None if table == "steps" else tables.key_columns(table, self.meta)
            self._streams[table] = JsonLines(path) if keys is None else ArrowStream(path, table, keys)
        return self._streams[table]

    def update_meta(self, **changes: Any) -> None:
        """Replace keys of meta.json, and write it immediately.

        Raises:
            InputError: A value cannot be JSON, or laws that rows refer to would change.
            OSError: It could not be written. The next call writes this change, too.
        """
        self._check_open()
        changed = {**self.meta, **meta.to_json(changes)}
        if "laws" in changes and self.next_step:
            before, after = (tables.key_columns("neurons", each).to_pylist() for each in (self.meta, changed))
            if after[: len(before)] != before:
                raise InputError("The laws of a run cannot change once rows are recorded; more may be added at the end")
        self.meta = changed
        for table, stream in self._streams.items():
            if isinstance(stream, ArrowStream) and {"structure", "laws"} & changes.keys():
                stream.keys = tables.key_columns(table, changed)
        self._check_own()
        meta.write(self.folder, self.meta)

    def save_snapshot(self, name: str, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Write the parameters as the snapshot "initial", "best" or "final".

        Raises:
            InputError: The name is none of these.
            OSError: It could not be written. A previous snapshot of this name is unchanged.
        """
        self._check_open()
        path = files.snapshot_path(self.folder, name)
        self._check_own()
        with files.atomic_write(path) as part:
            mode = part.stat().st_mode
            try:
                save_file({escape_surrogates(key): np.ascontiguousarray(value) for key, value in tensors.items()}, part)
            except SafetensorError as error:
                raise OSError(f"{path} could not be written: {error}") from error
            part.chmod(mode)  # save_file puts a file there that only its owner can read

    def seal(self, status: Ending, error: str | None = None) -> str | None:
        """End the run: convert each table to Parquet, and delete the streams.

        If this fails or is killed, nothing is lost: the run can be read, and sealed again. It needs disk space for both
        forms of the tables. An ended store does not change.

        Args:
            status: How the run ended.
            error: Type and message of the exception that ended it, on one line.

        Returns:
            Which rows are missing because something else has changed the streams, also as a note in the run.

        Raises:
            OSError: A file could not be written.
        """
        if not self._is_open:
            return None
        self._check_open()
        self.update_meta(status=status, error=error, ended=meta.now())
        rows = {name: stream.rows for name, stream in self._streams.items()}
        self._close_streams()
        lost = _seal(self.folder, self.meta, rows)
        self._release()
        return lost

    def close(self) -> None:
        """End writing without sealing, which leaves the run as a kill would."""
        if self._is_open:
            self._close_streams()
            self._release()

    def _close_streams(self) -> None:
        while self._streams:
            self._streams.popitem()[1].close()

    def _release(self) -> None:
        self._is_open = False
        self._lock.release()

    def _check_own(self) -> None:
        """Raise `OSError` if this run was deleted, and another one is in its folder."""
        try:
            files.check_regular(self.folder / files.META)
            found = json.loads((self.folder / files.META).read_bytes())
            is_other = any(found[key] != self.meta[key] for key in ("created", "resumed_at"))
        except (InputError, OSError, ValueError, LookupError, TypeError):
            return  # deleted or damaged, but not by a run
        if is_other:
            text = "another run is recorded there now, so nothing more of this one is written"
            raise OSError(errno.ESTALE, text, str(self.folder))

    def _check_open(self) -> None:
        if not self._is_open:
            raise InputError(f"The recording of {self.folder} has ended; Store.resume continues it")
        if self._process != os.getpid():
            raise InputError(f"{self.folder} is recorded by process {self._process}; this is a fork of it")


def seal(folder: PathLike) -> None:
    """Seal a run whose process was killed. A sealed run does not change.

    Args:
        folder: The run folder.

    Raises:
        InputError: There is no such run, or it is being recorded.
        OSError: The folder cannot be written.
    """
    folder = Path(folder)
    meta.read(folder)
    lock = files.acquire_lock(folder)
    try:
        _seal(folder, meta.read(folder))
    finally:
        lock.release()


def fill_parameters(folder: PathLike, step: int, values: Mapping[str, Mapping[str, float]]) -> None:
    """Fill columns of the table `parameters` of a sealed run, in the rows of one step.

    Args:
        folder: The run folder.
        step: The step.
        values: Column -> parameter -> value; null in all other rows.

    Raises:
        InputError: There is no such run, or it is being recorded.
        OSError: The table cannot be written.
    """
    folder = Path(folder)
    lock = files.acquire_lock(folder)
    try:
        table = Run(folder).arrow("parameters")
        rows = [*zip(table["step"].to_pylist(), table["parameter"].to_pylist(), strict=True)]
        for column, of in values.items():
            filled = pa.array([of.get(name) if at == step else None for at, name in rows], pa.float64())
            table = table.set_column(table.schema.get_field_index(column), column, filled)
        tables.write_parquet(files.parquet_path(folder, "parameters"), "parameters", iter([table]))
    finally:
        lock.release()


def _check_step(step: int | None) -> None:
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise InputError(f"The step to resume at should be an integer from 0, got {step!a}")


def _seal(folder: Path, contents: meta.Meta, rows: Mapping[TableName, int] | None = None) -> str | None:
    """Convert streams to Parquet. It can be killed and called again at any time.

    Args:
        folder: The run folder.
        contents: Its metadata.
        rows: How many each table should have, whatever has become of its stream; None: as many as are there.

    Returns:
        Which of them are missing.
    """
    lost = []
    if not contents["sealed"]:
        for name in tables.ROWS:
            pieces = _read_table(folder, name, is_sealed=False, is_lenient=rows is not None)
            found = tables.write_parquet(files.parquet_path(folder, name), name, pieces)
            if rows is not None and found != (expected := rows.get(name, 0)):
                lost.append(f"{found:,} of {expected:,} rows of {name}")
        if contents["status"] == "recording":
            contents |= {"status": "interrupted", "error": _KILLED, "ended": meta.now()}
        if lost:
            text = f"{join_names(lost)} are left: something else has changed or deleted their files while training"
            contents["notes"] = [*contents["notes"], text]
        contents["sealed"] = True
        meta.write(folder, contents, durable=True)
    _delete(folder, [files.stream_path(folder, name) for name in tables.ROWS])
    return text if lost else None


def _step_after(steps: pa.Table) -> int:
    """The step after the last one of the table `steps`."""
    return int(pc.max(steps.column("step")).as_py()) + 1 if len(steps) else 0


def _read_table(folder: Path, name: TableName, *, is_sealed: bool, is_lenient: bool = False) -> Iterator[pa.Table]:
    """The pieces of a table; none if nothing was recorded in it or, if lenient, if its file is damaged."""
    with contextlib.suppress(FileNotFoundError, *([InputError] if is_lenient else [])):
        yield from tables.read(folder, name, is_sealed=is_sealed)


def _delete(folder: Path, paths: Sequence[Path]) -> None:
    for path in (*paths, *files.partial_files(folder)):
        path.unlink(missing_ok=True)

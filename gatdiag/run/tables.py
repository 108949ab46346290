"""Reading a table: which files it is in, which of their rows count, in the order in which they were recorded."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from gatdiag.quantities import TableName
from gatdiag.run import layout, meta
from gatdiag.run.legend import Legend
from gatdiag.run.parquet import ParquetReader
from gatdiag.run.schema import TABLES, Table
from gatdiag.run.stream import Report, StreamReader

_TRIES = 20


@dataclass(frozen=True)
class Rows:
    """The files of one table, opened together, so that what happens to the folder afterwards does not matter.

    Attributes:
        table: Which table.
        schema: Of its batches: positions in place of names, every column of the schema and every logged scalar.
        legend: The meta data that go with them.
        next_segment: The number of the segment that would be written next.
        broken: Why the Parquet file of the table cannot be read at all; "" if it can, or there is none.
    """

    table: Table
    schema: pa.Schema
    legend: Legend
    next_segment: int
    broken: str
    _parts: tuple[tuple[int, ParquetReader | StreamReader], ...]

    @property
    def covers(self) -> int:
        """A Parquet file of these rows takes the place of the segments below this number."""
        starts: list[int] = [start[self.table.name] for start in self.legend.contents["segment_starts"]]
        return max([self.next_segment, *(start + 1 for start in starts)])

    @property
    def has_files(self) -> bool:
        """Whether there is any file of the table."""
        return bool(self._parts or self.broken)

    @property
    def is_sealed(self) -> bool:
        """Whether the rows are in a Parquet file and nowhere else, and all of them count."""
        if self.broken or len(self._parts) != 1:
            return False
        number, part = self._parts[0]
        return isinstance(part, ParquetReader) and number == self.covers - 1

    def batches(self, report: Report, *, at_once: bool = False) -> Iterator[pa.RecordBatch]:
        """Every row that can be read and was not superseded; to be called once.

        Args:
            report: Called with what could not be read, and whether it is more than the cut tail a kill leaves.
            at_once: Quicker, and holds a whole file in memory at a time.
        """
        if self.broken:
            report(self.broken, True)
        for number, part in self._parts:
            end = _superseded_from(self.legend.contents, self.table.name, number)
            for batch in part.batches(report, at_once=at_once):
                uniform = _uniform(batch, self.schema, report, f"{self.table.name}, segment {number}")
                if uniform is None:
                    continue
                kept = uniform if end is None else uniform.filter(pc.less(uniform.column("step"), end))
                kept = self._with_known_positions(kept, report)
                if kept.num_rows:
                    yield kept

    def _with_known_positions(self, batch: pa.RecordBatch, report: Report) -> pa.RecordBatch:
        if not self.table.position or not batch.num_rows:
            return batch
        column = batch.column(self.table.position)
        limits = pc.min_max(column)
        count = self.legend.names.count(self.table.name)
        if limits["min"].as_py() >= 0 and limits["max"].as_py() < count:
            return batch
        kept = batch.filter(pc.and_(pc.greater_equal(column, 0), pc.less(column, count)))
        lost = batch.num_rows - kept.num_rows
        report(
            f"{self.table.name}: {lost} rows are about a {self.table.position} that {layout.META} does not have", True
        )
        return kept


def open_table(folder: Path, name: TableName, known: Legend | None = None) -> Rows:
    """Opens the files of one table, with the meta data that go with them.

    Args:
        folder: Of the run.
        name: Of the table.
        known: The meta data as they were read before.

    Raises:
        InputError: The meta data cannot be read.
        OSError: A file cannot be opened.
    """
    for _ in range(_TRIES):
        try:
            return _open(folder, TABLES[name], known)
        except FileNotFoundError:  # the run was sealed or begun anew in between
            continue
    return _open(folder, TABLES[name], known)


def _open(folder: Path, table: Table, known: Legend | None) -> Rows:
    # Streams first, meta data last: a segment must not be seen without the entry that says what it supersedes.
    streams = {number: StreamReader(path) for number, path in layout.streams(folder, table.name).items()}
    legend = Legend.read(folder, known)
    parts: list[tuple[int, ParquetReader | StreamReader]] = []
    broken, covered = "", 0
    path = layout.parquet(folder, table.name)
    try:
        if path.exists():
            sealed = ParquetReader(path, table, legend.names)
            covered = sealed.segments
            parts.append((covered - 1, sealed))
    except ValueError as error:
        broken = str(error)
    parts += [(number, reader) for number, reader in streams.items() if number >= covered]
    own = {*table.stream_schema().names}
    further = dict.fromkeys(c for _, part in parts for c in part.columns if c not in own) if table.is_open else {}
    following = max([covered, *(number + 1 for number in streams)])
    schema = table.stream_schema(list(further))
    return Rows(table, schema, legend, following, broken, tuple(parts))


def _superseded_from(contents: meta.Meta, table: str, number: int) -> int | None:
    """Rows of this and later steps in a segment do not count, because the run was resumed there afterwards."""
    later = [
        step
        for step, starts in zip(contents["resumed_at"], contents["segment_starts"], strict=True)
        if starts[table] > number
    ]
    return min(later, default=None)


def _uniform(batch: pa.RecordBatch, schema: pa.Schema, report: Report, where: str) -> pa.RecordBatch | None:
    columns = []
    there = {*batch.schema.names}
    for field in schema:
        try:
            found = batch.column(field.name).cast(field.type) if field.name in there else None
        except (pa.ArrowException, KeyError, ValueError):
            found = None
        if not field.nullable and (found is None or found.null_count):
            report(f"{where}: the column {field.name} is missing or damaged; these rows are lost", True)
            return None
        columns.append(pa.nulls(batch.num_rows, field.type) if found is None else found)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def next_segment(folder: Path, name: TableName) -> int:
    """The number of the segment that would be written next."""
    return open_table(folder, name).next_segment


def next_step(folder: Path) -> int:
    """The step after the last one of which any row can be read."""
    last, legend = -1, None
    for name in TABLES:
        rows = open_table(folder, name, legend)
        legend = rows.legend
        for batch in rows.batches(lambda *_: None):
            last = max(last, pc.max(batch.column("step")).as_py())
    return last + 1

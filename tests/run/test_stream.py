import os
import warnings

import numpy as np
import pyarrow as pa
import pytest

from gatdiag.run import Store, load
from gatdiag.run.stream import Segment, StreamReader
from tests.run.recorded import META

SCHEMA = pa.schema([("step", pa.int64()), ("mu", pa.float64())])
ROWS = 50
COUNT = 6


def batch(number: int) -> pa.RecordBatch:
    steps = np.arange(number * ROWS, (number + 1) * ROWS)
    return pa.record_batch([pa.array(steps), pa.array(np.sin(steps))], schema=SCHEMA)


@pytest.fixture
def written(tmp_path):
    """A stream of six batches, and where each of them ends."""
    path = tmp_path / "layers.0.arrows"
    segment = Segment(path, SCHEMA)
    ends = []
    for number in range(COUNT):
        segment.write(batch(number), number)
        ends.append(path.stat().st_size)
    segment.close()
    return path, ends


def read(path):
    told = []
    reader = StreamReader(path)
    batches = list(reader.batches(lambda *what: told.append(what)))
    for found in batches:
        number = found.column("step")[0].as_py() // ROWS
        assert found.equals(batch(number))
    return [found.column("step")[0].as_py() // ROWS for found in batches], told


def test_what_is_written_is_read_by_us_and_by_plain_arrow(written):
    path, _ = written
    assert read(path) == ([0, 1, 2, 3, 4, 5], [])
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == COUNT * ROWS


def test_cut_anywhere_it_gives_every_whole_batch(written):
    path, ends = written
    data = path.read_bytes()
    clean = {0, len(SCHEMA.serialize()), *ends, len(data)}
    for size in [*range(0, len(data), 61), *clean, *(end - 1 for end in ends), *(end + 1 for end in ends)]:
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        numbers, told = read(path)
        assert numbers == list(range(whole))
        assert not any(is_loss for _, is_loss in told)
        assert bool(told) == (size not in clean)


@pytest.mark.parametrize("value", [b"\0", b"\xff", b"A"])
def test_damage_in_the_middle_costs_the_batches_it_touches(written, value):
    path, ends = written
    data = bytearray(path.read_bytes())
    begin, end = ends[1] + 16, ends[2] + 16  # the third batch, and the head of the fourth
    data[begin:end] = value * (end - begin)
    path.write_bytes(data)
    numbers, told = read(path)
    assert numbers == [0, 1, 4, 5]
    assert [is_loss for _, is_loss in told] == [True]
    assert "are damaged; the rows in them are lost" in told[0][0]


def test_a_damaged_beginning_costs_the_segment_and_says_so(written):
    path, _ = written
    path.write_bytes(b"\0" * 64 + path.read_bytes()[64:])
    assert read(path) == ([], [("layers.0.arrows: the beginning of the file cannot be read", True)])


def test_an_end_mark_in_the_middle_ends_nothing(written):
    path, ends = written
    data = path.read_bytes()
    path.write_bytes(data[: ends[1]] + b"\xff\xff\xff\xff\0\0\0\0" + data[ends[1] + 8 :])
    numbers, told = read(path)
    assert numbers == [0, 1, 3, 4, 5]
    assert [is_loss for _, is_loss in told] == [True]


def test_zeros_after_a_power_cut_are_a_cut_tail(written):
    path, ends = written
    path.write_bytes(path.read_bytes()[: ends[2]] + b"\0" * 5000)
    numbers, told = read(path)
    assert numbers == [0, 1, 2]
    assert [is_loss for _, is_loss in told] == [False]


def test_any_single_damaged_byte_neither_crashes_nor_invents_rows(written):
    path, _ = written
    data = path.read_bytes()
    random = np.random.default_rng(0)
    for at in random.integers(0, len(data), 300):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        reader = StreamReader(path)
        rows = sum(found.num_rows for found in reader.batches(lambda *_: None))
        assert rows <= COUNT * ROWS


class TestSegment:
    def test_a_failed_write_leaves_the_whole_batches_and_the_segment_unusable(self, tmp_path, monkeypatch):
        path = tmp_path / "a"
        segment = Segment(path, SCHEMA)
        segment.write(batch(0), "first")
        assert segment.is_whole()
        write = os.write

        def half(file, data):
            if len(data) < 100:
                raise OSError(28, "No space left on device")
            return write(file, bytes(data)[: len(data) // 2])

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            segment.write(batch(1), "second")
        assert (segment.last, segment.is_whole(), segment.is_usable) == ("second", False, False)
        segment.abandon()
        assert read(path)[0] == [0]

    def test_a_file_that_was_deleted_is_an_error_not_silence(self, tmp_path):
        segment = Segment(tmp_path / "a", SCHEMA)
        (tmp_path / "a").unlink()
        with pytest.raises(FileNotFoundError, match="deleted while it was written"):
            segment.write(batch(0), None)
        segment.abandon()

    def test_a_segment_without_batches_leaves_no_file(self, tmp_path):
        Segment(tmp_path / "a", SCHEMA).abandon()
        assert not list(tmp_path.iterdir())

    def test_an_existing_file_is_never_written_to(self, written):
        with pytest.raises(FileExistsError):
            Segment(written[0], SCHEMA)


def damaged_run(folder):
    store = Store.create(folder, META)
    for step in range(3):
        store.append("steps", {"step": step, "loss": float(step)})
        store.flush()
    store.close()
    path = folder / "steps.0.arrows"
    data = path.read_bytes()
    begin = len(data) // 2 // 8 * 8
    path.write_bytes(data[:begin] + b"\0" * 64 + data[begin + 64 :])
    return folder


def test_a_run_with_damage_warns_once_and_gives_the_rest(tmp_path):
    run = load(damaged_run(tmp_path / "run"))
    with pytest.warns(UserWarning, match="not all of the run can be read: steps.0.arrows: bytes"):
        assert list(run.steps["step"]) == [0, 2]
    assert len(run.problems) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(run.steps) == 2

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import gatdiag.run.store as store_module
from gatdiag.errors import InputError
from gatdiag.run import Store, load, seal
from tests.run.recorded import META, SEALED, append_step, check, files

LIMITED = """
import resource, sys
from gatdiag.run import Store
from tests.run.recorded import META, append_step
store = Store.create(sys.argv[1], META)
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, -1))
failures = 0
for step in range(60):
    append_step(store, step)
    try:
        store.flush()
    except OSError as error:
        failures += 1
        print(error, flush=True)
assert failures >= 2
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
store.seal("finished")
"""


@pytest.fixture
def disk(monkeypatch):
    """A disk with so many bytes left: disk["left"]."""
    state = {"left": 10**9}
    write = os.write

    def limited(file, data):
        part = bytes(data)[: state["left"]]
        if not part:
            raise OSError(28, "No space left on device")
        state["left"] -= len(part)
        return write(file, part)

    monkeypatch.setattr(os, "write", limited)
    return state


def test_a_real_limit_of_the_operating_system(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "run")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    check(load(tmp_path / "run"), [(step, 0.0) for step in range(60)])
    assert not load(tmp_path / "run").problems


@pytest.mark.parametrize("left", [0, 1, 700, 1500, 2000])
def test_full_at_any_point_the_run_reads_up_to_there_and_goes_on_when_there_is_room(tmp_path, disk, left):
    store = Store.create(tmp_path / "run", META)
    for step in range(4):
        append_step(store, step)
    store.flush()
    disk["left"] = left
    for step in range(4, 6):
        append_step(store, step)
        with pytest.raises(OSError, match="No space left on device"):
            store.flush()
    run = load(tmp_path / "run")
    for name in ("steps", "layers", "parameters", "neurons"):
        found = run.arrow(name).column("step").to_pylist()
        assert found[: found.index(3)] == sorted(s for s in found if s < 3)
        assert found == sorted(found)
    disk["left"] = 10**9
    append_step(store, 6)
    store.seal("finished")
    check(load(tmp_path / "run"), [(step, 0.0) for step in range(7)])


def test_rows_are_kept_while_it_is_full_and_then_given_up(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_KEPT_WHEN_FAILING", 10_000)
    store = Store.create(tmp_path / "run", META)
    disk["left"] = 0
    for step in range(200):
        append_step(store, step)
        with pytest.raises(OSError, match="No space left"):
            store.flush()
        assert all(waiting.size < 20_000 for waiting in store._pending.values())
    disk["left"] = 10**9
    append_step(store, 200)
    store.seal("finished")
    run = load(tmp_path / "run")
    kept = sum(len(run.arrow(name)) for name in ("steps", "layers", "parameters", "neurons"))
    assert store.lost_rows == 201 * 9 - kept > 0
    assert run.meta["notes"] == [f"{store.lost_rows} rows could not be written and are lost"]
    assert run.arrow("steps").column("step").to_pylist()[-1] == 200


def test_a_full_disk_at_the_end_leaves_a_run_that_can_be_sealed_later(tmp_path, disk, monkeypatch):
    store = Store.create(tmp_path / "run", META)
    for step in range(4):
        append_step(store, step)
    disk["left"] = 500
    with pytest.raises(OSError, match="No space left"):
        store.seal("finished")
    disk["left"] = 10**9
    with monkeypatch.context() as broken:
        broken.setattr(
            "gatdiag.run.parquet.pq.ParquetWriter", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
        )
        with pytest.raises(OSError, match="full"):
            store.seal("finished")
    check(load(tmp_path / "run"), [(step, 0.0) for step in range(4)])
    store.close()
    seal(tmp_path / "run")
    assert files(tmp_path / "run") == SEALED
    check(load(tmp_path / "run"), [(step, 0.0) for step in range(4)])
    assert load(tmp_path / "run").status == "finished"


def test_a_deleted_folder_is_an_error_and_the_end_is_peaceful(tmp_path):
    store = Store.create(tmp_path / "run", META)
    append_step(store, 0)
    store.flush()
    shutil.rmtree(tmp_path / "run")
    for _ in range(3):
        append_step(store, 1)
        with pytest.raises(FileNotFoundError):
            store.flush()
    for action in (lambda: store.update_meta(notes=[]), lambda: store.save_snapshot("best", {"w": np.zeros(1)})):
        with pytest.raises(OSError, match=r"No such file|not be written"):
            action()
    with pytest.raises(FileNotFoundError):
        store.seal("finished")
    with pytest.raises(FileNotFoundError):
        store.close()
    with pytest.raises(InputError, match="has ended"):
        append_step(store, 2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("after_the_write", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
def test_ctrl_c_while_writing_neither_loses_nor_doubles_a_row(tmp_path, monkeypatch, at, after_the_write):
    store = Store.create(tmp_path / "run", META)
    write, left = os.write, [at]

    def interrupted(file, data):
        left[0] -= 1
        if left[0]:
            return write(file, data)
        if after_the_write:
            write(file, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    for step in range(4):
        append_step(store, step)
        try:
            store.flush()
        except KeyboardInterrupt:
            continue
    assert left[0] <= 0
    store.seal("interrupted")
    check(load(tmp_path / "run"), [(step, 0.0) for step in range(4)])


def test_ctrl_c_at_any_instant_of_recording(tmp_path):
    """Signals arrive between any two instructions, by a timer."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(10):
            store = Store.create(tmp_path / str(number), META)
            store.append("steps", {"step": 0})
            steps = 1
            signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0011 * number)
            try:
                while True:
                    store.append("steps", {"step": steps})
                    steps += 1
                    store.flush()
            except KeyboardInterrupt:
                store.seal("interrupted")
            recorded = load(tmp_path / str(number)).arrow("steps").column("step").to_pylist()
            assert recorded in (list(range(steps)), list(range(steps + 1))), (steps, recorded)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

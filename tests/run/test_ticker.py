import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

import gatdiag
from gatdiag.run import Store
from gatdiag.run.ticker import Ticker

ROOT = Path(__file__).parents[2]


class Counted:
    def __init__(self):
        self.calls = 0

    def call(self):
        self.calls += 1


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_it_calls_until_it_is_stopped():
    counted = Counted()
    ticker = Ticker(0.01, counted.call)
    ticker.start()
    ticker.start()
    wait_for(lambda: counted.calls >= 3)
    ticker.stop()
    ticker._thread.join(20)
    assert not ticker._thread.is_alive()


def test_it_ends_with_what_it_belongs_to():
    counted = Counted()
    ticker = Ticker(0.01, counted.call)
    ticker.start()
    del counted
    ticker._thread.join(20)
    assert not ticker._thread.is_alive()


def test_rows_are_written_although_nothing_comes_after_them(tmp_path):
    store = Store.create(tmp_path / "run", {"model": "m"})
    store.append("steps", {"step": 0, "loss": 1.0})
    store.append("steps", {"step": 1, "loss": 0.5})
    wait_for(lambda: len(gatdiag.load(tmp_path / "run").steps) == 2)
    store.append("steps", {"step": 2, "loss": 0.25})
    store.seal("finished")
    assert gatdiag.load(tmp_path / "run").steps.loss.tolist() == [1.0, 0.5, 0.25]
    store._ticker._thread.join(20)
    assert not store._ticker._thread.is_alive()


@pytest.mark.slow
def test_a_run_killed_while_it_idles_has_all_its_rows(tmp_path):
    script = f"""
        import sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from gatdiag.run import Store
        store = Store.create({str(tmp_path / "run")!r}, {{"model": "m"}})
        for step in range(18):
            store.append("steps", {{"step": step, "loss": 1.0}})
        print("done", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "done\n"
        wait_for(lambda: len(gatdiag.load(tmp_path / "run").steps) == 18)  # nothing but the ticker writes them
        process.kill()
    assert len(gatdiag.load(tmp_path / "run").steps) == 18


def test_a_table_that_is_missing_from_a_sealed_run_is_told_of(tmp_path):
    store = Store.create(tmp_path / "run", {"model": "m"})
    store.append("steps", {"step": 0, "loss": 1.0})
    store.seal("finished")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(gatdiag.load(tmp_path / "run").layers) == 0
    (tmp_path / "run" / "steps.parquet").unlink()
    run = gatdiag.load(tmp_path / "run")
    with pytest.warns(UserWarning, match=r"steps\.parquet is missing"):
        assert len(run.steps) == 0
    assert any("missing" in problem for problem in run.problems)

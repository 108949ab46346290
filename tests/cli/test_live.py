"""gatdiag live: what it shows of runs in every state, and that it ends with the run."""

import re
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.page.screen import screen
from gatdiag.run import Store
from tests.page.builder import build
from tests.run.synthetic import synthetic_meta, synthetic_run


def live(*arguments):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["live", *map(str, arguments)])


def test_where_nothing_is_written_it_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        done = live(tmp_path / name, "--once")
        assert done.exit_code == 3
        assert " ".join(done.stdout.split()).endswith(
            f"{name}: nothing is written yet; a run is written from its first step on"
        )


def test_it_shows_the_verdict_the_loss_and_the_layers(tmp_path):
    folder = synthetic_run(tmp_path / "run", steps=60, layers=10, neurons=2, collapse=True)
    done, run = live(folder, "--once"), gatdiag.load(folder)
    assert done.exit_code == 0, done.stderr
    diagnosis = gatdiag.diagnose(run)
    words, strip = " ".join(done.stdout.split()), screen(run, diagnosis).strip
    assert f"run: finished failing: {diagnosis.verdict.title} [{diagnosis.verdict.code}]" in words
    assert diagnosis.verdict.text in words
    (high, bars) = re.findall(r"^  loss, .* bars from 0 to (.*):\n  ([▁▂▃▄▅▆▇█]+)$", done.stdout, re.MULTILINE)[0]
    assert float(high) == pytest.approx(run.steps.loss.max(), rel=0.01)
    assert len(bars) == 60
    assert set(bars) <= {*"▇█"}  # it hardly falls
    marks = {"inside": "■", "near": "▲", "far": "✖", "broken": "!", "unmeasured": "·"}
    assert f"  {''.join(marks[cell.distance] for cell in strip.cells)}  {strip.summary}" in done.stdout
    there = {cell.distance for cell in strip.cells}
    meant = "  ".join(f"{marks[distance]} {words}" for distance, words in strip.legend if distance in there)
    assert f"\n  {meant}\n" in done.stdout
    assert "✖ below the threshold" in meant, "as on the page"


@pytest.mark.parametrize(("steps", "says"), [(0, "no step is written yet"), (3, "Only 3 steps were recorded")])
def test_a_run_that_has_just_begun(tmp_path, steps, says):
    with_lock = Store.create(tmp_path / "run", synthetic_meta(3, 2))
    for step in range(steps):
        with_lock.append("steps", {"step": step, "loss": 1.0})
    done = live(tmp_path / "run", "--once")
    assert done.exit_code == 0
    words = " ".join(done.stdout.split())
    assert "run: recording" in words
    assert says in words
    with_lock.close()


def test_a_run_whose_process_is_gone_ends_it(tmp_path):
    folder = synthetic_run(tmp_path / "run", steps=30, layers=3, seal=False)
    done = live(folder)
    assert done.exit_code == 0
    assert "run: ended without finishing: its process is gone" in " ".join(done.stdout.split())


def test_it_waits_for_a_run_and_ends_with_it(tmp_path):
    def train():
        time.sleep(0.3)
        store = Store.create(tmp_path / "run", synthetic_meta(3, 2))
        for step in range(30):
            store.append("steps", {"step": step, "loss": 1.0 / (1 + step)})
            time.sleep(0.03)
        store.seal("finished")
        store.close()

    thread = threading.Thread(target=train)
    thread.start()
    done = live(tmp_path / "run")
    ended = time.monotonic()
    thread.join()
    assert time.monotonic() - ended < 1
    assert done.exit_code == 0, done.stderr
    assert "run: finished" in " ".join(done.stdout.split())
    assert "steps: 30" in done.stdout


def test_names_and_numbers_that_are_odd(tmp_path):
    loss = [1.0, np.nan, np.inf, 0.5, 0.25] * 4
    run = build(tmp_path / "a[red]b", weights={"norm": np.ones((20, 4))}, logged={"loss\x1b[31m": loss})
    done = live(run.folder, "--once")
    assert done.exit_code == 0
    assert "a[red]b: finished" in "".join(done.stdout.split("\n"))
    assert "\x1b" not in done.stdout
    assert "█!!" in done.stdout


@pytest.mark.parametrize("name", ["file", "runs"])
def test_what_is_no_run_is_one_line(tmp_path, name):
    (tmp_path / "file").touch()
    for run in ("one", "other"):
        synthetic_run(tmp_path / "runs" / run, steps=1, layers=1)
    done = live(tmp_path / name)
    assert (done.exit_code, done.stdout.strip()) == (2, "")
    assert done.stderr.count("\n") == 1

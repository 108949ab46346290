import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import filelock
import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.experiments import sweep as sweeping
from gatdiag.experiments.experiment import Experiment, run_experiment
from gatdiag.experiments.pool import Pool
from gatdiag.experiments.sweep import cell_key, read_grid, summarize, sweep
from gatdiag.run import Store
from gatdiag.run.files import atomic_write

ROOT = Path(__file__).parents[2]
GRID = """
data = "csbm:nodes=200,features=16"
model = "gcn"
layers = [2, 3]
width = 8
initialization = ["xavier", "balanced_orthogonal"]
learning_rate = 1
epochs = 6
seed = [0, 1, 2]
"""
SMALL = {"data": "csbm:nodes=100,features=8", "model": "gcn", "layers": 2, "width": 4, "learning_rate": 1}


@pytest.fixture
def cells(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    return read_grid(tmp_path / "grid.toml")


def contents(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (folder / "cells").glob("*.json")}


def test_a_grid_is_every_combination_and_its_last_setting_changes_fastest(cells):
    combinations = [
        Experiment(
            data="csbm:nodes=200,features=16",
            model="gcn",
            layers=layers,
            width=8,
            initialization=scheme,
            learning_rate=1.0,
            epochs=6,
            seed=seed,
        )
        for layers in (2, 3)
        for scheme in ("xavier", "balanced_orthogonal")
        for seed in (0, 1, 2)
    ]
    assert list(cells) == combinations
    assert len({cell_key(cell) for cell in cells}) == 12


def test_each_result_is_that_of_its_training_and_means_are_by_students_t(cells, tmp_path):
    told = []
    assert sweep(cells, tmp_path / "out", on_cell=lambda cell, outcome: told.append((cell, outcome))) == {}
    assert told == [(cell, "done") for cell in cells]
    values = {}
    for cell in cells:
        result = run_experiment(cell)
        written = json.loads((tmp_path / "out" / "cells" / f"{cell_key(cell)}.json").read_text())
        assert written["result"] == asdict(result)
        assert Experiment(**written["settings"]) == cell
        values.setdefault((cell.layers, cell.initialization), []).append(result)
    table = summarize(cells, tmp_path / "out")
    assert [*table][:3] == ["layers", "initialization", "seeds"]
    assert len(table) == 4
    for _, row in table.iterrows():
        of_seeds = values[row["layers"], row["initialization"]]
        tests = [result.test_accuracy for result in of_seeds]
        assert row["seeds"] == 3
        assert row["test_accuracy"] == pytest.approx(statistics.fmean(tests))
        quantile = 0.95 * (2 / (4 * 0.975 * 0.025)) ** 0.5  # 97.5% of Student's t with two degrees of freedom
        assert row["ci95"] == pytest.approx(quantile * statistics.stdev(tests) / 3**0.5, rel=1e-9)
        assert row["epochs_to_best"] == pytest.approx(statistics.fmean(result.epochs_to_best for result in of_seeds))


def test_what_is_done_is_kept_and_what_is_not_is_trained(cells, tmp_path):
    sweep(cells[:4], tmp_path / "out")
    before, told = contents(tmp_path / "out"), []
    sweep(cells[:6], tmp_path / "out", on_cell=lambda cell, outcome: told.append(outcome))
    assert told == ["kept"] * 4 + ["done"] * 2
    after = contents(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert len(after) == 6
    assert summarize(cells[:1], tmp_path / "out")["ci95"].isna().all()


def test_what_is_refused_is_told_and_tried_again(cells, tmp_path):
    wrong = Experiment(data="csbm:nodes=200", layers=2, epochs=2, lipschitz="paper", initialization="balanced_xavier")
    failed = sweep([wrong, cells[0]], tmp_path / "out")
    assert [*failed] == [wrong]
    assert "ModelError: convs.0 has a head whose attention vector is zero" in failed[wrong]
    assert len(contents(tmp_path / "out")) == 1
    assert [*sweep([wrong], tmp_path / "out")] == [wrong]


def test_any_error_is_told_with_its_place_and_the_others_are_trained(cells, tmp_path, monkeypatch):
    def broken(cell, *args, **options):
        if cell.seed == 1:
            raise RuntimeError("two\n  lines")
        return run_experiment(cell, *args, **options)

    monkeypatch.setattr(sweeping, "run_experiment", broken)
    failed = sweep(cells[:3], tmp_path / "out")
    assert [*failed] == [cells[1]]
    assert re.fullmatch(r"RuntimeError: two lines \(.*test_sweep.py, line \d+, in broken\)", failed[cells[1]])
    assert len(contents(tmp_path / "out")) == 2
    monkeypatch.undo()
    assert sweep(cells[:3], tmp_path / "out") == {}


def test_a_result_that_cannot_be_written_is_told_and_the_others_are(cells, tmp_path, monkeypatch):
    def full(path, **options):
        if cell_key(cells[0]) in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return atomic_write(path, **options)

    monkeypatch.setattr(sweeping, "atomic_write", full)
    failed = sweep(cells[:2], tmp_path / "out")
    assert "could not be written: [Errno 28] No space left" in failed[cells[0]]
    assert [*contents(tmp_path / "out")] == [f"{cell_key(cells[1])}.json"]


def test_an_interrupt_ends_it_at_once(cells, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "run_experiment", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(cells, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "slurm"}, "one of processes, dask, ray"),
        ({"address": "host:1"}, "dask or ray cluster; got 'host:1'"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(cells, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        sweep(cells, tmp_path / "out", pool=Pool(**options))


def test_a_run_that_was_not_recorded_to_its_end_is_recorded_again(cells, tmp_path):
    sweep(cells[:1], tmp_path)  # has a result from now on
    begun = Store.create(sweeping.run_folder(cells[0], tmp_path), {})
    begun.append("steps", {"step": 0, "loss": 1.0})
    begun.close()  # as a kill leaves it
    sweep(cells[:1], tmp_path, watched=cells[:1])
    run = gatdiag.load(sweeping.run_folder(cells[0], tmp_path))
    assert (run.status, len(run.steps)) == ("finished", 6)


def test_a_damaged_run_is_recorded_again_once_it_is_deleted_as_the_message_says(tmp_path):
    (cell,) = sweeping.grid(**SMALL, epochs=1)
    sweep([cell], tmp_path, watched=[cell])
    run = sweeping.run_folder(cell, tmp_path)
    (run / "meta.json").write_text("{")
    with pytest.raises(InputError, match=f"^{run} cannot be read: delete this folder, and it is recorded again"):
        sweep([cell], tmp_path, watched=[cell])
    shutil.rmtree(run)
    assert sweep([cell], tmp_path, watched=[cell]) == {}
    assert gatdiag.load(run).status == "finished"


def test_steps_may_be_chosen(cells, tmp_path):
    sweep(cells[:1], tmp_path / "out", watched=cells[:1], every=3)
    assert {*gatdiag.load(tmp_path / "out" / "runs" / cell_key(cells[0])).layers["step"]} == {0, 3}


def test_epochs_may_differ_in_a_grid(tmp_path):
    cells = sweeping.grid(**SMALL, epochs=(5, 2), seed=(0, 1), stop_below=(0.0, 100.0))
    sweep(cells, tmp_path)
    table = summarize(cells, tmp_path)
    rows = {(row["epochs"], row["stop_below"]): (row["epochs_trained"], row["seeds"]) for _, row in table.iterrows()}
    assert rows == {(5, 0.0): (5, 2), (5, 100.0): (1, 2), (2, 0.0): (2, 2), (2, 100.0): (1, 2)}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"converged"', '"other"'),
        lambda text: text.replace('"seed": 0', '"seed": 7'),
    ],
)
def test_a_file_that_is_not_the_result_of_its_training_is_refused(tmp_path, damage):
    (cell,) = sweeping.grid(**SMALL, epochs=1)
    sweep([cell], tmp_path)
    file = tmp_path / "cells" / f"{cell_key(cell)}.json"
    file.write_text(damage(file.read_text()))
    before = file.read_bytes()
    sweep([cell], tmp_path)
    with pytest.raises(InputError, match=f"{cell_key(cell)}.json is not the result of its training: delete it"):
        summarize([cell], tmp_path)
    assert file.read_bytes() == before


def test_two_sweeps_in_one_folder_are_refused(cells, tmp_path):
    (tmp_path / "out").mkdir()
    with filelock.FileLock(tmp_path / "out" / "sweep.lock"):
        with pytest.raises(InputError, match="Another sweep writes"):
            sweep(cells, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers = [2", "is not a grid: expected TOML"),
        ("# layers = 2", "is empty: expected settings, such as layers"),
        ("depth = 3", "no setting is called 'depth'.*layers"),
        ('layers = "deep"', "expected layers to be int or a list of these, got 'deep'"),
        ("layers = [true]", "expected layers to be int"),
        ("seed = []", "expected seed to be int"),
        ('model = "gcn"\nheads = [1, 2]', "heads=2 expects model to be one of gat"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(tmp_path, text, message):
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_grid(tmp_path / "grid.toml")


def test_a_learning_rate_that_is_named_and_left_to_the_graph_is_one_cell(tmp_path):
    (tmp_path / "grid.toml").write_text('data = "Cora"\nlayers = [10, 40]\nlearning_rate = [0, 0.05]')
    found = [(cell.layers, cell.learning_rate) for cell in read_grid(tmp_path / "grid.toml")]
    assert found == [(10, 0.0), (40, 0.0), (40, 0.05)]  # at depth 10 the paper's rate is 0.05


def test_a_worker_that_is_killed_is_told_and_what_is_done_is_kept(cells, tmp_path):
    def kill_a_worker(cell, outcome):
        for child in multiprocessing.active_children()[:1]:
            os.kill(child.pid, signal.SIGKILL)

    many = [replace(cell, epochs=60) for cell in cells[1:]]
    with pytest.raises(InputError, match=r"One of 2 workers was killed.*what is done is kept"):
        sweep([cells[0], *many], tmp_path / "out", pool=Pool(2), on_cell=kill_a_worker)
    assert 1 <= len(contents(tmp_path / "out")) < 12


@pytest.mark.slow
def test_killed_at_any_instant_it_goes_on_in_processes(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID.replace("epochs = 6", "epochs = 60").replace("[2, 3]", "2"))
    cells, out = read_grid(tmp_path / "grid.toml"), tmp_path / "out"
    command = [sys.executable, "-m", "gatdiag", "sweep", str(tmp_path / "grid.toml"), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--jobs", "2"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None and len(contents(out)) < 2:
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = contents(out)
    assert len(before) >= 2
    told = []
    assert sweep(cells, out, pool=Pool(2), on_cell=lambda cell, outcome: told.append(outcome)) == {}
    after = contents(out)
    assert {name: after[name] for name in before} == before
    assert {*after} == {f"{cell_key(cell)}.json" for cell in cells}
    assert told.count("kept") >= len(before)
    for cell in cells[::5]:
        assert json.loads(after[f"{cell_key(cell)}.json"][0])["result"] == asdict(run_experiment(cell))

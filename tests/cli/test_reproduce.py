from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gatdiag.cli.app import app
from gatdiag.experiments.reproduce.engine import REPRODUCTIONS
from gatdiag.experiments.sweep import grid


@pytest.fixture
def reproduce(tmp_path, monkeypatch):
    cells = grid(data="csbm:nodes=100,features=8", model="gcn", layers=2, width=4, epochs=2, seed=range(2))
    small = replace(REPRODUCTIONS["table-3"], quick=cells, published=(), drawings=(), record=False)
    monkeypatch.setitem(REPRODUCTIONS, "table-3", small)

    def run(*options):
        arguments = ["reproduce", "--out", tmp_path / "out", "--workers", 1, *options]
        return CliRunner(env={"COLUMNS": "150"}).invoke(app, [*map(str, arguments)])

    return run


def test_the_list_says_what_is_done_already(reproduce):
    listed = reproduce()
    assert listed.exit_code == 0, listed.stderr
    assert [word for word in listed.stdout.split() if word.startswith("table-")] == [f"table-{n}" for n in range(2, 8)]
    done = reproduce("table-3")
    assert "table-3: 2 of 2 trainings: " in done.stdout
    assert "2/2" in done.stderr
    (row,) = [line for line in reproduce("LIST").stdout.splitlines() if line.split()[:1] == ["table-3"]]
    assert row.split()[-6:] == ["2", "of", "2", "0", "of", "180"]


def test_a_report_is_written_without_training(reproduce, tmp_path):
    again = reproduce("table-3", "--no-train")
    assert (again.exit_code, again.stderr) == (0, "")
    assert (tmp_path / "out" / "table-3" / "README.md").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["table-1"], "Expected names to be all or some of figure-2"),
        (["table-3", "--device", "tpu"], "--device: expected cpu or cuda, got 'tpu'"),
        (["table-3", "--backend", "dask"], "--workers only applies to --backend processes"),
    ],
)
def test_what_cannot_be_is_one_line(reproduce, tmp_path, options, message):
    done = reproduce(*options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_is_not_there_is_said(tmp_path):
    arguments = ["reproduce", "table-3", "--out", str(tmp_path / "out"), "--backend", "slurm"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "Expected backend to be one of processes, dask, ray, got 'slurm'" in done.stderr


def test_what_is_measured_anew_is_left_alone_where_nothing_is_to_train(reproduce, tmp_path):
    done = reproduce("beyond-theorem-6-3", "--no-train")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "beyond-theorem-6-3 is measured anew each time: skipped because of --no-train" in done.stderr
    assert not (tmp_path / "out" / "beyond-theorem-6-3").exists()

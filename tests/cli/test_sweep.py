import pytest
from typer.testing import CliRunner

from gatdiag.cli.app import app
from gatdiag.experiments.experiment import run_experiment

GRID = """
data = "csbm:nodes=200,features=16"
model = "gcn"
layers = 2
width = 8
learning_rate = [0.5, 1.0]
epochs = 4
seed = [0, 1]
"""


@pytest.fixture
def sweep(tmp_path):
    def run(text, *options):
        (tmp_path / "grid.toml").write_text(text)
        arguments = ["sweep", tmp_path / "grid.toml", "--out", tmp_path / "out", "--jobs", 1, *options]
        return CliRunner(env={"COLUMNS": "150"}).invoke(app, [*map(str, arguments)])

    return run


def test_the_table_has_a_row_for_each_combination_and_is_kept(sweep, tmp_path):
    done = sweep(GRID)
    assert done.exit_code == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows if row[:1] in (["0.5"], ["1.0"])] == [["0.5", "2"], ["1.0", "2"]]
    assert (tmp_path / "out" / "table.csv").read_text().startswith("learning_rate,seeds,test_accuracy,ci95,")
    assert "4/4" in done.stderr
    assert sweep(GRID).stdout == done.stdout


def test_what_failed_is_one_line_and_the_rest_is_there(sweep, tmp_path):
    text = 'data = "csbm:nodes=200,features=16"\nlayers = 2\nwidth = 8\nepochs = 2\nlipschitz = "paper"\n'
    done = sweep(text + 'initialization = ["xavier", "balanced_xavier"]')
    assert done.exit_code == 2
    reason, line = [line for line in done.stderr.splitlines() if line.startswith("gatdiag: ")]
    assert "1 of 2 trainings failed" in line
    assert reason.startswith("gatdiag: 1 failed: ")
    assert "attention vector is zero" in reason
    assert len([*(tmp_path / "out" / "cells").iterdir()]) == 1
    assert "xavier" in done.stdout


def test_where_every_training_fails_each_reason_is_a_line_and_there_is_no_table(sweep):
    done = sweep('data = ["no such graph", "none either"]\nlayers = 2\nseed = [0, 1]')
    assert (done.exit_code, done.stdout) == (2, "")
    reasons = [line for line in done.stderr.splitlines() if line.startswith("gatdiag: 2 failed: ")]
    assert ["no such graph" in line for line in reasons] == [True, False]
    assert "gatdiag: 4 of 4 trainings failed and will be retried by the next run" in done.stderr.splitlines()


def test_a_grid_that_makes_no_sense_is_one_line(sweep, tmp_path):
    done = sweep("depth = [2, 5]")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no setting is called 'depth'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(sweep, tmp_path, monkeypatch):
    def interrupted(cell, *arguments, **options):
        if cell.seed == 1:
            raise KeyboardInterrupt
        return run_experiment(cell, *arguments, **options)

    monkeypatch.setattr("gatdiag.experiments.sweep.run_experiment", interrupted)
    done = sweep(GRID)
    assert (done.exit_code, done.stdout) == (130, "")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gatdiag: ")]
    assert line == "gatdiag: interrupted; finished trainings are kept, and the same command continues"
    assert len([*(tmp_path / "out" / "cells").iterdir()]) == 1

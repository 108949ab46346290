import errno
import json
from dataclasses import fields
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.errors import TimeLimitError
from gatdiag.experiments.experiment import run_experiment
from gatdiag.experiments.settings import OPTIONS, Experiment
from gatdiag.run import Store

SMALL = ["--data", "csbm:nodes=200,features=16", "--layers", "2", "--hidden", "8", "--epochs", "5"]


def train(*arguments):
    return CliRunner(env={"COLUMNS": "150"}).invoke(app, ["train", *map(str, arguments)])


def test_each_setting_is_an_option():
    text = train("--help").stdout
    for one in fields(Experiment):
        assert f"--{OPTIONS.get(one.name, one.name).replace('_', '-')} " in text
    assert "One of SGD, Adam." in " ".join(text.split())


def test_options_arrive_and_the_result_is_that_of_the_settings(tmp_path):
    threads = torch.get_num_threads()
    options = ["--model", "gat", "--heads", 2, "--bias", "--activation", "elu", "--dropout", 0.3, "--seed", 4]
    more = ["--optimizer", "Adam", "--lr", 0.02, "--weight-decay", 0.01, "--stop-below", 0]
    done = train(tmp_path / "run", *SMALL, *options, *more)
    assert done.exit_code == 0, done.stderr
    assert torch.get_num_threads() == threads
    expected = Experiment(
        model="gat",
        layers=2,
        width=8,
        heads=2,
        bias=True,
        activation="elu",
        dropout=0.3,
        data="csbm:nodes=200,features=16",
        optimizer="Adam",
        learning_rate=0.02,
        weight_decay=0.01,
        epochs=5,
        stop_below=0,
        seed=4,
    )
    told = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert Experiment(**told["settings"]) == expected
    torch.set_num_threads(1)
    try:
        assert told["result"] == vars(run_experiment(expected))
    finally:
        torch.set_num_threads(threads)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps["step"].tolist() == [0, 1, 2, 3, 4]
    assert run.status == "finished"


def test_it_says_what_came_of_it(tmp_path):
    done = train(tmp_path / "run", *SMALL, "--every", 2, "--metrics", "fast")
    assert done.exit_code == 0, done.stderr
    result = json.loads((tmp_path / "run" / "experiment.json").read_text())["result"]
    assert done.stdout.startswith(f"Test accuracy {result['test_accuracy']:.1%} at epoch {result['epochs_to_best']}")
    assert "the limit of epochs was reached" in done.stdout
    assert "loss" in done.stderr  # progress
    assert gatdiag.load(tmp_path / "run").parameters["step"].unique().tolist() == [0, 2, 4]


def test_a_folder_that_holds_a_run_gets_a_numbered_sibling_unless_it_is_overwritten(tmp_path):
    folder = tmp_path / "run"
    assert "already holds" not in train(folder, *SMALL).stderr
    again = train(folder, *SMALL)
    assert again.exit_code == 0, again.stderr
    assert f"gatdiag: {folder} already holds a run: writing to {folder}-2\n" in again.stderr
    assert f"Run: {folder}-2\n" in again.stdout
    assert (tmp_path / "run-2" / "experiment.json").exists()
    assert gatdiag.load(tmp_path / "run-2").status == "finished"
    replaced = train(folder, *SMALL, "--overwrite")
    assert f"Run: {folder}\n" in replaced.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "gnn"], "Expected model to be one of gat"),
        (["--model", "gcn", "--heads", 2], "heads=2 expects model to be one of gat"),
        (["--data", "corra"], "no graph is called 'corra'"),
        (["--every", "often"], "every"),
        (["--metrics", "all"], "--metrics: expected fast, standard or full"),
        (["--initialization", "zeros"], "schemes"),
        (["--hidden", 10**13], "not enough memory"),
        (["--hidden", 0], "Expected 1 or more hidden channels, got 0"),
        (["--lr", -1], "Expected learning rate to be 0 or more and finite, got -1.0"),
        (["--learning-rate", 1], "No such option: --learning-rate"),
        (["--width", 1], "No such option: --width"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(tmp_path, options, message):
    done = train(tmp_path / "run", *SMALL, *options)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gatdiag: ")
    assert message in line
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for place, message in (
        (tmp_path, "holds other files"),
        (tmp_path / "notes.txt", "expected a folder, got the file"),
    ):
        done = train(place, *SMALL)
        assert done.exit_code == 2
        assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_search_for_laws_that_takes_too_long_names_what_has_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("gatdiag.laws.live.ForwardTrace.find_laws", Mock(side_effect=TimeLimitError))
    done = train(tmp_path / "run", *SMALL)
    assert done.exit_code == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gatdiag: ")]
    assert line == (
        "gatdiag: no conservation laws are recorded: the search was stopped after 20 s; gatdiag.find_laws has no "
        "limit, and what it finds can be passed: watch(..., laws=gatdiag.find_laws(model, x, ...))"
    )


def test_warnings_name_no_arguments_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "seal", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    done = train(tmp_path / "run", *SMALL)
    assert done.exit_code == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gatdiag: ")]
    assert "No space left on device" in line
    assert "can be read" in line
    assert "resume" not in line


def test_ctrl_c_leaves_a_run_that_can_be_read(tmp_path, monkeypatch):
    def interrupted(*arguments, progress, **options):
        def stop(number, epoch):
            progress(number, epoch)
            if number == 2:
                raise KeyboardInterrupt

        return run_experiment(*arguments, progress=stop, **options)

    monkeypatch.setattr("gatdiag.experiments.experiment.run_experiment", interrupted)
    done = train(tmp_path / "run", *SMALL)
    assert done.exit_code == 130
    assert f"gatdiag report {tmp_path / 'run'}" in done.stderr.replace("\n", "")
    assert gatdiag.load(tmp_path / "run").steps["step"].tolist() == [0, 1, 2]

import pytest
import torch
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli import demo as demo_module
from gatdiag.cli.app import app

QUICK = ["--epochs", "3", "--layers", "3"]


def demo(*arguments):
    return CliRunner(env={"COLUMNS": "150"}).invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture
def light(monkeypatch):
    """Without the page and the figures, which have tests of their own."""
    monkeypatch.setattr(demo_module, "_write", lambda *_, **__: None)


def test_it_trains_records_draws_and_writes_the_page(tmp_path, few_figures):
    out = tmp_path / "demo"
    done = demo("--out", out, "--epochs", 4, "--layers", 4)
    assert done.exit_code == 0, done.stderr
    runs = [gatdiag.load(out / name) for name in ("xavier", "balanced-orthogonal")]
    for run in runs:
        assert run.status == "finished"
        assert run.steps["step"].tolist() == [0, 1, 2, 3]
        assert run.meta["cadence"]["every"] == "1"
        assert {"loss", "train_accuracy", "val_accuracy", "test_accuracy"} <= {*run.logged_names}
        assert len(run.layer_names) == 4
    c = [run.neurons[run.neurons["step"] == 0]["c"].abs().max() for run in runs]
    assert c[0] > 0.1 > 1e-5 > c[1]
    page = (out / "report.html").read_text()
    assert "balanced orthogonal" in page
    assert [*(out / "figures").rglob("*.png")]
    assert str(out / "report.html") in done.stdout.replace("\n", "")
    words = " ".join(done.stdout.split())
    for run, name in zip(runs, ("Xavier", "balanced orthogonal"), strict=True):
        verdict = gatdiag.diagnose(run).verdict
        assert f"With {name} weights: The loss" in words
        assert verdict.text in words


@pytest.mark.slow
def test_one_network_trains_and_the_other_does_not(tmp_path, light):
    done = demo("--out", tmp_path / "demo", "--epochs", 40)
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert words.startswith("A GAT of 10 layers on sbm, seed 0")
    assert "With Xavier weights: The loss hardly moved" in words
    stuck, _, fine = words.partition("With balanced")
    assert "\n  evidence: " in done.stdout
    line = 'gatdiag.remedies.initialize_(model, "balanced_orthogonal", x, edge_index)'
    assert f"[init-unbalanced] to paste, after `import gatdiag`: {line}" in stuck
    assert "orthogonal weights: The loss fell" in fine
    assert "No problem found. The network trains" in fine
    runs = [gatdiag.load(tmp_path / "demo" / name) for name in ("xavier", "balanced-orthogonal")]
    assert runs[0].meta["optimizers"] == runs[1].meta["optimizers"]
    xavier, balanced = (run.steps for run in runs)
    assert xavier["val_accuracy"].max() <= 0.5 < 0.8 <= balanced["val_accuracy"].max()


def test_the_same_seed_gives_the_same_runs_and_options_arrive(tmp_path, light):
    threads, options = torch.get_num_threads(), [*QUICK, "--lr", 0.5]
    for name in "ab":
        done = demo("--out", tmp_path / name, "--seed", 1, *options)
        assert done.exit_code == 0
    assert torch.get_num_threads() == threads
    losses = [gatdiag.load(tmp_path / name / "xavier").steps["loss"].tolist() for name in "ab"]
    assert losses[0] == losses[1]
    assert gatdiag.load(tmp_path / "a" / "xavier").steps["learning_rate"].tolist() == [0.5] * 3


def test_what_is_there_is_replaced_only_when_told(tmp_path, light):
    (tmp_path / "notes.txt").write_text("mine")
    refused = demo("--out", tmp_path, *QUICK)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert demo("--out", tmp_path, "--overwrite", *QUICK).exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_second_demo_is_written_beside_the_first(tmp_path, light):
    assert demo("--out", tmp_path / "demo", *QUICK).exit_code == 0
    again = demo("--out", tmp_path / "demo", *QUICK)
    assert again.exit_code == 0, again.stderr
    assert f"writing to {tmp_path / 'demo-2'}" in again.stderr
    assert gatdiag.load(tmp_path / "demo-2" / "xavier").status == "finished"


def test_a_loss_that_becomes_nan_is_said_so(tmp_path, light):
    done = demo("--out", tmp_path / "demo", "--epochs", 8, "--layers", 3, "--lr", 1e9)
    xavier, balanced = " ".join(done.stdout.split()).split("With balanced orthogonal weights:")
    for words in (xavier, balanced):
        assert "NaN" in words
        assert "[healthy]" not in words

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.experiments.models import gcn


class OfData(nn.Module):
    """Takes the graph as PyG has it."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels)

    def forward(self, data):
        return self.conv(data.x, data.edge_index)


class Raising(OfData):
    def forward(self, data):
        if self.training and torch.is_grad_enabled():
            raise KeyError("lost")
        return super().forward(data)


class Interrupted(OfData):
    calls = 0

    def forward(self, data):
        Interrupted.calls += 1
        if Interrupted.calls > 20:
            raise KeyboardInterrupt
        return super().forward(data)


@pytest.fixture
def treat(shelf, tmp_path):
    shelf.small = lambda in_channels, out_channels: gcn(in_channels, out_channels, hidden_channels=8, layers=2)
    shelf.OfData, shelf.Raising, shelf.Interrupted = OfData, Raising, Interrupted
    shelf.made = nn.Linear(2, 2)
    runner = CliRunner()
    return lambda name, *options, columns=150: runner.invoke(
        app,
        ["treat", f"shelf:{name}", "--out", str(tmp_path / "treated"), "--seed", "3", *options],
        env={"COLUMNS": str(columns)},
    )


def test_a_learning_rate_that_is_too_small_is_found_and_cured(treat, tmp_path):
    done = treat("small", "--lr", "1e-6", "--epochs", "60", columns=60)
    assert done.exit_code == 0, done.stderr
    assert "The remedy helped.\n  to paste:\n" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("    optimizer = ")]  # not broken
    assert line.startswith("    optimizer = torch.optim.SGD(model.parameters(), lr=")
    assert line.endswith("before schedulers are created")
    assert "after-1" in done.stdout
    assert f"Page: {tmp_path / 'treated' / 'treatment.html'}" in done.stdout
    assert "The remedy helped." in (tmp_path / "treated" / "treatment.html").read_text()
    before, after = (gatdiag.load(tmp_path / "treated" / name / "seed-3") for name in ("before", "after-1"))
    assert len(before.steps) == len(after.steps) == 60
    assert after.steps["loss"].iloc[-1] < 0.95 * before.steps["loss"].iloc[-1]
    again = treat("small", "--lr", "1e-6", "--epochs", "60")
    assert again.exit_code == 0
    assert f"writing to {tmp_path / 'treated-2'}" in again.stderr
    assert f"Page: {tmp_path / 'treated-2' / 'treatment.html'}" in again.stdout


def test_a_healthy_training_is_left_as_it_is(treat, tmp_path):
    done = treat("OfData", "--optimizer", "adam", "--lr", "0.05", "--epochs", "60")
    assert done.exit_code == 0, done.stderr
    assert "There is nothing to treat" in done.stdout
    assert sorted(path.name for path in (tmp_path / "treated").iterdir()) == ["before", "treatment.html"]


def test_a_finding_of_ones_own_choice_is_treated(treat):
    done = treat("small", "--lr", "1e-6", "--epochs", "40", "--remedy", "lr-too-small")
    assert done.exit_code == 0, done.stderr
    assert "learning rate times" in done.stdout
    assert "after-2" not in done.stdout


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("made", [], "shelf:made is a module: give its class, or a function that returns one with fresh weights"),
        ("small", ["--seed", "a"], "--seed: expected integers separated by commas, such as 0,1,2, got 'a'"),
        ("small", ["--epochs", "0"], "Expected epochs to be 1 or more"),
        ("small", ["--remedy", "dead-unit"], "got 'dead-unit': gatdiag explain lists all. Did you mean 'dead-units'"),
        ("small", ["--optimizer", "LBFGS"], "optimizer to be one of SGD, Adam, got 'LBFGS'"),
        ("small", ["--data", "moon"], "moon"),
        ("Raising", ["--epochs", "5"], "shelf:Raising raised KeyError during training: 'lost'"),
    ],
)
def test_bad_input_is_one_line(treat, name, options, says):
    done = treat(name, *options)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_what_was_recorded_before_an_interrupt_is_shown(treat, tmp_path):
    Interrupted.calls = 0
    done = treat("Interrupted", "--epochs", "60")
    assert done.exit_code == 130
    page = (tmp_path / "treated" / "treatment.html").read_text()
    assert "Cut short: interrupted by the user." in page
    assert len(gatdiag.load(tmp_path / "treated" / "before" / "seed-3").steps) > 3
    assert "treatment.html" in done.stderr

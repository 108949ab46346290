import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from gatdiag.cli.app import app

Y = torch.arange(60) % 3
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 2 * F.one_hot(Y, 4)


class BrokenBackward(nn.Linear):
    """Changes in place what its backward pass needs, so that only torch's backward pass raises."""

    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        out = super().forward(x).exp()
        squared = out.square()
        out += 1
        return squared


@pytest.fixture
def preflight(shelf):
    shelf.good = lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    shelf.bad = lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1))
    shelf.narrow, shelf.twice = lambda: nn.Linear(3, 3), BrokenBackward
    shelf.raising = lambda out: out.missing
    shelf.inputs, shelf.loss = lambda: (X,), lambda out: F.cross_entropy(out, Y)
    return lambda *arguments: CliRunner().invoke(app, ["preflight", *arguments])


GIVEN = ("--inputs", "shelf:inputs", "--loss", "shelf:loss")


def test_a_network_that_will_train_ends_with_status_0(preflight):
    done = preflight("shelf:good", *GIVEN, "--optimizer", "adam", "--lr", "0.01")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "Nothing was found that would keep the network from training." in " ".join(done.stdout.split())
    assert "causes; gatdiag preflight --json says why not the others" in " ".join(done.stdout.split())


def test_one_that_will_not_ends_with_status_1_and_says_why(preflight):
    done = preflight("shelf:bad", *GIVEN, "--json")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    parts = ["word", "verdict", "findings", "skipped", "state", "reason", "remarks"]
    assert [*document] == ["version", "model", "inputs", *parts]
    assert (document["verdict"]["code"], document["state"]) == ("output-softmax-twice", "untrained")
    assert preflight("shelf:bad", *GIVEN, "--fail-on", "never").exit_code == 0


def test_the_labels_of_a_graph_make_the_loss(preflight):
    done = preflight("gatdiag.experiments.models:gcn", "--data", "sbm", "--optimizer", "Adam", "--lr", "30", "--json")
    assert json.loads(done.stdout)["verdict"]["code"] == "lr-too-large"


def test_an_optimizer_has_the_weight_decay_that_is_given(preflight, monkeypatch):
    made = []
    monkeypatch.setattr("gatdiag.rehearsal.preflight", lambda *args, optimizer, **kwargs: made.append(optimizer) or {})
    preflight("shelf:good", *GIVEN, "--optimizer", "SGD", "--lr", "0.1", "--weight-decay", "0.03")
    preflight("shelf:good", *GIVEN, "--optimizer", "AdamW")
    assert [optimizer.defaults["weight_decay"] for optimizer in made] == [0.03, 0.01]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shelf:good", "--inputs", "shelf:inputs"], "--inputs has no labels: give --loss"),
        (["shelf:good", *GIVEN, "--lr", "1"], "give --optimizer, too"),
        (["shelf:good", *GIVEN, "--optimizer", "Adan"], "expected a class of torch.optim, such as SGD or Adam"),
        (["shelf:good", *GIVEN, "--optimizer", "SGD", "--lr", "-1"], "--optimizer SGD: Invalid learning rate: -1.0"),
        (["shelf:good", *GIVEN, "--fail-on", "x"], "'x' is not one of"),
        (["shelf:narrow", *GIVEN], "a training step of shelf:narrow raised RuntimeError: mat1 and mat2"),
        (["shelf:good", "--inputs", "shelf:inputs", "--loss", "shelf:raising"], "a training step of shelf:good raised"),
        (["shelf:twice", *GIVEN], "a training step of shelf:twice raised RuntimeError"),
    ],
)
def test_bad_input_is_one_line_and_status_2(preflight, arguments, says):
    done = preflight(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says in line


@pytest.mark.parametrize("place", ["gatdiag.run.meta.read", "gatdiag.diagnosis.rank_findings"])
def test_an_error_of_gatdiag_is_not_blamed_on_the_model(preflight, monkeypatch, place):
    def broken(*args, **options):
        raise KeyError("lost")

    monkeypatch.setattr(place, broken)
    done = preflight("shelf:good", *GIVEN)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "internal error of gatdiag (KeyError: 'lost')" in line
    assert "shelf:good" not in line

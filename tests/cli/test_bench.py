import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT
from typer.testing import CliRunner

from gatdiag.cli.app import app
from gatdiag.experiments import bench as experiments_bench


@pytest.fixture
def bench(monkeypatch, shelf):
    shelf.mlp = lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    shelf.inputs = lambda: [torch.ones(5, 4)]
    for peer in ("wandb", "aim", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, peer, None)
    return lambda *arguments: CliRunner(env={"COLUMNS": "100"}).invoke(app, ["bench", "--seconds", "0", *arguments])


def rows(done):
    assert done.exit_code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return lines[lines.index(next(line for line in lines if line and set(line[0]) == {"─"})) + 1 :]


def test_a_model_of_ones_own_is_measured(bench):
    done = bench("shelf:mlp", "--inputs", "shelf:inputs", "--peers")
    assert [line[:2] for line in rows(done)[:2]] == [["shelf:mlp", "fast"], ["shelf:mlp", "standard"]]
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("note:")] == [
        "wandb", "TensorBoard", "Aim",
    ]  # fmt: skip


def test_a_built_in_training_is_measured_as_a_table(bench):
    done = bench("--cases", "gcn-2-small", "--metrics", "fast", "--every", "3")
    assert done.exit_code == 0, done.stderr
    assert "every=3" in done.stdout
    (row,) = [line.split() for line in done.stdout.splitlines() if "gcn-2-small" in line]
    assert row[1] == "fast"


def test_what_remedies_cost(bench, monkeypatch):
    def small(name):
        return experiments_bench.Case(name, GAT(8, 8, num_layers=2), (torch.ones(2, 8), torch.zeros(2, 1).long()),
                                      torch.sum)  # fmt: skip

    monkeypatch.setattr(experiments_bench, "GATS", {"small": small})
    lines = [line for line in rows(bench("--remedies")) if line[:1] == ["small"]]
    assert [line[1] for line in lines] == [name.split()[0] for name in experiments_bench.REMEDIES]
    assert all(line[-1] == "+0" or int(line[-1]) > 0 for line in lines)


def test_other_tools_write_where_they_are_told(monkeypatch, tmp_path):
    written = []
    summary = ModuleType("torch.utils.tensorboard")

    class SummaryWriter:
        def __init__(self, folder):
            assert folder == tmp_path

        def add_scalar(self, name, value):
            written.append(name)

        def add_histogram(self, name, value):
            written.append(name)

        def flush(self):
            written.append("flushed")

        def close(self):
            written.append("closed")

    summary.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", summary)
    line = nn.Linear(2, 1, bias=False)
    with experiments_bench.PEERS["TensorBoard"](line, tmp_path) as after:
        line(torch.ones(3, 2)).sum().backward()
        after(torch.ones(()))
    assert written == ["loss", "weight", "weight.grad", "flushed", "closed"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--every", "0"], "--every: expected a positive number or auto"),
        (["--cases", "gcn-3"], "got gcn-3"),
        (["--data", "sbm"], "give PACKAGE.MODULE:FACTORY"),
        (["--cases", "gcn-2-small", "--metrics", "some"], "some"),
        (["--metrics", ","], "--metrics: expected some of fast, standard, full, got ','"),
        (["--seconds", "-1"], "Invalid value for '--seconds'"),
        (["shelf:absent"], "'shelf:absent' does not exist"),
        (["--device", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_status_2(bench, arguments, says):
    done = bench(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says in line
    assert "internal error" not in line

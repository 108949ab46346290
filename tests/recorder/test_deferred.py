"""Recording on an accelerator: the same values, and no wait for it. Without one, tensors pretend to be there."""

import traceback
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import GATConv

import gatdiag
from gatdiag.metrics import smoothing
from gatdiag.recorder import RecordingWarning, backlog, deferred, signals
from gatdiag.recorder.guard import Guard
from tests.recorder.loops import Gat, graph, loss_of, train, train_step

PACKAGE = gatdiag.__path__[0]
TABLES = ("steps", "layers", "parameters", "neurons")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none here")
WAITS = {"_local_scalar_dense", "nonzero", "equal", "bincount", "masked_select", "unique_dim", "_unique2"}


@pytest.fixture
def away(monkeypatch):
    """Tensors pretend not to be on the CPU."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False), raising=False)


class Waits(TorchDispatchMode):
    """Notes the lines of gatdiag for which the host would wait for the device."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(at is not None and at.dtype is torch.bool for at in args[1])
        if name in WAITS or by_mask:
            own = [f"{f.filename}:{f.lineno}" for f in traceback.extract_stack() if f.filename.startswith(PACKAGE)]
            self.lines += own[-1:]
        return func(*args, **(kwargs or {}))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1)


def assert_alike(run, expected, rtol=1e-5):
    for table in TABLES:
        found, wanted = (getattr(each, table).drop(columns="time", errors="ignore") for each in (run, expected))
        pd.testing.assert_frame_equal(found, wanted, rtol=rtol, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("max_bytes", [1, 5000, 64 << 20])
def test_values_are_those_of_the_cpu(tmp_path, monkeypatch, request, max_bytes):
    options = {"steps": 12, "metrics": "full", "every": 1, "make_optimizer": adam}
    expected = train(tmp_path / "cpu", **options)
    request.getfixturevalue("away")
    monkeypatch.setattr(deferred, "_MAX_BYTES", max_bytes)
    monkeypatch.setattr(signals, "_MAX_WAITING_BYTES", max_bytes)
    found = train(tmp_path / "away", **options)
    assert found.losses == expected.losses
    assert_alike(found.run, expected.run)
    about = [run.meta["signals"] for run in (found.run, expected.run)]
    assert about[0].keys() == about[1].keys()
    assert about[0]["output"]["criterion"] == about[1]["output"]["criterion"] == "cross-entropy"
    assert about[0]["output"]["labels"] == about[1]["output"]["labels"]
    assert about[0]["zero_inputs"] == about[1]["zero_inputs"]


def test_no_step_waits_for_the_device(tmp_path, monkeypatch, away):
    monkeypatch.setattr(backlog.Backlog, "is_due", False)
    monkeypatch.setattr(signals, "_UPDATE_SECONDS", 1e9)
    model, data, waits = Gat(), graph(), Waits()
    optimizer = adam(model.parameters())
    with gatdiag.watch(model, tmp_path / "run", every=1, warn=False):
        train_step(model, data, optimizer)
        with waits:
            for _ in range(25):
                train_step(model, data, optimizer)
                data.x = data.x.clone()  # a new batch
    assert waits.lines == []
    assert gatdiag.load(tmp_path / "run").layers.mu.notna().sum() == 26 * 3


def test_the_first_value_of_a_batch_that_is_not_finite(tmp_path, away):
    model, data = Gat(), graph()
    optimizer = adam(model.parameters())
    with gatdiag.watch(model, tmp_path / "run", every=1, warn=False):
        for step in range(4):
            data.x = data.x.clone()
            if step == 2:
                data.x[7, 3] = data.x[9, 1] = torch.nan
            train_step(model, data, optimizer)
    found = gatdiag.load(tmp_path / "run").meta["signals"]["inputs"][0]
    assert (found["step"], found["non_finite"], found["first"]) == (2, 2, [7, 3])


class Sums(NamedTuple):
    total: torch.Tensor


def sums(x):
    return Sums(x.double().sum((1, 2)))


def test_copies_are_measured_before_they_take_more_memory_than_allowed(monkeypatch):
    monkeypatch.setattr(deferred, "_MAX_BYTES", 100)
    waiting, tensor = deferred.Deferred(Guard()), torch.ones(2, 4)  # 32 bytes
    rows = [waiting.add(sums, number * tensor) for number in range(6)]
    assert [bool(row.batch._waiting) for row in rows] == [False] * 4 + [True] * 2
    large = torch.ones(5, 4)
    rows.append(waiting.add(sums, large))  # is measured at once
    tensor.zero_()
    large.zero_()
    assert [row.read().total for row in rows] == [0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 20.0]
    assert not waiting._batches
    kept = waiting.add(sums, torch.ones(1, 1))
    waiting.clear()
    assert kept.read().total == 1.0


def test_what_cannot_be_measured_is_lost_alone(tmp_path, monkeypatch, away):
    measure, calls = smoothing.output_statistics, []

    def failing(x):
        calls.append(x)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return measure(x)

    monkeypatch.setattr(smoothing, "output_statistics", failing)
    monkeypatch.setattr(deferred, "_MAX_BYTES", 1)
    with pytest.warns(RecordingWarning, match="out of memory"):
        run = train(tmp_path / "run", steps=3, metrics="standard", every=1).run
    assert run.layers.mu.isna().tolist() == [False, True] + [False] * 7
    assert run.layers.gradient_mu.notna().all()


def test_batches_of_many_sizes_are_forgotten(tmp_path, away):
    model, data = Gat(), graph()
    optimizer = adam(model.parameters())
    with gatdiag.watch(model, tmp_path / "run", every=1, warn=False) as recorder:
        for nodes in range(20, 40):
            data = graph(nodes)
            train_step(model, data, optimizer)
            loss_of(model, graph(5))  # no step follows
        recorder.diagnosis()
        assert not recorder._layers._deferred._batches
        loss_of(model, data)
    assert not recorder._layers._deferred._batches
    assert gatdiag.load(tmp_path / "run").layers.mu.notna().sum() == 20 * 3


class GatWithoutWaits(torch.nn.Module):
    """PyG's layers wait when they add self-loops."""

    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList(GATConv(5, 5, add_self_loops=False) for _ in range(3))

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = F.relu(conv(x, edge_index))
        return x


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}])
def test_on_a_gpu(tmp_path, monkeypatch, options):
    monkeypatch.setattr(backlog.Backlog, "is_due", False)
    monkeypatch.setattr(signals, "_UPDATE_SECONDS", 1e9)
    runs, model = [], GatWithoutWaits()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for device in ("cpu", "cuda"):
        model, data = GatWithoutWaits(), graph()
        model.load_state_dict(start)
        model = model.to(device)
        data.x, data.edge_index, data.y = (each.to(device) for each in (data.x, data.edge_index, data.y))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **(options if device == "cuda" else {}))
        with gatdiag.watch(model, tmp_path / device, every=1, warn=False) as recorder:
            for step in range(25):
                if device == "cuda" and step == 2:
                    torch.cuda.set_sync_debug_mode("error")
                recorder.log(loss=train_step(model, data, optimizer))
            torch.cuda.set_sync_debug_mode("default")
        runs.append(gatdiag.load(tmp_path / device))
    assert_alike(runs[1], runs[0], rtol=1e-2)
    c = runs[1].neurons[runs[1].neurons.step > 0]
    assert len(c)
    assert np.allclose(c.c, c.predicted_c, rtol=1e-4, atol=1e-6)

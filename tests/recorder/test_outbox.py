"""Rows from a device to the host. The meta device stands for an accelerator where only the order matters."""

import numpy as np
import pytest
import torch

from gatdiag.recorder import outbox
from gatdiag.recorder.outbox import Masked, Outbox

DEVICES = [
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none here")
    )
]


def test_what_is_on_the_host_is_written_at_once():
    written = []
    box = Outbox(lambda table, columns: written.append((table, columns)))
    box.put("layers", {"step": 3, "mu": torch.tensor([1.0, 2.0]), "x": np.array([1, 2]), "loss": torch.tensor(0.5)})
    ((table, columns),) = written
    assert table == "layers"
    assert columns["step"] == 3
    assert columns["mu"].tolist() == [1, 2]
    assert columns["loss"] == 0.5
    assert type(columns["loss"]) is float


def test_what_was_not_measured_is_masked():
    written = []
    box = Outbox(lambda table, columns: written.append(columns))
    box.put("layers", {"mu": Masked(torch.tensor([1.0, torch.nan, 3.0]), np.array([True, True, False]))})
    column = written[0]["mu"]
    assert column.mask.tolist() == [False, False, True]
    assert np.isnan(column[1])


def waiting_for(monkeypatch, device):
    """An outbox that takes tensors with an odd number of entries for ones on an accelerator."""
    monkeypatch.setattr(outbox, "_is_away", lambda value: isinstance(value, torch.Tensor) and value.numel() % 2 == 1)
    written = []
    return Outbox(lambda table, columns: written.append((table, columns))), written


def test_what_comes_after_something_on_a_device_waits_with_it(monkeypatch):
    box, written = waiting_for(monkeypatch, "cpu")
    box.put("a", {"x": torch.tensor([1.0, 2.0])})
    box.put("b", {"x": torch.tensor([1.0, 2.0, 3.0]), "y": torch.tensor([[4.0]])})
    box.put("c", {"x": torch.tensor([5.0, 6.0])})
    assert [table for table, _ in written] == ["a"]
    box.drain()
    assert [table for table, _ in written] == ["a", "b", "c"]
    assert written[1][1]["x"].tolist() == [1, 2, 3]
    assert written[1][1]["y"].tolist() == [[4]]
    box.put("d", {"x": torch.tensor([5.0, 6.0])})
    assert written[-1][0] == "d"


def test_nothing_waits_longer_than_a_second_or_without_end(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    box, written = waiting_for(monkeypatch, "cpu")
    box.put("a", {"x": torch.ones(1)})
    box.put("a", {"x": torch.ones(1)})
    assert not written
    now = 1.5
    box.put("a", {"x": torch.ones(1)})
    assert len(written) == 3
    for _ in range(outbox._MOST):
        box.put("a", {"x": torch.ones(1)})
    assert len(written) == 3 + outbox._MOST


@pytest.mark.parametrize("device", DEVICES)
def test_on_a_real_device(device):
    written = []
    box = Outbox(lambda table, columns: written.append(columns))
    box.put("a", {"x": torch.arange(3.0, device=device), "loss": torch.tensor(2.0, device=device)})
    assert not written
    box.drain()
    assert written[0]["x"].tolist() == [0, 1, 2]
    assert written[0]["loss"] == 2.0

"""Gradient scalers that were not given."""

import pytest
import torch
from torch.nn import functional as F

import gatdiag
from gatdiag.recorder import RecordingWarning
from gatdiag.recorder.optimizers import calling_scaler
from tests.recorder.loops import Gat, graph, loss_of


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_is_noticed_by_the_step_it_makes(tmp_path, fused, unscales):
    """Gradients of layer outputs with a scaler that was not given are those of the same loop without one."""
    recorded = {}
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        model, data = Gat(), graph()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
        with gatdiag.watch(model, tmp_path / str(scale)):
            for _ in range(3):
                scaler.scale(loss_of(model, data)).backward()
                if unscales:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        recorded[scale] = gatdiag.load(tmp_path / str(scale)).layers.output_gradient_norm.to_numpy()
    assert recorded[1024.0] == pytest.approx(recorded[1.0], rel=1e-4)


def test_outside_of_a_scalers_step_there_is_none():
    assert calling_scaler() is None


def test_float16_without_a_scaler_is_told_once(tmp_path):
    model, data = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).half(), graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(RecordingWarning, match="scaler=") as caught:
        with gatdiag.watch(model, tmp_path / "run"):
            for _ in range(3):
                (1024 * F.cross_entropy(model(data.x.half()).float(), data.y)).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert len(caught) == 1
    assert any("scaler=" in note for note in gatdiag.load(tmp_path / "run").meta["notes"])

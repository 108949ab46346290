"""The learning rates that are recommended, on a quadratic whose best rate is known."""

import pytest
import torch
from torch import nn

import gatdiag

X = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
Y = X @ torch.randn(6, 1, generator=torch.Generator().manual_seed(2))


def trained(folder, lr, momentum=0.0, steps=60):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    losses = []
    with gatdiag.watch(model, folder, every=1) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(X) - Y).square().mean()
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("wrong", [1e-6, 30.0])
def test_the_rate_that_is_recommended_trains(tmp_path, wrong, momentum):
    trained(tmp_path / "wrong", wrong, momentum)
    verdict = gatdiag.diagnose(tmp_path / "wrong").verdict
    assert verdict.code == ("lr-too-small" if wrong < 1 else "lr-too-large")
    (action,) = verdict.actions
    better = wrong * action.settings["factor"]
    assert f"lr={better:g}" in verdict.remedy
    assert 1e-4 < better < 0.2
    losses = trained(tmp_path / "better", better, momentum, steps=200)
    assert losses[-1] < 0.3 * losses[0]

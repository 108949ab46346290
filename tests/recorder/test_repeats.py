"""Targets of the same inputs, against those that the loop asked for."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag

X = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """Two layers that are told a time, too."""

    def __init__(self, columns):
        super().__init__()
        self.first, self.last = nn.Linear(12, 16), nn.Linear(16, columns)

    def forward(self, x, other=None, time=0):
        return self.last(self.first(x).relu())


def train(folder, targets, loss=F.cross_entropy, columns=3, given=lambda step: (X,), steps=12):
    torch.manual_seed(0)
    model = Scaled(columns)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gatdiag.watch(model, folder, every=1) as recorder:
        for step in range(steps):
            optimizer.zero_grad()
            value = loss(model(*given(step)), targets(step))
            value.backward()
            optimizer.step()
            recorder.log(loss=value.item())
    return gatdiag.load(folder).meta["signals"]["repeated_examples"]


def drawn(step):
    return torch.randint(3, (40,), generator=torch.Generator().manual_seed(step))


def kappa(one, other):
    chance = sum((one == each).mean() * (other == each).mean() for each in range(3))
    return ((one == other).mean() - chance) / (1 - chance)


def test_classes_that_stay_agree_and_those_that_are_drawn_anew_do_not(tmp_path):
    assert train(tmp_path / "stay", lambda step: drawn(0)) == {"pairs": 200, "agreement": 1.0}
    found = train(tmp_path / "drawn", drawn)
    steps = (1, 2, 3, 5, 8)  # inspected ones
    expected = kappa(*(np.concatenate([drawn(n) for n in chosen]) for chosen in ([0] * len(steps), steps)))
    assert found["pairs"] == 40 * len(steps)
    assert found["agreement"] == pytest.approx(expected)


def test_of_numbers_it_is_the_correlation(tmp_path):
    first, second = torch.randn(2, 40, 1, generator=torch.Generator().manual_seed(3))
    found = train(tmp_path / "run", lambda step: second if step else first, F.mse_loss, columns=1)
    expected = np.corrcoef(first.flatten(), second.flatten())[0, 1]
    assert found["agreement"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "given",
    [
        lambda step: (X, torch.full((3,), step)),  # another context
        lambda step: (X, None, step),
        lambda step: (X, torch.eye(3).to_sparse()),  # whose entries are not compared
        lambda step: (X, nn.Identity()),
        lambda step: (X + step,),
        lambda step: ((X > 0).float(),),  # two different numbers
    ],
)
def test_examples_of_another_context_are_not_compared(tmp_path, given):
    assert train(tmp_path / "run", drawn, given=given)["pairs"] == 0


def test_rows_that_are_alike_in_one_batch_are_no_example_that_comes_again(tmp_path):
    """As nodes with the same features, which have other neighbors, and rows of rounded data."""
    x = X[:20].repeat(2, 1)
    edges = torch.randint(40, (2, 90), generator=torch.Generator().manual_seed(0))
    turned = lambda step: (x.roll(20 * step, 0), edges.roll(step))  # noqa: E731
    assert train(tmp_path / "nodes", drawn, given=turned)["pairs"] == 0
    assert train(tmp_path / "rows", drawn, given=lambda step: (x,))["pairs"] == 0


def test_with_the_same_context_they_are(tmp_path):
    edges = torch.randint(40, (2, 90))
    assert train(tmp_path / "run", drawn, given=lambda step: (X, edges, 1))["pairs"] == 200

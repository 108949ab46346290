"""What goes into kinks is looked at, and nothing behind them is followed."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gatdiag.laws.kinks import Kinks

KINKED = {
    "relu": F.relu,
    "in place": lambda x: F.relu(x * 1, inplace=True),
    "method": lambda x: x.relu(),
    "leaky relu": F.leaky_relu,
    "module": torch.nn.ReLU(),
    "prelu": lambda x: F.prelu(x, torch.tensor(0.2).double()),
    "maximum": lambda x: torch.maximum(x, x.detach() - 1),
    "max": lambda x: x.max(dim=0),
    "clamp": lambda x: x.clamp(min=0),
    "abs": lambda x: abs(x),
    "sort": lambda x: torch.sort(x),
    "where": lambda x: torch.where(x > 0, x, 0),
    "scatter the largest": lambda x: torch.zeros(2).double().scatter_reduce(0, torch.tensor([0, 1, 0]), x, "amax"),
    "max pool": lambda x: F.max_pool1d(x.reshape(1, 1, 3), 2),
}
SMOOTH = {
    "tanh": torch.tanh,
    "product": lambda x: x * x,
    "softmax": lambda x: x.softmax(0),
    "scatter the sum": lambda x: torch.zeros(2).double().scatter_reduce(0, torch.tensor([0, 1, 0]), x, "sum"),
    "scatter the mean": lambda x: torch.zeros(2).double().scatter_reduce(0, torch.tensor([0, 1, 0]), x, reduce="mean"),
}


def leaf() -> Tensor:
    return torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)


def through(operation: object) -> tuple[Tensor, list[Tensor], Tensor]:
    x = leaf()
    with Kinks(torch.Generator().manual_seed(0)) as kinks:
        out = operation(x * 2)  # type: ignore[operator]
    return x, kinks.projections, out if isinstance(out, Tensor) else out[0]


@pytest.mark.parametrize("name", KINKED)
def test_a_kink_projects_its_input_and_cuts_its_output_off(name: str) -> None:
    x, projections, out = through(KINKED[name])

    assert not out.requires_grad
    assert len(projections) >= 1
    (gradient,) = torch.autograd.grad(projections[0], x)
    assert bool((gradient != 0).all())
    plain = KINKED[name](leaf().detach() * 2)
    assert torch.equal(out, plain if isinstance(plain, Tensor) else plain[0])


@pytest.mark.parametrize("name", SMOOTH)
def test_what_is_smooth_goes_through(name: str) -> None:
    x, projections, out = through(SMOOTH[name])

    assert projections == []
    assert out.requires_grad
    torch.testing.assert_close(
        torch.autograd.grad(out.sum() + out.square().sum(), x)[0],
        _gradient(SMOOTH[name]),
    )


def _gradient(operation: object) -> Tensor:
    x = leaf()
    out = operation(x * 2)  # type: ignore[operator]
    return torch.autograd.grad(out.sum() + out.square().sum(), x)[0]


def test_without_gradients_nothing_is_noted() -> None:
    with torch.no_grad(), Kinks(torch.Generator()) as kinks:
        F.relu(leaf() * 2)

    assert kinks.projections == []


def test_a_tensor_without_history_is_not_noted() -> None:
    with Kinks(torch.Generator()) as kinks:
        F.relu(torch.ones(3))

    assert kinks.projections == []

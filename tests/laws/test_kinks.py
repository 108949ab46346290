"""What goes into kinks is looked at, nothing behind them is followed, and what leaves them is in general position."""

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
    "in place on a view": lambda x: _first_written(x * 1),
}
SMOOTH = {
    "tanh": torch.tanh,
    "product": lambda x: x * x,
    "softmax": lambda x: x.softmax(0),
    "scatter the sum": lambda x: torch.zeros(2).double().scatter_reduce(0, torch.tensor([0, 1, 0]), x, "sum"),
    "scatter the mean": lambda x: torch.zeros(2).double().scatter_reduce(0, torch.tensor([0, 1, 0]), x, reduce="mean"),
}


def _first_written(x: Tensor) -> Tensor:
    x[:3].relu_()
    return x


def leaf() -> Tensor:
    return torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)


def through(operation: object) -> tuple[Tensor, list[Tensor], Tensor]:
    x = leaf()
    with Kinks(torch.Generator().manual_seed(0)) as kinks:
        out = operation(x * 2)  # type: ignore[operator]
    return x, kinks.projections, out if isinstance(out, Tensor) else out[0]


@pytest.mark.parametrize("name", KINKED)
def test_a_kink_projects_its_input_cuts_its_output_off_and_moves_it(name: str) -> None:
    x, projections, out = through(KINKED[name])

    assert out.requires_grad
    (through_it,) = torch.autograd.grad(out.sum(), x, allow_unused=True, materialize_grads=True, retain_graph=True)
    assert not through_it.any()
    assert len(projections) == 1
    (gradient,) = torch.autograd.grad(projections[0], x)
    assert bool((gradient != 0).all())
    plain = KINKED[name](leaf().detach() * 2)  # type: ignore[operator]
    plain = plain if isinstance(plain, Tensor) else plain[0]
    assert bool((out != plain).all())
    width = (plain.max() - plain.min()).clamp(min=float(plain.abs().max()))
    assert bool(((out - plain).abs() <= 0.2 * width).all())


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


def test_dead_units_come_back_to_life_and_each_kink_sees_the_last_one() -> None:
    with Kinks(torch.Generator().manual_seed(0)) as kinks:
        once = F.relu(leaf() - 5)
        again = F.relu(once - 5)

    assert len(kinks.projections) == 2
    assert all(bool((out > 0).all()) and len(out.unique()) == 3 for out in (once, again))


def test_what_is_computed_twice_stays_equal_and_what_differs_does_not() -> None:
    with Kinks(torch.Generator().manual_seed(0)):
        x = leaf()
        first, second, other = F.relu(x - 5), F.relu(x - 5), F.relu(x - 6)

    assert torch.equal(first, second)
    assert not bool((first == other).any())


def test_without_gradients_nothing_is_noted_and_the_same_is_moved() -> None:
    """As a checkpointed segment runs, before the backward pass runs it again."""
    x = leaf()
    with Kinks(torch.Generator().manual_seed(0)) as kinks:
        with torch.no_grad():
            first = F.relu(x - 5)
        assert kinks.projections == []
        assert torch.equal(first, F.relu(x - 5))


def test_a_tensor_without_history_is_not_noted() -> None:
    with Kinks(torch.Generator()) as kinks:
        out = F.relu(torch.ones(3))

    assert kinks.projections == []
    assert torch.equal(out, torch.ones(3))

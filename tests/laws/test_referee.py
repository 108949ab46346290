"""The referee itself, on models whose laws are known by hand, and on broken ones it must refuse or see through."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.laws.referee import TINY_EPS, Draws, UnclearGapError, count_laws, cut, spectrum
from tests.laws.zoo import build


def test_an_unclear_gap_is_refused() -> None:
    orthonormal = torch.linalg.qr(torch.randn(40, 5, dtype=torch.float64)).Q
    mixing = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    sizes = torch.tensor([1.0, 0.5, 0.1, 1e-8, 1e-11], dtype=torch.float64)

    with pytest.raises(UnclearGapError, match="no clear gap"):
        cut(orthonormal * sizes @ mixing)


class Kinked(nn.Module):
    """relu(x + 3) + relu(-x - 3) - |x + 3|: zero everywhere, so its factor has no gradient; the other factor has."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        nothing = F.relu(x + 3) + F.relu(-x - 3) - (x + 3).abs()
        return self.a * nothing + self.b * x


class Rare(nn.Module):
    """The factor `a` matters only where an input is larger than most."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.b * x + self.a * F.relu(x - 3)


class NeverUsed(nn.Module):
    """One parameter does not reach the output, another is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(4, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x) * self.frozen


def test_an_entry_whose_gradient_is_always_zero_is_a_law() -> None:
    assert count_laws(Kinked(), (torch.randn(4, 1),)) == 1


def test_an_entry_that_is_rarely_needed_is_not() -> None:
    assert count_laws(Rare(), (torch.tensor([-1.0, 1.0]),)) == 0


def test_parameters_without_a_gradient_are_left_out() -> None:
    found = spectrum(NeverUsed(), (torch.randn(5, 3),))

    assert (found.laws, found.entries) == (0, 8)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Tensors are made in float64, from known random numbers."""
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(precision)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    "name",
    [
        "attention: gatv2 shared",
        "pooling: gru aggregation",
    ],
)
def test_many_draws_at_once_have_the_null_space_of_single_ones(name: str) -> None:
    model, args, kwargs = build(name)
    at_once, singly = (Draws(model.double(), args, dict(kwargs), TINY_EPS) for _ in range(2))
    singly.vectorized = None
    for draws in (at_once, singly):
        draws.add(200)

    assert at_once.vectorized
    assert at_once.kept + at_once.refused == singly.kept + singly.refused == 200
    counts = {cut(rows).laws for rows in (at_once.rows, singly.rows, torch.cat([at_once.rows, singly.rows]))}
    assert len(counts) == 1

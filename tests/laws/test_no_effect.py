"""Entries without effect for good are told from those that are dead, saturated or alike by chance."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import AttentionalAggregation

from gatdiag.laws.check import gather_evidence
from gatdiag.laws.no_effect import CutAtNonsmooth


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def without_effect(model: nn.Module, *args: Tensor) -> dict[str, list[bool]]:
    layer_of = {name: name.rpartition(".")[0] for name, _ in model.named_parameters()}
    found = gather_evidence(model, args, {}, layer_of)
    return {name: mask.tolist() for name, mask in found.no_effect.items()}


def test_a_bias_before_batch_norm_is_without_effect() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    assert without_effect(model, torch.randn(8, 3)) == {"0.bias": [True] * 4}


class Attending(nn.Module):
    """Scores q.k for every pair of rows: a shift of all keys changes no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).t()).softmax(1) @ self.value(x)


def test_the_bias_of_keys_has_no_effect_and_that_of_queries_is_not() -> None:
    assert without_effect(Attending(), torch.randn(6, 3)) == {"key.bias": [True] * 4}


def dead(act: nn.Module) -> nn.Sequential:
    """Neuron 1 is below zero for every input near the given ones."""
    model = nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias[1] = -50
    return model


@pytest.mark.parametrize("act", [nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(1e-9)], ids=["relu", "leaky", "flat"])
def test_a_dead_or_linear_neuron_is_not_without_effect(act: nn.Module) -> None:
    assert without_effect(dead(act), torch.randn(5, 3)) == {}


class Alike(nn.Module):
    """A shift of all scores of a softmax, behind a LeakyReLU: without effect only while every score has one sign."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.shift = nn.Linear(3, 1, bias=False), nn.Parameter(torch.tensor([40.0]))
        self.value = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.score(x) + self.shift, 0.2).softmax(0).t() @ self.value(x)


def test_what_cancels_only_while_a_leaky_relu_is_linear_is_not_without_effect() -> None:
    assert "shift" not in without_effect(Alike(), torch.randn(6, 3))


class Weighing(nn.Module):
    """Attention over rows that a layer of ReLUs wrote; where all of those are dead, the rows are equal."""

    def __init__(self, act: Callable[[Tensor], Tensor], segment: str = "plain") -> None:
        super().__init__()
        self.enter, self.first, self.key, self.value = (nn.Linear(4, 4) for _ in range(4))
        self.att, self.act, self.segment = nn.Parameter(torch.randn(4, 1)), act, segment

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        if self.segment == "plain":
            rows = self.rows(x)
        else:
            rows = checkpoint(self.rows, x, use_reentrant=self.segment == "reentrant")
        return (self.act(self.key(rows)) @ self.att).softmax(0).t() @ self.value(x)

    def rows(self, x: Tensor) -> Tensor:
        return self.first(x).relu()


@pytest.mark.parametrize("segment", ["plain", "reentrant", "recomputed"])
@pytest.mark.parametrize("act", [F.leaky_relu, torch.tanh])
def test_attention_over_rows_that_are_equal_because_all_units_are_dead_is_not_without_effect(
    act: Callable[[Tensor], Tensor], segment: str
) -> None:
    model = Weighing(act, segment)
    with torch.no_grad():
        model.first.bias.fill_(-50)

    assert without_effect(model, torch.randn(6, 4)) == {}


@pytest.mark.parametrize("size", [100, 1000])
def test_a_saturated_softmax_is_not_without_effect(size: float) -> None:
    """Its gradient is the difference of two equal numbers, yet only here."""
    model = AttentionalAggregation(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1, bias=False)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= size

    assert without_effect(model, torch.randn(9, 5)) == {}


def test_what_cancels_in_a_checkpointed_segment_is_without_effect() -> None:
    class Recomputed(Attending):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    assert without_effect(Recomputed(), torch.randn(6, 3)) == {"key.bias": [True] * 4}


NONSMOOTH = {
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
    with CutAtNonsmooth(torch.Generator().manual_seed(0)) as cut:
        out = operation(x * 2)  # type: ignore[operator]
    return x, cut.projections, out if isinstance(out, Tensor) else out[0]


@pytest.mark.parametrize("name", NONSMOOTH)
def test_what_enters_a_nonsmooth_operation_is_projected_and_what_leaves_it_is_cut_off_and_moved(name: str) -> None:
    x, projections, out = through(NONSMOOTH[name])

    assert out.requires_grad
    (through_it,) = torch.autograd.grad(out.sum(), x, allow_unused=True, materialize_grads=True, retain_graph=True)
    assert not through_it.any()
    assert len(projections) == 1
    (gradient,) = torch.autograd.grad(projections[0], x)
    assert bool((gradient != 0).all())
    plain = NONSMOOTH[name](leaf().detach() * 2)  # type: ignore[operator]
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


def test_what_is_computed_twice_stays_equal_and_what_differs_does_not() -> None:
    with CutAtNonsmooth(torch.Generator().manual_seed(0)):
        x = leaf()
        first, second, other = F.relu(x - 5), F.relu(x - 5), F.relu(x - 6)

    assert torch.equal(first, second)
    assert not bool((first == other).any())


def test_without_gradients_nothing_is_noted_and_the_same_is_moved() -> None:
    """As a checkpointed segment runs, before the backward pass runs it again."""
    x = leaf()
    with CutAtNonsmooth(torch.Generator().manual_seed(0)) as cut:
        with torch.no_grad():
            first = F.relu(x - 5)
        assert cut.projections == []
        assert torch.equal(first, F.relu(x - 5))

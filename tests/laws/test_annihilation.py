"""Entries without effect for good are told from those that are dead, saturated or alike by chance."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import AttentionalAggregation

from gatdiag.laws.check import gather
from gatdiag.structure.replica import replicate


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def annihilated(model: nn.Module, *args: Tensor) -> dict[str, list[bool]]:
    layer_of = {name: name.rpartition(".")[0] for name, _ in model.named_parameters()}
    found = gather(replicate(model, args).to(torch.float64), layer_of)
    return {name: mask.tolist() for name, mask in found.annihilated.items()}


def test_a_bias_before_batch_norm_is_annihilated() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    assert annihilated(model, torch.randn(8, 3)) == {"0.bias": [True] * 4}


def test_a_bias_before_running_statistics_is_not() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()

    assert annihilated(model, torch.randn(8, 3)) == {}


class Attending(nn.Module):
    """Scores q.k for every pair of rows: a shift of all keys changes no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).t()).softmax(1) @ self.value(x)


def test_the_bias_of_keys_is_annihilated_and_that_of_queries_is_not() -> None:
    assert annihilated(Attending(), torch.randn(6, 3)) == {"key.bias": [True] * 4}


def dead(act: nn.Module) -> nn.Sequential:
    """Neuron 1 is below zero for every input near the given ones."""
    model = nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias[1] = -50
    return model


@pytest.mark.parametrize("act", [nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(1e-9)], ids=["relu", "leaky", "flat"])
def test_a_dead_or_linear_neuron_is_not_annihilated(act: nn.Module) -> None:
    assert annihilated(dead(act), torch.randn(5, 3)) == {}


class Alike(nn.Module):
    """A shift of all scores of a softmax, behind a LeakyReLU: without effect only while every score has one sign."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.shift = nn.Linear(3, 1, bias=False), nn.Parameter(torch.tensor([40.0]))
        self.value = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.score(x) + self.shift, 0.2).softmax(0).t() @ self.value(x)


def test_what_cancels_only_while_a_leaky_relu_is_linear_is_not_annihilated() -> None:
    assert "shift" not in annihilated(Alike(), torch.randn(6, 3))


def test_without_the_kink_it_is() -> None:
    class Smooth(Alike):
        def forward(self, x: Tensor) -> Tensor:
            return (self.score(x) + self.shift).softmax(0).t() @ self.value(x)

    assert annihilated(Smooth(), torch.randn(6, 3)) == {"shift": [True]}


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
def test_attention_over_rows_that_are_equal_because_all_units_are_dead_is_not_annihilated(
    act: Callable[[Tensor], Tensor], segment: str
) -> None:
    model = Weighing(act, segment)
    with torch.no_grad():
        model.first.bias.fill_(-50)

    assert annihilated(model, torch.randn(6, 4)) == {}


@pytest.mark.parametrize("size", [100, 1000])
def test_a_saturated_softmax_is_not_annihilated(size: float) -> None:
    """Its gradient is the difference of two equal numbers, yet only here."""
    for seed in range(3):
        torch.manual_seed(seed)
        model = AttentionalAggregation(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1, bias=False)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= size

        assert annihilated(model, torch.randn(9, 5)) == {}


def test_what_cancels_in_a_checkpointed_segment_is_annihilated() -> None:
    class Recomputed(Attending):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    assert annihilated(Recomputed(), torch.randn(6, 3)) == {"key.bias": [True] * 4}

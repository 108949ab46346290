"""Sums over neighbors and attention that a model writes out, and operations that only look like them."""

import math

import pytest
import torch
from torch import Tensor, nn

from gatdiag.laws.mixing import Mixing
from tests.laws.training import traced

ADJACENCY = torch.eye(6) + torch.eye(6).roll(1, 0)
EDGES = ADJACENCY.nonzero().t()


class Stack(nn.Module):
    """Linear layers, each followed by an operation."""

    def __init__(self, mix, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.square, self.mix = nn.Parameter(torch.randn(6, 6)), mix

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.mix(self, layer(x))
        return x


class Attention(nn.Module):
    def __init__(self, factor, is_masked=False):
        super().__init__()
        self.maps, self.factor, self.is_masked = nn.Linear(4, 12), factor, is_masked

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.maps(x).chunk(3, -1)
        scores = query @ key.transpose(-2, -1) * self.factor
        if self.is_masked:
            scores = scores.masked_fill(torch.eye(6) == 0, -1e9)
        return nn.functional.dropout(scores.softmax(-1), 0.1) @ value


def seen(model: nn.Module) -> Mixing:
    torch.manual_seed(0)
    with traced(model) as trace:
        model(torch.randn(6, 4))
    return trace.mixing


@pytest.mark.parametrize(
    ("mix", "count"),
    [
        (lambda _, h: ADJACENCY @ h, 3),
        (lambda _, h: torch.sparse.mm(ADJACENCY.to_sparse(), h), 3),
        (lambda _, h: torch.zeros_like(h).index_add(0, EDGES[1], h[EDGES[0]]), 3),
        (lambda model, h: model.square @ h, 0),  # a weight
        (lambda _, h: h.relu(), 0),
    ],
)
def test_sums_over_given_edges_are_counted(mix, count):
    assert seen(Stack(mix)).propagations == count


@pytest.mark.parametrize(("factor", "share"), [(0.0, 0.0), (1e4, 1.0)])
def test_the_share_of_rows_is_that_whose_largest_coefficient_is_nearly_one(factor, share):
    model = nn.Sequential(nn.Linear(4, 4), Attention(factor))
    mixing = seen(model)
    assert {module: float(value) for module, value in mixing.peaks.items()} == {"1": share}


def test_rows_with_one_entry_that_is_not_masked_have_no_choice():
    (share,) = seen(nn.Sequential(Attention(1.0, is_masked=True))).peaks.values()
    assert math.isnan(float(share))


class Smoothing(nn.Module):
    """A linear layer behind products of the data with a matrix."""

    def __init__(self, mix):
        super().__init__()
        self.last, self.mix = nn.Linear(4, 2), mix

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mix(x))


@pytest.mark.parametrize(
    ("mix", "hops"),
    [
        (lambda x: ADJACENCY @ (ADJACENCY @ x), 2),
        (lambda x: torch.zeros_like(x).index_add(0, EDGES[1], x[EDGES[0]]), 1),
        (lambda x: (ADJACENCY @ ADJACENCY) @ x, 1),
        (lambda x: x @ torch.eye(4), 0),  # of its columns
        (lambda x: x.relu(), 0),
    ],
)
def test_sums_of_the_data_over_given_edges_are_counted(mix, hops):
    mixing = seen(Smoothing(mix))
    assert mixing.hops == hops
    assert (mixing.data is not None) == (hops > 0)


def test_the_rate_of_dropout_is_seen_wherever_it_is_called():
    class Dropping(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.9) + nn.functional.dropout(x, 0.2)

    found = seen(nn.Sequential(nn.Linear(4, 4), Dropping(), nn.Dropout(0.3))).dropped
    assert found == {"1": pytest.approx(0.9), "2": pytest.approx(0.3)}


@pytest.mark.parametrize(("axis", "along"), [(0, {"1": (6, 4)}), (1, {})])
def test_a_softmax_over_the_first_axis_is_seen(axis, along):
    assert seen(nn.Sequential(nn.Linear(4, 4), nn.Softmax(axis))).along_rows == along


class Reading(nn.Module):
    """Attention over sequences of six, whose scores are masked in some way, or as one operation."""

    def __init__(self, mask, is_fused):
        super().__init__()
        self.maps, self.mask, self.is_fused = nn.Linear(4, 12), mask, is_fused

    def forward(self, x):
        query, key, value = self.maps(x).unflatten(0, (2, 3)).chunk(3, -1)
        if self.is_fused:
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.mask is not None)
        scores = query @ key.transpose(-2, -1)
        return (scores if self.mask is None else scores.masked_fill(self.mask, -1e9)).softmax(-1) @ value


CAUSAL = torch.ones(3, 3).triu(1) > 0


@pytest.mark.parametrize(
    ("mask", "is_fused", "length"),
    [
        (None, False, 3),
        (None, True, 3),
        (CAUSAL, False, 0),
        (CAUSAL, True, 0),
        (CAUSAL | (torch.arange(3) < 1), False, 0),  # padding in front, whose own row is masked altogether
        (CAUSAL | (torch.arange(3) == 2), False, 0),  # and behind
    ],
)
def test_attention_that_reads_what_comes_later_is_seen(mask, is_fused, length):
    assert max(map(int, seen(Reading(mask, is_fused)).ahead.values()), default=0) == length

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

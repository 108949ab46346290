import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.metrics.attention import attention_spread
from tests.metrics.oracles import attention_entropies


def drawn_attention(seed, num_nodes, num_edges, heads):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(num_nodes, (num_edges,), generator=generator)
    alpha = torch.rand(num_edges, heads, generator=generator, dtype=torch.float64)
    for node in range(num_nodes):
        alpha[target == node] /= alpha[target == node].sum(0)
    return alpha, target


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 6), num_edges=st.integers(1, 15), heads=st.integers(1, 3))
def test_against_loops(device, seed, num_nodes, num_edges, heads):
    alpha, target = drawn_attention(seed, num_nodes, num_edges, heads)
    found = [value.item() for value in attention_spread(alpha.to(device), target.to(device))[:2]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # means of nothing
        assert found == pytest.approx(attention_entropies(alpha, target), abs=1e-12, nan_ok=True)
    order = torch.randperm(num_edges, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        attention_spread(alpha[order], target[order]), attention_spread(alpha, target), equal_nan=True
    )
    torch.testing.assert_close(
        attention_spread(alpha[:, 0], target), attention_spread(alpha[:, :1], target), equal_nan=True
    )


def test_extremes():
    alpha, target = torch.tensor([0.25] * 4 + [1.0, 0.0]), torch.tensor([0, 0, 0, 0, 1, 1])
    assert [value.item() for value in attention_spread(alpha, target)[:2]] == pytest.approx([math.log(4) / 2, 0.5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float64(dtype):
    alpha, target = torch.full((1024,), 1 / 1024, dtype=dtype), torch.zeros(1024, dtype=torch.long)
    assert attention_spread(alpha, target)[0].item() == pytest.approx(math.log(1024), rel=1e-14)


def test_without_edges_nothing_is_defined():
    assert all(value.isnan() for value in attention_spread(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 6), num_edges=st.integers(0, 15), heads=st.integers(1, 3))
def test_peaked_nodes_are_counted_as_by_loops(seed, num_nodes, num_edges, heads):
    alpha, target = drawn_attention(seed, num_nodes, num_edges, heads)
    several = [node for node in range(num_nodes) if (target == node).sum() > 1]
    hits = [float(alpha[target == node, head].max()) > 0.6 for node in several for head in range(heads)]
    share = attention_spread(alpha, target, level=0.6)[2].item()
    assert share == pytest.approx(sum(hits) / len(hits)) if hits else math.isnan(share)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_makes_the_spread_undefined(value):
    assert all(each.isnan() for each in attention_spread(torch.tensor([value, 1.0]), torch.tensor([0, 0])))


def test_many_layers_together(device):
    layers = [drawn_attention(seed, 4, 12, 2) for seed in range(3)]
    alpha, target = (torch.stack(each).to(device) for each in zip(*layers, strict=True))
    together = torch.stack([*attention_spread(alpha, target)], 1)
    apart = torch.stack([torch.stack([*attention_spread(*layer)]) for layer in layers])
    torch.testing.assert_close(together.cpu(), apart)

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.metrics.attention import attention_entropy, attention_spread


def drawn_attention(seed, num_nodes, num_edges, heads):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(num_nodes, (num_edges,), generator=generator)
    alpha = torch.rand(num_edges, heads, generator=generator, dtype=torch.float64)
    for node in range(num_nodes):
        alpha[target == node] /= alpha[target == node].sum(0)
    return alpha, target


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 6), num_edges=st.integers(0, 15), heads=st.integers(1, 3))
def test_against_loops(device, seed, num_nodes, num_edges, heads):
    alpha, target = drawn_attention(seed, num_nodes, num_edges, heads)
    entropy = attention_entropy(alpha.to(device), target.to(device), num_nodes)
    relative = []
    for node in range(num_nodes):
        for head in range(heads):
            mine = alpha[target == node, head].tolist()
            expected = -sum(a * math.log(a) for a in mine)
            assert entropy[node, head].item() == pytest.approx(expected, abs=1e-12)
            if len(mine) > 1:
                relative.append(expected / math.log(len(mine)))
    order = torch.randperm(num_edges, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(attention_entropy(alpha[order], target[order], num_nodes), entropy.cpu())
    one_head = attention_entropy(alpha[:, 0], target, num_nodes)
    torch.testing.assert_close(one_head, entropy[:, 0].cpu())
    degree = target.bincount(minlength=num_nodes)
    expected = (entropy.cpu()[degree > 0].mean(), torch.tensor(relative, dtype=torch.float64).mean())
    torch.testing.assert_close(attention_spread(alpha, target)[:2], expected, equal_nan=True)


def test_extremes():
    target = torch.tensor([0, 0, 0, 0, 1, 1])
    alpha = torch.tensor([0.25] * 4 + [1.0, 0.0])
    assert attention_entropy(alpha, target, 2).tolist() == pytest.approx([math.log(4), 0])
    assert attention_spread(alpha, target)[1].item() == pytest.approx(0.5)  # of 1 and 0


def test_nan_stays_at_its_node():
    target, alpha = torch.tensor([0, 0, 1, 1]), torch.tensor([0.5, torch.nan, 0.5, 0.5])
    assert attention_entropy(alpha, target, 2).isnan().tolist() == [True, False]
    assert all(mean.isnan() for mean in attention_spread(alpha, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float64(dtype):
    alpha, target = torch.full((1024,), 1 / 1024, dtype=dtype), torch.zeros(1024, dtype=torch.long)
    assert attention_entropy(alpha, target, 1).item() == pytest.approx(math.log(1024), rel=1e-14)


def test_without_edges_or_nodes():
    none, alpha = torch.zeros(0, dtype=torch.long), torch.zeros(0, 2)
    assert attention_entropy(alpha, none, 3).tolist() == [[0, 0]] * 3
    assert attention_entropy(alpha, none, 0).shape == (0, 2)
    assert all(mean.isnan() for mean in attention_spread(alpha, none))


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

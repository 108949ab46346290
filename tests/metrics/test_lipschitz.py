"""The bound of the theorem against Jacobians at many random points, gentle and extreme."""

import math

import pytest
import torch

from gatdiag.metrics.lipschitz import attention_bound, heads_bound

CASES = range(120)


def drawn_tokens(case):
    """Random sizes and scales; every third case has tokens in two clusters, where moving attention matters most."""
    generator = torch.Generator().manual_seed(case)
    m, n, d = (int(k) for k in torch.randint(1, 5, (3,), generator=generator))
    scale = 10.0 ** (torch.rand(2, generator=generator, dtype=torch.float64) * 3 - 1.5)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if case % 3 == 0:
        x = torch.randn(1, d, generator=generator, dtype=torch.float64).repeat(n, 1)
        x[: n // 2] *= -1
        x = x + 0.01 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    return scale[0] * x, scale[1] * torch.randn(m, d, generator=generator, dtype=torch.float64)


def joint_jacobian_norm(function, *inputs):
    jacobians = torch.autograd.functional.jacobian(function, inputs)
    return torch.linalg.matrix_norm(torch.cat([j.flatten(-2).flatten(0, 1) for j in jacobians], 1), 2)


def attend(scores, values):
    return scores.softmax(-1) @ values


def radius(tokens):
    return tokens.norm(dim=-1).amax()


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_linear_scores_divided_keep_the_theorem(alpha):
    ratios = []
    for case in CASES:
        x, q = drawn_tokens(case)
        true = joint_jacobian_norm(lambda x, q=q: attend(alpha * (q @ x.T) / (q.norm() * radius(x)), x), x)
        ratios.append((true / attention_bound(torch.tensor(alpha), len(q), len(x))).item())
    assert max(ratios) <= 1
    assert max(ratios) > 0.03


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_dot_product_scores_divided_keep_the_theorem(alpha):
    ratios = []
    for case in CASES:
        (k, q), v = drawn_tokens(case), drawn_tokens(case + 1000)[0]
        v = v[torch.arange(len(k)) % len(v)]

        def layer(q, k, v):
            u, v_k, w = q.norm(), radius(k), radius(v)
            return attend(alpha * (q @ k.T) / torch.stack([u * v_k, u * w, v_k * w]).amax(), v)

        true = joint_jacobian_norm(layer, q, k, v)
        ratios.append((true / attention_bound(torch.tensor(alpha), len(q), len(k))).item())
    assert max(ratios) <= 1
    assert max(ratios) > 0.03


def test_bounds_are_their_formulas():
    assert attention_bound(torch.tensor(2.0), 3, 12).item() == pytest.approx(math.e**2 / 2 + 2 * math.sqrt(8))
    assert attention_bound(torch.tensor([0.0, 1.0]), 0, 0).tolist() == pytest.approx([0, math.sqrt(8)])
    assert attention_bound(torch.tensor(1.0), 2, 0) == torch.inf
    assert attention_bound(torch.tensor(torch.nan), 2, 3).isnan()
    heads = torch.full((4,), 1e-30)
    assert heads_bound(heads) == 2 * heads[0].double()
    assert heads_bound(heads, concat=False) == heads[0].double()
    assert heads_bound(torch.tensor([1.0, torch.nan])).isnan()

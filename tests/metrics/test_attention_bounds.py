"""The bounds of paper 2 against Jacobians of attention at hundreds of random points, gentle and extreme."""

import math

import pytest
import torch

from gatdiag.metrics.lipschitz import (
    attention_alpha,
    attention_bound,
    jacobian_bound,
    linear_score_divisor,
    quadratic_score_divisor,
    score_norm,
    token_radius,
)

CASES = range(120)


def draw(case):
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


def jacobian_norm(function, *inputs):
    jacobians = torch.autograd.functional.jacobian(function, inputs)
    return torch.linalg.matrix_norm(torch.cat([j.flatten(-2).flatten(0, 1) for j in jacobians], 1), 2)


def attend(scores, values):
    return scores.softmax(-1) @ values


def ratios_of_lemma(constant, score_size):
    ratios = []
    for case in CASES:
        x, q = draw(case)
        true = jacobian_norm(lambda x, q=q: attend(q @ x.T, x), x)
        bound = jacobian_bound((q @ x.T).softmax(-1), token_radius(x), score_size(q), constant=constant)
        ratios.append((true / bound).item())
    return ratios


def test_lemma_holds():
    ratios = ratios_of_lemma(math.sqrt(2), torch.linalg.matrix_norm)
    assert max(ratios) <= 1
    assert max(ratios) > 0.9


def test_lemma_holds_with_constant_one_and_the_spectral_norm():
    ratios = ratios_of_lemma(1.0, lambda q: torch.linalg.matrix_norm(q, 2))
    assert max(ratios) <= 1 + 1e-12
    assert max(ratios) > 0.9


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_linear_scores_divided_keep_the_theorem(alpha):
    ratios = []
    for case in CASES:
        x, q = draw(case)
        true = jacobian_norm(lambda x, q=q: attend(alpha * (q @ x.T) / linear_score_divisor(q, x), x), x)
        ratios.append((true / attention_bound(torch.tensor(alpha), len(q), len(x))).item())
        measured = attention_alpha(
            alpha * (q @ x.T),
            token_radius(x),
            alpha * torch.linalg.matrix_norm(q),
            divisor=linear_score_divisor(q, x),
            divisor_lipschitz=torch.linalg.matrix_norm(q),
        )
        assert measured <= alpha * (1 + 1e-12)
    assert max(ratios) <= 1
    assert max(ratios) > 0.03


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_dot_product_scores_divided_keep_the_theorem(alpha):
    ratios = []
    for case in CASES:
        (k, q), v = draw(case), draw(case + 1000)[0]
        v = v[torch.arange(len(k)) % len(v)]
        true = jacobian_norm(lambda q, k, v: attend(alpha * (q @ k.T) / quadratic_score_divisor(q, k, v), v), q, k, v)
        ratios.append((true / attention_bound(torch.tensor(alpha), len(q), len(k))).item())
    assert max(ratios) <= 1
    assert max(ratios) > 0.03


def test_theorem_holds_at_a_point_without_division():
    ratios = []
    for case in CASES:
        x, q = draw(case)
        alpha = attention_alpha(q @ x.T, token_radius(x), torch.linalg.matrix_norm(q, 2))
        true = jacobian_norm(lambda x, q=q: attend(q @ x.T, x), x)
        ratios.append((true / attention_bound(alpha, len(q), len(x))).item())
    assert max(ratios) <= 1
    assert max(ratios) > 0.3


def test_without_division_attention_is_not_lipschitz():
    q, x = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double()
    for size in (1, 10, 1000):  # scores are all zero, yet attention reacts more the longer the tokens are
        plain = jacobian_norm(lambda x: attend(q @ x.T, x), size * x)
        assert plain > 0.7 * size
        assert plain <= jacobian_bound(torch.full((1, 2), 0.5), torch.tensor(size), 1.0)
        divided = jacobian_norm(lambda x: attend(q @ x.T / linear_score_divisor(q, x), x), size * x)
        assert divided <= attention_bound(torch.tensor(1.0), 1, 2)


def test_radius_may_be_taken_about_any_point():
    for case in CASES:
        x, q = draw(case)
        x = x + 100
        true = jacobian_norm(lambda x, q=q: attend(q @ x.T, x), x)
        centered = token_radius(x - x.mean(0))
        assert true <= jacobian_bound((q @ x.T).softmax(-1), centered, torch.linalg.matrix_norm(q, 2)) * (1 + 1e-9)


def test_conditions_of_alpha_against_their_text():
    for case in CASES:
        x, q = draw(case)
        scores, divisor, slope = q @ x.T, 0.7, 1.9
        radius, reach = max(row.norm() for row in x), 2.5
        rows = math.sqrt(sum(max(abs(s) for s in row) ** 2 for row in scores.tolist()))
        conditions = [scores.abs().max() / divisor, radius * reach / divisor, radius * slope * rows / divisor**2]
        found = attention_alpha(scores, radius, reach, divisor=divisor, divisor_lipschitz=slope)
        torch.testing.assert_close(found, max(conditions))


def test_norms_against_loops_and_heads(device):
    scores = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for head in range(3):
        rows = scores[1, head].tolist()
        expected = math.sqrt(sum(max(abs(s) for s in row) ** 2 for row in rows))
        assert score_norm(scores.to(device))[1, head].item() == pytest.approx(expected)
        longest = max(math.sqrt(sum(s * s for s in row)) for row in rows)
        assert token_radius(scores.to(device))[1, head].item() == pytest.approx(longest)
    keys, values = scores[..., :3, :], scores[..., 2:, :]
    together = quadratic_score_divisor(scores, keys, values)
    assert together.shape == linear_score_divisor(scores, keys).shape == (2, 3)
    torch.testing.assert_close(together[1, 2], quadratic_score_divisor(scores[1, 2], keys[1, 2], values[1, 2]))
    u, v, w = scores[1, 2].norm(), token_radius(keys[1, 2]), token_radius(values[1, 2])
    torch.testing.assert_close(together[1, 2], max(u * v, u * w, v * w))
    torch.testing.assert_close(linear_score_divisor(scores, keys)[1, 2], u * v)
    alpha = attention_alpha(scores, token_radius(keys), 1.0)
    torch.testing.assert_close(alpha[1, 2], attention_alpha(scores[1, 2], token_radius(keys[1, 2]), 1.0))


def test_bound_is_its_formula():
    assert attention_bound(torch.tensor(2.0), 3, 12).item() == pytest.approx(math.e**2 / 2 + 2 * math.sqrt(8))
    assert attention_bound(torch.tensor([0.0, 1.0]), 0, 0).tolist() == pytest.approx([0, math.sqrt(8)])
    assert attention_bound(torch.tensor(1.0), 2, 0) == torch.inf
    assert attention_bound(torch.tensor(torch.nan), 2, 3).isnan()


def test_empty_and_nan():
    one, nan = torch.tensor(1.0), torch.tensor(torch.nan)
    for shape in [(0, 4), (3, 0), (0, 0)]:
        assert score_norm(torch.zeros(shape)) == 0
        assert token_radius(torch.zeros(shape)) == 0
        assert jacobian_bound(torch.zeros(shape), one, 0.0) == 0
        assert attention_alpha(torch.zeros(shape), one, 0.0) == 0
    bad = torch.tensor([[1.0, torch.nan]])
    assert score_norm(bad).isnan()
    assert token_radius(bad).isnan()
    assert jacobian_bound(bad, one, 1.0).isnan()
    assert jacobian_bound(torch.ones(1, 1), nan, 1.0).isnan()
    assert attention_alpha(bad, one, 1.0).isnan()
    assert attention_alpha(torch.ones(1, 1), nan, 1.0).isnan()
    assert linear_score_divisor(bad, torch.ones(1, 2)).isnan()
    assert quadratic_score_divisor(torch.ones(1, 2), bad, torch.ones(1, 2)).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float64(dtype):
    x = torch.full((4, 4), 300.0, dtype=dtype)
    assert token_radius(x).item() == 600
    assert score_norm(x).item() == 600
    assert linear_score_divisor(x, x).item() == 1200 * 600

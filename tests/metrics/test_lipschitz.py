"""Every bound against the true number: dense singular values, and Jacobians of PyG's own layers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv

from gatdiag.errors import InputError
from gatdiag.metrics.lipschitz import (
    aggregation_norm_bound,
    attention_alpha,
    attention_bound,
    gat_layer_bound,
    gcn_layer_bound,
    heads_bound,
    jacobian_bound,
    largest_received,
    linear_score_divisor,
    network_log_bound,
    quadratic_score_divisor,
    residual_layer_bound,
    score_norm,
    token_radius,
)


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2)


def jacobian_norm(function, x):
    return norm(torch.autograd.functional.jacobian(function, x).reshape(-1, x.numel()).detach())


def draw(seed, random_graph, num_nodes=8, channels=3):
    torch.manual_seed(seed)
    return torch.randn(num_nodes, channels, dtype=torch.float64), random_graph(num_nodes, seed)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    num_nodes=st.integers(1, 8),
    num_edges=st.integers(0, 20),
    iterations=st.integers(0, 60),
    scale=st.floats(1e-3, 1e3),
)
def test_aggregation_norm_bound_is_never_below(device, seed, num_nodes, num_edges, iterations, scale):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    weight = scale * torch.rand(num_edges, generator=generator, dtype=torch.float64)
    matrix = torch.zeros(num_nodes, num_nodes, dtype=torch.float64).index_put_(
        (edges[1], edges[0]), weight, accumulate=True
    )
    bound = aggregation_norm_bound(
        edges.to(device), num_nodes, edge_weight=weight.to(device), iterations=iterations
    ).item()
    assert bound >= norm(matrix).item() * (1 - 1e-12)
    negative = aggregation_norm_bound(edges, num_nodes, edge_weight=-weight, iterations=iterations)
    assert negative.item() == pytest.approx(bound)
    if iterations == 60:
        assert bound <= 1.1 * norm(matrix).item()


def test_aggregation_norm_of_gcn_is_one_and_of_a_mean_is_not(random_graph):
    edges = torch.cat([random_graph(10, 1), torch.arange(10).expand(2, 10)], 1)
    degree = edges[1].bincount().double()
    symmetric = (degree[edges[0]] * degree[edges[1]]).rsqrt()
    assert aggregation_norm_bound(edges, 10, edge_weight=symmetric).item() == pytest.approx(1, rel=1e-4)
    star = torch.tensor([[0, 0, 0, 0], [1, 2, 3, 4]])  # four nodes, each the mean of its one neighbor
    assert aggregation_norm_bound(star, 5).item() == pytest.approx(2)


def test_aggregation_norm_bound_of_odd_inputs():
    none = torch.zeros(2, 0, dtype=torch.long)
    assert aggregation_norm_bound(none, 0) == 0
    assert aggregation_norm_bound(none, 3) == 0
    pair = torch.tensor([[0, 1], [1, 0]])
    assert aggregation_norm_bound(pair, 2, edge_weight=torch.zeros(2)) == 0
    assert aggregation_norm_bound(pair, 2, edge_weight=torch.tensor([1.0, torch.nan])).isnan()
    assert aggregation_norm_bound(pair, 2, edge_weight=torch.tensor([1.0, torch.inf])).isnan()


@pytest.mark.parametrize("seed", range(5))
def test_gcn_layer(random_graph, seed):
    x, edges = draw(seed, random_graph)
    layer = GCNConv(3, 4).double()
    bound = gcn_layer_bound(norm(layer.lin.weight.detach()))
    true = jacobian_norm(lambda x: layer(x, edges), x)
    assert 0.999 < true / bound < 1 + 1e-9  # the linear layer attains it
    active = jacobian_norm(lambda x: layer(x, edges).relu(), x)
    assert active <= bound
    gelu = jacobian_norm(lambda x: torch.nn.functional.gelu(layer(10 * x, edges)), x) / 10
    assert gelu <= gcn_layer_bound(bound, slope=1.13)
    residual = jacobian_norm(lambda x: x @ torch.eye(3, 4).double() + layer(x, edges).relu(), x)
    assert 0.5 < residual / residual_layer_bound(active) <= 1


def local_gat_bounds(layer, x, edges, **attributes):
    """The bound of each head at X, from what the layer itself reports."""
    heads, channels = layer.heads, layer.out_channels
    _, (edges, alpha) = layer(x, edges, **attributes, return_attention_weights=True)
    received = largest_received(alpha.detach(), edges[0], len(x))
    if isinstance(layer, GATv2Conv):
        source, target = layer.lin_l, layer.lin_r
        attention = (layer.att, layer.att)
    else:
        source = target = layer.lin
        attention = (layer.att_src, layer.att_dst)
    radius = source(x).view(-1, heads, channels).norm(dim=-1).amax(0).detach()
    source_norm, target_norm = (
        torch.stack([norm(w) for w in linear.weight.detach().view(heads, channels, -1)]) for linear in (source, target)
    )
    a_source, a_target = (a.detach().view(heads, channels).norm(dim=1) for a in attention)
    return gat_layer_bound(source_norm, target_norm, a_source, a_target, radius, received)


LAYERS = {
    "GAT": lambda: GATConv(3, 4),
    "GATv2": lambda: GATv2Conv(3, 4),
    "GATv2 shared": lambda: GATv2Conv(3, 4, share_weights=True),
    "GATv2 edges": lambda: GATv2Conv(3, 4, edge_dim=2),
    "GATv2 heads": lambda: GATv2Conv(3, 4, heads=3),
    "GAT mean of heads": lambda: GATConv(3, 4, heads=3, concat=False),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_gat_layers(random_graph, kind):
    ratios = []
    for seed in range(25):
        x, edges = draw(seed, random_graph)
        layer = LAYERS[kind]().double()
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if "att" in name:
                    parameter.mul_([0.1, 1.0, 5.0][seed % 3])
        x = x * [0.1, 1.0, 3.0][seed % 7 % 3]
        attributes = {"edge_attr": torch.randn(edges.shape[1], 2).double()} if "edges" in kind else {}

        def forward(x, layer=layer, edges=edges, attributes=attributes):
            return layer(x, edges, **attributes)

        bound = heads_bound(local_gat_bounds(layer, x, edges, **attributes), concat=layer.concat)
        ratios.append((jacobian_norm(forward, x) / bound).item())
    assert max(ratios) <= 1
    assert max(ratios) > 0.3  # and it is not empty


def test_gat_radius_may_be_taken_about_any_point(random_graph):
    x, edges = draw(0, random_graph)
    x = 100 + x
    layer = GATv2Conv(3, 4).double()
    _, (looped, alpha) = layer(x, edges, return_attention_weights=True)
    s, t, a = (norm(w).detach() for w in (layer.lin_l.weight, layer.lin_r.weight, layer.att[0]))
    z = layer.lin_l(x).detach()
    radius = (z - z.mean(0)).norm(dim=1).max()
    bound = gat_layer_bound(s, t, a, a, radius, largest_received(alpha.detach(), looped[0], 8)[0])
    assert 0.05 < jacobian_norm(lambda x: layer(x, edges), x) / bound <= 1
    assert radius < 0.1 * z.norm(dim=1).max()


def test_gat_bound_over_a_ball(random_graph):
    """With the largest out-degree it bounds differences between any two points inside the radius."""
    x, edges = draw(0, random_graph)
    layer = GATv2Conv(3, 4).double()
    degree = edges[0].bincount(minlength=8).max() + 1
    s, t, a = (norm(w).detach() for w in (layer.lin_l.weight, layer.lin_r.weight, layer.att[0]))
    for seed in range(50):
        torch.manual_seed(seed)
        y = x + torch.randn_like(x) * 10 ** (-seed / 10)
        radius = max(layer.lin_l(z).norm(dim=1).max() for z in (x, y)).detach()
        bound = gat_layer_bound(s, t, a, a, radius, degree)
        assert (layer(x, edges) - layer(y, edges)).norm() <= bound * (x - y).norm()


def test_largest_received_against_loops(device):
    source = torch.tensor([0, 1, 1, 2, 0])
    alpha = torch.tensor([[0.5, 0.1], [0.5, 0.9], [1.0, 0.2], [0.3, 0.8], [0.7, 1.0]])
    expected = [
        max(sum(a for a, s in zip(column, source, strict=True) if s == j) for j in range(4)) for column in alpha.T
    ]
    found = largest_received(alpha.to(device), source.to(device), 4)
    torch.testing.assert_close(found.cpu(), torch.stack(expected).double(), rtol=1e-6, atol=0)
    assert largest_received(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), 3).tolist() == [0, 0]
    assert largest_received(torch.zeros(0), torch.zeros(0, dtype=torch.long), 0) == 0
    assert largest_received(torch.tensor([torch.nan]), torch.tensor([0]), 2).isnan()


def test_networks(random_graph):
    x, edges = draw(1, random_graph)
    layers = [GCNConv(3, 3).double() for _ in range(4)]

    def network(x):
        for layer in layers:
            x = x + layer(x, edges).relu()
        return x

    bounds = residual_layer_bound(gcn_layer_bound(torch.stack([norm(layer.lin.weight.detach()) for layer in layers])))
    log_bound = network_log_bound(bounds).item()
    assert log_bound == pytest.approx(math.log(math.prod(bounds.tolist())))
    assert 0.1 < jacobian_norm(network, x).item() / math.exp(log_bound) <= 1


def test_log_of_odd_bounds():
    assert network_log_bound(torch.full((1000,), 5.0)).item() == pytest.approx(1000 * math.log(5))
    assert network_log_bound(torch.tensor([0.0, 2.0])) == -torch.inf
    assert network_log_bound(torch.zeros(0)) == 0
    assert network_log_bound(torch.tensor([1.0, torch.nan])).isnan()
    assert network_log_bound(torch.tensor([1.0, -1.0])).isnan()
    assert network_log_bound(torch.full((3,), 2.0, dtype=torch.float16)).dtype == torch.float64
    with pytest.raises(InputError, match=r"\(\)"):
        network_log_bound(torch.tensor(1.0))


def test_bounds_pass_nan_on():
    one, nan = torch.tensor(1.0), torch.tensor(torch.nan)
    assert gcn_layer_bound(nan).isnan()
    assert residual_layer_bound(nan).isnan()
    assert heads_bound(torch.stack([one, nan])).isnan()
    for place in range(6):
        arguments = [one] * 6
        arguments[place] = nan
        assert gat_layer_bound(*arguments).isnan()


def test_bounds_are_their_formulas_in_float64():
    small = torch.tensor(1 + 1e-12, dtype=torch.float64)
    assert gcn_layer_bound(3 * small, 2.0, slope=1.5) == 9 * small
    assert residual_layer_bound(small, skip_norm=0.5) == 0.5 + small
    assert heads_bound(small.expand(4)) == 2 * small
    assert heads_bound(small.expand(4), concat=False) == small
    s, t, a, b, r, c = (torch.tensor(v, dtype=torch.float64) for v in (0.3, 0.7, 1.1, 1.3, 1.7, 1.9))
    expected = 0.3 * 1.9**0.5 + 1.7 * (1.1 * 0.3 * 1.9**0.5 + 1.3 * 0.7)
    assert gat_layer_bound(s, t, a, b, r, c).item() == pytest.approx(expected, rel=1e-15)


# Self-attention: Jacobians at many random points, gentle and extreme.

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


def ratios_of_lemma(constant, score_size):
    ratios = []
    for case in CASES:
        x, q = drawn_tokens(case)
        true = joint_jacobian_norm(lambda x, q=q: attend(q @ x.T, x), x)
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
        x, q = drawn_tokens(case)
        true = joint_jacobian_norm(lambda x, q=q: attend(alpha * (q @ x.T) / linear_score_divisor(q, x), x), x)
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
        (k, q), v = drawn_tokens(case), drawn_tokens(case + 1000)[0]
        v = v[torch.arange(len(k)) % len(v)]
        true = joint_jacobian_norm(
            lambda q, k, v: attend(alpha * (q @ k.T) / quadratic_score_divisor(q, k, v), v), q, k, v
        )
        ratios.append((true / attention_bound(torch.tensor(alpha), len(q), len(k))).item())
    assert max(ratios) <= 1
    assert max(ratios) > 0.03


def test_theorem_holds_at_a_point_without_division():
    ratios = []
    for case in CASES:
        x, q = drawn_tokens(case)
        alpha = attention_alpha(q @ x.T, token_radius(x), torch.linalg.matrix_norm(q, 2))
        true = joint_jacobian_norm(lambda x, q=q: attend(q @ x.T, x), x)
        ratios.append((true / attention_bound(alpha, len(q), len(x))).item())
    assert max(ratios) <= 1
    assert max(ratios) > 0.3


def test_without_division_attention_is_not_lipschitz():
    q, x = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double()
    for size in (1, 10, 1000):  # scores are all zero, yet attention reacts more the longer the tokens are
        plain = joint_jacobian_norm(lambda x: attend(q @ x.T, x), size * x)
        assert plain > 0.7 * size
        assert plain <= jacobian_bound(torch.full((1, 2), 0.5), torch.tensor(size), 1.0)
        divided = joint_jacobian_norm(lambda x: attend(q @ x.T / linear_score_divisor(q, x), x), size * x)
        assert divided <= attention_bound(torch.tensor(1.0), 1, 2)


def test_radius_may_be_taken_about_any_point():
    for case in CASES:
        x, q = drawn_tokens(case)
        x = x + 100
        true = joint_jacobian_norm(lambda x, q=q: attend(q @ x.T, x), x)
        centered = token_radius(x - x.mean(0))
        assert true <= jacobian_bound((q @ x.T).softmax(-1), centered, torch.linalg.matrix_norm(q, 2)) * (1 + 1e-9)


def test_conditions_of_alpha_against_their_text():
    for case in CASES:
        x, q = drawn_tokens(case)
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

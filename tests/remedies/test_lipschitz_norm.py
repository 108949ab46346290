"""LipschitzNorm against loops over neighbors, and its bound against Jacobians at random inputs."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv

from gatdiag.errors import InputError, ModelError
from gatdiag.remedies.lipschitz_norm import lipschitz_bound, lipschitz_normalize_

LAYERS = {
    "GAT": lambda **options: GATConv(4, 3, **options),
    "GAT pairs": lambda **options: GATConv((4, 4), 3, **options),
    "GATv2": lambda **options: GATv2Conv(4, 3, **options),
    "GATv2 shared": lambda **options: GATv2Conv(4, 3, share_weights=True, **options),
    "GATv2 residual": lambda **options: GATv2Conv(4, 3, residual=True, **options),
    "Transformer": lambda **options: TransformerConv(4, 3, **options),
}
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5, 5], [1, 2, 3, 4, 0, 2, 0, 1, 3]])


def layer_of(kind, seed=0, **options):
    torch.manual_seed(seed)
    layer = LAYERS[kind](**options).double().eval()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.normal_(std=3.0 if "att" in name else 1.0)
    return layer


def jacobian_norm(layer, x):
    jacobian = torch.autograd.functional.jacobian(lambda given: layer(given, EDGES), x)
    return torch.linalg.matrix_norm(jacobian.reshape(-1, x.numel()), 2)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (2, True), (2, False)])
def test_no_gradient_grows_more_than_the_bound_allows(kind, heads, concat):
    layer = layer_of(kind, heads=heads, concat=concat)
    x = torch.randn(6, 4, dtype=torch.float64)
    wild = max(jacobian_norm(layer, scale * x) for scale in (1.0, 10.0, 30.0))
    with lipschitz_normalize_(layer, alpha=1.0):
        bound = lipschitz_bound(layer, EDGES, 6)
        largest = max(jacobian_norm(layer, scale * x) for scale in (1e-3, 1.0, 10.0, 1e3))
    assert largest <= bound
    assert largest < wild  # or the test would show nothing


@pytest.mark.parametrize("alpha", [0.25, 4.0])
def test_the_bound_holds_for_any_alpha_and_is_that_of_a_mean_for_none(alpha):
    layer = layer_of("GAT", heads=1)
    x = torch.randn(6, 4, dtype=torch.float64)
    lipschitz_normalize_(layer, alpha=alpha)
    assert jacobian_norm(layer, 5 * x) <= lipschitz_bound(layer, EDGES, 6)
    layer.lipschitz_alpha = 1e-12
    mean = jacobian_norm(layer, x)
    assert mean <= lipschitz_bound(layer, EDGES, 6) <= 3 * mean


def neighbors(layer, node):
    """(source, number of the edge), self loops last as PyG has them."""
    edges = list(enumerate(EDGES.t().tolist()))
    found = [(source, number) for number, (source, target) in edges if target == node]
    return found + ([(node, EDGES.shape[1] + node)] if getattr(layer, "add_self_loops", False) else [])


@torch.no_grad()
def linear_by_loops(layer, x_src, x_dst, vectors, leaky_first, alpha):
    heads, out = layer.heads, torch.zeros(6, layer.heads, layer.out_channels, dtype=x_src.dtype)
    for head in range(heads):
        a_src, a_dst = (vector[0, head] for vector in vectors)
        norm = math.sqrt(a_src.square().sum() + a_dst.square().sum())
        for node in range(6):
            sources = [source for source, _ in neighbors(layer, node)]
            own = x_dst[node, head]
            radius = max(x_src[source, head].norm() for source in sources)
            divisor = norm * math.sqrt(radius**2 + own.square().sum())
            scores = []
            for source in sources:
                total = x_src[source, head] + own
                score = (
                    (nn.functional.leaky_relu(total, layer.negative_slope) * a_src).sum()
                    if leaky_first
                    else nn.functional.leaky_relu(
                        (x_src[source, head] * a_src).sum() + (own * a_dst).sum(), layer.negative_slope
                    )
                )
                scores.append(alpha * score / divisor)
            weights = torch.stack(scores).softmax(0)
            assert float(torch.stack(scores).abs().max()) <= alpha
            for weight, source in zip(weights, sources, strict=True):
                out[node, head] += weight * x_src[source, head]
    return out.flatten(1) + layer.bias


@pytest.mark.parametrize("kind", ["GAT", "GAT pairs", "GATv2", "GATv2 shared"])
@pytest.mark.parametrize("size", [0.7, 1000.0])
def test_linear_scores_by_loops(kind, size):
    layer = layer_of(kind, heads=2)
    x = torch.randn(6, 4, dtype=torch.float64)
    lipschitz_normalize_(layer, alpha=size)
    if kind.startswith("GATv2"):
        maps, vectors = (layer.lin_l, layer.lin_r), (layer.att, layer.att)
    else:
        maps = (layer.lin, layer.lin) if layer.lin is not None else (layer.lin_src, layer.lin_dst)
        vectors = (layer.att_src, layer.att_dst)
    x_src, x_dst = (linear(x).view(6, 2, 3) for linear in maps)
    expected = linear_by_loops(layer, x_src, x_dst, vectors, kind.startswith("GATv2"), size)
    torch.testing.assert_close(layer(x, EDGES), expected)


def test_dot_products_by_loops():
    layer = layer_of("Transformer", heads=2)
    x = torch.randn(6, 4, dtype=torch.float64)
    lipschitz_normalize_(layer, alpha=0.7)
    query, key, value = (linear(x).view(6, 2, 3) for linear in (layer.lin_query, layer.lin_key, layer.lin_value))
    out = torch.zeros(6, 2, 3, dtype=torch.float64)
    for head in range(2):
        for node in range(6):
            sources = [source for source, _ in neighbors(layer, node)]
            if not sources:
                continue
            u = query[node, head].norm()
            v, w = (max(part[source, head].norm() for source in sources) for part in (key, value))
            scores = torch.stack([query[node, head] @ key[source, head] for source in sources])
            weights = (0.7 * scores / max(u * v, u * w, v * w)).softmax(0)
            out[node, head] = sum(weight * value[source, head] for weight, source in zip(weights, sources, strict=True))
    torch.testing.assert_close(layer(x, EDGES), out.flatten(1) + layer.lin_skip(x))


@pytest.mark.parametrize("kind", ["GAT", "GATv2", "Transformer"])
def test_features_of_edges_count(kind):
    layer = layer_of(kind, heads=2, edge_dim=2)
    x = torch.randn(6, 4, dtype=torch.float64)
    few, many = (scale * torch.randn(9, 2, dtype=torch.float64) for scale in (1.0, 1e6))
    lipschitz_normalize_(layer)
    _, (_, alpha) = layer(x, EDGES, few, return_attention_weights=True)
    _, (edges, extreme) = layer(x, EDGES, many, return_attention_weights=True)
    degree = torch.bincount(edges[1])[edges[1]].unsqueeze(1)
    for weights in (alpha, extreme):  # scores of size 1 at most
        assert (weights <= math.e**2 / (math.e**2 + degree - 1) + 1e-12).all()
        assert (weights >= 1 / (1 + math.e**2 * (degree - 1)) - 1e-12).all()


@pytest.mark.parametrize("kind", ["GAT", "GATv2", "Transformer"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(kind, dtype):
    layer = layer_of(kind, heads=2).float()
    x = 100 * torch.randn(6, 4)
    lipschitz_normalize_(layer)
    exact = layer(x, EDGES).detach()
    with torch.autocast("cpu", dtype=dtype):
        rough = layer(x, EDGES)
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


@pytest.mark.parametrize("kind", ["GAT", "GATv2", "Transformer"])
@pytest.mark.parametrize("scale", [1e-17, 1e17])
def test_the_scale_of_features_makes_no_difference_in_single_precision(kind, scale):
    layer = layer_of(kind).float()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.mul_(0 if "bias" in name else 1)
    x = torch.randn(6, 4)
    lipschitz_normalize_(layer)
    scaled = (scale * x).requires_grad_()
    found = layer(scaled, EDGES)
    torch.testing.assert_close(found / scale, layer(x, EDGES), rtol=1e-4, atol=1e-4)
    (found / scale).sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (scaled, *layer.parameters()) if tensor.grad is not None)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_edges_that_are_turned_around_between_sources_and_targets(kind):
    layer, turned = kind((4, 5), 3, heads=2), kind((4, 5), 3, heads=2, flow="target_to_source")
    turned.load_state_dict(layer.state_dict())
    lipschitz_normalize_(nn.ModuleList([layer, turned]))
    pair, edges = (torch.randn(7, 4), torch.randn(3, 5)), torch.stack([torch.arange(7), torch.arange(7) % 3])
    torch.testing.assert_close(turned(pair, edges.flip(0))[:3], layer(pair, edges))


@pytest.mark.parametrize("kind", ["GAT", "GATv2", "Transformer"])
@pytest.mark.parametrize("to_sparse", [Tensor.to_sparse_coo, Tensor.to_sparse_csr])
def test_sparse_adjacency(kind, to_sparse):
    layer = layer_of(kind, heads=2)
    layer.add_self_loops = False
    x = torch.randn(6, 4, dtype=torch.float64)
    lipschitz_normalize_(layer)
    transposed = to_sparse(torch.zeros(6, 6).index_put((EDGES[1], EDGES[0]), torch.ones(9)))
    torch.testing.assert_close(layer(x, transposed), layer(x, EDGES))
    assert lipschitz_bound(layer, transposed, 6) == lipschitz_bound(layer, EDGES, 6)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_graph_without_edges(kind):
    layer, x = layer_of(kind, heads=2), torch.randn(6, 4, dtype=torch.float64)
    layer.add_self_loops, nothing = False, torch.empty(2, 0, dtype=torch.long)
    expected = layer(x, nothing)
    lipschitz_normalize_(layer)
    assert torch.equal(layer(x, nothing), expected)


@pytest.mark.parametrize("kind", ["GAT", "GATv2", "Transformer"])
def test_neighborhoods_of_zeros_have_gradients(kind):
    layer = layer_of(kind, heads=2).float()
    lipschitz_normalize_(layer)
    x = torch.randn(6, 4)
    x[[0, 1, 2, 4]] = 0.0
    layer(x.requires_grad_(), EDGES).square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)


class OwnScores(GATv2Conv):
    def edge_update(self, x_j, x_i, edge_attr, index, ptr, dim_size):
        return super().edge_update(-x_j, x_i, edge_attr, index, ptr, dim_size)


def test_what_does_not_fit_is_refused_and_nothing_is_changed():
    model = nn.ModuleDict({"first": GATConv(4, 4), "own": OwnScores(4, 4)})
    kinds = [type(module) for module in model.values()]
    with pytest.raises(ModelError, match=r"own \(OwnScores\) overrides edge_update"):
        lipschitz_normalize_(model)
    assert [type(module) for module in model.values()] == kinds
    with pytest.raises(ModelError, match="Expected a model with GATConv"):
        lipschitz_normalize_(GCNConv(4, 4))
    for alpha in (0, "1", None):
        with pytest.raises(InputError, match=f"alpha to be a positive number, got {alpha!r}"):
            lipschitz_normalize_(GATConv(4, 4), alpha=alpha)
    with pytest.raises(InputError, match="as the first argument, got dict"):
        lipschitz_normalize_({})
    layer = GATConv(4, 4, heads=2)
    attention = layer.att_src.detach(), layer.att_dst.detach()
    for vector in attention:
        vector[:, 1] = 0
    with pytest.raises(ModelError, match="the model has a head whose attention vector is zero"):
        lipschitz_normalize_(layer)
    assert type(layer) is GATConv
    attention[0][:, 1] = 1
    lipschitz_normalize_(layer)
    with pytest.raises(ModelError, match="the model is already normalized"):
        lipschitz_normalize_(layer)
    with pytest.raises(ModelError, match="Expected a layer that lipschitz_normalize_ has normalized, got a GATConv"):
        lipschitz_bound(GATConv(4, 4), EDGES, 6)

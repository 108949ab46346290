import pytest
import torch
import torch.nn.functional as F

from gatdiag.experiments.models import gat, gcn, residual_gcn

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def attention_layer(conv, x):
    """GATv2 with shared weights over dense pairs of nodes, self-loops included."""
    heads, width = conv.att.shape[1:]
    source = (x @ conv.lin_l.weight.T).view(-1, heads, width)
    linked = torch.eye(len(x), dtype=torch.bool)
    linked[EDGES[1], EDGES[0]] = True
    scores = (F.leaky_relu(source[None] + source[:, None], 0.2) * conv.att).sum(-1)
    alpha = scores.masked_fill(~linked[..., None], -torch.inf).softmax(1)
    out = torch.einsum("vuh,uhc->vhc", alpha, source)
    return out.flatten(1)


def graph_convolution(conv, x):
    adjacency = torch.eye(len(x))
    adjacency[EDGES[1], EDGES[0]] = 1.0
    scale = adjacency.sum(1).rsqrt()
    return scale[:, None] * adjacency * scale[None] @ x @ conv.lin.weight.T


@pytest.mark.parametrize("heads", [1, 2])
def test_gat_is_a_stack_of_dense_attention(heads):
    torch.manual_seed(0)
    model = gat(5, 3, hidden_channels=4, layers=3, heads=heads)
    h = X
    for conv in model.convs[:-1]:
        h = F.relu(attention_layer(conv, h))
        assert h.shape == (4, 4 * heads)
    torch.testing.assert_close(model(X, EDGES), attention_layer(model.convs[-1], h))


@pytest.mark.parametrize("factory", [gcn, residual_gcn])
def test_gcn_is_a_stack_of_dense_convolutions(factory):
    torch.manual_seed(0)
    model = factory(5, 3, hidden_channels=4, layers=4)
    h = F.relu(graph_convolution(model.convs[0], X))
    for conv in model.convs[1:-1]:
        h = F.relu(graph_convolution(conv, h)) + (h if factory is residual_gcn else 0)
    torch.testing.assert_close(model(X, EDGES), graph_convolution(model.convs[-1], h))


@pytest.mark.parametrize("factory", [gat, gcn, residual_gcn])
def test_the_defaults_are_ten_layers_of_width_64_without_bias(factory):
    names = [name for name, _ in factory(5, 3).named_parameters()]
    assert not [name for name in names if "bias" in name]
    model = factory(5, 3)
    assert len(model.convs) == 10
    assert model(X, EDGES).shape == (4, 3)
    assert model.convs[8](torch.ones(4, 64), EDGES).shape == (4, 64)


@pytest.mark.parametrize("factory", [gat, gcn, residual_gcn])
def test_dropout_acts_in_training_only(factory):
    torch.manual_seed(0)
    model = factory(5, 3, hidden_channels=8, layers=2, dropout=0.5)
    assert not torch.equal(model(X, EDGES), model(X, EDGES))
    model.eval()
    assert torch.equal(model(X, EDGES), model(X, EDGES))

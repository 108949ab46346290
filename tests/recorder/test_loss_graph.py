"""What the graphs of a loss and of an output show."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GraphConv, SAGEConv, SGConv

from gatdiag.recorder.loss_graph import count_weights, describe_loss, is_linear_chain, weighs_by_another

X, EDGES = torch.randn(10, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
IMAGES = X.reshape(1, 1, 6, 10)


class TwoConvolutions(nn.Module):
    """Nothing between the two."""

    def __init__(self, conv):
        super().__init__()
        self.first, self.last = conv(6, 8), conv(8, 2)

    def forward(self, x):
        return self.last(self.first(x, EDGES), EDGES)


@pytest.mark.parametrize("conv", [GCNConv, GraphConv, SAGEConv])
def test_convolutions_without_an_activation_are_a_linear_chain(conv):
    assert is_linear_chain(TwoConvolutions(conv)(X).grad_fn)


@pytest.mark.parametrize("last", [nn.Identity(), nn.Sigmoid(), nn.Softmax(-1), nn.LogSoftmax(-1)])
@pytest.mark.parametrize("between", [nn.Identity(), nn.Dropout(0.5), nn.Unflatten(1, (2, 4)), nn.AvgPool1d(2, 2)])
def test_an_activation_behind_the_last_layer_does_not_make_a_network_deep(between, last):
    width = between(torch.zeros(1, 8)).shape[-1]
    assert is_linear_chain(nn.Sequential(nn.Linear(6, 8), between, nn.Linear(width, 2), last)(X).grad_fn)


def test_layers_of_images_are_a_linear_chain_without_an_activation():
    layers = [nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.Conv2d(4, 2, 2)]
    assert is_linear_chain(nn.Sequential(*layers)(IMAGES).grad_fn)
    assert not is_linear_chain(nn.Sequential(layers[0], nn.MaxPool2d(2), layers[2])(IMAGES).grad_fn)


@pytest.mark.parametrize(
    "between", [nn.ReLU(), nn.Tanh(), nn.GELU(), nn.Softmax(-1), nn.LayerNorm(8), nn.BatchNorm1d(8)]
)
def test_what_is_not_linear_between_two_layers_is_seen(between):
    assert not is_linear_chain(nn.Sequential(nn.Linear(6, 8), between, nn.Linear(8, 2))(X).grad_fn)


def test_a_single_layer_attention_and_products_of_outputs_are_no_linear_chain():
    layer, other = nn.Linear(6, 6), nn.Linear(6, 6)
    q, k = layer(X), other(layer(X))
    outputs = [
        layer(X),
        layer(X) + other(X),
        q @ k.T,
        q * k,
        q / k,
        1 / q,
        nn.LSTM(6, 4)(X)[0],
        nn.Embedding(4, 2)(EDGES),
    ]
    outputs += [TwoConvolutions(GATConv)(X), SGConv(6, 2, K=3)(X, EDGES)]
    assert not any(is_linear_chain(out.grad_fn) for out in outputs)
    assert not is_linear_chain(X.grad_fn)


@pytest.mark.parametrize("reduction", ["batchmean", "sum", "none"])
@pytest.mark.parametrize(
    ("apply", "expected"),
    [
        (lambda out: out.softmax(-1), "Softmax"),
        (lambda out: out.sigmoid().view(10, 3), "Sigmoid"),
        (lambda out: out.log_softmax(-1), "LogSoftmax"),
        (lambda out: out, "Addmm"),
    ],
)
def test_it_is_seen_what_kl_div_is_given(reduction, apply, expected):
    out = nn.Linear(6, 3)(X)
    loss = F.kl_div(apply(out), torch.full((10, 3), 1 / 3), reduction=reduction).sum()
    assert describe_loss(loss, {out.grad_fn})["divergence_of"] == expected


def test_other_losses_of_probabilities_are_no_divergence():
    out, y = nn.Linear(6, 3)(X), torch.eye(3)[torch.arange(10) % 3]
    p = out.softmax(-1)
    for loss in [
        (1 - p * y).mean(),
        ((p - y) ** 2).mean(),
        -(y * p).sum(),
        F.cross_entropy(out, y),
        p.sum() - (p * y).sum(),
    ]:
        assert describe_loss(loss, {out.grad_fn})["divergence_of"] is None


def test_an_input_that_requires_a_gradient_is_no_weight_of_another_network():
    x, weight = torch.ones(3, 1, requires_grad=True), nn.Parameter(torch.ones(1, 2))
    out = x @ weight
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert count_weights(slope.square().mean() + out.mean(), {out.grad_fn}, {id(weight)}) == 0


MULTIPLES = {
    "minus cross-entropy": (lambda out, y: -F.cross_entropy(out, y), "cross-entropy"),
    "weighted": (lambda out, y: 0.5 * F.cross_entropy(out[1:], y[1:]) / 3, "cross-entropy"),
    "of log-probabilities": (lambda out, y: F.nll_loss(out.log_softmax(1)[:4], y[:4]), "cross-entropy"),
    "squared error": (lambda out, y: -F.mse_loss(out, torch.zeros_like(out)), "squared error"),
    "raw outputs": (lambda out, y: -F.nll_loss(out, y), None),
    "of each row": (lambda out, y: (F.cross_entropy(out, y, reduction="none") * torch.randn(6)).mean(), None),
    "difference": (lambda out, y: F.cross_entropy(out, y) - out.square().mean(), None),
    "shifted": (lambda out, y: F.cross_entropy(out, y) - 1.0, None),
}


@pytest.mark.parametrize("name", MULTIPLES)
def test_it_is_seen_what_a_loss_is_a_multiple_of(name):
    loss_of, expected = MULTIPLES[name]
    out = nn.Linear(4, 3)(torch.randn(6, 4))
    assert describe_loss(loss_of(out, torch.randint(0, 3, (6,))), {out.grad_fn})["multiple_of"] == expected


# --- weights of likelihoods -------------------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x):
        return self.one(x), self.other(x).squeeze(1)


@pytest.mark.parametrize(
    ("weigh", "expected"),
    [
        (lambda log_p, value: log_p * (1 - value), True),
        (lambda log_p, value: (value - 2) * log_p, True),
        (lambda log_p, value: log_p * (1 - value).detach(), False),
        (lambda log_p, value: log_p + value, False),
        (lambda log_p, value: log_p * value.sigmoid(), False),  # a gate, or a probability to stop
        (lambda log_p, value: log_p * (-value).exp() + value, False),  # an uncertainty that is learned
        (lambda log_p, value: log_p * (1 - log_p.exp()), False),  # a focal loss
    ],
)
@pytest.mark.parametrize("error", [lambda value: (1 - value).square(), lambda value: F.mse_loss(value, torch.ones(10))])
def test_a_likelihood_that_a_value_weighs_is_seen(weigh, error, expected):
    scores, value = TwoHeads()(X)
    loss = error(value).mean() - weigh(scores.log_softmax(1)[:, 0], value).mean()
    assert weighs_by_another(loss, {scores.grad_fn, value.grad_fn}) is expected


def test_what_has_no_error_of_its_own_is_no_value():
    scores, gate = TwoHeads()(X)
    assert not weighs_by_another(-(scores.log_softmax(1)[:, 0] * (1 - gate)).mean(), {scores.grad_fn, gate.grad_fn})


# --- broadcasting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "rows"),
    [
        (lambda o, y: (o - y).square().mean(), 10),
        (lambda o, y: (y - o).abs().mean(), 10),
        (lambda o, y: (o.squeeze(1) - y[:, None]).square().mean(), 10),
        (lambda o, y: F.mse_loss(*torch.broadcast_tensors(o, y)), 10),
        (lambda o, y: F.smooth_l1_loss(*torch.broadcast_tensors(o, y)), 10),
        (lambda o, y: (o.squeeze(1) - y).square().mean(), 0),
        (lambda o, y: (o - y[:7]).square().mean(), 0),  # to seven centers
        (lambda o, y: (o - o.T).square().mean(), 0),  # of all pairs
        (lambda o, y: (o[:1] - y).square().mean(), 0),
        (lambda o, y: (o - y).abs().mean() - (o - o.T).abs().mean() / 2, 0),  # the distance of two samples
        (lambda o, y: F.mse_loss(*torch.broadcast_tensors(o, y + o.squeeze(1))), 10),
        (lambda o, y: (o - o.squeeze(1)).square().mean(), 0),
    ],
)
def test_differences_of_each_output_and_all_targets_are_seen(error, rows):
    o, y = nn.Linear(6, 1)(X), torch.randn(10)
    assert describe_loss(error(o, y), {o.grad_fn})["broadcast_rows"] == rows


# --- values of the next state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss_of", "bootstraps"),
    [
        (lambda q, after, r: F.mse_loss(q[:, 0], r + 0.9 * after.max(1).values), True),
        (lambda q, after, r: (q[:, 0] - (r + 0.9 * after.amax(1))).square().mean(), True),
        (lambda q, after, r: F.mse_loss(q[:, 0], (r + 0.9 * after.max(1).values).detach()), False),
        (lambda q, after, r: F.mse_loss(q.amax(1), after.amax(1)), False),  # two views
        (lambda q, after, r: (q.amax(1) - after.amax(1) + 1).clamp(min=0).mean(), False),  # a margin
        (lambda q, after, r: F.mse_loss(q[:, 0], r + 0.9 * q.max(1).values), False),  # of one state
    ],
)
def test_targets_that_hold_an_output_of_another_call_are_seen(loss_of, bootstraps):
    model = nn.Linear(6, 3)
    q, after = model(X), model(X.flip(0))
    loss = loss_of(q, after, torch.randn(10))
    assert describe_loss(loss, {q.grad_fn, after.grad_fn})["bootstraps"] is bootstraps

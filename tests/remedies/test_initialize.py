import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch_geometric.nn import (
    BatchNorm,
    GATConv,
    GATv2Conv,
    GINConv,
    GraphConv,
    ResGatedGraphConv,
    SAGEConv,
    TransformerConv,
)

import gatdiag
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.models import Stack, gat, residual_gcn
from gatdiag.experiments.training import TrainingSettings, train
from gatdiag.remedies import SCHEMES, initialize_
from gatdiag.remedies.initialize import LooksLinearLayout, looks_linear_, looks_linear_layouts
from gatdiag.remedies.stack import neurons_of_stack
from gatdiag.structure import discover
from tests.remedies.stacks import EDGES, STACKS, X

BALANCED = ("balanced_xavier", "balanced_orthogonal")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def squares(weight, axis):
    return weight.detach().double().square().sum(axis)


@pytest.mark.parametrize(
    ("scheme", "inputs"),
    [("balanced_xavier", ()), ("balanced_orthogonal", ()), ("balanced_orthogonal", (X, EDGES))],
    ids=["xavier", "orthogonal", "orthogonal by its laws"],
)
@pytest.mark.parametrize("name", STACKS)
def test_c_is_zero_for_every_neuron(name, scheme, inputs):
    model = STACKS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # biases too
    assert initialize_(model, scheme, *inputs, generator=seeded()) is model
    laws = gatdiag.find_laws(model, X, EDGES)
    assert len(laws) >= 4
    assert {law.kind for law in laws} == {"neuron"}
    assert laws.normalized_c().abs().max() < 1e-6
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("scheme", BALANCED)
def test_c_by_the_formula_of_the_paper(scheme):
    model = initialize_(gat(5, 3, hidden_channels=6, layers=4), scheme, generator=seeded())
    for conv, following in zip(model.convs, model.convs[1:], strict=False):
        into, attention, out = (w.tolist() for w in (conv.lin_l.weight, conv.att[0, 0], following.lin_l.weight))
        for i in range(6):
            c = sum(w**2 for w in into[i]) - attention[i] ** 2 - sum(row[i] ** 2 for row in out)
            assert c == pytest.approx(0, abs=1e-5)
    assert squares(model.convs[0].lin_l.weight, 1).tolist() == pytest.approx([2.0] * 6)


def test_balanced_xavier_keeps_directions_of_xavier():
    xavier = initialize_(gat(5, 3, hidden_channels=6, layers=3), "xavier_zero_attention", generator=seeded())
    balanced = initialize_(gat(5, 3, hidden_channels=6, layers=3), "balanced_xavier", generator=seeded())
    pairs = [(a.lin_l.weight, b.lin_l.weight) for a, b in zip(xavier.convs, balanced.convs, strict=True)]
    assert torch.cosine_similarity(*pairs[0], dim=1).tolist() == pytest.approx([1.0] * 6)
    for pair in pairs[1:]:
        assert torch.cosine_similarity(*pair, dim=0).tolist() == pytest.approx([1.0] * 6)


def test_balanced_orthogonal_leaves_hidden_layers_of_equal_width_as_drawn():
    model = initialize_(gat(1433, 7), "balanced_orthogonal", generator=seeded())
    first, *hidden, last = (conv.lin_l.weight for conv in model.convs)
    assert first.shape == (64, 1433)
    torch.testing.assert_close(first[:32], -first[32:])
    half = first[:32].double()
    torch.testing.assert_close(half @ half.T, 2 * torch.eye(32).double(), atol=1e-5, rtol=0)
    for weight in hidden:
        u = weight[:32, :32].double()
        torch.testing.assert_close(weight.double(), torch.cat([torch.cat([u, -u], 1), torch.cat([-u, u], 1)]))
        torch.testing.assert_close(u @ u.T, torch.eye(32).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(last[:, :32], -last[:, 32:])
    assert squares(last, 0).tolist() == pytest.approx([2.0] * 64, rel=1e-5)
    assert all(not conv.att.any() for conv in model.convs)


@pytest.mark.parametrize("name", [name for name in STACKS if "odd" not in name])
def test_a_looks_linear_stack_is_odd_and_passes_a_signal_on(name):
    model = initialize_(STACKS[name](), "balanced_orthogonal", generator=seeded())
    out = model(X, EDGES)
    assert out.std() > 1e-3
    torch.testing.assert_close(model(-X, EDGES), -out)
    torch.testing.assert_close(model(3 * X, EDGES), 3 * out)


def attention_stack(conv, depth, heads, concat, channels=8, features=5, classes=8):
    widths = [features, *[channels * heads if concat else channels] * (depth - 1)]
    outputs = [*[channels] * (depth - 1), classes]
    return Stack([conv(*pair, heads=heads, concat=concat) for pair in zip(widths, outputs, strict=True)])


@pytest.mark.parametrize("concat", [True, False], ids=["concatenated", "averaged"])
@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize("conv", [GATConv, GATv2Conv])
def test_the_signal_is_as_large_at_any_depth(conv, heads, concat):
    alone = torch.empty((2, 0), dtype=torch.long)  # nodes that attend to themselves only: no smoothing
    norms = []
    for depth in (2, 6, 20):
        model = initialize_(attention_stack(conv, depth, heads, concat), "balanced_orthogonal", generator=seeded(depth))
        norms.append(float(model(X, alone).detach().norm()))
        weights = [conv.lin.weight if isinstance(conv, GATConv) else conv.lin_l.weight for conv in model.convs]
        for weight, following in pairwise(weights):
            into = squares(weight, 1).view(-1, following.shape[1]).sum(0)
            torch.testing.assert_close(into, squares(following, 0), rtol=1e-5, atol=0)
    assert max(norms) < 3 * min(norms)
    assert 0.5 < norms[0] / float(X.norm()) < 10


KINDS = {
    "sage": lambda width: SAGEConv(width, 8),
    "sums": lambda width: GraphConv(width, 8),
    "gin": lambda width: GINConv(nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 8))),
    "gates": lambda width: ResGatedGraphConv(width, 8),
    "averaged heads": lambda width: GATConv(width, 8, heads=4, concat=False),
    "queries and keys": lambda width: TransformerConv(width, 8, heads=4, concat=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_signal_is_as_large_at_any_depth_by_the_laws(kind):
    norms = []
    for depth in (2, 9, 4):  # after many more, nodes of this graph are alike, and attention has no gradient
        torch.manual_seed(depth)  # its laws are looked for at the weights it has
        model = Stack([KINDS[kind](5 if layer == 0 else 8) for layer in range(depth)])
        initialize_(model, "balanced_orthogonal", X, EDGES, generator=seeded(depth))
        norms.append(float(model(X, EDGES).detach().norm()))
    assert max(norms) < 3 * min(norms)
    laws = gatdiag.find_laws(model, X, EDGES)
    assert {"neuron"} <= {law.kind for law in laws} <= {"neuron", "product"}
    assert laws.normalized_c().abs().max() < 1e-6


def test_a_deep_network_of_averaged_heads_trains():
    graph = load_graph("sbm")
    model = attention_stack(GATConv, 10, 8, False, channels=16, features=graph.num_features, classes=4)
    initialize_(model, "balanced_orthogonal", generator=seeded())
    accuracies = []
    settings = TrainingSettings("Adam", learning_rate=0.01, epochs=12)
    train(model, graph, settings, None, lambda _, epoch: accuracies.append(epoch.val_accuracy))
    assert max(accuracies) > 0.8


def test_xavier_is_torchs_draw_for_draw():
    model = gat(5, 3, hidden_channels=4, layers=3, heads=2)
    expected = copy.deepcopy(model)
    torch.manual_seed(3)
    for parameter in expected.parameters():
        nn.init.xavier_normal_(parameter)
    torch.manual_seed(3)
    initialize_(model, "xavier")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_xaviers_imbalance_is_at_both_ends():
    model = initialize_(gat(1433, 7), "xavier", generator=seeded())
    weights = [conv.lin_l.weight for conv in model.convs]
    assert float(squares(weights[0], 1).mean()) == pytest.approx(2 * 1433 / (64 + 1433), rel=0.02)
    assert float(squares(weights[5], 1).mean()) == pytest.approx(1.0, rel=0.05)
    assert float(squares(weights[9], 0).mean()) == pytest.approx(2 * 7 / (7 + 64), rel=0.1)


@pytest.mark.parametrize(("heads", "channels"), [(1, 4000), (4, 1000)])
def test_attention_has_the_variance_of_the_papers_code(heads, channels):
    conv = initialize_(GATv2Conv(2, channels, heads=heads, share_weights=True), "xavier", generator=seeded())
    assert float(conv.att.detach().var()) == pytest.approx(2 / (heads * channels + channels), rel=0.1)


def test_what_each_scheme_sets_to_zero():
    for scheme in SCHEMES:
        conv = STACKS["gatv2 unshared"]().convs[1]
        nn.init.ones_(conv.bias)
        initialize_(conv, scheme, generator=seeded())
        zero = {name for name, parameter in conv.named_parameters() if not parameter.any()}
        expected = {"bias", "lin_l.bias", "lin_r.bias"}
        expected |= set() if scheme == "xavier" else {"att"}
        expected |= {"lin_r.weight"} if scheme in BALANCED else set()
        assert zero == expected


def test_attention_and_target_weights_learn_from_zero():
    model = initialize_(STACKS["gatv2 unshared"](), "balanced_orthogonal", generator=seeded())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(X, EDGES).square().mean().backward()
        optimizer.step()
    assert all(conv.att.any() and conv.lin_r.weight.any() for conv in model.convs)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_form_and_flags_stay_and_random_numbers_come_from_the_generator(scheme):
    models = [gat(5, 3, hidden_channels=4, layers=3).double() for _ in range(2)]
    models[0].convs[1].lin_l.weight.requires_grad_(False)
    before = {name: (id(p), p.dtype, p.requires_grad) for name, p in models[0].named_parameters()}
    state = torch.get_rng_state()
    for model in models:
        initialize_(model, scheme, generator=seeded(7))
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: (id(p), p.dtype, p.requires_grad) for name, p in models[0].named_parameters()} == before
    assert models[0].convs[0].lin_r is models[0].convs[0].lin_l
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    assert all(p.grad_fn is None and p.is_leaf for p in models[0].parameters())
    initialize_(models[1], scheme, generator=seeded(8))
    assert not torch.equal(models[0].convs[0].lin_l.weight, models[1].convs[0].lin_l.weight)


def test_low_precision_is_drawn_in_single():
    model = initialize_(gat(5, 3, hidden_channels=4, layers=3).bfloat16(), "balanced_orthogonal", generator=seeded())
    single = initialize_(gat(5, 3, hidden_channels=4, layers=3), "balanced_orthogonal", generator=seeded())
    for low, full in zip(model.parameters(), single.parameters(), strict=True):
        assert torch.equal(low, full.bfloat16())


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.second = SAGEConv(6, 3)  # not the order in which they run
        self.first = GATv2Conv(5, 6)
        self.norm = BatchNorm(6)

    def forward(self, x, edge_index):
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


def test_with_inputs_the_laws_say_what_leads_where():
    model = initialize_(Normed(), "balanced_xavier", X, edge_index=EDGES, generator=seeded())
    laws = gatdiag.find_laws(model, X, EDGES)
    neurons = torch.tensor([law.kind == "neuron" for law in laws])
    assert neurons.any()
    assert laws.normalized_c()[neurons].abs().max() < 1e-6
    assert torch.equal(model.norm.module.weight, torch.ones(6))


class Edged(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.first, self.second = conv(5, 4, edge_dim=2), conv(4, 3, edge_dim=2)

    def forward(self, x, edge_index, edge_attr):
        return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


@pytest.mark.parametrize("conv", [GATConv, GATv2Conv])
def test_neurons_balance_beside_edge_features(conv):
    inputs = (X, EDGES, torch.ones(EDGES.shape[1], 2))
    model = initialize_(Edged(conv), "balanced_orthogonal", *inputs, generator=seeded())
    laws = gatdiag.find_laws(model, *inputs)
    c = [abs(c) for law, c in zip(laws, laws.normalized_c().tolist(), strict=True) if law.kind == "neuron"]
    assert len(c) == 4
    assert max(c) < 1e-6
    assert model.first.lin_edge.weight.any()


def test_target_weights_of_gat_stay_alive():
    class Bipartite(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GATConv((5, 5), 4), GATConv((4, 4), 3)

        def forward(self, x, edge_index):
            h = self.first((x, x), edge_index).relu()
            return self.second((h, h), edge_index)

    model = initialize_(Bipartite(), "balanced_orthogonal", X, EDGES, generator=seeded())
    laws = gatdiag.find_laws(model, X, EDGES)
    c = [abs(c) for law, c in zip(laws, laws.normalized_c().tolist(), strict=True) if law.kind == "neuron"]
    assert len(c) == 4
    assert max(c) < 1e-6
    assert model.first.lin_dst.weight.any()  # with the attention vector at zero, both would stay there


class Concatenating(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = SAGEConv(5, 4), SAGEConv(5, 4), nn.Linear(8, 3)

    def forward(self, x, edge_index):
        return self.out(torch.cat([self.left(x, edge_index), self.right(x, edge_index)], 1).relu())


class Saturating(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x).tanh())


def tied():
    model = gat(5, 4, hidden_channels=4, layers=4)
    model.convs[2].lin_l = model.convs[2].lin_r = model.convs[1].lin_l
    return model


@pytest.mark.parametrize(
    ("model", "scheme", "inputs", "message"),
    [
        (lambda: Stack([GATConv(5, 4), GATConv(6, 3)]), "balanced_xavier", (), r"convs.0 has 4 outputs and convs.1"),
        (lambda: Stack([SAGEConv(5, 4), SAGEConv(4, 3)]), "balanced_xavier", (), r"convs.0 is a SAGEConv.*inputs"),
        (lambda: Stack([GATConv(5, 4, edge_dim=2), GATConv(4, 3)]), "balanced_xavier", (), r"without edge features"),
        (lambda: Stack([GATConv((5, 5), 4), GATConv(4, 3)]), "balanced_xavier", (), r"targets of their own.*lin_dst"),
        (Normed, "balanced_orthogonal", (X, EDGES), r"use the scheme balanced_xavier"),
        (Concatenating, "balanced_orthogonal", (X, EDGES), r"feed each other whole.*balanced_xavier"),
        (lambda: residual_gcn(5, 3, layers=4), "balanced_xavier", (X, EDGES), r"residual stream"),
        (Saturating, "balanced_xavier", (X, EDGES), r"neurons have laws.*tanh.*Leave the inputs out"),
        (tied, "balanced_xavier", (), r"convs.2 is a GATv2Conv with convs.2.att"),
        (tied, "balanced_xavier", (X, EDGES), r"residual stream"),
        (lambda: weight_norm(nn.Linear(5, 3)), "xavier", (), r"parametrizations.weight.original0.*Initialize first"),
    ],
)
def test_what_is_not_clear_is_refused_and_nothing_changed(model, scheme, inputs, message):
    torch.manual_seed(0)
    made = model()
    before = [parameter.clone() for parameter in made.parameters()]
    with pytest.raises(ModelError, match=message):
        initialize_(made, scheme, *inputs)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), before, strict=True))


def test_concatenated_layers_balance_by_their_laws():
    model = initialize_(Concatenating(), "balanced_xavier", X, EDGES, generator=seeded())
    assert gatdiag.find_laws(model, X, EDGES).normalized_c().abs().max() < 1e-6


def test_an_activation_without_laws_is_no_matter_in_a_stack():
    model = initialize_(Saturating(), "balanced_orthogonal", generator=seeded())
    assert squares(model.first.weight, 1).tolist() == pytest.approx(squares(model.second.weight, 0).tolist())


def test_an_unknown_scheme_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"xavier, xavier_zero_attention, balanced_xavier.*got 'kaiming'"):
        initialize_(gat(5, 3), "kaiming")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_may_be_spelled_with_hyphens(scheme):
    first, second = (
        initialize_(gat(5, 3, hidden_channels=6, layers=3), spelled, generator=seeded())
        for spelled in (scheme, scheme.replace("_", "-"))
    )
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("model", ["x", None, [torch.ones(2, 2)]])
def test_what_is_no_module_is_refused(model):
    with pytest.raises(InputError, match=rf"Expected a torch.nn.Module.*got {type(model).__name__} first"):
        initialize_(model, "xavier")


# --- what is drawn ----------------------------------------------------------------------------------------------------


def looks_linear(shape, layout):
    return looks_linear_(torch.empty(shape), layout, torch.Generator().manual_seed(0)).double()


def orthonormal(u):
    """Whether its rows are, or else its columns."""
    small = u @ u.T if u.shape[0] <= u.shape[1] else u.T @ u
    return torch.allclose(small, torch.eye(len(small), dtype=u.dtype), atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6), (6, 6), (7, 5), (5, 8)])
def test_a_hidden_matrix_has_four_blocks(rows, columns):
    weight = looks_linear((rows, columns), LooksLinearLayout(blocks=1, columns=True))
    tall, wide = -(-rows // 2), -(-columns // 2)
    u = weight[:tall, :wide]
    assert orthonormal(u)
    expected = torch.cat([torch.cat([u, -u], 1), torch.cat([-u, u], 1)])[:rows, :columns]
    assert torch.equal(weight, expected)


def test_a_matrix_that_is_both_first_and_last_is_orthogonal():
    assert orthonormal(looks_linear((3, 6), LooksLinearLayout()))


@pytest.mark.parametrize("heads", [2, 3, 8])
def test_the_mean_of_averaged_heads_is_looks_linear(heads):
    blocks = looks_linear((8 * heads, 8), LooksLinearLayout(blocks=heads, columns=True)).view(heads, 8, 8)
    mean = blocks.mean(0) * heads**0.5
    assert orthonormal(mean[:4, :4])
    assert torch.allclose(mean, torch.cat([torch.cat([mean[:4, :4], -mean[:4, :4]], 1), -mean[:4]]))
    for axis in (1, 2):
        torch.testing.assert_close(
            blocks.square().sum((0, axis)), torch.full((8,), 2.0 * heads).double(), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gatv2", [(1, False), (1, True), (1, True), (0, True)]),
        ("gatv2 of one output", [(1, False), (1, True), (0, True)]),
        ("gatv2 with concatenated heads", [(1, False), (1, True), (1, True), (0, True)]),
        ("gatv2 with averaged heads", [(2, False), (3, True), (0, True)]),
    ],
)
def test_layouts_are_read_off_the_neurons(name, expected):
    model = STACKS[name]()
    found = looks_linear_layouts(neurons_of_stack(model, discover(model)))
    assert [(m.blocks, m.columns) for m in (found[f"convs.{n}.lin_l.weight"] for n in range(len(expected)))] == expected


def test_a_neuron_between_unlike_widths_has_no_layout():
    neurons = neurons_of_stack(STACKS["gcn"](), discover(STACKS["gcn"]()))
    with pytest.raises(ModelError, match="feed each other whole"):
        looks_linear_layouts([neurons[0][:1]])

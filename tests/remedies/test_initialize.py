import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch_geometric.nn import (
    GAT,
    MLP,
    BatchNorm,
    GATConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    ResGatedGraphConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)

import gatdiag
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.models import Stack, gat, gcn
from gatdiag.remedies import initialize_, rebalance_
from gatdiag.structure.copying import map_tensors
from tests.remedies.stacks import EDGES, STACKS, X, initialized, seeded, unchanged

BALANCED = ("balanced_xavier", "balanced_orthogonal")
PAPERS = ("xavier", "xavier_zero_attention", *BALANCED)


def squares(weight, axis):
    return weight.detach().double().square().sum(axis)


def c_of_neurons(model, *inputs):
    laws = gatdiag.find_laws(model, *inputs)
    return laws.normalized_c().abs()[[law.kind == "neuron" for law in laws]]


@pytest.mark.parametrize("name", STACKS)
def test_c_is_zero_for_every_neuron(name):
    model = STACKS[name]()
    laws = gatdiag.find_laws(model, X, EDGES)
    assert len(laws) >= 4
    assert {law.kind for law in laws} == {"neuron"}
    for scheme, inputs in [("balanced_xavier", ()), ("balanced_orthogonal", ()), ("balanced_orthogonal", (X, EDGES))]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()  # biases too
        initialize_(model, scheme, *inputs, generator=seeded())
        assert laws.normalized_c().abs().max() < 1e-6, (scheme, inputs)
        assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_balanced_orthogonal_leaves_hidden_layers_of_equal_width_as_drawn():
    model = initialized(gat(1433, 7), "balanced_orthogonal", generator=seeded())
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
    model = initialized(STACKS[name](), "balanced_orthogonal", generator=seeded())
    out = model(X, EDGES)
    assert out.std() > 1e-3
    torch.testing.assert_close(model(-X, EDGES), -out)
    torch.testing.assert_close(model(3 * X, EDGES), 3 * out)


def attention_stack(conv, depth, heads, concat, channels=8, features=5, classes=8):
    widths = [features, *[channels * heads if concat else channels] * (depth - 1)]
    outputs = [*[channels] * (depth - 1), classes]
    return Stack([conv(*pair, heads=heads, concat=concat) for pair in zip(widths, outputs, strict=True)])


@pytest.mark.parametrize("concat", [True, False], ids=["concatenated", "averaged"])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("conv", [GATConv, GATv2Conv])
def test_the_signal_is_as_large_at_any_depth(conv, heads, concat):
    alone = torch.empty((2, 0), dtype=torch.long)  # nodes that attend to themselves only: no smoothing
    norms = []
    for depth in (2, 12):
        model = initialized(attention_stack(conv, depth, heads, concat), "balanced_orthogonal", generator=seeded(depth))
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
    "averaged heads": lambda width: GATConv(width, 8, heads=2, concat=False),
    "queries and keys": lambda width: TransformerConv(width, 8, heads=2, concat=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_signal_is_as_large_at_any_depth_by_the_laws(kind):
    norms = []
    for depth in (8, 3):  # after many more, nodes of this graph are alike, and attention has no gradient
        torch.manual_seed(depth)  # its laws are looked for at the weights it has
        model = Stack([KINDS[kind](5 if layer == 0 else 8) for layer in range(depth)])
        initialize_(model, "balanced_orthogonal", X, EDGES, generator=seeded(depth))
        norms.append(float(model(X, EDGES).detach().norm()))
    assert max(norms) < 3 * min(norms)
    laws = gatdiag.find_laws(model, X, EDGES)
    assert {"neuron"} <= {law.kind for law in laws} <= {"neuron", "product"}
    assert laws.normalized_c().abs().max() < 1e-6


def test_xavier_is_torchs_draw_for_draw():
    model = gat(5, 3, hidden_channels=4, layers=3, heads=2)
    expected = copy.deepcopy(model)
    torch.manual_seed(3)
    for parameter in expected.parameters():
        nn.init.xavier_normal_(parameter)
    torch.manual_seed(3)
    initialize_(model, "xavier")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_what_each_scheme_sets_to_zero():
    for scheme in PAPERS:
        conv = STACKS["gatv2 unshared"]().convs[1]
        nn.init.ones_(conv.bias)
        initialize_(conv, scheme, generator=seeded())
        zero = {name for name, parameter in conv.named_parameters() if not parameter.any()}
        expected = {"bias", "lin_l.bias", "lin_r.bias"}
        expected |= set() if scheme == "xavier" else {"att"}
        expected |= {"lin_r.weight"} if scheme in BALANCED else set()
        assert zero == expected


@pytest.mark.parametrize("scheme", ["xavier", "kaiming", "balanced_orthogonal"])
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
    model = initialized(gat(5, 3, hidden_channels=4, layers=3).bfloat16(), "balanced_orthogonal", generator=seeded())
    single = initialized(gat(5, 3, hidden_channels=4, layers=3), "balanced_orthogonal", generator=seeded())
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
    model = initialized(Normed(), "balanced_xavier", X, edge_index=EDGES, generator=seeded())
    assert c_of_neurons(model, X, EDGES).max() < 1e-6
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
    model = initialized(Edged(conv), "balanced_orthogonal", *inputs, generator=seeded())
    c = c_of_neurons(model, *inputs)
    assert len(c) == 4
    assert c.max() < 1e-6
    assert model.first.lin_edge.weight.any()


class Concatenating(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = SAGEConv(5, 4), SAGEConv(5, 4), nn.Linear(8, 3)

    def forward(self, x, edge_index):
        return self.out(torch.cat([self.left(x, edge_index), self.right(x, edge_index)], 1).relu())


class Beside(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = SAGEConv(5, 5), nn.Linear(10, 3)

    def forward(self, x, edge_index):
        return self.out(torch.cat([self.conv(x, edge_index).relu(), x], 1))


class RGCN(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.conv = RGCNConv(*widths, num_relations=1)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index, torch.zeros(edge_index.shape[1], dtype=torch.long))


def saturating():
    return Stack([nn.Linear(5, 4), nn.Linear(4, 3)], activation=torch.tanh)


def tied():
    model = gat(5, 4, hidden_channels=4, layers=4)
    model.convs[2].lin_l = model.convs[2].lin_r = model.convs[1].lin_l
    return model


@pytest.mark.parametrize(
    ("model", "scheme", "inputs", "message"),
    [
        (
            lambda: Stack([GATConv(5, 4), GATConv(6, 3)]),
            "balanced_xavier",
            (),
            r"takes 6 inputs, but convs.0 before it has 4.*Give the inputs",
        ),
        (
            lambda: Stack([SAGEConv(5, 4), SAGEConv(4, 3)]),
            "balanced_xavier",
            (),
            r"convs.0 is a SAGEConv with .*Give the inputs",
        ),
        (lambda: Stack([GATConv(5, 4, edge_dim=2), GATConv(4, 3)]), "balanced_xavier", (), r"convs.0 \(GATConv\) uses"),
        (Normed, "balanced_orthogonal", (X, EDGES), r"Use xavier or kaiming instead, balanced or not"),
        (
            Beside,
            "balanced_orthogonal",
            (X, EDGES),
            r"read all outputs of one another.*got out.weight around one neuron",
        ),
        (
            lambda: Stack([RGCN(5, 4), RGCN(4, 3)]),
            "orthogonal",
            (X, EDGES),
            r"got convs.0.conv.weight of shape \[1, 5, 4",
        ),
        (saturating, "balanced_xavier", (X, EDGES), r"neurons have laws.*tanh.*omit the inputs"),
        (lambda: Stack([GCNConv(5, 3)]), "balanced_xavier", (X, EDGES), r"no matrix reads the outputs of another"),
        (tied, "balanced_xavier", (), r"convs.2 \(GATv2Conv\) uses"),
        (
            lambda: weight_norm(nn.Linear(5, 3)),
            "xavier",
            (),
            r"parametrizations.weight.original0 is reparametrized.*Initialize the model",
        ),
    ],
)
def test_what_is_not_clear_is_refused_and_nothing_changed(model, scheme, inputs, message):
    torch.manual_seed(0)
    made = model()
    with unchanged(made), pytest.raises(ModelError, match=message):
        initialize_(made, scheme, *inputs)


def test_concatenated_layers_balance_by_their_laws():
    model = initialized(Concatenating(), "balanced_orthogonal", X, EDGES, generator=seeded())
    assert gatdiag.find_laws(model, X, EDGES).normalized_c().abs().max() < 1e-6


def test_concatenated_layers_are_mirrored_each_by_itself():
    model = initialized(Concatenating(), "orthogonal", X, EDGES, generator=seeded())
    out = model.out.weight
    assert torch.equal(out[:, [0, 1, 4, 5]], -out[:, [2, 3, 6, 7]])
    assert torch.equal(model.left.lin_l.weight[:2], -model.left.lin_l.weight[2:])
    torch.testing.assert_close(model(-X, EDGES), -model(X, EDGES))


def test_an_activation_without_laws_is_no_matter_in_a_stack():
    model = initialized(saturating(), "balanced_orthogonal", generator=seeded())
    first, second = model.convs
    assert squares(first.weight, 1).tolist() == pytest.approx(squares(second.weight, 0).tolist())


def test_schemes_may_be_spelled_with_hyphens():
    first, second = (
        initialized(gat(5, 3, hidden_channels=6, layers=3), spelled, generator=seeded())
        for spelled in ("balanced_looks_linear_identity", "balanced-looks-linear-identity")
    )
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_weights_without_values_are_refused():
    with pytest.raises(ModelError, match=r"weight is on the meta device: call model\.to_empty"):
        initialize_(nn.Linear(5, 3, device="meta"), "xavier")


def test_what_is_no_module_is_refused():
    with pytest.raises(InputError, match=r"Expected a torch.nn.Module.*got list"):
        initialize_([torch.ones(2, 2)], "xavier")


# --- models of every kind, by their laws ------------------------------------------------------------------------------


class Residual(nn.Module):
    """Blocks around a stream; each is added with or without ReLU after it."""

    def __init__(self, block, activation=torch.relu, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 3)
        self.blocks, self.activation = nn.ModuleList([block() for _ in range(3)]), activation

    def forward(self, x, edge_index):
        x = self.first(x).relu()
        for block in self.blocks:
            x = x + self.activation(block(x, edge_index))
        return self.last(x)


class Inner(nn.Module):
    """Two matrices with ReLU between them."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x, edge_index):
        return self.out(self.into(x).relu())


class OmegaGAT(nn.Module):
    """(1 - omega) W h + omega GAT(h), with an omega for each channel."""

    def __init__(self, into, out):
        super().__init__()
        self.conv = GATv2Conv(into, out, share_weights=True, bias=False)
        self.omega = nn.Parameter(torch.full((out,), 0.5))

    def forward(self, x, edge_index):
        own = self.conv.lin_l(x)
        return own - self.omega * (own - self.conv(x, edge_index))


class Initially(nn.Module):
    """GCNII: every layer reads the first features as well."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.convs = nn.ModuleList([GCN2Conv(8, alpha=0.1, theta=0.5, layer=layer) for layer in (1, 2, 3)])

    def forward(self, x, edge_index):
        x = first = self.first(x).relu()
        for conv in self.convs:
            x = conv(x, first, edge_index).relu()
        return self.last(x)


class Two(nn.Module):
    """A heterogeneous graph of two kinds of nodes."""

    def __init__(self, conv):
        super().__init__()
        self.layers = nn.ModuleList([HeteroConv({kind: conv() for kind in KINDS_OF_EDGES}) for _ in range(2)])
        self.first = nn.ModuleDict({"a": nn.Linear(5, 8), "b": nn.Linear(4, 8)})
        self.last = nn.Linear(8, 3)

    def forward(self, x, edges):
        x = {name: layer(x[name]).relu() for name, layer in self.first.items()}
        for layer in self.layers:
            x = {name: h.relu() for name, h in layer(x, edges).items()}
        return self.last(x["a"]), self.last(x["b"])


KINDS_OF_EDGES = [("a", "to", "b"), ("b", "back", "a"), ("a", "among", "a")]
HETERO = (
    {"a": X, "b": torch.randn(6, 4, generator=seeded(2))},
    {kind: EDGES.roll(number, 1) for number, kind in enumerate(KINDS_OF_EDGES)},
)

MODELS = {
    "residual gcn": lambda: gcn(5, 3, hidden_channels=7, layers=5, residual=True),
    "residual gatv2": lambda: Residual(lambda: GATv2Conv(8, 8)),
    "residual gatv2 of averaged heads": lambda: Residual(lambda: GATv2Conv(8, 8, heads=2, concat=False), nn.Identity()),
    "residual gin": lambda: Residual(lambda: GINConv(MLP([8, 6, 8], norm=None), train_eps=True)),
    "residual transformer": lambda: Residual(lambda: TransformerConv(8, 4, heads=2)),
    "residual of odd width": lambda: Residual(lambda: GATv2Conv(7, 7), width=7),
    "residual of two matrices": lambda: Residual(Inner, nn.Identity()),
    "omega gat": lambda: Stack([OmegaGAT(5, 6), OmegaGAT(6, 6), OmegaGAT(6, 3)]),
    "gcnii": Initially,
    "jumping knowledge": lambda: GAT(5, 8, 3, 3, heads=2, v2=True, jk="cat"),
    "largest of all layers": lambda: GraphSAGE(5, 8, 3, 3, jk="max"),
    "heterogeneous gatv2": lambda: Two(lambda: GATv2Conv(8, 8, add_self_loops=False)),
}
COMBINATIONS = [
    ("orthogonal", {}),
    ("kaiming", {"attention": "random", "beta": 3.0, "order": "reverse"}),
]


def inputs_of(name, dtype=torch.float64):
    given = HETERO if name.startswith("hetero") else (X, EDGES)
    return map_tensors(given, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


@pytest.mark.parametrize("name", MODELS)
def test_c_of_every_law_is_zero_to_rounding(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]().double(), inputs_of(name)
    laws = gatdiag.find_laws(model, *inputs)
    assert len(laws) >= 4
    for scheme, options in COMBINATIONS:
        applied = initialize_(model, scheme, *inputs, balanced=True, generator=seeded(), **options)
        assert not {law.name for law in laws} & {exclusion.what for exclusion in applied.skipped}, scheme
        assert laws.normalized_c().abs().max() < 1e-12, scheme
        outputs = model(*inputs)
        assert (outputs[0] if isinstance(outputs, tuple) else outputs).std() > 1e-3, scheme


def test_a_residual_model_is_what_was_drawn_rescaled_along_its_laws():
    drawn, balanced = (MODELS["residual gatv2"]().double() for _ in range(2))
    initialize_(drawn, "xavier", attention="random", generator=seeded())
    rebalance_(drawn, X.double(), EDGES)
    initialize_(balanced, "xavier", X.double(), EDGES, balanced=True, attention="random", generator=seeded())
    pairs = zip(drawn.parameters(), balanced.parameters(), strict=True)
    ratios = torch.cat([(b / a)[a != 0] for a, b in pairs]).detach()
    assert float(ratios.std() / ratios.mean()) < 1e-9  # but for the factor that keeps a signal's size
    size = float(balanced(X.double(), EDGES).detach().square().sum(1).mean() / X.square().sum(1).mean())
    assert size == pytest.approx(8 / 5, rel=0.01)  # 8 neurons in the first layer for 5 features


def test_tied_layers_balance_all_at_once():
    model = tied().double()
    initialize_(model, "kaiming", X.double(), EDGES, balanced=True, attention="random", generator=seeded())
    laws = gatdiag.find_laws(model, X.double(), EDGES)
    assert {law.kind for law in laws} == {"stream"}
    assert laws.normalized_c().abs().max() < 1e-12


@pytest.mark.parametrize("value", [torch.nan, 0.0, 1e30])
def test_a_model_whose_weights_are_of_no_use_any_more_begins_anew(value):
    model = MODELS["residual gcn"]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    initialize_(model, "balanced_orthogonal", X, EDGES, generator=seeded())
    assert gatdiag.find_laws(model, X, EDGES).normalized_c().abs().max() < 1e-6


def test_what_cannot_balance_is_said():
    model = Stack([GINConv(MLP([5, 6, 6])), GINConv(MLP([6, 6, 3]))])
    applied = initialize_(model, "balanced_xavier", X, EDGES, generator=seeded())
    laws = gatdiag.find_laws(model, X, EDGES)
    reasons = {exclusion.what: exclusion.reason for exclusion in applied.skipped}
    left = [law for law, c in zip(laws, laws.normalized_c().abs(), strict=True) if c > 1e-6]
    assert 0 < len(left) < len(laws)
    assert {law.kind for law in left} == {"scale"}  # weights whose scale batch normalization takes out
    assert all("its outgoing weights are zero" in reasons[law.name] for law in left)


class Tempered(nn.Module):
    """A temperature at the end, and a scale at the end of each branch."""

    def __init__(self, scale):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.convs = nn.ModuleList(GCNConv(8, 8) for _ in range(2))
        self.gates = nn.ParameterList(torch.full((8,), scale) for _ in range(2))
        self.temperature = nn.Parameter(torch.tensor(scale))

    def forward(self, x, edge_index):
        x = self.first(x)
        for conv, gate in zip(self.convs, self.gates, strict=True):
            x = x + gate * conv(x, edge_index).relu()
        return self.temperature * self.last(x)


def assert_stream_balanced(model):
    incoming = sum(squares(layer, 1) for layer in (model.first.weight, *(conv.lin.weight for conv in model.convs)))
    outgoing = sum(squares(layer, 0) for layer in (model.last.weight, *(conv.lin.weight for conv in model.convs)))
    torch.testing.assert_close(incoming, outgoing, rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [10.0, 1e-4])
def test_gates_and_temperatures_do_not_set_the_size_of_weights(scale):
    model = Tempered(scale)
    applied = initialize_(model, "balanced_xavier", X, EDGES, generator=seeded())
    size = float(model(X, EDGES).detach().square().sum(1).mean() / X.square().sum(1).mean())
    assert size == pytest.approx(8 / 5, rel=0.01)
    assert float(model.temperature.detach()) == pytest.approx(scale)
    kept = {f"{name}: it keeps its value, so its own laws are not balanced" for name in ("gates.0", "gates.1")}
    assert kept < {*map(str, applied.skipped)}
    assert_stream_balanced(model)


def test_branches_behind_a_gate_of_zero_balance():
    model = Tempered(0.0)
    nn.init.ones_(model.temperature)
    initialize_(model, "balanced_orthogonal", X, EDGES, generator=seeded())
    assert_stream_balanced(model)


def test_gates_that_read_neurons_count():
    model = Stack([TransformerConv(5, 8, beta=True), TransformerConv(8, 3, beta=True)])
    initialize_(model, "balanced_xavier", X, EDGES, generator=seeded())
    assert c_of_neurons(model, X, EDGES).max() < 1e-6


class ByHand(nn.Module):
    """Attention and a hidden layer in one module, whose weights are (out, in) or (in, out)."""

    def __init__(self, is_transposed, outputs=3):
        super().__init__()
        shapes = [(5, 4), (5, 4), (5, 8), (8, outputs)]
        self.weights = nn.ParameterList(torch.randn(shape if is_transposed else shape[::-1]) for shape in shapes)
        self.is_transposed = is_transposed

    def forward(self, x):
        query, key, value, out = (w if self.is_transposed else w.T for w in self.weights)
        attention = (x @ query @ (x @ key).T).softmax(1)
        return (attention @ x @ value).relu() @ out


@pytest.mark.parametrize(
    ("is_transposed", "outputs", "scheme"),
    [
        (False, 3, "orthogonal"),
        (True, 3, "orthogonal"),
        (False, 1, "xavier"),
        (True, 1, "xavier"),
    ],
)
def test_neurons_inside_one_module_balance_in_either_layout(is_transposed, outputs, scheme):
    model = ByHand(is_transposed, outputs)
    initialize_(model, scheme, X, balanced=True, beta=3.0, generator=seeded())
    value, out = (weight if is_transposed else weight.T for weight in model.weights[2:])
    assert squares(value, 0).tolist() == pytest.approx([3.0] * 8)
    assert squares(out, 1).tolist() == pytest.approx([3.0] * 8)
    query, key = model.weights[:2]
    axis = 0 if is_transposed else 1
    torch.testing.assert_close(squares(query, axis), squares(key, axis))
    assert not torch.allclose(squares(query, axis), torch.tensor(3.0).double())  # queries are not where it begins


# --- beta and order ---------------------------------------------------------------------------------------------------


def norms_of_the_first_and_last(model):
    weights = [conv.lin_l.weight for conv in model.convs]
    return squares(weights[0], 1), squares(weights[-1], 0)


@pytest.mark.parametrize("inputs", [(), (X, EDGES)], ids=["stack", "laws"])
def test_beta_is_the_norm_of_the_first_rows_or_in_reverse_of_the_last_columns(inputs):
    def norms(**options):
        model = gat(5, 3, hidden_channels=6, layers=4)
        initialize_(model, "xavier", *inputs, balanced=True, generator=seeded(), **options)
        assert gatdiag.find_laws(model, X, EDGES).normalized_c().abs().max() < 1e-6
        return norms_of_the_first_and_last(model)

    assert norms(beta=3)[0].tolist() == pytest.approx([3.0] * 6)
    assert norms(beta=3, order="reverse")[1].tolist() == pytest.approx([3.0] * 6)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_beta_of_a_residual_model_is_that_of_its_end(order):
    model = MODELS["residual gatv2"]().double()
    initialize_(model, "balanced_orthogonal", X.double(), EDGES, beta=1.5, order=order, generator=seeded())
    found = squares(model.first.weight, 1) if order == "forward" else squares(model.last.weight, 0)
    assert found.tolist() == pytest.approx([1.5] * 8)
    assert gatdiag.find_laws(model, X.double(), EDGES).normalized_c().abs().max() < 1e-12


@pytest.mark.parametrize("name", ["gatv2", "gatv2 with averaged heads", "gatv2 unshared", "gat"])
def test_attention_that_is_drawn_balances_too(name):
    model = STACKS[name]().double()
    initialize_(model, "balanced_xavier", attention="random", generator=seeded())
    assert all(p.any() for n, p in model.named_parameters() if "att" in n or "lin_r.weight" in n)
    assert gatdiag.find_laws(model, X.double(), EDGES).normalized_c().abs().max() < 1e-12


# --- branches that begin at zero --------------------------------------------------------------------------------------


def test_branches_may_begin_at_zero():
    model = MODELS["residual of two matrices"]()
    applied = initialize_(model, "balanced_xavier", X, EDGES, zero_branches=True, generator=seeded())
    assert not any(block.out.weight.any() for block in model.blocks)
    torch.testing.assert_close(model(X, EDGES), model.last(model.first(X).relu()))
    laws = gatdiag.find_laws(model, X, EDGES)
    c = dict(zip([law.name for law in laws], laws.normalized_c().abs().tolist(), strict=True))
    assert max(value for name, value in c.items() if "stream" in name) < 1e-6
    assert {exclusion.what for exclusion in applied.skipped} >= {name for name, value in c.items() if value > 1e-6}
    model(X, EDGES).square().sum().backward()
    assert all(block.out.weight.grad.any() for block in model.blocks)
    attending = Residual(lambda: GATv2Conv(8, 8), nn.Identity())
    initialize_(attending, "balanced_orthogonal", X, EDGES, zero_branches=True, generator=seeded())
    assert gatdiag.find_laws(attending, X, EDGES).normalized_c().abs().max() < 1e-6


# --- and back ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["xavier", "looks_linear_identity"])
@pytest.mark.parametrize("inputs", [(), (X, EDGES)], ids=["stack", "laws"])
def test_undoing_puts_the_weights_back_bit_for_bit(scheme, inputs):
    model = gat(5, 3, hidden_channels=6, layers=3)
    output = model(X, EDGES)
    with unchanged(model), initialize_(model, scheme, *inputs, balanced=True) as applied:
        assert {change.where for change in applied.changes} == {name for name, _ in model.named_parameters()}
        assert str(applied).startswith("initialize:\n  convs.0.")
        assert not torch.equal(model(X, EDGES), output)
    assert torch.equal(model(X, EDGES), output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scheme": "balanced_xavier", "balanced": False},
            r"agree with the scheme 'balanced_xavier', got balanced=False",
        ),
        ({"scheme": "xavier_zero_attention", "attention": "random"}, r"agree with .* attention='random'"),
        ({"attention": "none"}, r"attention to be zero or random, got 'none'"),
        ({"scheme": "balanced_xavier", "order": "backward"}, r"order to be forward or reverse, got 'backward'"),
        ({"beta": 2.0}, r"balanced schemes only: give balanced=True"),
        ({"scheme": "balanced_xavier", "beta": 0.0}, r"beta to be a positive number, got 0.0"),
        ({"scheme": "balanced_xavier", "beta": "uniform"}, r"beta to be a positive number, got 'uniform'"),
        ({"zero_branches": True}, r"requires the inputs of a forward pass"),
        ({"scheme": X}, r"one of the schemes xavier.*got tensor"),
        ({"atention": "zero"}, r"inputs of Stack.forward: got an unexpected keyword argument 'atention'"),
    ],
)
def test_options_that_do_not_fit_are_refused_and_nothing_changed(options, message):
    model = gat(5, 3, hidden_channels=4, layers=3)
    with unchanged(model), pytest.raises(InputError, match=message):
        initialize_(model, **{"scheme": "xavier"} | options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: gcn(5, 3, layers=4, residual=True), r"gradient at zero, but convs.1.lin.weight has none"),
        (lambda: gat(5, 3, hidden_channels=4, layers=3), r"residual stream with branches"),
    ],
)
def test_branches_that_would_stay_at_zero_are_refused_and_nothing_changed(model, message):
    made = model()
    with unchanged(made), pytest.raises(ModelError, match=message):
        initialize_(made, "xavier", X, EDGES, zero_branches=True)

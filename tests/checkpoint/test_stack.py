"""Which layer feeds which, and c from the state dict alone, against the laws that tracing the model finds."""

import random
import re
from itertools import pairwise

import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn

from gatdiag import find_laws
from gatdiag.checkpoint.stack import ASSUMPTIONS, find_stack
from gatdiag.experiments import models
from gatdiag.laws import Laws
from gatdiag.structure.from_names import find_layers
from tests.laws.zoo import ZOO, build

X = torch.linspace(-1, 1, 60).view(12, 5).sin()
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 5, 9]])


def shown(tensors):
    """The laws that a state dict shows, and why it shows no others."""
    return find_stack(tensors, find_layers(tensors))


def laws_of(tensors):
    """The laws, of a kind that computes c in a way of its own."""
    laws, excluded = shown(tensors)
    return Laws(list(laws), tensors, excluded)


def c_of(tensors):
    return shown(tensors)[0].c({name: tensor.numpy() for name, tensor in tensors.items()})


def entries(term):
    """Which entries of its parameter a term adds up."""
    mask = torch.zeros(term.shape, dtype=torch.bool)
    for index in term.indices:
        place = [slice(None)] * len(term.shape)
        for axis, position in zip(term.axes, index, strict=True):
            place[axis] = position
        mask[tuple(place)] = True
    return term.parameter, term.exponent, tuple(mask.flatten().tolist())


def by_terms(laws):
    """What a law adds up -> c."""
    values = laws.c().tolist()
    return {frozenset(map(entries, law.terms)): value for law, value in zip(laws, values, strict=True)}


def neurons(laws):
    return sum(law.kind in ("neuron", "product", "stream") for law in laws)


def assert_same(model, *args, **kwargs):
    traced, laws = find_laws(model, *args, **kwargs), laws_of(model.state_dict())
    known, found = by_terms(traced), by_terms(laws)
    assert len(laws) > 0
    assert found.keys() <= known.keys()
    for terms, value in found.items():
        assert value == pytest.approx(known[terms], abs=1e-6)
    assert len(laws) == neurons(traced)
    assert c_of(model.state_dict()) == pytest.approx(laws.c().numpy(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: models.gat(5, 3, hidden_channels=4, layers=3, heads=2),
        lambda: models.gcn(5, 3, hidden_channels=4, layers=4),
        lambda: gnn.GAT(5, 4, 3, out_channels=3, v2=True, residual=True),
        lambda: gnn.GIN(5, 4, 3, out_channels=3),
        lambda: gnn.GCN(5, 4, 3, out_channels=3, jk="last"),
    ],
)
def test_c_is_that_of_the_traced_model(make):
    torch.manual_seed(0)
    assert_same(make(), X, EDGES)


ZOO_STACKS = (
    "plain: mlp",
    "plain: mlp no bias",
    "plain: mlp leaky",
    "convolutions: gcn",
    "convolutions: sage mean",
    "convolutions: sage no root",
    "convolutions: graph conv",
    "convolutions: gin",
    "convolutions: appnp",
    "attention: gatv1 residual",
    "attention: gatv1 heads concat",
    "attention: gatv1 heads mean",
    "attention: gatv2 shared bias",
    "attention: gatv2 unshared bias",
    "attention: gatv2 residual",
    "attention: gatv2 heads concat unshared",
    "attention: gatv2 heads mean unshared",
    "attention: gatv2 heads mixed",
    "more_convolutions: cheb",
    "more_convolutions: tag",
    "more_convolutions: sg",
    "more_convolutions: le",
    "more_convolutions: cluster gcn",
)


@pytest.mark.parametrize("name", ZOO_STACKS)
def test_c_of_each_kind_of_layer(name):
    case = build(name)
    assert_same(case.model, *case.args, **(case.kwargs or {}))


BROKEN = (
    r"\b(elu|gelu|tanh|hardtanh|softplus|silu|softshrink)\b",
    r"\b(softmax|power mean|var|mul) aggregation$",
    r"\b(jk|GCN|GraphSAGE|GIN|GAT) max$",
    r"\b(pair|instance|mean_subtraction|lipschitz).norm|normalize$|pmlp$",
    r"weight standardization|supergat SD$",  # SuperGAT without attention vectors has the names of a GCN
)
UNBROKEN = [name for name in ZOO if not any(re.search(words, name) for words in BROKEN)]


def false_laws(name):
    """How many of the laws that the state dict shows are none that tracing finds, by their values."""
    case = build(name)
    values = laws_of(case.model.state_dict()).c().tolist()
    if not values:
        return 0
    known = sorted(find_laws(case.model, *case.args, **(case.kwargs or {})).c().tolist())
    return sum(min((abs(value - other) for other in known), default=1) > 1e-9 for value in values)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", UNBROKEN)
def test_no_false_law_unless_an_assumption_is_broken(name):
    assert false_laws(name) == 0


@pytest.mark.parametrize(
    "name",
    [
        "convolutions: gcn elu",
        "pooling: softmax aggregation",
        "convolutions: jk max",
        "convolutions: gcn pair norm individually",
        "language: weight standardization",
    ],
)
def test_each_assumption_is_needed(name):
    assert len(ASSUMPTIONS) == len(BROKEN)
    assert false_laws(name) > 0


def named(**layers):
    return nn.ModuleDict(layers)


def stack(*widths, make=gnn.GCNConv):
    return nn.ModuleList(make(before, after) for before, after in pairwise(widths))


def fed(model):
    """A layer, and the one that its outputs feed, as the laws have them."""
    structure = find_layers(model.state_dict())
    layer_of = {info.name: layer.name for layer in structure for info in layer.parameters}
    ends = ((law.layer, layer_of[law.terms[-1].parameter]) for law in shown(model.state_dict())[0])
    return list(dict.fromkeys(ends))


def test_equal_widths_follow_their_numbers():
    assert fed(named(convs=stack(8, 8, 8, 8))) == [("convs.0", "convs.1"), ("convs.1", "convs.2")]
    assert fed(named(conv1=gnn.GCNConv(5, 8), conv2=gnn.GCNConv(8, 8), lin=nn.Linear(8, 2))) == [
        ("conv1", "conv2"),
        ("conv2", "lin"),
    ]
    assert fed(named(conv1=gnn.GCNConv(5, 8), lin=nn.Linear(8, 8))) == [("conv1", "lin")]
    many = named(convs=stack(*[4] * 13))
    assert fed(many)[8:11] == [("convs.8", "convs.9"), ("convs.9", "convs.10"), ("convs.10", "convs.11")]


def tied():
    convs = stack(4, 4, 4, 4)
    convs[1].lin.weight = convs[0].lin.weight
    return named(convs=convs)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            named(fc_a=nn.Linear(5, 4), fc_b=nn.Linear(4, 4), fc_c=nn.Linear(4, 2)),
            "fc_c takes 4 inputs: it may read the outputs of fc_a",
        ),
        (named(a=nn.Linear(5, 4), mu=nn.Linear(4, 2), logstd=nn.Linear(4, 2)), "logstd takes 4 inputs, but mu before"),
        (named(a=nn.Linear(5, 4), b=nn.Linear(3, 4), c=nn.Linear(4, 2)), "b takes 3 inputs, but a before it has 4"),
        (named(convs=stack(5, 4, 4), lin=nn.Linear(8, 2)), "lin takes 8 inputs"),
        (
            named(a=nn.Linear(5, 4), b=nn.Linear(4, 3), c=nn.Linear(3, 2)),
            "c takes 3 inputs: it may read the outputs of a",
        ),
        (named(decoder=nn.Linear(4, 2), convs=stack(8, 6, 4)), "convs.0 takes 8 inputs"),
        (named(enc=nn.Linear(5, 4), heads=stack(4, 3, 2, make=nn.Linear)), "heads.1 takes 3 inputs: it may read"),
        (named(enc=nn.Linear(5, 4), dec1=nn.Linear(4, 3), dec2=nn.Linear(3, 2)), "dec2 takes 3 inputs: it may read"),
        (named(a=nn.Linear(5, 8), b=nn.Linear(2, 5)), "b takes 2 inputs"),
        (
            named(a=nn.Linear(5, 4), b=nn.Linear(4, 5), c=nn.Linear(5, 2)),
            "c takes 5 inputs: it may read the inputs of a",
        ),
        (named(dec=nn.Linear(8, 5), enc=nn.Linear(5, 8)), "dec may read the outputs of enc"),
        (named(convs=stack(5, 8, 8), lin=nn.Linear(8, 8)), "the widths of lin are those of a skip connection"),
        (
            named(convs=stack(5, 4, 3), norms=nn.ModuleList([nn.LayerNorm(4)])),
            "norms.0.weight belongs to a normalization",
        ),
        (named(convs=stack(5, 4, 3), bn=nn.BatchNorm1d(4, affine=False)), "bn.running_mean belongs to a normalization"),
        (named(convs=stack(5, 4, 3), skip=nn.Linear(5, 4)), "the name of skip suggests a skip connection"),
        (named(convs=stack(5, 4, 3), rnn=nn.LSTM(4, 4)), "how rnn (Module) uses its weights is not known"),
        (named(emb=nn.Embedding(9, 4), convs=stack(5, 4, 3)), "emb (Embedding)"),
        (named(convs=stack(5, 4, 3, make=gnn.TransformerConv)), "(TransformerConv)"),
        (named(conv=gnn.SAGEConv(4, 4, project=True), lin=nn.Linear(4, 2)), "(SAGEConv)"),
        (named(convs=nn.ModuleList([gnn.GATConv(4, 3, edge_dim=3), gnn.GATConv(3, 2)])), "(GATConv)"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), "is not a weight itself"),
        (tied(), "shared with convs.1.lin.weight"),
    ],
)
def test_what_is_no_plain_stack_has_no_law_and_a_reason(model, reason):
    laws, excluded = shown(model.state_dict())
    assert not len(laws)
    assert all(reason in each.reason and "give --model" in each.reason for each in excluded)
    assert excluded


class Wired(nn.Module):
    """Layers whose names tell nothing; each reads the inputs, or all or a part of an earlier one's outputs."""

    def __init__(self, seed):
        super().__init__()
        rng = random.Random(seed)
        names = rng.sample(
            ["enc", "dec", "dec1", "dec2", "head", "lin", "mu", "heads_0", "heads_1", "pool"], rng.randint(2, 4)
        )
        self.wires, widths = [], [5]
        for number, name in enumerate(names):
            source = rng.randrange(number + 1)
            width = widths[source] if source == 0 or rng.random() < 0.6 else rng.randint(1, widths[source])
            widths.append(rng.randint(2, 6))
            self.wires.append((name, source, width))
            self.add_module(name, nn.Linear(width, widths[-1]))

    def forward(self, x):
        values = [x]
        for name, source, width in self.wires:
            values.append(self.get_submodule(name)(values[source][:, :width]).relu())
        read = {source for _, source, _ in self.wires}
        return [value for number, value in enumerate(values) if number not in read]


@pytest.mark.parametrize("count", [1, 100])
def test_layers_without_a_matrix_have_no_law_and_a_reason(count):
    tensors = {f"acts.{number}.weight": torch.ones(1) for number in range(count)}
    laws, excluded = find_stack(tensors, find_layers(tensors))
    assert not len(laws)
    assert [one.what for one in excluded] == [f"acts.{number}" for number in range(count)]
    assert "no layer has a weight matrix" in excluded[0].reason


def test_no_law_is_false_where_layers_read_parts_of_others():
    found = 0
    for seed in range(250):
        torch.manual_seed(seed)
        model = Wired(seed)
        if laws := by_terms(laws_of(model.state_dict())).keys():
            assert laws <= by_terms(find_laws(model, X)).keys(), model.wires
            found += len(laws)
    assert found >= 20


class Right(nn.Module):
    """X W + b, as Kipf's and DGL's GCNs store it."""

    def __init__(self, before, after):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(before, after) / 8)
        self.bias = nn.Parameter(torch.randn(after) / 8)

    def forward(self, x):
        return x @ self.weight + self.bias


class Stack(nn.Module):
    def __init__(self, pattern, *layers):
        super().__init__()
        self.paths = [pattern.replace("#", str(number)) for number in range(len(layers))]
        for path, layer in zip(self.paths, layers, strict=True):
            at = self
            *parents, last = path.split(".")
            for name in parents:
                at.add_module(name, getattr(at, name, nn.Module()))
                at = getattr(at, name)
            at.add_module(last, layer)

    def forward(self, x):
        *hidden, last = (self.get_submodule(path) for path in self.paths)
        for layer in hidden:
            x = layer(x).relu()
        return last(x)


@pytest.mark.parametrize("make", [nn.Linear, Right])
@pytest.mark.parametrize("pattern", ["conv#", "conv_mlp.#", "convs.#.fc", "layers.#"])
def test_the_way_round_of_square_matrices_is_that_of_their_series(make, pattern):
    torch.manual_seed(0)
    assert_same(Stack(pattern, *stack(5, 8, 8, 8, 3, make=make)), X)


@pytest.mark.parametrize("pattern", ["conv#", "layers.#"])
def test_square_matrices_of_which_nothing_tells_the_way_round_have_no_law(pattern):
    model = Stack(pattern, *stack(8, 8, 8, make=nn.Linear))
    assert not fed(model)
    assert "are outputs is not known" in shown(model.state_dict())[1][0].reason
    assert len(fed(Stack("lin#", *stack(8, 8, 8, make=nn.Linear)))) == 1

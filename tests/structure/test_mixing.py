"""Whether the output of one example depends on the inputs of others, against what the models are made of."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GraphNorm, MessagePassing, global_mean_pool
from torch_geometric.utils import softmax

from gatdiag.structure.mixing import find_mixing

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(10, 6, 4, generator=torch.Generator().manual_seed(0))
EDGES = torch.stack([torch.arange(10), torch.arange(10).view(2, 5).roll(1, 1).flatten()])  # two rings of five nodes
BATCH = torch.arange(2).repeat_interleave(5)


class Calls(nn.Module):
    """A linear layer, and a function of its output."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.linear(x))


class Graphs(nn.Module):
    """A convolution, a normalization, and a mean over each graph."""

    def __init__(self, is_told_graphs):
        super().__init__()
        self.conv, self.norm, self.is_told_graphs = GCNConv(4, 4), GraphNorm(4), is_told_graphs

    def forward(self, x, edge_index, batch):
        x = self.norm(self.conv(x, edge_index), batch if self.is_told_graphs else None)
        return global_mean_pool(x, batch)


class Attention(nn.Module):
    def __init__(self, *, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, x):
        return self.attention(x, x, x)[0].mean(1)


class DenseGraphs(nn.Module):
    """Sums over neighbors in graphs of one size, given as [graphs, nodes, columns], with a matrix for each."""

    def __init__(self, factor):
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 4), factor  # by which the number of a graph is multiplied

    def forward(self, x, links):
        graph, to, source = links.nonzero(as_tuple=True)
        rows = self.linear(x).flatten(0, 1)[graph * self.factor + source]
        return x.new_zeros(len(x) * x.shape[1], 4).index_add(0, graph * x.shape[1] + to, rows).view_as(x)


LINKS = torch.ones(10, 6, 6)


MIXING = {
    "nodes counted by the size of the batch": (lambda: DenseGraphs(5), (SEQUENCES, LINKS), "rows"),
    "softmax over the batch": (lambda: Calls(lambda h: h.softmax(0)), (X,), "rows"),
    "centered over the batch": (lambda: Calls(lambda h: h - h.mean(0)), (X,), "rows"),
    "attention along the batch": (lambda: Attention(batch_first=False), (SEQUENCES,), "rows"),
    "graphs normalized together": (lambda: Graphs(is_told_graphs=False), (X, EDGES, BATCH), "graphs"),
}
SEPARATE = {
    "nodes counted by the size of a graph": (lambda: DenseGraphs(6), (SEQUENCES, LINKS)),
    "softmax over the classes": (lambda: Calls(lambda h: h.softmax(-1)), (X,)),
    "batch normalization": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (X,)),
    "attention along sequences": (lambda: Attention(batch_first=True), (SEQUENCES,)),
    "graphs normalized one by one": (lambda: Graphs(is_told_graphs=True), (X, EDGES, BATCH)),
}


def mixing(make, args):
    torch.manual_seed(0)
    return find_mixing(make().eval(), args, {})


@pytest.mark.parametrize("case", MIXING)
def test_the_gradient_shows_what_is_computed_over_examples(case):
    make, args, others = MIXING[case]
    found = mixing(make, args)
    assert found["share"] > 0.01
    assert found["others"] == others
    assert bool(found["sequence_first"]) == ("attention" in case)


@pytest.mark.parametrize("case", SEPARATE)
def test_examples_that_are_computed_one_by_one_do_not_mix(case):
    make, args = SEPARATE[case]
    assert mixing(make, args)["share"] == 0


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (lambda: GCNConv(4, 4), (X, EDGES[:, :0])),  # one graph without edges
        (lambda: nn.TransformerEncoderLayer(4, 2, 8), (X,)),  # one sequence
        (lambda: nn.LSTM(4, 4), (torch.randn(10, 10, 4),)),  # time or examples first
    ],
)
def test_of_rows_that_may_be_parts_of_one_example_nothing_is_said(make, args):
    assert mixing(make, args) is None


class Tokens(nn.Module):
    """Embedded tokens, to which an encoding of positions is added along an axis, and their mean."""

    def __init__(self, axis):
        super().__init__()
        self.embedding, self.positions, self.axis = nn.Embedding(9, 4), torch.randn(10, 1, 4), axis

    def forward(self, tokens):
        x = self.embedding(tokens)
        positions = self.positions[: tokens.shape[self.axis]]
        return (x + (positions if self.axis == 0 else positions.transpose(0, 1))).mean(1)


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_added_along_the_batch_shows_when_the_order_changes(axis):
    tokens = torch.arange(60).view(10, 6) % 9
    model = Tokens(axis).eval()
    found = find_mixing(model, (tokens,), {})
    with torch.no_grad():
        change = (model(tokens.flip(0)).flip(0) - model(tokens)).norm() / model(tokens).norm()
    assert found["is_by_order"]
    assert found["share"] == pytest.approx(float(change), abs=1e-6)
    assert (found["share"] > 0.1) == (axis == 0)


def test_the_order_matters_neither_to_rows_with_weights_nor_where_rows_may_be_times():
    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = nn.Embedding(len(X), 4)

        def forward(self, x):
            return x + self.codes(torch.arange(len(x)))

    found = find_mixing(Coded().eval(), (X,), {})
    assert (found["share"], "is_by_order" in found) == (0, False)


def test_attention_of_one_operation_in_evaluation_mode_is_not_random():
    """Which torch takes where no gradients are asked for."""

    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.places = nn.Parameter(torch.randn(20, 1, 4))
            self.body = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

        def forward(self, x):
            return self.body(x + self.places[: len(x)]).mean(1)

    torch.manual_seed(0)
    assert find_mixing(Placed().eval(), (SEQUENCES,), {})["share"] > 0.01


def test_random_outputs_and_tokens_that_may_be_edges_are_not_compared():
    noisy = Calls(lambda h: h + torch.randn_like(h))
    assert find_mixing(noisy.eval(), (X,), {})["share"] == 0
    assert find_mixing(Tokens(0).eval(), (torch.zeros(2, 6, dtype=torch.int64),), {}) is None


class Weighed(MessagePassing):
    """Attention to neighbors, whose weights are those of their own features or of the node's."""

    def __init__(self, is_of_neighbors):
        super().__init__(aggr="add")
        self.linear, self.score, self.is_of_neighbors = nn.Linear(4, 4), nn.Linear(8, 1), is_of_neighbors

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.linear(x))

    def message(self, x_i, x_j, index, size_i):
        weights = softmax(self.score(torch.cat([x_i, x_j], -1)), index, num_nodes=size_i)
        return weights * (x_j if self.is_of_neighbors else x_i)


@pytest.mark.parametrize(
    ("model", "depends"),
    [(Weighed(True), True), (Weighed(False), False), (GCNConv(4, 4), True), (GATConv(4, 4), True)],
    ids=["x_j", "x_i", "GCN", "GAT"],
)
def test_a_node_depends_on_its_neighbors(model, depends):
    found = find_mixing(model.double().eval(), (X.double(), EDGES), {})
    assert found["others"] == "nodes"
    assert (found["share"] > 1e-3) is depends
    assert (found["share"] < 1e-12) is not depends

"""Reports of graph networks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import (
    GAE,
    DenseGraphConv,
    GCNConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
    global_mean_pool,
)
from torch_geometric.utils import dense_to_sparse, softmax

from gatdiag.experiments.synthetic import block_model
from tests.bank.public.reports import (
    Rebuilt,
    accuracy,
    explained,
    minimize,
    outputs,
    report,
    seeded,
    shuffled,
)


class GraphNet(nn.Module):
    """Two convolutions with a ReLU in between; of graphs, followed by a mean over their nodes and a linear layer."""

    def __init__(self, first: nn.Module, second: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = first, second, head

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        x = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return x if self.head is None else self.head(global_mean_pool(x.relu(), batch))


def random_links(nodes: int, share: float, generator: torch.Generator) -> Tensor:
    """Edges of a random graph, in both directions."""
    links = (torch.rand(nodes, nodes, generator=generator) < share).triu(1)
    return dense_to_sparse((links | links.T).long())[0]


@report(
    "https://github.com/pyg-team/pytorch_geometric/issues/485",
    "Ages are the targets as they are: the output creeps towards their mean and is the same for all graphs.",
    right="target-scale",
    near="lr-too-small",
)
def ages_as_they_are(is_faulty: bool) -> Rebuilt:
    """Regression of graphs with targets around 45."""
    generator, data = seeded(1), []
    for _ in range(160):
        x = torch.randn(12, 5, generator=generator) + torch.randn(5, generator=generator)
        age = 45 + 10 * (x.mean(0)[0] + x.mean(0)[1].tanh())
        data.append(Data(x=x, edge_index=random_links(12, 0.2, generator), y=age[None]))
    every = Batch.from_data_list(data)
    mean, scale = (0.0, 1.0) if is_faulty else (every.y.mean(), every.y.std())
    model = GraphNet(GraphConv(5, 16), GraphConv(16, 16), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(batch: Data) -> Tensor:
        out = model(batch.x, batch.edge_index, batch.batch).view(-1)
        return F.mse_loss(out, (batch.y - mean) / scale)

    def train(log):
        for _ in range(40):
            minimize(optimizer, loss_of, DataLoader(data, batch_size=16, shuffle=True), log)

    def score() -> float:
        return explained(outputs(model, (every.x, every.edge_index, every.batch)).view(-1) * scale + mean, every.y)

    return Rebuilt(model, train, score)


@report(
    "https://github.com/tkipf/gcn/issues/130",
    "The graph is fully connected, so that each node is given the mean of all (explained in pytorch_geometric#679); "
    "a network without edges does better.",
    right="input-complete-graph depth-oversmoothing rank-collapse input-constant",
)
def all_nodes_linked(is_faulty: bool) -> Rebuilt:
    """Scores of the nodes of one graph, in which all are linked."""
    generator = seeded(2)
    x = torch.randn(40, 4, generator=generator)
    y = (x[:, :1] + (2 * x[:, 1:2]).sin() - x[:, 2:3]).sigmoid()
    edges = dense_to_sparse(torch.ones(40, 40) - torch.eye(40))[0]
    layer = GCNConv if is_faulty else SAGEConv  # which has a weight for the node itself
    model = GraphNet(layer(4, 32), layer(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(log):
        minimize(optimizer, lambda _: F.mse_loss(model(x, edges), y), range(200), log)

    return Rebuilt(model, train, lambda: explained(outputs(model, (x, edges)), y))


@report(
    "https://github.com/pyg-team/pytorch_geometric/issues/1776",
    "GCNConv(cached=True) in mini-batches: all batches have as many nodes, and get the edges of the first one.",
    right="input-edges-cached",
    held_out=True,
)
def cached_edges(is_faulty: bool) -> Rebuilt:
    """Classes of graphs that differ in whether linked nodes are alike."""
    generator, data = seeded(3), []
    for number in range(128):
        sign = torch.randn(16, 1, generator=generator).sign()
        alike = sign @ sign.T * (1 if number % 2 else -1) > 0
        links = (torch.rand(16, 16, generator=generator) < 0.3).triu(1) & alike
        edges = dense_to_sparse((links | links.T).long())[0]
        data.append(Data(x=sign.repeat(1, 2), edge_index=edges, y=torch.tensor(number % 2)))
    layers = [GCNConv(*size, cached=is_faulty) for size in ((2, 32), (32, 32))]
    model = GraphNet(*layers, nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(batch: Data) -> Tensor:
        return F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)

    def train(log):
        for _ in range(30):
            minimize(optimizer, loss_of, DataLoader(data, batch_size=16, shuffle=True), log)

    def score() -> float:
        parts = [*DataLoader(data, batch_size=16)]
        out = torch.cat([outputs(model, (part.x, part.edge_index, part.batch)) for part in parts])
        return accuracy(out, torch.cat([part.y for part in parts]))

    return Rebuilt(model, train, score)


@report(
    "https://github.com/ai4co/rl4co/issues/227",
    "The edges of one full graph are used for a whole batch: all graphs but the first get no messages.",
    right="input-without-messages",
    near="input-without-edges",
    held_out=True,
)
def edges_of_one_graph(is_faulty: bool) -> Rebuilt:
    """Nodes are to be told where the mean of their graph lies."""
    generator = seeded(4)
    graphs, nodes = 16, 8
    one = dense_to_sparse(torch.ones(nodes, nodes) - torch.eye(nodes))[0]
    edges = one if is_faulty else torch.cat([one + nodes * number for number in range(graphs)], 1)
    x = torch.rand(30, graphs, nodes, 2, generator=generator)
    y = (x.mean(2, keepdim=True)[..., :1].expand(-1, -1, nodes, -1) - 0.5).flatten(1, 2) * 10
    x = x.flatten(1, 2)
    model = GraphNet(GCNConv(2, 32), GCNConv(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(log):
        days = [day for _ in range(12) for day in range(len(x))]
        minimize(optimizer, lambda day: F.mse_loss(model(x[day], edges), y[day]), days, log)

    return Rebuilt(model, train, lambda: explained(outputs(model, (x[0], edges)), y[0]))


@report(
    "https://github.com/tkipf/gcn/issues/96",
    "Embeddings of both signs are divided by the sum of their row, as it is done for counts of words: rows whose sum "
    "is near zero become huge.",
    right="input-scale",
    near="lr-too-large input-nonfinite",
    held_out=True,
)
def rows_over_their_sums(is_faulty: bool) -> Rebuilt:
    """Classes of nodes whose features are embeddings."""
    data = block_model(490, 7, 63, seed=5)
    generator = seeded(5)
    x = torch.randn(7, 24, generator=generator)[data.y] + 2 * torch.randn(490, 24, generator=generator)
    if is_faulty:
        x = x / x.sum(1, keepdim=True)
    model = GraphNet(GCNConv(24, 16), GCNConv(16, 7))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def loss_of(_: int) -> Tensor:
        return F.cross_entropy(model(x, data.edge_index)[data.train_mask], data.y[data.train_mask])

    def score() -> float:
        out = outputs(model, (x, data.edge_index))
        return accuracy(out[data.test_mask], data.y[data.test_mask])

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(150), log), score)


@report(
    "https://github.com/pyg-team/pytorch_geometric/issues/1165",
    "Features are large, all inner products saturate the sigmoid at 1, and the loss is fixed at -log(1e-15) = 34.54.",
    right="input-scale no-training-signal",
)
def saturated_decoder(is_faulty: bool) -> Rebuilt:
    """A graph autoencoder of nodes with counts as features."""
    data = block_model(200, 4, 32, seed=6)
    x = 400 * (data.x + 0.5 * torch.rand(data.x.shape, generator=seeded(6)))
    if not is_faulty:
        x = (x - x.mean(0)) / x.std(0)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = GCNConv(32, 32, cached=True), GCNConv(32, 16, cached=True)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    model = GAE(Encoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        return model.recon_loss(model.encode(x, data.edge_index), data.edge_index)

    @torch.no_grad()
    def score() -> float:
        z = model.encode(x, data.edge_index)
        linked = (z[data.edge_index[0]] * z[data.edge_index[1]]).sum(1)
        one, other = torch.randint(200, (2, 1000), generator=seeded(9))
        return (linked[:, None] - (z[one] * z[other]).sum(1)).sign().mean().item()  # 2 AUC - 1

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(150), log), score)


@report(
    "https://github.com/dmlc/dgl/issues/1566",
    "Convolution without self-loops on parts of a graph: the features of nodes without a neighbor are washed out.",
    right="input-without-messages",
)
def unlooped_nodes(is_faulty: bool) -> Rebuilt:
    """Classes of nodes, trained on parts of the graph that keep few edges."""
    data = block_model(400, 4, 32, seed=7)
    generator = seeded(7)
    few = torch.rand(data.num_edges, generator=generator) < 0.04
    edges = data.edge_index[:, few]
    layers = [GCNConv(*size, add_self_loops=not is_faulty) for size in ((32, 32), (32, 4))]
    model = GraphNet(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def part(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place = torch.full((400,), -1)
        place[rows] = torch.arange(len(rows))
        inner = place[edges]
        return data.x[rows], inner[:, (inner >= 0).all(0)], data.y[rows]

    def loss_of(rows: Tensor) -> Tensor:
        x, inner, y = part(rows)
        return F.cross_entropy(model(x, inner), y)

    def score() -> float:
        x, inner, y = part(torch.randperm(400, generator=seeded(8))[:200])
        return accuracy(outputs(model, (x, inner)), y)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(400, 100, 40), log), score)


@report(
    "https://github.com/phlippe/uvadlc_notebooks/issues/5",
    "Nodes of a batch of graphs are counted by graph times the size of the batch instead of the number of nodes: edges "
    "of one graph read nodes of others.",
    right="wrong-axis",
)
def nodes_of_other_graphs(is_faulty: bool) -> Rebuilt:
    """Labels of nodes by their neighbors, in batches of graphs of one size."""
    generator = seeded(15)
    x = torch.randn(60, 10, 6, generator=generator)
    links = (torch.rand(60, 10, 10, generator=generator) < 0.3).float()
    y = ((links @ x)[..., 0] > 0).long()

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.others = nn.Linear(6, 32), nn.Linear(6, 32)
            self.head = nn.Linear(32, 2)

        def forward(self, x: Tensor, links: Tensor) -> Tensor:
            graph, to, source = links.nonzero(as_tuple=True)
            graphs, nodes = x.shape[:2]
            rows = x.flatten(0, 1)[graph * (graphs if is_faulty else nodes) + source]
            sums = x.new_zeros(graphs * nodes, x.shape[2]).index_add(0, graph * nodes + to, rows)
            return self.head((self.own(x) + self.others(sums.view_as(x))).relu())

    model = Layer()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows], links[rows]).flatten(0, 1), y[rows].flatten())

    def score() -> float:
        return accuracy(outputs(model, (x[:6], links[:6])).flatten(0, 1), y[:6].flatten())

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(60, 6, 20), log), score)


@report(
    "https://github.com/qbxlvnf11/graph-neural-networks-for-graph-classification/pull/3",
    "The convolutions are in a Python list, so that the optimizer has the layers behind them alone.",
    right="parameters-not-in-optimizer parameters-not-registered",
    held_out=True,
)
def convolutions_in_list(is_faulty: bool) -> Rebuilt:
    """Classes of graphs by which kinds of nodes are linked."""
    generator, data = seeded(21), []
    for number in range(240):
        kind = torch.randint(4, (16,), generator=generator)
        is_asked = (kind[:, None] + number) % 4 == kind
        links = torch.rand(16, 16, generator=generator) < torch.where(is_asked, 0.6, 0.03)
        edges = dense_to_sparse((links | links.T).long())[0]
        data.append(Data(x=F.one_hot(kind, 4).float(), edge_index=edges, y=torch.tensor(number % 4)))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [GraphConv(4, 16), GraphConv(16, 16), GraphConv(16, 16)]
            self.layers = layers if is_faulty else nn.ModuleList(layers)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, edge_index).relu()
            return self.head(global_mean_pool(x, batch))

    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    every = Batch.from_data_list(data)

    def loss_of(batch: Data) -> Tensor:
        return F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)

    def train(log):
        for _ in range(25):
            minimize(optimizer, loss_of, DataLoader(data, batch_size=24, shuffle=True), log)

    return Rebuilt(model, train, lambda: accuracy(outputs(model, (every.x, every.edge_index, every.batch)), every.y))


@report(
    "https://github.com/flyingdoog/PGExplainer/issues/6",
    "The mean that reads out a graph is taken over the features of [graphs, nodes, features] instead of the nodes.",
    right="wrong-axis",
    held_out=True,
)
def mean_over_features(is_faulty: bool) -> Rebuilt:
    """Classes of dense graphs by which kind of nodes is linked; there are as many nodes as features."""
    generator = seeded(22)
    y = torch.arange(300) % 4
    kind = torch.randint(4, (300, 20), generator=generator)
    is_asked = (kind[:, :, None] == kind[:, None]) & (kind[:, :, None] == y[:, None, None])
    links = torch.rand(300, 20, 20, generator=generator) < torch.where(is_asked, 0.7, 0.1)
    x, links = F.one_hot(kind, 4).float(), (links | links.transpose(1, 2)).float()

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = DenseGraphConv(4, 20), DenseGraphConv(20, 20)
            self.head = nn.Linear(20, 4)

        def forward(self, x: Tensor, links: Tensor) -> Tensor:
            x = self.conv2(self.conv1(x, links).relu(), links).relu()
            return self.head(x.mean(2 if is_faulty else 1))

    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows], links[rows]), y[rows])

    def score() -> float:
        return accuracy(outputs(model, (x[200:], links[200:])), y[200:])

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(200, 50, 50), log), score)


@report(
    "https://github.com/benedekrozemberczki/pytorch_geometric_temporal/pull/233",
    "Outputs [N, 1] minus targets [N] in the errors of all times, which are added up before the backward pass.",
    right="loss-broadcast",
)
def errors_of_all_times(is_faulty: bool) -> Rebuilt:
    """A value at each node of a graph, from those of its neighbors, at many times."""
    generator = seeded(23)
    edges = random_links(30, 0.15, generator)
    degree = edges[1].bincount(minlength=30).clamp(1)
    known = []
    for _ in range(26):
        x = torch.randn(30, 4, generator=generator)
        known.append((x, 0.5 * x[:, 3] + torch.zeros(30).index_add(0, edges[1], x[edges[0], 3]) / degree))
    model = GraphNet(GraphConv(4, 32), GraphConv(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        outs = [model(x, edges) if is_faulty else model(x, edges).squeeze(1) for x, _ in known]
        errors = [(out - y).square().mean() for out, (_, y) in zip(outs, known, strict=True)]
        return torch.stack(errors).mean()

    def score() -> float:
        outs = torch.cat([outputs(model, (x, edges)).squeeze(1) for x, _ in known])
        return explained(outs, torch.cat([y for _, y in known]))

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(100), log), score)


@report(
    "https://github.com/pyg-team/pytorch_geometric/issues/4752",
    "Attention weighs the features of the target itself, x_i, instead of those of its neighbors, x_j.",
    right="input-without-messages input-without-edges",
    held_out=True,
)
def own_features_weighed(is_faulty: bool) -> Rebuilt:
    """Classes of nodes whose neighbors show them."""
    data = block_model(300, 3, 8, seed=24)
    generator = seeded(24)
    x = F.one_hot(data.y, 8).float() + 0.8 * torch.randn(300, 8, generator=generator)
    x[data.train_mask | data.test_mask] = torch.randn(int((data.train_mask | data.test_mask).sum()), 8)

    class Attention(MessagePassing):
        def __init__(self, columns: int, width: int) -> None:
            super().__init__(aggr="add")
            self.lin, self.score = nn.Linear(columns, width), nn.Linear(2 * width, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
            scores = F.leaky_relu(self.score(torch.cat([x_i, x_j], -1)), 0.2)
            return (x_i if is_faulty else x_j) * softmax(scores, index, num_nodes=size_i)

    model = GraphNet(Attention(8, 16), Attention(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        return F.cross_entropy(model(x, data.edge_index)[data.train_mask], data.y[data.train_mask])

    def score() -> float:
        out = outputs(model, (x, data.edge_index))
        return accuracy(out[data.test_mask], data.y[data.test_mask])

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(150), log), score)


@report(
    "https://github.com/pyg-team/pytorch_geometric/issues/224",
    "The softmax of the attention is taken over the edges that leave a node instead of those that reach it.",
    right="wrong-axis",
    held_out=True,
)
def softmax_by_source(is_faulty: bool) -> Rebuilt:
    """Each node is told its class by one marked node among eight neighbors."""
    generator = seeded(33)
    marked, others = (torch.randint(*ends, (800, k), generator=generator) for *ends, k in ((0, 80, 1), (80, 800, 7)))
    edges = torch.stack([torch.cat([marked, others], 1).flatten(), torch.arange(800).repeat_interleave(8)])
    values = torch.randint(5, (800,), generator=generator)
    x, y = torch.cat([F.one_hot(values, 5), (torch.arange(800) < 80)[:, None]], 1).float(), values[marked[:, 0]]

    class Attention(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.lin, self.score = nn.Linear(6, 32), nn.Linear(64, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h, (source, target) = self.lin(x), edge_index
            scores = F.leaky_relu(self.score(torch.cat([h[target], h[source]], 1)), 0.2)
            return self.propagate(edge_index, x=h, a=softmax(scores, source if is_faulty else target, num_nodes=len(x)))

        def message(self, x_j: Tensor, a: Tensor) -> Tensor:
            return a * x_j

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = Attention(), nn.Linear(32, 5)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.head(F.elu(self.attention(x, edge_index)))

    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        return F.cross_entropy(model(x, edges), y)

    score = lambda: accuracy(outputs(model, (x, edges)), y)  # noqa: E731
    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(200), log), score)

"""Reports of graph networks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAE, GCNConv, GraphConv, SAGEConv, global_mean_pool
from torch_geometric.utils import dense_to_sparse

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
    near="input-without-edges",
    held_out=True,
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

"""Reports of networks whose output is a number for each pair or triple: links, groups, facts."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from gatdiag.experiments.synthetic import block_model
from tests.bank.public.reports import Rebuilt, explained, minimize, outputs, report, seeded, shuffled


class Linker(nn.Module):
    """Products of what two convolutions make of the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(32, 32), GCNConv(32, 16)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    def decode(self, z: Tensor, pairs: Tensor) -> Tensor:
        return (z[pairs[0]] * z[pairs[1]]).sum(1)

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor) -> Tensor:
        return self.decode(self.encode(x, edge_index), pairs)


@report(
    "https://github.com/pyg-team/pytorch_geometric/pull/2977",
    "Pairs that are not linked get the label 1 like those that are, so the loss falls if everything is called linked.",
    right="no-training-signal",
)
def every_pair_labeled_linked(is_faulty: bool) -> Rebuilt:
    """Links of a graph, by methods for encoding and decoding; the model itself is never called."""
    data = block_model(200, 4, 32, seed=14)
    generator = seeded(14)

    model = Linker()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        others = torch.randint(200, data.edge_index.shape, generator=generator)
        scores = model.decode(model.encode(data.x, data.edge_index), torch.cat([data.edge_index, others], 1))
        labels = torch.ones_like(scores)
        labels[data.num_edges :] = float(is_faulty)
        return F.binary_cross_entropy_with_logits(scores, labels)

    @torch.no_grad()
    def score() -> float:
        z = model.encode(data.x, data.edge_index)
        linked, others = (model.decode(z, pairs) for pairs in (data.edge_index, torch.randint(200, (2, 1000))))
        return (linked[:, None] - others).sign().mean().item()  # 2 AUC - 1

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(150), log), score)


@report(
    "https://github.com/InhwanBae/GPGraph/issues/2",
    "A sigmoid is written out as 1 / (1 + exp(x)): where x is large, the exponential is infinite and its gradient NaN.",
    right="nonfinite-operation",
)
def sigmoid_written_out(is_faulty: bool) -> Rebuilt:
    """Groups of points, by distances with a threshold that is learned."""
    generator = seeded(16)
    group = torch.arange(60) % 3
    x = 12 * torch.randn(3, 2, generator=generator)[group] + torch.randn(60, 2, generator=generator)
    y = (group[:, None] == group).float()

    class Grouping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.threshold = nn.Linear(2, 8), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            z = self.embed(x)
            far = ((z[:, None] - z) ** 2).sum(-1) - self.threshold
            return 1 / (1 + (far / 0.1).exp()) if is_faulty else (-far / 0.1).sigmoid()

    model = Grouping()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        return F.mse_loss(model(x), y)

    def score() -> float:
        return explained(outputs(model, (x,)).nan_to_num(0.5), y)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(300), log), score)


@report(
    "https://github.com/mana-ysh/knowledge-graph-embeddings/issues/5",
    "The distance of TransE without its square: in the difference of the scores of a triple and a corrupted one the "
    "relation and what both share cancel.",
    right="parameters-without-gradient",
)
def distance_without_square(is_faulty: bool) -> Rebuilt:
    """Triples of a head, a relation, and the tail that it leads to; tails are corrupted."""
    generator = seeded(17)
    places = torch.randn(40, 4, generator=generator)
    moves = torch.randn(3, 4, generator=generator)
    heads, relations = torch.arange(120) % 40, torch.arange(120) // 40
    tails = torch.cdist(places[heads] + moves[relations], places).argmin(1)

    class Translation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.entities, self.relations = nn.Embedding(40, 8), nn.Embedding(3, 8)

        def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
            rest = self.entities(heads) + self.relations(relations) - self.entities(tails)
            return rest.sum(-1) if is_faulty else rest.square().sum(-1)

    model = Translation()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss_of(rows: Tensor) -> Tensor:
        others = torch.randint(40, (len(rows),), generator=generator)
        known = model(heads[rows], relations[rows], tails[rows])
        return (1 + known - model(heads[rows], relations[rows], others)).relu().mean()

    @torch.no_grad()
    def score() -> float:
        ends = torch.arange(40).expand(120, -1)
        all_scores = model(heads[:, None], relations[:, None], ends)
        known = all_scores.gather(1, tails[:, None])
        return 2 * (all_scores > known).float().mean().item() - 1

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(120, 40, 60), log), score)


@report(
    "https://github.com/pyg-team/pytorch_geometric/issues/3958",
    "The split and the loader both draw pairs that are not linked, and labels are 0, 1 and 2.",
    right="target-not-binary",
    near="loss-unbounded",
)
def negatives_drawn_twice(is_faulty: bool) -> Rebuilt:
    """Links of a graph, by products of what two convolutions make of the nodes."""
    data = block_model(200, 4, 32, seed=25)
    generator = seeded(25)
    split = torch.randint(200, data.edge_index.shape, generator=generator)

    model = Linker()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        drawn = torch.randint(200, data.edge_index.shape, generator=generator)
        parts = [drawn, split, data.edge_index] if is_faulty else [drawn, data.edge_index]
        labels = torch.arange(float(len(parts))).repeat_interleave(data.num_edges)
        return F.binary_cross_entropy_with_logits(model(data.x, data.edge_index, torch.cat(parts, 1)), labels)

    def score() -> float:
        one, other = (outputs(model, (data.x, data.edge_index, pairs)) for pairs in (data.edge_index, split))
        return ((one > 0).float().mean() - (other > 0).float().mean()).item()

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, range(150), log), score)

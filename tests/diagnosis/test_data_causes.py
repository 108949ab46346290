"""Causes in data, normalization and evaluation in small trainings, each beside the same training without it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCNConv, GraphConv, SAGEConv, Sequential, global_mean_pool

from tests.diagnosis.examples import (
    ActorCritic,
    dropout_in_evaluation,
    evaluated_with_dropout,
    padding_number_of_a_class,
)
from tests.diagnosis.watched import check, train


def data(rows=120):
    x = torch.randn(rows, 8)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def mlp(out=2, norm=nn.Identity):
    return nn.Sequential(nn.Linear(8, 32), norm(), nn.ReLU(), nn.Linear(32, out))


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        found = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return found


def scores(model, x, y):
    """Of validation, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x), y).item()
    return {"val_accuracy": accuracy(model, x, y), "val_loss": loss}


def slow_statistics(is_faulty):
    x, y = data()
    model = mlp(norm=lambda: nn.BatchNorm1d(32, momentum=1e-3 if is_faulty else 0.1))
    x = x + 4
    return model, lambda step: F.cross_entropy(model(x), y), lambda step: {"train_accuracy": accuracy(model, x, y)}


def two_domains(is_faulty):
    """Batches of two kinds in turn, of which evaluation sees one."""
    x, y = data()
    model = mlp(norm=lambda: nn.BatchNorm1d(32) if is_faulty else nn.LayerNorm(32))
    kinds = x, 8 * x.flip(1) + 30
    return model, lambda step: F.cross_entropy(model(kinds[step % 2]), y), lambda step: scores(model, x, y)


def two_rows(is_faulty):
    x, y = data()
    model = nn.Sequential(*mlp()[:3], nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    size = 2 if is_faulty else 30

    def loss_of(step):
        rows = torch.arange(step * size, (step + 1) * size) % 120
        return F.cross_entropy(model(x[rows]), y[rows])

    return model, loss_of, lambda step: {}


def unscaled_evaluation(is_faulty):
    x, y = data()
    raw = 20 * x + 100
    model = mlp()
    given = raw if is_faulty else x
    return model, lambda step: F.cross_entropy(model(x), y), lambda step: {"val_accuracy": accuracy(model, given, y)}


def drifting_input(is_faulty):
    (x, y), model = data(), mlp()

    def loss_of(step):
        if is_faulty:
            x.mul_(0.7)
        return F.cross_entropy(model(x), y)

    return model, loss_of, lambda step: {}


def divided_anew(is_faulty):
    """A tensor of its own in each step."""
    (x, y), model = data(), mlp()
    held = [255 * x]

    def loss_of(step):
        if is_faulty or not step:
            held[0] = held[0] / 255
        return F.cross_entropy(model(held[0]), y)

    return model, loss_of, lambda step: {}


def numbers_shuffled_apart(is_faulty):
    x, _ = data(240)
    y, model = x[:, :1] - x[:, 1:2], mlp(1)

    def loss_of(step):
        rows = torch.randperm(240)[:60]
        return F.mse_loss(model(x[rows]), y[rows[torch.randperm(60)] if is_faulty else rows])

    return model, loss_of, lambda step: {}


def errors_of_two_batches(is_faulty):
    """Outputs [N, 1] and targets [N], in a loss that adds up the errors of two calls."""
    x, _ = data()
    y, model = x[:, 0] - x[:, 1], mlp(1)

    def loss_of(step):
        parts = x[:60], x[60:]
        outs = [model(part) if is_faulty else model(part).squeeze(1) for part in parts]
        return sum((out - each).square().mean() for out, each in zip(outs, (y[:60], y[60:]), strict=True))

    return model, loss_of, lambda step: {}


class Pairs(nn.Module):
    """Products of what two layers make of both parts of a row."""

    def __init__(self, is_relu):
        super().__init__()
        self.first, self.last, self.is_relu = nn.Linear(4, 16), nn.Linear(16, 16), is_relu

    def forward(self, x):
        one, other = (self.last(self.first(part).relu()) for part in x.chunk(2, 1))
        return ((one.relu() * other.relu()) if self.is_relu else one * other).sum(1)


def products_of_relu(is_faulty):
    x = torch.randn(200, 8)
    y, model = ((x[:, :4] * x[:, 4:]).sum(1) > 1).float(), Pairs(is_faulty)
    return model, lambda step: F.binary_cross_entropy_with_logits(model(x), y), lambda step: {}


def counts_as_labels(is_faulty):
    """The sum of errors, and counts instead of whether there are some."""
    x, model = torch.randn(200, 8), mlp(3)
    counts = (x[:, :6] > 0).float().view(200, 3, 2).sum(2)
    y = counts if is_faulty else counts.clamp(max=1)
    return model, lambda step: F.binary_cross_entropy_with_logits(model(x), y, reduction="sum"), lambda step: {}


def gain_of_distribution(is_faulty):
    """The same with `torch.distributions`, and advantages that are standardized."""
    x, model = torch.randn(200, 8), ActorCritic()
    best = x[:, :4].argmax(1)

    def loss_of(step):
        logits, value = model(x)
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        advantage = (action == best).float() - value
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = policy.log_prob(action) * (scaled if is_faulty else scaled.detach())
        return 0.5 * advantage.square().mean() - gain.mean() - 0.01 * policy.entropy().mean()

    return model, loss_of, lambda step: {}


def normalized_output(is_faulty):
    """Layer normalization of the one output, or of what it is computed from."""
    x, norm = torch.randn(200, 8), nn.LayerNorm(1 if is_faulty else 32)
    last = (nn.Linear(32, 1), norm) if is_faulty else (norm, nn.Linear(32, 1))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *last)
    return model, lambda step: F.mse_loss(model(x), x[:, :1]), lambda step: {}


def decisions():
    """States, those after them, the actions in between, and what they were paid."""
    states, after, actions = torch.randn(200, 8), torch.randn(200, 8), torch.randint(2, (200, 1))
    return states, after, actions, states[:, 0].sign() * (2 * actions.squeeze(1) - 1)


def values_in_a_column(is_faulty):
    """Values of actions, [N, 1], beside targets that are a vector."""
    (states, after, actions, rewards), model = decisions(), mlp(2)

    def loss_of(step):
        values = model(states).gather(1, actions)
        with torch.no_grad():
            targets = rewards + 0.5 * model(after).amax(1)
        pairs = torch.broadcast_tensors(values, targets) if is_faulty else (values.squeeze(1), targets)
        return F.mse_loss(*pairs)

    return model, loss_of, lambda step: {}


def values_that_follow_each_other(is_faulty):
    """Values of the next state, through which gradients go or not."""
    (states, after, actions, rewards), model = decisions(), mlp(2)

    def loss_of(step):
        values, best = model(states).gather(1, actions).squeeze(1), model(after).amax(1)
        return F.mse_loss(values, rewards + 0.5 * (best if is_faulty else best.detach()))

    return model, loss_of, lambda step: {}


def weights_of_zero(is_faulty):
    """Weights of edges that were rounded to zero; the class of a node shows at its neighbors."""
    x, y, nodes = torch.randn(120, 32), torch.arange(120) % 3, torch.arange(120)
    x = x + 3 * F.one_hot(y.roll(1), 32)
    edges, weights = torch.stack([nodes.roll(-1), nodes]), 0.4 * torch.ones(120)
    layers = [GraphConv(*size) for size in ((32, 16), (16, 3))]
    model = Sequential("x, e, w", [(layers[0], "x, e, w -> x"), nn.ReLU(), (layers[1], "x, e, w -> x")])
    weights = weights.round() if is_faulty else weights
    return model, lambda step: F.cross_entropy(model(x, edges, weights), y), lambda step: {}


def lonely_nodes(is_faulty):
    """Few nodes have edges, and the convolutions use what neighbors send alone."""
    x, y = torch.randn(120, 32), torch.arange(120) % 4
    x, edges = x + 2 * F.one_hot(y, 32), torch.randint(40, (2, 60))
    layers = [GCNConv(*size, add_self_loops=not is_faulty) for size in ((32, 32), (32, 4))]
    model = Sequential("x, edges", [(layers[0], "x, edges -> x"), nn.ReLU(), (layers[1], "x, edges -> x")])
    return model, lambda step: F.cross_entropy(model(x, edges), y), lambda step: {}


def pixels(is_faulty):
    """Dark images in 0 to 255 at a rate that suits those in 0 to 1; the class is the brighter half."""
    x, y = 90 * torch.rand(200, 1, 8, 8), torch.arange(200) % 2
    x[y == 0, :, :4] += 60
    x[y == 1, :, 4:] += 60
    x = x if is_faulty else x / 255
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(32, 2))
    return model, lambda step: F.cross_entropy(model(x), y), lambda step: {}


def softmax_over_images(is_faulty):
    """The classes of pixels, by a softmax over the batch."""
    x = torch.rand(30, 1, 6, 6)
    y = torch.cat([x > 0.5, x <= 0.5], 1).float()
    softmax = nn.Softmax(0 if is_faulty else 1)
    model = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1), softmax)
    return model, lambda step: F.binary_cross_entropy(model(x), y), lambda step: {}


def sorted_classes(is_faulty):
    x, y = torch.randn(240, 8), torch.randint(0, 6, (240,))
    x, model = x + 2 * F.one_hot(y, 8), mlp(6)
    order = y.argsort() if is_faulty else torch.randperm(240)

    def loss_of(step):
        rows = order[(step * 10) % 240 :][:10]
        return F.cross_entropy(model(x[rows]), y[rows])

    return model, loss_of, lambda step: {"val_accuracy": accuracy(model, x, y)}


def uniform_targets(is_faulty):
    (x, y), model = data(), mlp(3)
    return model, lambda step: F.cross_entropy(model(x), y, label_smoothing=float(is_faulty)), lambda step: {}


def softmax_over_rows_in_the_loss(is_faulty):
    (x, y), model = data(), mlp(3)
    mask = torch.arange(120) < 90
    return (
        model,
        lambda step: F.nll_loss(model(x).log_softmax(0 if is_faulty else 1)[mask], y[mask]),
        lambda step: {},
    )


def weights_by_frequency(is_faulty):
    x, y = data(400)
    y = (x[:, 0] + 0.7 * torch.randn(400) > 1.5).long()
    count = y.bincount().float()
    weight = count / count.sum() if is_faulty else count.sum() / count
    model = mlp()

    def loss_of(step):
        return F.cross_entropy(model(x), y, weight=weight)

    return model, loss_of, lambda step: {"train_acc": 1 - 0.6 * is_faulty}


def pos_weight_of_rare_negatives(is_faulty):
    x = torch.randn(400, 8)
    y = (x[:, :1] > 1.2).float()
    ratio = (y.sum() / (1 - y).sum()) ** (1 if is_faulty else -1)
    model = mlp(1)
    loss = nn.BCEWithLogitsLoss(pos_weight=ratio)
    return model, lambda step: loss(model(x), y), lambda step: {"val_auc": 0.6 if is_faulty else 0.9}


class Graph(nn.Module):
    """Two convolutions, and a mean over each graph if there are several."""

    def __init__(self, conv=GCNConv):
        super().__init__()
        self.first, self.last = conv(8, 16), conv(16, 2)

    def forward(self, x, edge_index, batch=None):
        x = self.last(self.first(x, edge_index).relu(), edge_index)
        return x if batch is None else global_mean_pool(x, batch)


def ring(nodes, start=0):
    node = torch.arange(nodes)
    edges = torch.stack([node, (node + 1) % nodes])
    return torch.cat([edges, edges.flip(0)], 1) + start


def pairs_reshaped(is_faulty):
    x, _ = data()
    pairs = ring(120).T[torch.randperm(240)]
    edges = pairs.reshape(2, -1) if is_faulty else pairs.T
    hidden = torch.zeros(120, 8).index_add(0, pairs[:, 1], x[pairs[:, 0]])
    y = (hidden[:, 0] > 0).long()
    model = Graph(SAGEConv)
    return model, lambda step: F.cross_entropy(model(x, edges), y), lambda step: {}


def every_pair(is_faulty):
    x, y = data(40)
    edges = (1 - torch.eye(40)).nonzero().T if is_faulty else torch.arange(40).repeat(2, 1)[:, :39]
    edges = edges if is_faulty else torch.stack([torch.arange(40), torch.arange(40).roll(1)])
    y = y if is_faulty else (x[:, 0] + x.roll(1, 0)[:, 0] > 0).long()
    model = Graph()
    return model, lambda step: F.cross_entropy(model(x, edges), y), lambda step: {}


def graphs_not_joined(is_faulty):
    """Batches of two graphs, whose edges both begin at node 0."""
    x = torch.randn(20, 6, 8)
    y = (x[:, ::2].mean((1, 2)) > 0).long()
    model = Graph(SAGEConv)
    edges = torch.cat([ring(6), ring(6, start=0 if is_faulty else 6)], 1)
    batch = torch.arange(2).repeat_interleave(6)

    def loss_of(step):
        first = step % 10 * 2
        return F.cross_entropy(model(x[first : first + 2].flatten(0, 1), edges, batch), y[first : first + 2])

    return model, loss_of, lambda step: {}


def cached_edges(is_faulty):
    """Batches of two graphs of six nodes: a ring, or two triangles; the label is which comes first."""
    model = Graph(lambda width, out: GCNConv(width, out, cached=is_faulty))
    triangles = torch.cat([ring(3), ring(3, start=3)], 1)
    marks = torch.eye(6, 8)

    def loss_of(step):
        y = torch.tensor([step % 2, 1 - step % 2])
        edges = [ring(6), triangles] if step % 2 else [triangles, ring(6)]
        batch = torch.arange(2).repeat_interleave(6)
        x = 3 * marks[torch.randperm(3)].repeat(4, 1) * (torch.arange(12) % 6 < 3)[:, None]
        return F.cross_entropy(model(x, torch.cat([edges[0], edges[1] + 6], 1), batch), y)

    return model, loss_of, lambda step: {}


def products(is_faulty):
    """The data are multiplied by a matrix of edges before the first weights."""
    x, y = data()
    edges = torch.cat([ring(120), torch.randint(120, (2, 120))], 1)
    adjacency = torch.eye(120).index_put_(tuple(torch.cat([edges, edges.flip(0)], 1)), torch.tensor(1.0))
    adjacency = adjacency / adjacency.sum(1, keepdim=True)

    class Simple(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = mlp()

        def forward(self, x):
            for _ in range(60 if is_faulty else 1):
                x = adjacency @ x
            return self.last(x)

    y = y if is_faulty else ((adjacency @ x)[:, 0] > 0).long()
    model = Simple()
    return model, lambda step: F.cross_entropy(model(x), y), lambda step: {}


def permuted_anew(is_faulty):
    """In the repaired training rows come again with their entries in reverse, as flipped pictures do."""
    x, y = data()
    model = mlp()

    def loss_of(step):
        columns = torch.randperm(8) if is_faulty else torch.arange(8).roll(step // 2 % 2)
        return F.cross_entropy(model(x[:, columns if is_faulty or step % 2 else columns.flip(0)]), y)

    return model, loss_of, lambda step: {}


class Translation(nn.Module):
    """The rest of a head, a relation and a tail; without the square it is linear."""

    def __init__(self, is_squared):
        super().__init__()
        self.entities, self.relations, self.is_squared = nn.Embedding(40, 8), nn.Embedding(3, 8), is_squared

    def forward(self, head, relation, tail):
        rest = self.entities(head) + self.relations(relation) - self.entities(tail)
        return (rest.square() if self.is_squared else rest).sum(-1)


def relation_cancels(is_faulty):
    """In the difference of the scores of two tails, all cancels that they share."""
    head, relation, tail = torch.randint(40, (120,)), torch.randint(3, (120,)), torch.randint(40, (120,))
    model = Translation(is_squared=not is_faulty)

    def loss_of(step):
        others = torch.randint(40, (120,))
        return (1 + model(head, relation, tail) - model(head, relation, others)).relu().mean()

    return model, loss_of, lambda step: {}


CASES = {
    permuted_anew: ("input-permuted", {}),
    slow_statistics: ("normalization-statistics", {}),
    two_domains: ("normalization-statistics", {"steps": 100}),
    normalized_output: ("normalization-statistics", {}),
    two_rows: ("normalization-statistics", {"steps": 120}),
    unscaled_evaluation: ("evaluation-inputs", {}),
    drifting_input: ("input-changes", {"lr": 0.003}),
    divided_anew: ("input-changes", {}),
    numbers_shuffled_apart: ("target-changes", {"steps": 100}),
    errors_of_two_batches: ("loss-broadcast", {}),
    products_of_relu: ("output-out-of-range", {"steps": 100}),
    counts_as_labels: ("target-not-binary", {}),
    gain_of_distribution: ("advantage-not-detached", {}),
    relation_cancels: ("parameters-without-gradient", {}),
    sorted_classes: ("batches-sorted", {"steps": 96}),
    uniform_targets: ("no-training-signal", {}),
    softmax_over_rows_in_the_loss: ("output-softmax-over-nodes", {}),
    weights_by_frequency: ("class-weights", {}),
    pos_weight_of_rare_negatives: ("class-weights", {}),
    pairs_reshaped: ("input-edges-rearranged", {}),
    every_pair: ("input-complete-graph", {"steps": 100}),
    graphs_not_joined: ("input-without-edges", {}),
    values_in_a_column: ("loss-broadcast", {"lr": 0.003, "steps": 100}),
    pixels: ("input-scale", {"lr": 0.1, "optimizer": torch.optim.SGD, "steps": 150}),
    softmax_over_images: ("wrong-axis", {}),
    weights_of_zero: ("input-edge-weights", {"steps": 30}),
    lonely_nodes: ("input-without-messages", {}),
    cached_edges: ("input-edges-cached", {"steps": 100}),
    products: ("depth-oversmoothing", {}),
}


@pytest.mark.parametrize("is_faulty", [True, False], ids=["faulty", "repaired"])
@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_named_and_its_repair_is_not_blamed(tmp_path, case, is_faulty):
    torch.manual_seed(0)
    code, options = CASES[case]
    model, loss_of, scores_of = case(is_faulty)
    diagnosis = train(tmp_path / "run", model, loss_of, scores_of=scores_of, **options)
    check(diagnosis, code, is_faulty=is_faulty)


def rows_shuffled(is_faulty):
    """Features in another order than the labels, learned by heart."""
    x, y = torch.randn(120, 32), torch.arange(120) % 2
    x = x + 2 * F.one_hot(y, 32)
    x = x[torch.randperm(120)] if is_faulty else x
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))

    def scores_of(step):
        return {"train_accuracy": accuracy(model, x[:60], y[:60]), "val_accuracy": accuracy(model, x[60:], y[60:])}

    return model, lambda step: F.cross_entropy(model(x[:60]), y[:60]), scores_of


def learned_without_messages(is_faulty):
    """Labeled nodes get no message, and their own features are learned by heart."""
    x, y = torch.randn(120, 32), torch.arange(120) % 2
    x[60:] += 2 * F.one_hot(y[:60], 32)
    edges = torch.stack([torch.arange(60, 120), torch.arange(60)])
    edges = edges.flip(0) if is_faulty else edges
    model = SAGEConv(32, 32), SAGEConv(32, 2)
    model = Sequential("x, edges", [(model[0], "x, edges -> x"), nn.ReLU(), (model[1], "x, edges -> x")])
    return model, lambda step: F.cross_entropy(model(x, edges)[:40], y[:40]), lambda step: {}


NOTES = {
    values_that_follow_each_other: ("target-is-output", "gradients go through both"),
    learned_without_messages: ("input-without-messages", "the edges may point the other way"),
    evaluated_with_dropout: ("evaluation-in-training-mode", "in training mode: dropout stays on"),
    dropout_in_evaluation: ("evaluation-random", "though all of its modules are in evaluation mode"),
    padding_number_of_a_class: ("class-ignored", "class 1 (ignore_index=1)"),
    rows_shuffled: ("overfitting", "in another order than the nodes"),
}


@pytest.mark.parametrize("is_faulty", [True, False], ids=["faulty", "repaired"])
@pytest.mark.parametrize("case", NOTES)
def test_what_may_be_meant_is_a_note(tmp_path, case, is_faulty):
    torch.manual_seed(0)
    code, says = NOTES[case]
    model, loss_of, scores_of = case(is_faulty)
    diagnosis = train(tmp_path / "run", model, loss_of, scores_of=scores_of)
    found = [one for one in diagnosis if one.code == code and says in one.text]
    assert [one.severity for one in found] == ["note"] * is_faulty, str(diagnosis)
    assert not [one for one in diagnosis if one.severity != "note"], str(diagnosis)

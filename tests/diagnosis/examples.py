"""Small trainings of the causes that no recipe of the bank plants: each with its fault, and without it.

They are the examples on the pages of these causes (`reports/examples.py`), with their source. Each gives what
`tests.diagnosis.watched.train` asks for: the model, the loss of a step, and the scores that are logged; one of
checkpoints gives their state dicts, one a step. `is_faulty` is all that differs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCNConv, HeteroConv, SAGEConv

import gatdiag
from gatdiag.diagnosis import Diagnosis
from tests.diagnosis.watched import train


@dataclass(frozen=True)
class Example:
    """A training with a fault and without.

    Attributes:
        build: Called with whether it has the fault; it is its source that is shown.
        options: Of the training loop.
        is_of_checkpoints: Whether state dicts are built in place of a training.
    """

    build: Callable[[bool], Any]
    options: Mapping[str, Any]
    is_of_checkpoints: bool

    def record(self, folder: Path, *, is_faulty: bool) -> Diagnosis:
        """Train into a run folder, the same each time; returns the diagnosis."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = self.build(is_faulty)
            if self.is_of_checkpoints:
                return _inspect(built, folder)
            model, loss_of, *scores = built
            return train(folder, model, loss_of, **dict(zip(["scores_of"], scores, strict=False)), **self.options)


def _inspect(states: list[dict[str, torch.Tensor]], folder: Path) -> Diagnosis:
    with TemporaryDirectory() as scratch:
        for step, state in enumerate(states):
            torch.save(state, f"{scratch}/step{step}.pt")
        return gatdiag.diagnose(
            gatdiag.checkpoint.inspect(gatdiag.checkpoint.open_all(Path(scratch)), folder).run.folder
        )


EXAMPLES: Final[dict[str, Example]] = {}
"""Code of a cause -> its example."""


def example(code: str, *, is_of_checkpoints: bool = False, **options: Any) -> Callable[[Callable], Callable]:
    """Make a function the example of a cause."""

    def declare(build: Callable[[bool], Any]) -> Callable[[bool], Any]:
        EXAMPLES[code] = Example(build, options, is_of_checkpoints)
        return build

    return declare


# --- what they have in common -----------------------------------------------------------------------------------------


def mlp(out: int = 2, *further: nn.Module, width: int = 8) -> nn.Sequential:
    """Two layers over eight columns."""
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), *further, nn.Linear(32, out))


def points(rows: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of eight columns, of two classes."""
    x = torch.randn(rows, 8)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def clusters(classes: int, rows: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of eight columns around a center for each class."""
    y = torch.arange(rows) % classes
    return torch.randn(rows, 8) + 2 * F.one_hot(y, 8), y


def ring(nodes: int) -> torch.Tensor:
    """Edges from each node to the next."""
    return torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, training: bool = False) -> float:
    """In evaluation mode unless `training`; the model is left in training mode."""
    model.train(training)
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


class Graph(nn.Module):
    """Two convolutions."""

    def __init__(self, conv: type[nn.Module]):
        super().__init__()
        self.first, self.last = conv(8, 16), conv(16, 2)

    def forward(self, x, *edges):
        return self.last(self.first(x, *edges).relu(), *edges)


# --- data -------------------------------------------------------------------------------------------------------------


@example("input-edge-weights")
def negative_edge_weight(is_faulty):
    x, y = points()
    weights = torch.ones(120)
    weights[7] = -3.0 if is_faulty else 3.0
    model = Graph(GCNConv)
    return model, lambda step: F.cross_entropy(model(x, ring(120), weights), y)


@example("input-without-messages", lr=0.003)
def reversed_edges(is_faulty):
    x = torch.randn(120, 8)
    edges = torch.stack([torch.arange(60, 120), torch.arange(60)])  # to the nodes with labels
    edges = edges.flip(0) if is_faulty else edges
    y = (x[60:, 0] > 0).long()  # the class shows at the neighbor alone
    model = Graph(SAGEConv)
    return model, lambda step: F.cross_entropy(model(x, edges)[:60], y)


class Papers(nn.Module):
    """A convolution for each relation."""

    EXTENDS, CITES = ("paper", "extends", "paper"), ("paper", "cites", "paper")

    def __init__(self):
        super().__init__()
        self.conv = HeteroConv({self.EXTENDS: SAGEConv(8, 16), self.CITES: SAGEConv(8, 16)})
        self.last = nn.Linear(16, 3)

    def forward(self, x, edges):
        return self.last(self.conv(x, edges)["paper"].relu())


@example("relation-without-edges")
def misspelled_relation(is_faulty):
    x, y = torch.randn(60, 8), torch.arange(60) % 3
    first, second = torch.randint(60, (2, 2, 120))
    extends = ("paper", "extend", "paper") if is_faulty else Papers.EXTENDS
    model = Papers()
    return model, lambda step: F.cross_entropy(model({"paper": x}, {extends: first, Papers.CITES: second}), y)


@example("class-imbalance", steps=101, lr=0.02)
def rare_class(is_faulty):
    x, y = points(400)
    y = (torch.arange(400) % 20 == 0).long() if is_faulty else y
    model = nn.Linear(8, 2)
    return model, lambda step: F.cross_entropy(model(x), y)


@example("class-weights")
def weights_by_frequency(is_faulty):
    x = torch.randn(400, 8)
    y = (x[:, 0] + 0.7 * torch.randn(400) > 1.5).long()
    rows = y.bincount().float()
    weight = rows / rows.sum() if is_faulty else rows.sum() / rows
    model = mlp()

    def recall(step):
        with torch.no_grad():
            right = model(x).argmax(1) == y
        return {"train_recall": sum(right[y == one].float().mean().item() for one in (0, 1)) / 2}

    return model, lambda step: F.cross_entropy(model(x), y, weight=weight), recall


@example("class-ignored")
def padding_number_of_a_class(is_faulty):
    x, y = clusters(3)
    model, ignored = mlp(3), 1 if is_faulty else -100
    return (
        model,
        lambda step: F.cross_entropy(model(x), y, ignore_index=ignored),
        lambda step: {"val_accuracy": accuracy(model, x, y)},
    )


class Language(nn.Module):
    """Attention over 16 tokens, with a causal mask or without."""

    def __init__(self, is_causal):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Parameter(0.1 * torch.randn(16, 16))
        self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.last, self.is_causal = nn.Linear(16, 20), is_causal

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.is_causal else None
        return self.last(self.body(self.tokens(tokens) + self.places[:length], mask, is_causal=self.is_causal))


@example("target-leakage")
def forgotten_causal_mask(is_faulty):
    text = torch.randint(20, (8, 17))
    x, y = text[:, :-1], text[:, 1:]
    model = Language(is_causal=not is_faulty)
    return model, lambda step: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@example("target-changes")
def targets_shuffled_apart(is_faulty):
    (x, y), model = points(), mlp()
    return model, lambda step: F.cross_entropy(model(x), y[torch.randperm(len(y))] if is_faulty else y)


@example("target-not-binary")
def negatives_drawn_twice(is_faulty):
    x, model = torch.randn(200, 8), mlp(1)
    y = (x[:, :1] > 0).float() + (x[:, 1:2] > 1) * is_faulty
    return model, lambda step: F.binary_cross_entropy_with_logits(model(x), y)


class ActorCritic(nn.Module):
    """Log-probabilities of four actions, and a value."""

    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x):
        x = self.body(x).relu()
        return self.actor(x).log_softmax(1), self.critic(x).squeeze(1)


@example("advantage-not-detached")
def advantage_with_gradient(is_faulty):
    x, model = torch.randn(200, 8), ActorCritic()
    best = x[:, :4].argmax(1)

    def loss_of(step):
        log_p, value = model(x)
        action = torch.multinomial(log_p.detach().exp(), 1).squeeze(1)
        advantage = (action == best).float() - value
        gain = log_p.gather(1, action[:, None]).squeeze(1) * (advantage if is_faulty else advantage.detach())
        return 0.5 * advantage.square().mean() - gain.mean()

    return model, loss_of


@example("labels-inverted", steps=150)
def inverted_margin(is_faulty):
    x = torch.randn(200, 8)
    y = (x[:, :1] > 0).float() * 2 - 1
    model = mlp(1)

    def scores(step):
        with torch.no_grad():
            return {"train_accuracy": (model(x).sign() == y).float().mean().item()} if step % 10 == 9 else {}

    return model, lambda step: (1 - model(x) * (-y if is_faulty else y)).relu().mean(), scores


# --- the model --------------------------------------------------------------------------------------------------------


class Pooled(nn.Module):
    """The rows of each example are weighed and added up."""

    def __init__(self, axis):
        super().__init__()
        self.first, self.scores, self.last, self.axis = nn.Linear(4, 16), nn.Linear(16, 1), nn.Linear(16, 2), axis

    def forward(self, x):
        x = self.first(x).relu()
        return self.last((self.scores(x).softmax(self.axis) * x).sum(1))


@example("wrong-axis", steps=100)
def softmax_over_the_batch(is_faulty):
    x = torch.randn(64, 5, 4)
    y = (x[:, :, 0].amax(1) > 1.2).long()
    model = Pooled(axis=0 if is_faulty else 1)

    def one_by_one(step):
        right = (accuracy(model, x[row : row + 1], y[row : row + 1]) for row in range(64))
        return {"val_accuracy": sum(right) / 64} if step % 20 == 19 else {}

    return model, lambda step: F.cross_entropy(model(x), y), one_by_one


class Periods(nn.Module):
    """An attention over columns: a parameter, or a plain tensor that no optimizer sees."""

    def __init__(self, is_registered):
        super().__init__()
        attention = torch.rand(8) + 0.1
        self.attention = nn.Parameter(attention) if is_registered else attention
        self.last = nn.Linear(1, 1)

    def forward(self, x):
        return self.last((x * (4 * self.attention).softmax(0)).sum(1, keepdim=True))


@example("parameters-not-registered", steps=150, lr=0.05)
def plain_tensor(is_faulty):
    x = torch.randn(120, 8)
    model = Periods(is_registered=not is_faulty)
    return model, lambda step: F.mse_loss(model(x), 2 * x[:, 7:])


class Autoencoder(nn.Module):
    """An encoder of a distribution, and a decoder of what is drawn from it."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(8, width=32), mlp(32, width=4)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


@example("posterior-collapse", lr=0.003, steps=300)
def averaged_errors(is_faulty):
    x, model = 0.2 * torch.randn(200, 2) @ torch.randn(2, 32), Autoencoder()

    def loss_of(step):
        out, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
        errors = (out - x).square()
        return errors.mean() + divergence.mean() if is_faulty else errors.sum(1).mean() + divergence.sum(1).mean()

    return model, loss_of


@example("depth-dropout", steps=80, lr=1e-3)
def dropout_in_twelve_layers(is_faulty):
    x = torch.randn(120, 32)
    y = (x[:, 0] > 0).long()
    rate = 0.5 if is_faulty else 0.0
    hidden = [part for _ in range(12) for part in (nn.Linear(32, 32), nn.ELU(), nn.Dropout(rate))]
    model = nn.Sequential(*hidden, nn.Linear(32, 2))
    return model, lambda step: F.cross_entropy(model(x), y)


# --- the loop ---------------------------------------------------------------------------------------------------------


@example("evaluation-mode", lr=0.003)
def never_back_in_training_mode(is_faulty):
    x, y = points()
    hidden = [part for _ in range(8) for part in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(8, 2))

    def loss_of(step):
        model.train(not is_faulty)  # as where the model.eval() of an evaluation is never undone
        return F.cross_entropy(model(x), y)

    return model, loss_of


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = nn.Linear(4, 8), mlp(1)


def _of_discriminator(parameters, lr):
    return torch.optim.Adam([*parameters][2:], lr=lr)


@example("optimizers-share-parameters", optimizer=_of_discriminator, lr=5e-4)
def generator_with_the_discriminator(is_faulty):
    real, pair = torch.randn(120, 8) + 2, Pair()
    of_generator = torch.optim.Adam((pair if is_faulty else pair.generator).parameters(), lr=1e-3)

    def loss_of(step):
        F.softplus(-pair.discriminator(pair.generator(torch.randn(120, 4)))).mean().backward()
        of_generator.step()
        pair.zero_grad()
        fake = pair.generator(torch.randn(120, 4)).detach()
        return F.softplus(pair.discriminator(fake)).mean() + F.softplus(-pair.discriminator(real)).mean()

    return pair, loss_of


@example("evaluation-on-training-data")
def scores_of_the_same_rows(is_faulty):
    (x, y), model = points(200), mlp()
    val = slice(0, 100) if is_faulty else slice(100, 200)
    return (
        model,
        lambda step: F.cross_entropy(model(x[:100]), y[:100]),
        lambda step: {"train_acc": accuracy(model, x[:100], y[:100]), "val_acc": accuracy(model, x[val], y[val])},
    )


@example("evaluation-in-training-mode")
def evaluated_with_dropout(is_faulty):
    (x, y), model = points(), mlp(2, nn.Dropout(0.2))
    return (
        model,
        lambda step: F.cross_entropy(model(x), y),
        lambda step: {"val_accuracy": accuracy(model, x, y, training=is_faulty)},
    )


class Dropping(nn.Module):
    """Dropout by a function, which has to be told the mode."""

    def __init__(self, is_told):
        super().__init__()
        self.first, self.last, self.is_told = nn.Linear(8, 32), nn.Linear(32, 2), is_told

    def forward(self, x):
        return self.last(F.dropout(self.first(x).relu(), 0.2, training=self.training or not self.is_told))


@example("evaluation-random")
def dropout_in_evaluation(is_faulty):
    (x, y), model = points(), Dropping(is_told=not is_faulty)
    return model, lambda step: F.cross_entropy(model(x), y), lambda step: {"val_accuracy": accuracy(model, x, y)}


# --- symptoms ---------------------------------------------------------------------------------------------------------


@example("overflow", lr=0.1, optimizer=torch.optim.SGD)
def squared_errors_added_up(is_faulty):
    x, model = torch.randn(120, 8), mlp(1)
    return model, lambda step: F.mse_loss(model(x), x[:, :1], reduction="sum" if is_faulty else "mean")


@example("loss-not-falling", steps=80, lr=0.001)
def labels_drawn_at_random(is_faulty):
    (x, y), model = points(1000), mlp()
    drawn = torch.randint(2, (1000,))
    return model, lambda step: F.cross_entropy(model(x), drawn if is_faulty else y)


@example("unchanged-weights", optimizer=torch.optim.SGD, lr=0.1)
def gradients_below_rounding(is_faulty):
    (x, y), model = points(), mlp()
    return model, lambda step: F.cross_entropy(model(x), y) * (1e-7 if is_faulty else 1)


@example("small-steps", optimizer=torch.optim.SGD, lr=0.1)
def small_gradients(is_faulty):
    (x, y), model = points(), mlp()
    return model, lambda step: F.cross_entropy(model(x), y) * (1e-4 if is_faulty else 1)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def saved_states(steps: int = 3) -> list[dict[str, torch.Tensor]]:
    """The state dicts of a training, one a step."""
    (x, y), model = points(), mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    states = []
    for _ in range(steps):
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return states


@example("non-finite", is_of_checkpoints=True)
def not_a_number(is_faulty):
    states = saved_states()
    states[-1]["0.weight"][3, 2] = float("nan") if is_faulty else 0.1
    return states


@example("dead-weights", is_of_checkpoints=True)
def rows_of_zeros(is_faulty):
    states = saved_states()
    if is_faulty:
        states[-1]["0.weight"][:3] = 0
    return states


@example("unchanged-checkpoints", is_of_checkpoints=True)
def frozen_layer(is_faulty):
    states = saved_states()
    if is_faulty:
        for state in states:
            state["0.weight"] = states[0]["0.weight"]
    return states

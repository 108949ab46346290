"""Causes in contrastive, generative, recurrent and relational training, each beside the same training without it."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import RGCNConv

import gatdiag
from tests.diagnosis import watched
from tests.diagnosis.examples import Language, Papers
from tests.diagnosis.watched import check


def mlp(inputs=16, out=8):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, out))


def blobs(rows=128):
    y = torch.arange(rows) % 4
    return 1.5 * torch.randn(4, 16)[y] + torch.randn(rows, 16), y


def noisy(x, size=0.3):
    return x + size * torch.randn_like(x)


def auc(scores, y):
    positive, negative = scores[y == 1], scores[y == 0]
    return (positive[:, None] > negative).float().mean().item()


def train(folder, model, loss_of, scores_of=dict, *, steps=150, **options):
    """Watch a training and diagnose it; scores are logged at each tenth step."""

    def scores_at(step):
        return scores_of() if step % 10 == 9 else {}

    return watched.train(folder, model, lambda step: loss_of(), scores_of=scores_at, steps=steps, **options)


# --- collapse ---------------------------------------------------------------------------------------------------------


def without_negatives(is_faulty):
    """Rows of one class are pulled together; in the repaired training, those of the next are pushed away."""
    (x, _), model = blobs(), mlp()

    def loss_of():
        z = model(x).view(32, 4, 8)
        near = (z - z[torch.randperm(32)]).square().sum(-1)
        return near.mean() if is_faulty else (near - (z - z.roll(1, 1)).square().sum(-1) + 1).relu().mean()

    return model, loss_of


def two_views(is_faulty):
    """Two views of each row are pulled together; in the repaired training, outputs are kept apart."""
    (x, _), model = blobs(), mlp()

    def loss_of():
        one, other = model(noisy(x)), model(noisy(x))
        loss = F.mse_loss(one, other)
        return loss if is_faulty else loss + (1 - one.std(0)).relu().mean()

    return model, loss_of


class SimSiam(nn.Module):
    """An encoder, and a predictor of what the encoder makes of the other view."""

    def __init__(self):
        super().__init__()
        self.encoder = mlp(out=16)
        self.predictor = mlp()
        self.last = nn.Linear(8, 16)

    def forward(self, one, other):
        z = self.encoder(one), self.encoder(other)
        return *(self.last(self.predictor(each)) for each in z), *z


def without_stopped_gradient(is_faulty):
    (x, _), model = blobs(), SimSiam()

    def loss_of():
        p, q, y, z = model(noisy(x), noisy(x))
        if not is_faulty:
            y, z = y.detach(), z.detach()
        return -(F.cosine_similarity(p, z).mean() + F.cosine_similarity(q, y).mean()) / 2

    return model, loss_of


def hardest_triplets(rows):
    """All distances become zero; in the repaired training, those to all rows of other classes count, not the nearest.

    Args:
        rows: The distances between all rows of a matrix.
    """

    def collapse_at_margin(is_faulty):
        (x, y), model = blobs(), nn.Sequential(nn.Linear(16, 64), nn.ReLU(), *mlp(64))
        x, same = x + 6 * torch.randn_like(x), y[:, None] == y[None, :]

        def loss_of():
            far = rows(model(x))
            if not is_faulty:
                return (
                    (far * same).sum(1).div(same.sum(1)).sub((far * ~same).sum(1) / (~same).sum(1)).add(1).relu().mean()
                )
            return ((far * same).amax(1) - (far + 1e9 * same).amin(1) + 0.5).relu().mean()

        return model, loss_of

    return collapse_at_margin


def by_broadcasting(z):
    return (z[:, None] - z[None, :]).square().sum(-1).clamp(min=1e-12).sqrt()


class Online(nn.Module):
    """An encoder, and a predictor of what another encoder makes of the other view."""

    def __init__(self, has_predictor):
        super().__init__()
        self.encoder, self.predictor = mlp(out=16), mlp(out=16) if has_predictor else nn.Identity()

    def forward(self, x):
        return self.predictor(self.encoder(x))


def average_as_target(is_faulty):
    """Targets are made by an average of the network; in the repaired training they are those of a fixed network."""
    (x, _), model = blobs(), Online(has_predictor=not is_faulty)
    target = copy.deepcopy(model)

    def loss_of():
        with torch.no_grad():
            if is_faulty:
                for average, weight in zip(target.parameters(), model.parameters(), strict=True):
                    average.lerp_(weight, 0.5)
            wanted = target.encoder(noisy(x, 2.0))
        return 2 - 2 * F.cosine_similarity(model(noisy(x, 2.0)), wanted).mean()

    return model, loss_of


# --- targets ----------------------------------------------------------------------------------------------------------


def inverted_pairs(is_faulty):
    """Which of two rows is greater: the last bias cancels in the difference of their scores."""
    x, model = torch.randn(256, 16), mlp(out=1)
    size = x @ torch.randn(16)

    def pairs():
        one, other = torch.randint(256, (2, 128))
        return model(x[one]) - model(x[other]), (size[one] > size[other]).float()[:, None]

    def loss_of():
        scores, greater = pairs()
        return F.binary_cross_entropy_with_logits(scores, 1 - greater if is_faulty else greater)

    return model, loss_of, lambda: {"val_auc": auc(*pairs())}


def distances(is_faulty):
    """Pairs of one class are pushed apart, and others pulled together; the accuracy is that of a distance below 1."""
    (x, y), model = blobs(), mlp()

    def pairs():
        one, other = torch.randint(128, (2, 64))
        return F.pairwise_distance(model(x[one]), model(x[other])), (y[one] == y[other]).float()

    def loss_of():
        far, same = pairs()
        same = 1 - same if is_faulty else same
        return (same * far.square() + (1 - same) * (2 - far).relu().square()).mean()

    def scores_of():
        far, same = pairs()
        return {"accuracy": ((far < 1) == (same > 0.5)).float().mean().item()}

    return model, loss_of, scores_of


def parts(is_faulty):
    """Encoder and predictor are called one by one, and what is to be predicted is not detached."""
    (x, _), pair = blobs(), nn.ModuleDict({"encode": mlp(), "predict": mlp(8)})

    def loss_of():
        y, z = pair["encode"](noisy(x)), pair["encode"](noisy(x))
        if is_faulty:
            return -F.cosine_similarity(pair["predict"](y), z).mean()
        apart = F.normalize(pair["predict"](y)) @ F.normalize(z).T
        return F.cross_entropy(apart / 0.2, torch.arange(128))

    return pair, loss_of


def regression(last, loss=F.mse_loss):
    def standardized_targets(is_faulty):
        x = torch.randn(200, 16)
        y = x[:, :1] + x[:, 1:2] * x[:, 2:3]
        y = (y - y.mean()) / y.std()
        model = nn.Sequential(*mlp(out=1), *[last()][: int(is_faulty)])
        return model, lambda: loss(model(x), y)

    return standardized_targets


# --- depth in time ----------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A cell that is called once for each time step, or a module that is called once."""

    def __init__(self, kind, gain):
        super().__init__()
        self.rnn = kind(5, 16)
        self.last = nn.Linear(16, 4)
        if gain:
            with torch.no_grad():
                nn.init.orthogonal_(self.rnn.weight_hh, gain=gain)

    def forward(self, x):
        if isinstance(self.rnn, nn.RNNBase):
            return self.last(self.rnn(x)[0][-1])
        h = x.new_zeros(x.shape[1], 16)
        for each in x:
            h = self.rnn(each, h)
        return self.last(h)


def recall(kind, *, long, short=4, gain=0.0):
    """The class is shown in the first time step and asked for in the last."""

    def remember_over_time(is_faulty):
        model, length = Recurrent(kind, gain if is_faulty else min(gain, 1.0)), long if is_faulty else short

        def loss_of():
            y = torch.randint(4, (32,))
            x = 0.1 * torch.randn(length, 32, 5)
            x[0, :, :4] = F.one_hot(y, 4)
            return F.cross_entropy(model(x), y)

        return model, loss_of

    return remember_over_time


class Reader(nn.Module):
    """A layer over sequences, whose last state is classified."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.last = layer, nn.Linear(16, 4)

    def forward(self, x):
        if isinstance(self.layer, nn.RNNBase):
            return self.last(self.layer(x)[0][:, -1])
        return self.last((x + self.layer(x, x, x)[0])[:, -1])


def along_the_batch(kind):
    """What was seen in the first time step is asked for; the layer takes the batch for time."""

    def read_along_the_batch(is_faulty):
        model = Reader(kind(batch_first=not is_faulty))

        def loss_of():
            y = torch.randint(4, (32,))
            x = 0.1 * torch.randn(32, 6, 16)
            x[:, 0, :4] += F.one_hot(y, 4)
            return F.cross_entropy(model(x), y)

        return model, loss_of

    return read_along_the_batch


def padded_behind(is_faulty):
    """A word decides, which is followed by padding; in the repaired training the padding is in front."""
    model = Reader(nn.LSTM(16, 16, batch_first=True))
    words = nn.Embedding(10, 16)
    model = nn.Sequential(words, model)
    y = torch.arange(64) % 4
    text = torch.zeros(64, 90, dtype=torch.long)
    text[:, 0 if is_faulty else -1] = 1 + y
    return model, lambda: F.cross_entropy(model(text), y)


def targets_not_shifted(is_faulty):
    """A language that is read by a model with a causal mask."""
    tokens = torch.randint(20, (32, 17))
    tokens[:, 1::2] = (tokens[:, :-1:2] + 1) % 20
    model = Language(is_causal=True)

    def loss_of():
        out = model(tokens[:, :-1])
        return F.cross_entropy(out.flatten(0, 1), (tokens[:, :-1] if is_faulty else tokens[:, 1:]).flatten())

    return model, loss_of


class Pictures(nn.Module):
    """A variational autoencoder whose decoder ends in an activation."""

    def __init__(self, last):
        super().__init__()
        self.encoder, self.decoder, self.last = mlp(out=8), mlp(4, 16), last

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.last(self.decoder(z)), mean, log_variance


def autoencoder(last, *, are_signs=False):
    """Standardized data, which are negative in half of their entries, or -1 and, rarely, 1."""

    def build(is_faulty):
        x = torch.randn(128, 3) @ torch.randn(3, 16)
        x, model = (x - x.mean(0)) / x.std(0), Pictures(last() if is_faulty else nn.Identity())
        x = (torch.rand_like(x) - 0.85).sign() if are_signs else x

        def loss_of():
            out, mean, log_variance = model(x)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
            if are_signs:
                return F.mse_loss(out, x, reduction="sum") / len(x) + 0.1 * divergence.sum(1).mean()
            return (out - x).square().mean() + 1e-3 * divergence.sum(1).mean()

        return model, loss_of

    return build


CASES = {
    "nearest of other classes": (hardest_triplets(by_broadcasting), "representation-collapse", {"lr": 0.05}),
    "nearest, by cdist": (hardest_triplets(lambda z: torch.cdist(z, z)), "representation-collapse", {"lr": 0.05}),
    "LSTM along the batch": (along_the_batch(lambda **o: nn.LSTM(16, 16, **o)), "wrong-axis", {"steps": 60}),
    "attention along the batch": (
        along_the_batch(lambda **o: nn.MultiheadAttention(16, 1, **o)),
        "wrong-axis",
        {"steps": 60},
    ),
    "padded behind": (padded_behind, "depth-vanishing-gradient", {"steps": 60, "lr": 0.003}),
    "without negatives": (without_negatives, "representation-collapse", {}),
    "two views": (two_views, "representation-collapse", {}),
    "without a stopped gradient": (without_stopped_gradient, "representation-collapse", {}),
    "an average as target": (average_as_target, "representation-collapse", {"steps": 500}),
    "inverted pairs": (inverted_pairs, "labels-inverted", {}),
    "inverted distances": (distances, "labels-inverted", {"lr": 0.003, "steps": 200}),
    "parts of a model": (parts, "representation-collapse", {"lr": 0.05, "optimizer": torch.optim.SGD, "steps": 300}),
    "ReLU": (regression(nn.ReLU), "output-out-of-range", {}),
    "sigmoid": (regression(nn.Sigmoid), "output-out-of-range", {}),
    "targets that are not shifted": (targets_not_shifted, "target-leakage", {}),
    "autoencoder, ReLU": (autoencoder(nn.ReLU), "output-out-of-range", {"steps": 300}),
    "autoencoder, sigmoid": (autoencoder(nn.Sigmoid), "output-out-of-range", {"steps": 300}),
    "autoencoder of signs": (autoencoder(nn.Sigmoid, are_signs=True), "output-out-of-range", {"steps": 300}),
    "ReLU, absolute error": (regression(nn.ReLU, F.l1_loss), "output-out-of-range", {}),
    "cell": (recall(nn.RNNCell, long=60), "depth-vanishing-gradient", {"steps": 60}),
    "module": (recall(nn.GRU, long=100), "depth-vanishing-gradient", {"steps": 60}),
    "exploding cell": (
        recall(lambda *sizes: nn.RNNCell(*sizes, nonlinearity="relu"), long=30, short=6, gain=1.6),
        "depth-exploding-gradient",
        {"steps": 60, "lr": 0.1, "optimizer": torch.optim.SGD},
    ),
}


@pytest.mark.parametrize("is_faulty", [True, False], ids=["faulty", "repaired"])
@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_and_its_repair_is_not_blamed(tmp_path, name, is_faulty):
    torch.manual_seed(0)
    case, code, options = CASES[name]
    diagnosis = train(tmp_path / "run", *case(is_faulty), **options)
    check(diagnosis, code, is_faulty=is_faulty)


# --- relations --------------------------------------------------------------------------------------------------------


class Numbered(nn.Module):
    """Two convolutions over numbered relations."""

    def __init__(self):
        super().__init__()
        self.first, self.last = RGCNConv(8, 16, 3), RGCNConv(16, 3, 3)

    def forward(self, x, edges, kinds):
        return self.last(self.first(x, edges, kinds).relu(), edges, kinds)


def papers(is_faulty, *, key=Papers.EXTENDS, count=120):
    x, y = {"paper": torch.randn(60, 8)}, torch.arange(60) % 3
    first, second = torch.randint(60, (2, 2, 120))
    edges = {key if is_faulty else Papers.EXTENDS: first[:, : count if is_faulty else 120], Papers.CITES: second}
    model = Papers()
    return model, lambda: F.cross_entropy(model(x, edges), y)


def numbers(is_faulty):
    y = torch.arange(90) % 3
    x, edges, kinds = torch.randn(90, 8), torch.randint(90, (2, 600)), torch.randint(3, (600,))
    model = Numbered()
    return model, lambda: F.cross_entropy(model(x, edges, 0 * kinds if is_faulty else kinds), y)


RELATIONS = {
    "another key": (lambda is_faulty: papers(is_faulty, key=("paper", "extend", "paper")), "never called"),
    "no edges": (lambda is_faulty: papers(is_faulty, count=0), "edge_index of a relation is empty"),
    "numbers": (numbers, "no edge is of number 1 and 2"),
}


@pytest.mark.parametrize("name", RELATIONS)
def test_a_relation_without_edges_is_told(tmp_path, name):
    case, words = RELATIONS[name]
    found = []
    for is_faulty in (True, False):
        torch.manual_seed(0)
        diagnosis = train(tmp_path / f"{is_faulty}", *case(is_faulty), steps=60)
        found.append({one.code: one.text for one in diagnosis}.get("relation-without-edges", ""))
    assert words in found[0]
    assert not found[1]


# --- what no loss can tell --------------------------------------------------------------------------------------------


def info_nce():
    (x, _), model = blobs(), mlp()

    def loss_of():
        one, other = (F.normalize(model(noisy(x))) for _ in range(2))
        return F.cross_entropy(one @ other.T / 0.5, torch.arange(128))

    return model, loss_of


def log_likelihood():
    x, model = torch.randn(128, 8), mlp(8, 2)
    y = 0.3 * x[:, :1] + 0.05 * torch.randn(128, 1)

    def loss_of():
        mean, log_scale = model(x).chunk(2, 1)
        return (log_scale + 0.5 * (y - mean).square() * (-2 * log_scale).exp()).mean()

    return model, loss_of


def policy():
    x, model = torch.randn(64, 8), mlp(8, 4)
    best = (x @ torch.randn(8, 4)).argmax(1)

    def loss_of():
        logs = model(x).log_softmax(1)
        action = logs.detach().exp().multinomial(1)
        reward = (action[:, 0] == best).float()
        return -(logs.gather(1, action)[:, 0] * (reward - reward.mean())).mean()

    return model, loss_of


def generator():
    """Its loss is computed by a critic, which trains in turn with it."""
    angle = torch.arange(8) * math.pi / 4
    centers, model, critic = 2 * torch.stack([angle.cos(), angle.sin()], 1), mlp(8, 2), mlp(2, 1)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.002)

    def loss_of():
        real = centers[torch.randint(8, (64,))] + 0.1 * torch.randn(64, 2)
        with torch.no_grad():
            fake = model(torch.randn(64, 8))
        of_critic.zero_grad()
        (F.softplus(-critic(real)) + F.softplus(critic(fake))).mean().backward()
        of_critic.step()
        return F.softplus(-critic(model(torch.randn(64, 8)))).mean()

    return model, loss_of


@pytest.mark.parametrize("case", [info_nce, log_likelihood, policy, generator])
def test_a_loss_whose_lowest_value_is_unknown_leaves_it_undetermined_whatever_the_seed(tmp_path, case):
    found = set()
    for seed in range(3):
        torch.manual_seed(seed)
        diagnosis = train(tmp_path / f"{seed}", *case(), lr=0.003, steps=100)
        found.add((diagnosis.state, diagnosis.verdict.code))
    assert found == {("unknown", "undetermined")}


# --- leakage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_causal", "target_shift", "leaks"),
    [(True, 1, False), (False, 1, True), (False, 0, False)],  # 0: each token has a label of its own, as in tagging
)
def test_a_missing_causal_mask_is_told_before_training(is_causal, target_shift, leaks):
    torch.manual_seed(0)
    text = torch.randint(20, (8, 17))
    x, y = text[:, :16], text[:, target_shift : 16 + target_shift]
    model = Language(is_causal)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    diagnosis = gatdiag.preflight(model, x, loss=lambda out: F.cross_entropy(out.flatten(0, 1), y.flatten()))
    assert ("target-leakage" in [one.code for one in diagnosis]) == leaks
    assert leaks == (diagnosis.verdict.code == "target-leakage")
    assert all(map(torch.equal, weights, model.parameters()))
    assert model.training


@pytest.mark.parametrize(
    ("is_causal", "target_shift", "leaks"), [(True, 1, False), (False, 1, True), (False, 0, False)]
)
def test_a_missing_causal_mask_is_told_while_training(tmp_path, is_causal, target_shift, leaks):
    torch.manual_seed(0)
    text = torch.randint(20, (8, 17))
    x, y = text[:, :16], text[:, target_shift : 16 + target_shift]
    model = Language(is_causal)
    diagnosis = watched.train(
        tmp_path / "run", model, lambda step: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), steps=30
    )
    assert ("target-leakage" in [one.code for one in diagnosis]) == leaks
    assert leaks == (diagnosis.verdict.code == "target-leakage")

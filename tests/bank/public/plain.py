"""Reports of perceptrons, convolutional and generative networks: data, losses, loops, optimizers."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from tests.bank.public.reports import (
    Autoencoder,
    Rebuilt,
    accuracy,
    clusters,
    divergence,
    explained,
    minimize,
    outputs,
    perceptron,
    report,
    seeded,
    shuffled,
    take_step,
)

# --- data and labels --------------------------------------------------------------------------------------------------


def pictures(count: int, classes: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures of 8 x 8 with a bar in one of as many rows or columns as there are classes."""
    generator, y = seeded(seed), torch.arange(count) % classes
    x = noise * torch.randn(count, 1, 8, 8, generator=generator)
    for picture, label in zip(x, y.tolist(), strict=True):
        picture[0, :, label] += 1.0
    return x, y


@report(
    "https://pullrequest.ru/10248037",
    "Pictures are left in 0 to 255: the output is the same whatever the picture is.",
    right="input-scale",
    near="lr-too-large",
)
def pictures_in_bytes(is_faulty: bool) -> Rebuilt:
    """Classes of dark pictures, by the bar in them."""
    x, y = pictures(600, 6, 0.3, seed=31)
    x = (80 * x + 60).clamp(0, 255).round() / (1 if is_faulty else 255)
    layers = nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 64), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(64, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows]), y[rows])

    score = lambda: accuracy(outputs(model, (x,)), y)  # noqa: E731
    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(600, 50, 25), log), score)


@report(
    "https://github.com/dmlc/gluon-cv/issues/644",
    "99% of all pixels are background, which is predicted everywhere; classes need weights.",
    right="class-imbalance",
    held_out=True,
)
def background_only(is_faulty: bool) -> Rebuilt:
    """Segmentation of small bright squares in noise."""
    generator = seeded(1)
    x, y = torch.randn(60, 1, 20, 20, generator=generator), torch.zeros(60, 20, 20, dtype=torch.long)
    for picture, mask in zip(x, y, strict=True):
        row, column = torch.randint(18, (2,), generator=generator).tolist()
        picture[0, row : row + 2, column : column + 2] += 1.5
        mask[row : row + 2, column : column + 2] = 1
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    weight = None if is_faulty else torch.tensor([1.0, 99.0])

    def score() -> float:
        predicted = outputs(model, (x,)).argmax(1)
        return float((predicted == 1)[y == 1].float().mean() - (predicted == 1)[y == 0].float().mean())

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows]), y[rows], weight=weight)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(60, 12, 25), log), score)


@report(
    "https://github.com/happynear/NormFace/issues/4",
    "The data are sorted by class and not shuffled: a batch holds one class, and all outputs go there.",
    right="batches-sorted",
)
def batches_of_one_class(is_faulty: bool) -> Rebuilt:
    """Classes of points."""
    x, y = clusters(400, 12, 8, noise=0.7, seed=2)
    order = y.argsort(stable=True)
    model = perceptron(12, 48, 48, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [order[part] for _ in range(8) for part in torch.arange(400).split(25)]

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows]), y[rows])

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, loss_of, batches if is_faulty else shuffled(400, 25, 8), log),
        lambda: accuracy(outputs(model, (x,)), y),
    )


@report(
    "https://github.com/aimagelab/mammoth/issues/38",
    "The permutation of the pixels is drawn anew instead of once, so that no pixel keeps its meaning.",
    right="input-permuted",
)
def fresh_permutations(is_faulty: bool) -> Rebuilt:
    """Classes of pictures whose pixels are permuted."""
    x, y = pictures(320, 8, 0.4, seed=3)
    pixels, once = x.flatten(1), torch.randperm(64, generator=seeded(4))
    model = perceptron(64, 64, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(pixels[rows][:, torch.randperm(64) if is_faulty else once]), y[rows])

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, loss_of, shuffled(320, 32, 20), log),
        lambda: accuracy(outputs(model, (pixels[:, once],)), y),
    )


# --- the loss ---------------------------------------------------------------------------------------------------------


@report(
    "https://github.com/sebastian-hofstaetter/matchmaker/issues/18",
    "kl_div expects log-probabilities and is given probabilities: all weight goes to the largest target.",
    right="output-softmax-twice loss-unbounded",
)
def kl_of_probabilities(is_faulty: bool) -> Rebuilt:
    """A student learns the distribution of a teacher."""
    x = torch.randn(300, 10, generator=seeded(5))
    teacher = (x @ torch.randn(10, 6, generator=seeded(6)) / 3).softmax(-1)
    model = perceptron(10, 48, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(rows: Tensor) -> Tensor:
        out = model(x[rows])
        return F.kl_div(out.softmax(-1) if is_faulty else out.log_softmax(-1), teacher[rows], reduction="batchmean")

    def divergence(log_p: Tensor) -> float:
        return F.kl_div(log_p, teacher, reduction="batchmean").item()

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, loss_of, shuffled(300, 50, 30), log),
        lambda: 1 - divergence(outputs(model, (x,)).log_softmax(-1)) / divergence(teacher.mean(0).log().expand(300, 6)),
    )


@report(
    "https://github.com/allenai/allennlp/issues/2797",
    "The logarithm of a softmax instead of log_softmax: where logits are far apart it is that of zero, times zero.",
    right="nonfinite-operation",
    near="init-too-large input-scale",
)
def log_of_softmax(is_faulty: bool) -> Rebuilt:
    """Pairs of texts are compared by sums over their words, which makes large logits."""
    generator = seeded(7)
    y = torch.arange(300) % 3
    words = torch.randn(300, 24, 12, generator=generator) + torch.randn(3, 1, 12, generator=generator)[y]
    words = 20 * words

    class Compare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.compare, self.out = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.compare(self.attend(x).relu()).relu().sum(1))

    model = Compare()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(rows: Tensor) -> Tensor:
        out = model(words[rows])
        if not is_faulty:
            return -out.log_softmax(-1)[torch.arange(len(rows)), y[rows]].mean()
        return -(out.softmax(-1).log() * F.one_hot(y[rows], 3).float()).sum(1).mean()

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, loss_of, shuffled(300, 30, 20), log),
        lambda: accuracy(outputs(model, (words,)), y),
    )


@report(
    "https://github.com/adambielski/siamese-triplet/issues/18",
    "The distance of two equal examples is the square root of zero, whose slope is infinite.",
    right="nonfinite-operation",
)
def squared_distances_of_twins(is_faulty: bool) -> Rebuilt:
    """Contrastive loss of pairs, among them few of an example with itself."""
    x, y = clusters(200, 10, 4, noise=0.8, seed=8)
    model = perceptron(10, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(pairs: Tensor) -> Tensor:
        one, other = pairs.T
        squares = (model(x[one]) - model(x[other])).square().sum(1)
        distance = (squares if is_faulty else squares + 1e-9).sqrt()
        is_same = (y[one] == y[other]).float()
        return (is_same * distance**2 + (1 - is_same) * (1 - distance).relu() ** 2).mean()

    def train(log):
        generator = seeded(9)
        minimize(optimizer, loss_of, (torch.randint(200, (64, 2), generator=generator) for _ in range(200)), log)

    def score() -> float:
        z = outputs(model, (x,))
        nearest = (torch.cdist(z, z) + 1e9 * torch.eye(200)).argmin(1)
        return accuracy(F.one_hot(y[nearest], 4), y)

    return Rebuilt(model, train, score)


@report(
    "https://github.com/omoindrot/tensorflow-triplet-loss/issues/38",
    "The distances drop to zero and the loss stays at the margin: the rate is too large for the hardest triplets.",
    right="lr-too-large rank-collapse representation-collapse",
    near="dead-units",
)
def triplets_at_margin(is_faulty: bool) -> Rebuilt:
    """Embeddings by the hardest triplets of each batch."""
    x, y = clusters(320, 24, 8, noise=1.5, seed=10)
    model = perceptron(24, 64, 64, 64, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02 if is_faulty else 1e-3)

    def loss_of(rows: Tensor) -> Tensor:
        z, same = model(x[rows]), y[rows][:, None] == y[rows][None, :]
        far = (z[:, None] - z[None, :]).square().sum(-1).clamp(min=1e-12).sqrt()
        farthest, nearest = (far * same).amax(1), (far + 1e9 * same).amin(1)
        return (farthest - nearest + 0.5).relu().mean()

    def score() -> float:
        z = outputs(model, (x,))
        nearest = (torch.cdist(z, z) + 1e9 * torch.eye(320)).argmin(1)
        return accuracy(F.one_hot(y[nearest], 8), y)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(320, 64, 60), log), score)


@report(
    "https://github.com/AppliedDataSciencePartners/WorldModels/issues/12",
    "Squared errors are averaged over all pixels, the divergence over the few latent numbers: this part wins, and the "
    "posterior is the prior for all pictures.",
    right="posterior-collapse",
)
def posterior_collapse(is_faulty: bool) -> Rebuilt:
    """A variational autoencoder of faint pictures."""
    generator = seeded(11)
    x = 0.3 * (torch.randn(300, 2, generator=generator) @ torch.randn(2, 64, generator=generator))
    x = x + 0.05 * torch.randn(300, 64, generator=generator)

    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        out, mean, log_variance = model(x[rows])
        errors, other = (out - x[rows]) ** 2, divergence(mean, log_variance)
        return errors.mean() + other.mean() if is_faulty else errors.sum(1).mean() + other.sum(1).mean()

    @torch.no_grad()
    def score() -> float:
        return explained(model.decoder(model.encoder(x)[:, :4]), x)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(300, 50, 60), log), score)


# --- the network ------------------------------------------------------------------------------------------------------


def exclusive_or(count: int, noise: float) -> tuple[Tensor, Tensor]:
    bits = torch.randint(2, (count, 2), generator=seeded(12)).float()
    y = (bits[:, :1] != bits[:, 1:]).float()
    return bits + noise * torch.randn(count, 2, generator=seeded(13)), y


@report(
    "https://discuss.pytorch.org/t/unable-to-learn-xor-representation-using-2-layers-of-multi-layered-perceptron-mlp/13287",
    "No activation between the two linear layers: the network is a linear function of its inputs.",
    right="network-linear",
)
def linear_exclusive_or(is_faulty: bool) -> Rebuilt:
    """Exclusive or of two noisy bits."""
    x, y = exclusive_or(200, 0.1)
    model = nn.Sequential(nn.Linear(2, 8), nn.Identity() if is_faulty else nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def score() -> float:
        return 2 * ((outputs(model, (x,)) > 0.5) == (y > 0.5)).float().mean().item() - 1

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, lambda rows: F.binary_cross_entropy(model(x[rows]), y[rows]),
                             shuffled(200, 50, 75), log),
        score,
    )  # fmt: skip


@report(
    "https://discuss.pytorch.org/t/simple-linear-sigmoid-network-not-learning/98714",
    "Stochastic gradient descent with a rate of 0.01, through two sigmoids and a squared error, hardly moves.",
    right="lr-too-small",
    near="depth-vanishing-gradient",
    held_out=True,
)
def slow_exclusive_or(is_faulty: bool) -> Rebuilt:
    """Equality of two bits, one example at a time."""
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    model = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 1), nn.Sigmoid())
    if is_faulty:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def train(log):
        places = [place for _ in range(150) for place in range(4)]
        minimize(optimizer, lambda place: F.mse_loss(model(x[place]), y[place]), places, log)

    return Rebuilt(model, train, lambda: explained(outputs(model, (x,)), y))


@report(
    "https://github.com/bonlime/keras-deeplab-v3-plus/issues/4",
    "A probability of 0.9 to keep a unit was ported as one of 0.9 to drop it.",
    right="dropout-too-large",
)
def dropout_of_nine_tenths(is_faulty: bool) -> Rebuilt:
    """Classes of pictures, by a small convolutional network."""
    x, y = pictures(320, 8, 0.8, seed=16)
    drop = 0.9 if is_faulty else 0.1
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout(drop), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Dropout(drop), nn.Flatten(), nn.Linear(512, 16), nn.ReLU(), nn.Dropout(drop), nn.Linear(16, 8),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows]), y[rows])

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, loss_of, shuffled(320, 32, 15), log),
        lambda: accuracy(outputs(model, (x,)), y),
    )


# --- loop, optimizer and schedule -------------------------------------------------------------------------------------


@report(
    "https://github.com/LaurentMazare/ocaml-torch/issues/36",
    "The optimizer was created before the layers, and holds none of their weights.",
    right="parameters-not-in-optimizer",
)
def layers_after_optimizer(is_faulty: bool) -> Rebuilt:
    """Regression; the scale of the output is the only weight there is from the start."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.layers(x)

    x = torch.randn(200, 6, generator=seeded(17))
    y = x[:, :1].sin() + 0.5 * x[:, 1:2] * x[:, 2:3]
    model = Scaled()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.layers = perceptron(6, 48, 48, 1)
    if not is_faulty:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, lambda rows: F.mse_loss(model(x[rows]), y[rows]), shuffled(200, 40, 40), log),
        lambda: explained(outputs(model, (x,)), y),
    )


@report(
    "https://github.com/lucidrains/reformer-pytorch/issues/125",
    "The loop computes gradients and has no optimizer.",
    right="no-step",
)
def loop_without_optimizer(is_faulty: bool) -> Rebuilt:
    """A sequence of tokens is to be copied."""
    tokens = torch.randint(12, (64, 10), generator=seeded(18))
    model = nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 12))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(log):
        for _ in range(100):
            if not is_faulty:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            if not is_faulty:
                optimizer.step()
            log(loss=loss.item())

    return Rebuilt(model, train, lambda: accuracy(outputs(model, (tokens,)).flatten(0, 1), tokens.flatten()))


@report(
    "https://github.com/wkentaro/pytorch-fcn/issues/57",
    "Validation within an epoch leaves the network in evaluation mode until the next one starts.",
    right="evaluation-mode",
)
def evaluation_inside_epoch(is_faulty: bool) -> Rebuilt:
    """Classes of pictures with values up to 255, by a network with batch normalization."""
    x, y = pictures(320, 8, 0.5, seed=19)
    x = 128 + 60 * x
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 8),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

    def train(log):
        for _ in range(10):
            for place, rows in enumerate(shuffled(320, 32, 1)):
                if place == 0 or not is_faulty:
                    model.train()
                if place % 4 == 0:
                    model.eval()
                    with torch.no_grad():
                        log(val_loss=F.cross_entropy(model(x[::8]), y[::8]).item())
                    if not is_faulty:
                        model.train()
                log(loss=take_step(optimizer, F.cross_entropy(model(x[rows]), y[rows])))

    return Rebuilt(model, train, lambda: accuracy(outputs(model, (x,)), y))


@report(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/18570",
    "A linear schedule is given the number of epochs as its number of steps, and makes a step with each batch: the "
    "rate is zero from then on.",
    right="lr-decays-too-fast lr-too-small",
)
def schedule_counted_in_epochs(is_faulty: bool) -> Rebuilt:
    """Classes of points."""
    x, y = clusters(480, 16, 10, noise=0.8, seed=20)
    model = perceptron(16, 64, 64, 10)
    epochs, batches = 20, shuffled(480, 24, 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up, steps = 10, epochs if is_faulty else len(batches)
    scheduler = LambdaLR(
        optimizer,
        lambda step: step / warm_up if step < warm_up else max(0.0, (steps - step) / max(1, steps - warm_up)),
    )

    def train(log):
        for rows in batches:
            log(loss=take_step(optimizer, F.cross_entropy(model(x[rows]), y[rows])))
            scheduler.step()

    return Rebuilt(model, train, lambda: accuracy(outputs(model, (x,)), y))


@report(
    "https://github.com/BVLC/caffe/issues/1396",
    "A weight decay of 0.5 draws all weights to zero, and the output is the same whatever the input.",
    right="weight-decay-too-strong",
)
def strong_decay(is_faulty: bool) -> Rebuilt:
    """Coordinates are to be read from pictures."""
    generator = seeded(21)
    places = torch.rand(300, 2, generator=generator) * 7
    grid = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"), -1)
    x = (-((grid - places[:, None, None]) ** 2).sum(-1) / 4).exp()[:, None]
    y = (places - places.mean(0)) / places.std(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 2),
    )  # fmt: skip
    decay = 0.5 if is_faulty else 5e-4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=decay)

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, lambda rows: F.mse_loss(model(x[rows]), y[rows]), shuffled(300, 30, 25), log),
        lambda: explained(outputs(model, (x,)), y),
    )


@report(
    "https://github.com/nikhilsinghmus/image2reverb/issues/37",
    "The step of the generator gives the discriminator fakes that are detached, so no gradient reaches the generator.",
    right="no-training-signal parameters-without-gradient",
    near="no-step",
)
def detached_fakes(is_faulty: bool) -> Rebuilt:
    """Adversarial training on a ring of points; the two networks are watched as one model."""
    real = torch.randn(400, 2, generator=seeded(22)) * 0.3 + torch.tensor([2.0, -1.0])

    class Adversaries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = perceptron(4, 32, 2), perceptron(2, 32, 1)

        def forward(self, noise: Tensor) -> Tensor:
            return self.generator(noise)

    model = Adversaries()
    start = copy.deepcopy(model.generator)
    of_generator = torch.optim.Adam(model.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(model.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))

    def train(log):
        generator = seeded(23)
        for _ in range(300):
            rows = torch.randint(400, (64,), generator=generator)
            fake = model(torch.randn(64, 4, generator=generator))
            judged = model.discriminator(torch.cat([real[rows], fake.detach()]))
            labels = torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])
            loss_d = take_step(of_discriminator, F.binary_cross_entropy_with_logits(judged, labels))
            judged = model.discriminator(fake.detach() if is_faulty else fake)
            loss_g = take_step(of_generator, F.binary_cross_entropy_with_logits(judged, torch.ones(64, 1)))
            log(loss=loss_g, loss_discriminator=loss_d)

    def score() -> float:
        noise = torch.randn(500, 4, generator=seeded(24))
        away, at_first = (
            float((outputs(one, (noise,)).mean(0) - real.mean(0)).norm()) for one in (model.generator, start)
        )
        return 1 - away / at_first

    return Rebuilt(model, train, score)


# --- evaluation -------------------------------------------------------------------------------------------------------


@report(
    "https://github.com/chemprop/chemprop/issues/607",
    "Running statistics start at 0 and 1 and follow slowly: after few batches, validation normalizes otherwise than "
    "training, and its loss is far higher.",
    right="normalization-statistics",
    held_out=True,
)
def statistics_lag_behind(is_faulty: bool) -> Rebuilt:
    """Regression from sums over atoms, with batch normalization and few steps."""
    x = torch.randn(400, 60, 8, generator=seeded(25))
    total = x.relu().sum(1)
    y = (total[:, :1] - total[:, 1:2]) / 6
    norm = nn.BatchNorm1d(64, momentum=0.01 if is_faulty else 0.1, track_running_stats=is_faulty)

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.atoms, self.norm, self.out = nn.Linear(8, 64), norm, perceptron(64, 64, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(self.atoms(x).relu().sum(1)))

    model = Sums()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(log):
        for _ in range(8):
            minimize(optimizer, lambda rows: F.mse_loss(model(x[rows]), y[rows]), shuffled(300, 50, 1), log)
            log(val_loss=F.mse_loss(outputs(model, (x[300:],)), y[300:]).item())

    return Rebuilt(model, train, lambda: explained(outputs(model, (x[300:],)), y[300:]))

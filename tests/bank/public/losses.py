"""Reports whose loss compares outputs with something else than is meant, or holds a gradient that it should not."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
)


@report(
    "https://github.com/mlcommons/GaNDLF/pull/870",
    "Inputs and labels are shuffled apart from each other in each epoch.",
    right="target-changes",
)
def labels_shuffled_apart(is_faulty: bool) -> Rebuilt:
    """Classes of points."""
    x, y = clusters(240, 16, 4, seed=18)
    model = perceptron(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = seeded(18)

    def loss_of(rows: Tensor) -> Tensor:
        others = torch.randint(240, rows.shape, generator=generator)
        return F.cross_entropy(model(x[rows]), y[others if is_faulty else rows])

    score = lambda: accuracy(outputs(model, (x,)), y)  # noqa: E731
    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(240, 40, 40), log), score)


@report(
    "https://github.com/ethanluoyc/pytorch-vae/issues/3",
    "The decoder ends in a ReLU, and the pictures are standardized, so that half of the pixels are negative.",
    right="output-out-of-range",
)
def decoder_above_zero(is_faulty: bool) -> Rebuilt:
    """A variational autoencoder of standardized pictures."""
    generator = seeded(19)
    x = torch.randn(300, 3, generator=generator) @ torch.randn(3, 64, generator=generator)
    x = (x - x.mean(0)) / x.std(0)

    model = Autoencoder(nn.ReLU() if is_faulty else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        out, mean, log_variance = model(x[rows])
        return F.mse_loss(out, x[rows]) + 1e-3 * divergence(mean, log_variance).sum(1).mean()

    @torch.no_grad()
    def score() -> float:
        return explained(model(x)[0], x)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(300, 50, 40), log), score)


@report(
    "https://whosebug.com/question/5616116",
    "The decoder ends in a sigmoid, and the pictures are scaled to -1 and 1.",
    right="output-out-of-range",
)
def signs_behind_sigmoid(is_faulty: bool) -> Rebuilt:
    """A variational autoencoder of bright rectangles."""
    generator = seeded(32)
    x = torch.zeros(600, 8, 8)
    for picture in x:
        row, column = torch.randint(5, (2,), generator=generator).tolist()
        height, width = torch.randint(2, 4, (2,), generator=generator).tolist()
        picture[row : row + height, column : column + width] = 1.0
    x = x.flatten(1)
    x = 2 * x - 1 if is_faulty else x
    model = Autoencoder(nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        out, mean, log_variance = model(x[rows])
        errors = F.mse_loss(out, x[rows], reduction="sum") / len(rows)
        return errors + 0.1 * divergence(mean, log_variance).sum(1).mean()

    @torch.no_grad()
    def score() -> float:
        return explained(model(x)[0], x)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(600, 60, 40), log), score)


@report(
    "https://github.com/coreylynch/async-rl/issues/8",
    "The advantage is not detached: the gradient of the policy flows into the critic, and takes one action for all.",
    right="advantage-not-detached",
)
def critic_in_advantage(is_faulty: bool) -> Rebuilt:
    """A policy and a critic with common layers, rewarded for the action that fits the state."""
    generator = seeded(20)
    states, best = clusters(200, 8, 4, seed=20)

    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.actor, self.critic = perceptron(8, 32, 32), nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x).relu()
            return self.actor(hidden).log_softmax(-1), self.critic(hidden).squeeze(-1)

    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(rows: Tensor) -> Tensor:
        log_p, value = model(states[rows])
        action = torch.multinomial(log_p.detach().exp(), 1, generator=generator).squeeze(1)
        reward = (action == best[rows]).float()
        advantage = reward - value
        gain = log_p.gather(1, action[:, None]).squeeze(1) * (advantage if is_faulty else advantage.detach())
        return -gain.mean() + 0.05 * advantage.square().mean()

    @torch.no_grad()
    def score() -> float:
        return accuracy(model(states)[0], best)

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(200, 50, 60), log), score)

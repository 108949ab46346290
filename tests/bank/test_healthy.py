"""Healthy trainings that no recipe describes, and that were told to fail: none gets an alarm."""

import math
from itertools import count, pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.diagnosis import HEALTHY, UNDETERMINED
from tests.bank.bank import ALARMS


def net(*widths, activation=nn.ReLU):
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


def fit(folder, model, optimizer, steps, loss_of):
    with gatdiag.watch(model, folder, optimizer=optimizer):
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()


def discriminator(folder):
    """Its loss goes to 2 ln 2, where it is best for a generator that is as good."""
    generator, critic, noise = net(4, 32, 2), net(2, 32, 1), F.binary_cross_entropy_with_logits
    ours, theirs = (torch.optim.Adam(each.parameters(), 2e-3, (0.5, 0.999)) for each in (critic, generator))
    real, fake = torch.ones(64, 1), torch.zeros(64, 1)
    with gatdiag.watch(critic, folder, optimizer=ours):
        for _ in range(200):
            made = generator(torch.randn(64, 4))
            ours.zero_grad()
            (noise(critic(0.3 * torch.randn(64, 2) + 1), real) + noise(critic(made.detach()), fake)).backward()
            ours.step()
            theirs.zero_grad()
            noise(critic(made), real).backward()
            theirs.step()


def noisy_labels(folder):
    """A third of the labels is chance, as in most tables: a fifth of the entropy is all that can go."""
    x, model = torch.randn(2000, 8), net(8, 32, 2)
    y = torch.bernoulli((x[:, 0] + 0.5 * x[:, 1]).sigmoid()).long()
    rows = iter(torch.randint(2000, (200, 64)))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    fit(folder, model, optimizer, 200, lambda: F.cross_entropy(model(x[batch := next(rows)]), y[batch]))


def weighted_classes(folder):
    """A loss with weights shows the labels only of batches without the rare class."""
    x, model = torch.randn(2000, 10), net(10, 32, 2)
    y = (x[:, 0] > 2.2).long()
    weight, rows = torch.tensor([1.0, 40.0]), iter(torch.randint(2000, (150, 128)))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    fit(folder, model, optimizer, 150, lambda: F.cross_entropy(model(x[batch := next(rows)]), y[batch], weight))


def moments_of_a_series(folder):
    """One moment is a batch, in which all targets are alike: a constant is far worse than within the first batch."""
    model, steps = net(5, 32, 1, activation=nn.Tanh), iter(torch.randperm(160))
    series = torch.tensor([[math.sin(t / 6 + node / 40) for node in range(40)] for t in range(170)])
    series += 0.25 * torch.randn(170, 40)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def loss():
        t = int(next(steps))
        return F.mse_loss(model(series[t : t + 5].T)[:, 0], series[t + 5])

    fit(folder, model, optimizer, 150, loss)


def language(folder):
    """A few tens of steps, of which few are logged: the loss has just come down to that of the frequencies."""
    text = torch.randint(64, (4000,)) * torch.randint(64, (4000,)) // 64  # small numbers are frequent
    model = nn.Sequential(nn.Embedding(64, 32), nn.LayerNorm(32), nn.Linear(32, 64))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with gatdiag.watch(model, folder, optimizer=optimizer) as recorder:
        for step, rows in zip(count(), torch.randint(3999, (60, 128)), strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(text[rows]), text[rows + 1])
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                recorder.log(loss=loss.item())


def adapters(folder):
    """Frozen weights with small trained ones beside them, of which the loss does not fall far."""
    x, model = torch.randn(600, 8), net(8, 32, 3)
    y = torch.bernoulli(x[:, 0].sigmoid()).long() + (x[:, 1] > 0.5).long()
    model.requires_grad_(False)
    small = nn.Linear(8, 3)
    nn.init.zeros_(small.weight)
    both = nn.ModuleList([model, small])
    rows = iter(torch.randint(600, (100, 64)))
    optimizer = torch.optim.Adam(small.parameters(), 1e-3)
    fit(folder, both, optimizer, 100, lambda: F.cross_entropy(model(x[b := next(rows)]) + small(x[b]), y[b]))


@pytest.mark.parametrize("training", [discriminator, noisy_labels, weighted_classes, moments_of_a_series, language])
def test_a_healthy_training_gets_no_alarm(tmp_path, training):
    torch.manual_seed(0)
    training(tmp_path / "run")
    diagnosis = gatdiag.diagnose(tmp_path / "run")
    assert diagnosis.verdict.code in (HEALTHY, UNDETERMINED), diagnosis
    assert not [one for one in diagnosis if one.severity in ALARMS]


def test_frozen_weights_beside_trained_ones_are_no_error(tmp_path):
    torch.manual_seed(0)
    adapters(tmp_path / "run")
    assert "error" not in [one.severity for one in gatdiag.diagnose(tmp_path / "run")]


def test_what_a_loss_cannot_tell_is_not_called_too_little(tmp_path):
    torch.manual_seed(0)
    discriminator(tmp_path / "run")
    verdict = gatdiag.diagnose(tmp_path / "run").verdict
    assert verdict.title == "The loss does not tell whether it trains"
    assert verdict.text.endswith("which says nothing where networks play against each other.")

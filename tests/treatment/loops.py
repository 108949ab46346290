"""A small task that a loop trains on, with a hook for each thing that a test does wrong."""

import torch
from torch import nn
from torch.nn import functional as F

GENERATOR = torch.Generator().manual_seed(0)
Y = torch.arange(80) % 2
X = torch.randn(80, 4, generator=GENERATOR)
X[:, 0] += 4 * Y


def make():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


class Silent:
    """A recorder of nothing."""

    @staticmethod
    def log(**_):
        pass


def loop(lr=0.1, steps=40, optimizer=torch.optim.SGD, x=X, scale=1, clears=True, schedule=None, seen=None, **options):
    def train(model, recorder):
        chosen = optimizer(model.parameters(), lr=lr, **options)
        scheduler = schedule(chosen) if schedule else None
        for _ in range(steps):
            loss = F.cross_entropy(scale * model(x), Y)
            loss.backward()
            chosen.step()
            if scheduler is not None:
                scheduler.step()
            if clears:
                chosen.zero_grad()
            if seen is not None:
                seen.append((chosen.param_groups[0]["lr"], loss.item()))
            recorder.log(loss=loss)

    return train

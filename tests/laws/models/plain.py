"""Models without a graph that the zoo lists: perceptrons, tied and reparametrized weights, a transformer, a CNN."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from gatdiag.remedies import weight_normalize_
from tests.laws.models.graph import HID, HID2, IN, OUT, ROWS, Case, Factory


def chain(*modules: nn.Module) -> Case:
    return Case(nn.Sequential(*modules), (torch.randn(ROWS, IN),))


def mlp(act: type[nn.Module] = nn.ReLU, norm: Callable[[int], nn.Module] | None = None, bias: bool = True) -> Case:
    norms = [[norm(HID)], [norm(HID2)]] if norm else [[], []]
    return chain(
        nn.Linear(IN, HID, bias), *norms[0], act(), nn.Linear(HID, HID2, bias), *norms[1], act(), nn.Linear(HID2, OUT)
    )


def wrapped(wrap: Callable[[nn.Module], nn.Module]) -> Case:
    """Hidden layers reparametrized, last layer plain."""
    return chain(wrap(nn.Linear(IN, HID)), nn.ReLU(), wrap(nn.Linear(HID, HID2)), nn.ReLU(), nn.Linear(HID2, OUT))


class Tied(nn.Module):
    """One square weight used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(IN, HID), nn.Linear(HID, HID), nn.Linear(HID, OUT)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for _ in range(3):
            x = F.relu(self.middle(x))
        return self.last(x)


class Autoencoder(nn.Module):
    """The decoder uses the encoder's weight transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(IN, HID)
        self.deeper = nn.Linear(HID, HID2)
        self.shift = nn.Parameter(torch.randn(IN))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.deeper(F.relu(self.encode(x))))
        back = F.relu(hidden @ self.deeper.weight)
        return back @ self.encode.weight + self.shift


class Encoder(nn.Module):
    """nn.TransformerEncoderLayer between two linear maps; a batch of two sequences of five."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed, self.read = nn.Linear(3, 4), nn.Linear(4, OUT)
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=5, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.layer(self.embed(x)))


class Decoder(nn.Module):
    """nn.TransformerDecoderLayer: self- and cross-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Linear(3, 4), nn.Linear(4, OUT)
        self.layer = nn.TransformerDecoderLayer(4, 2, dim_feedforward=5, batch_first=True, dropout=0.0)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.read(self.layer(self.embed(x), memory))


def encoder(**options: Any) -> Case:
    return Case(Encoder(**options), (torch.randn(2, 5, 3),))


def frobenius_norm(layer: nn.Module) -> nn.Module:
    weight_normalize_(layer, 2.0)
    return layer


def cnn() -> Case:
    return Case(
        nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, OUT),
        ),
        (torch.randn(3, 2, 8, 8),),
    )


ZOO: dict[str, Factory] = {
    "mlp": mlp,
    "mlp no bias": lambda: mlp(bias=False),
    "mlp leaky": lambda: mlp(nn.LeakyReLU),
    "mlp elu": lambda: mlp(nn.ELU),
    "mlp batch norm": lambda: mlp(norm=nn.BatchNorm1d),
    "mlp layer norm": lambda: mlp(norm=nn.LayerNorm),
    "mlp tied": lambda: Case(Tied(), (torch.randn(ROWS, IN),)),
    "autoencoder tied": lambda: Case(Autoencoder(), (torch.randn(ROWS, IN),)),
    "spectral norm": lambda: wrapped(parametrizations.spectral_norm),
    "frobenius norm": lambda: wrapped(frobenius_norm),
    "weight norm": lambda: wrapped(parametrizations.weight_norm),
    "transformer encoder layer": encoder,
    "transformer decoder layer": lambda: Case(Decoder(), (torch.randn(2, 5, 3), torch.randn(2, 6, 4))),
    "cnn": cnn,
}

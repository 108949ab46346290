"""Models that run in single precision only, and small guards that their activations do or do not reach."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.laws.models.graph import HID, IN, OUT, Case, Factory

ROWS = 20


class Single(nn.Module):
    """Three layers, the middle one of which is a function of the model and hidden units."""

    def __init__(self, middle: Callable[["Single", Tensor], Tensor], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(IN, HID), nn.Linear(HID, HID), nn.Linear(HID, OUT)
        self.middle, self.norm, self.only = middle, norm, True

    def forward(self, x: Tensor) -> Tensor:
        if self.only and x.dtype != torch.float32:
            raise TypeError("a kernel for single precision")
        return self.last(self.middle(self, F.relu(self.first(x))))


def single(middle: Callable[[Single, Tensor], Tensor], norm: Callable[[], nn.Module] = nn.Identity) -> Factory:
    return lambda: Case(Single(middle, norm()), (torch.randn(ROWS, IN),))


def clamped(bound: float, size: float = 1.0) -> Factory:
    return single(lambda self, hidden: (size * self.second(hidden)).clamp(min=bound))


def shares(self: Single, hidden: Tensor) -> Tensor:
    scores = self.second(hidden)
    return torch.softmax(scores @ scores.t(), -1) @ hidden


HONEST: dict[str, Factory] = {
    "relu": single(lambda self, hidden: self.second(hidden).relu()),
    "leaky relu": single(lambda self, hidden: F.leaky_relu(self.second(hidden))),
    "normalize": single(lambda self, hidden: F.normalize(self.second(hidden), dim=-1)),
    "root": single(lambda self, hidden: self.second(hidden).abs().sqrt()),
    "cube": single(lambda self, hidden: self.second(hidden) ** 3),
    "product": single(lambda self, hidden: self.second(hidden) * hidden),
    "attention": single(shares),
    "dropout": single(lambda self, hidden: F.dropout(self.second(hidden).relu())),
    "layer norm": single(lambda self, hidden: self.norm(self.second(hidden)).relu(), partial(nn.LayerNorm, HID)),
    "large epsilon": single(
        lambda self, hidden: self.norm(self.second(hidden)).relu(), partial(nn.LayerNorm, HID, eps=1e-3)
    ),
    "bound of a norm": single(
        lambda self, hidden: self.second(hidden) / self.second(hidden).norm(dim=-1, keepdim=True).clamp(min=1e-6)
    ),
}
"""Their laws are those of the same model in double precision."""

GUARDED: dict[str, Factory] = {
    **{f"bound {bound:g}": clamped(bound) for bound in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)},
    **{f"faint, bound {bound:g}": clamped(bound, 1e-2) for bound in (1e-3, 1e-5, 1e-6)},
    "softplus": single(lambda self, hidden: F.softplus(self.second(hidden))),
    "larger of two": single(lambda self, hidden: torch.maximum(self.second(hidden), torch.tensor(1e-3))),
}
"""Half of the activations are below the bound, so the second layer's channels have no law."""

"""Normalizations and attention as language models have them, for the zoo."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.laws.models.graph import HID, HID2, IN, OUT, ROWS, Case, Factory


def over_rows(model: nn.Module) -> Case:
    return Case(model, (torch.randn(ROWS, IN),))


def normed(norm: nn.Module, bias: bool = True) -> Case:
    return over_rows(nn.Sequential(nn.Linear(IN, 6, bias), norm, nn.ReLU(), nn.Linear(6, OUT)))


class RMSNorm(nn.Module):
    """Written by hand, as language models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.scale


class StandardisedLinear(nn.Linear):
    """Each row of the weight has mean zero and variance one (weight standardization)."""

    eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        centered = self.weight - self.weight.mean(dim=1, keepdim=True)
        return F.linear(x, centered / (centered.var(dim=1, keepdim=True, unbiased=False) + self.eps).sqrt(), self.bias)


class Block(nn.Module):
    """RMS norm, causal attention by einsum, RMS norm, SwiGLU; both added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Linear(3, 4), nn.Linear(4, OUT)
        self.one, self.two, self.three = RMSNorm(4), RMSNorm(4), RMSNorm(4)
        self.qkv, self.out = nn.Linear(4, 12, bias=False), nn.Linear(4, 4, bias=False)
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((4, 5), (4, 5), (5, 4)))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 2, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 2**0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
        return self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(x.shape))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attend(self.one(x))
        h = self.two(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.read(self.three(x))


class Latent(nn.Module):
    """Two query heads over keys and values that are shared and made from a small latent."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.latent = nn.Linear(3, 6, bias=False), nn.Linear(3, 2, bias=False)
        self.key, self.value = nn.Linear(2, 3, bias=False), nn.Linear(2, 3, bias=False)
        self.out = nn.Linear(6, OUT)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x).view(*x.shape[:2], 2, 3).transpose(1, 2)
        small = self.latent(x)
        k, v = self.key(small).unsqueeze(1), self.value(small).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q))
        return self.out(mixed.transpose(1, 2).flatten(2))


class WordModel(nn.Module):
    """Embedding plus learned positions, then a perceptron; every word occurs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(6, 4), nn.Parameter(torch.randn(5, 4))
        self.first, self.second = nn.Linear(4, HID), nn.Linear(HID, OUT)

    def forward(self, words: Tensor) -> Tensor:
        return self.second(F.relu(self.first(self.words(words) + self.places)))


class TiedWords(nn.Module):
    """Words scored by the table they are looked up in: what pads is zero at first, and trained by the scores only."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(6, 4, padding_idx=0), nn.Parameter(torch.randn(4, HID))

    def forward(self, words: Tensor) -> Tensor:
        return F.relu(self.words(words) @ self.mix) @ self.mix.t() @ self.words.weight.t()


ZOO: dict[str, Factory] = {
    "tied words with padding": lambda: Case(TiedWords(), (torch.tensor([[0, 1, 2, 3, 4], [5, 4, 3, 1, 0]]),)),
    "embedding": lambda: Case(WordModel(), (torch.tensor([[0, 1, 2, 3, 4], [5, 4, 3, 1, 0]]),)),
    "rms norm built in": lambda: normed(nn.RMSNorm(6, eps=1e-6)),
    "group norm": lambda: normed(nn.GroupNorm(2, 6)),
    "instance norm": lambda: Case(
        nn.Sequential(nn.Conv1d(2, 3, 3), nn.InstanceNorm1d(3, affine=True), nn.ReLU(), nn.Conv1d(3, OUT, 1)),
        (torch.randn(2, 2, 8),),
    ),
    "weight standardization": lambda: over_rows(
        nn.Sequential(
            StandardisedLinear(IN, HID), nn.ReLU(), StandardisedLinear(HID, HID2), nn.ReLU(), nn.Linear(HID2, OUT)
        )
    ),
    "einsum attention block": lambda: Case(Block(), (torch.randn(2, 5, 3),)),
    "latent attention": lambda: Case(Latent(), (torch.randn(2, 5, 3),)),
}

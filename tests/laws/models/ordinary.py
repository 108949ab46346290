"""Ordinary code whose laws are easily missed: the same operation in at least two places and shapes."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.utils import softmax

from tests.laws.models.graph import HID, HID2, IN, NODES, OUT, ROWS, Case, Factory, edges
from tests.laws.models.operations import written

GROUPS = torch.tensor([0, 1, 2, 0, 1, 2, 1])


def hidden(combine: object, middle: int = HID, **more: tuple[int, ...]) -> Case:
    """combine(x @ a^T, b, ...) with one weight on each side."""
    return written(
        lambda x, a, b, **w: combine(x @ a.t(), b, **w),  # type: ignore[operator]
        a=(middle, IN),
        b=(OUT, HID),
        **more,
    )


def reduced(reduce: str, fill: float, index: Tensor = GROUPS) -> Case:
    """Rows reduced by group into a target that is full of a number."""

    def forward(h: Tensor, b: Tensor) -> Tensor:
        target = torch.full((int(index.max()) + 1, HID), fill, dtype=h.dtype)
        out = target.scatter_reduce(0, index[:, None].expand(ROWS, HID), h.relu(), reduce, include_self=False)
        return out.masked_fill(out == fill, 0.0) @ b.t()

    return hidden(forward)


def turned(x: Tensor) -> Tensor:
    """Rotary embedding: pairs of channels turned by an angle that grows with the row."""
    pairs = torch.view_as_complex(x.reshape(len(x), -1, 2))
    angles = torch.outer(torch.arange(len(x)), torch.arange(1, pairs.shape[1] + 1)).to(x.dtype)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(1)


def numbers(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


class SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


class Energy(nn.Module):
    """Forces, and perhaps the energy: minus the gradient of a potential with respect to positions."""

    def __init__(self, act: nn.Module, *, norm: bool = False, both: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, HID, bias=bias), nn.Linear(HID, HID2, bias=bias)
        self.last, self.act, self.both = nn.Linear(HID2, 1, bias=bias), act, both
        self.norm = nn.LayerNorm(HID) if norm else nn.Identity()

    def forward(self, positions: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        positions = positions.detach().requires_grad_()
        with torch.enable_grad():
            energy = self.last(self.act(self.second(self.act(self.norm(self.first(positions)))))).sum()
            (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
        return (energy, -slope) if self.both else -slope


class Atoms(nn.Module):
    """Messages filtered by distance, and their forces."""

    def __init__(self, act: nn.Module, *, attention: bool = False) -> None:
        super().__init__()
        self.kinds, self.filter = nn.Embedding(5, HID), nn.Linear(4, HID)
        self.score = nn.Linear(HID, 1, bias=False) if attention else None
        self.update, self.last, self.act = nn.Linear(HID, HID2), nn.Linear(HID2, 1), act

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges()
        positions = positions.detach().requires_grad_()
        with torch.enable_grad():
            features = self.kinds(torch.arange(NODES) % 5)
            distance = (positions[source] - positions[target]).norm(dim=-1, keepdim=True)
            basis = torch.exp(-((distance - torch.arange(4)) ** 2))
            messages = features[source] * self.act(self.filter(basis))
            if self.score is not None:
                messages = messages * softmax(self.score(messages), target)
            gathered = torch.zeros_like(features).index_add(0, target, messages)
            energy = self.last(self.act(self.update(gathered))).sum()
            return energy, -torch.autograd.grad(energy, positions, create_graph=True)[0]


ZOO: dict[str, Factory] = {
    "diagonal between two": lambda: hidden(lambda h, b, d: h.relu() @ torch.diag_embed(d) @ b.t(), d=(HID,)),
    "diagonals of a batch": lambda: hidden(lambda h, b: torch.diag_embed(h.relu()) @ b.t()),
    "diagonals plus low rank": lambda: hidden(
        lambda h, b, d, u, v: h @ (torch.diag_embed(d) + u @ v) @ b.t(), d=(2, HID), u=(HID, 2), v=(2, HID)
    ),
    "product of three channels": lambda: hidden(
        lambda h, b: F.leaky_relu(h).view(-1, 3, HID).prod(1, keepdim=True).squeeze(1) @ b.t(), middle=3 * HID
    ),
    "product of two branches": lambda: hidden(
        lambda h, b, c: torch.stack([h.relu(), h @ c]).prod(0) @ b.t(), c=(HID, HID)
    ),
    "product of all weights": lambda: hidden(lambda h, b, d: h @ b.t() * d.prod(), d=(3,)),
    "mean over what arrives at ones": lambda: reduced("mean", 1.0),
    "index reduce": lambda: hidden(
        lambda h, b: torch.full_like(h[:3], 7.0).index_reduce(0, GROUPS, h.relu(), "amax", include_self=False) @ b.t()
    ),
    "scatter over a constant": lambda: hidden(
        lambda h, b: torch.ones_like(h).scatter(0, torch.arange(ROWS)[:, None].expand_as(h), h.relu()) @ b.t()
    ),
    "scatter over some rows": lambda: hidden(
        lambda h, b, c: (h @ c).scatter(0, torch.tensor([[0], [3]]).expand(2, HID), h.relu()[:2]) @ b.t(), c=(HID, HID)
    ),
    "rotary attention": lambda: written(
        lambda x, q, k, v, o: (turned(x @ q.t()) @ turned(x @ k.t()).t()).softmax(-1) @ (x @ v.t()) @ o.t(),
        q=(6, IN),
        k=(6, IN),
        v=(3, IN),
        o=(OUT, 3),
    ),
    "lengths of complex numbers": lambda: written(
        lambda x, a, b, c: torch.complex(x @ a.t(), x @ b.t()).abs() @ c.t(), a=(3, IN), b=(3, IN), c=(OUT, 3)
    ),
    "complex triples": lambda: written(
        lambda h, e, r, t: (numbers(e)[h] * numbers(r)[h % 2] * numbers(t)[h.flip(0)].conj()).real.sum(-1),
        torch.arange(5),
        e=(5, 6),
        r=(2, 6),
        t=(5, 6),
    ),
    "turned triples": lambda: written(
        lambda h, e, r: (numbers(e)[h] * torch.polar(torch.ones_like(r), r)[h % 2]).abs().sum(-1),
        torch.arange(5),
        e=(5, 6),
        r=(2, 3),
    ),
    "filtered in frequency": lambda: hidden(
        lambda h, b, w: (torch.fft.rfft(h.relu(), dim=0)[1:] * torch.view_as_complex(w)).abs() @ b.t(), w=(3, HID, 2)
    ),
    "mixed by a Fourier transform": lambda: hidden(
        lambda h, b: torch.fft.fft2(h.relu(), norm="ortho").real.relu() @ b.t()
    ),
    "forces and energy": lambda: Case(Energy(nn.LeakyReLU(), both=True, bias=True), (torch.randn(6, 3),)),
    "forces through a norm": lambda: Case(Energy(SquaredReLU(), norm=True), (torch.randn(6, 3),)),
    "forces of a smooth energy": lambda: Case(Energy(nn.SiLU(), bias=True, both=True), (torch.randn(6, 3),)),
    "forces of atoms that attend": lambda: Case(Atoms(nn.Softplus(), attention=True), (torch.randn(NODES, 3),)),
    "logarithm of the output": lambda: hidden(lambda h, b: (h.relu() @ b.t()).abs().log()),
    "learned temperature of logarithms": lambda: hidden(lambda h, b, t: (h.abs().log() * t).exp() @ b.t(), t=(1,)),
    "divided by a number that is read": lambda: hidden(
        lambda h, b: h.relu() / math.sqrt(h.square().sum().item()) @ b.t()
    ),
    "times a weight read as a number": lambda: hidden(lambda h, b, c: c.item() * h.relu() @ b.t(), c=(1,)),
    "to the power of a number that is read": lambda: hidden(lambda h, b, c: h.abs() ** c.abs().item() @ b.t(), c=(1,)),
    "as many rows as a number says": lambda: hidden(
        lambda h, b: h.topk(1 + int(h.norm().item()) % 3, dim=0).values @ b.t()
    ),
}

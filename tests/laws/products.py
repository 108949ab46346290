"""Laws written by hand: the products w * dLoss/dw of a model, and what is left of a sum of them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.graph import HID, HID2, IN, OUT, Stack, edges, features

HOLDS, FAILS = 1e-10, 1e-6
Products = dict[str, Tensor]  # parameter name -> w * dLoss/dw


def products(model: nn.Module, *inputs: Any) -> Products:
    """Draw all weights, then w * dLoss/dw of a random linear and quadratic loss of the output."""
    with torch.no_grad():
        for p in model.parameters():
            p.normal_().mul_(0.6)
    output = model(*inputs)
    loss = (torch.randn_like(output) * output + torch.randn_like(output) * output.square()).sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {n: (p * g).detach() for n, p, g in zip(names, parameters, found, strict=True) if g is not None}


def residual(left: Iterable[Tensor], right: Iterable[Tensor]) -> float:
    """|sum of the left terms - sum of the right terms| relative to the sum of their magnitudes."""
    terms = [*(float(t.sum()) for t in left), *(-float(t.sum()) for t in right)]
    return abs(sum(terms)) / sum(abs(t) for t in terms)


def three(conv: Callable[[int, int], nn.Module], act: Callable[[Tensor], Tensor] = F.leaky_relu, **more: Any) -> Stack:
    """LeakyReLU is homogeneous too, and leaves no neuron dead."""
    return Stack(conv(IN, HID), conv(HID, HID2), conv(HID2, OUT), act=act, **more)


def on_graph(model: nn.Module, *rest: Tensor) -> Products:
    return products(model, features(), edges(), *rest)


def shared(i: int, o: int) -> nn.Module:
    return gnn.GATv2Conv(i, o, share_weights=True, bias=False)


def unshared(i: int, o: int) -> nn.Module:
    return gnn.GATv2Conv(i, o, bias=False)


def neurons() -> list[tuple[int, int, int]]:
    """(layer, next layer, neuron) for every hidden neuron of a stack of three."""
    return [(0, 1, i) for i in range(HID)] + [(1, 2, i) for i in range(HID2)]


def shared_law(p: Products, layer: int, following: int, i: int) -> float:
    """Theorem 2.2: <W^l[i,:], g> - a^l[i] g = <W^{l+1}[:,i], g>."""
    incoming, attention = p[f"layers.{layer}.lin_l.weight"], p[f"layers.{layer}.att"]
    return residual([incoming[i], -attention[0, 0, i]], [p[f"layers.{following}.lin_l.weight"][:, i]])

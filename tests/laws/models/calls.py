"""Forward passes that draw random numbers, count, or remember: the same function at every call, or not."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn
from torch_geometric.utils import dropout_edge, dropout_node, negative_sampling

from tests.laws.models.graph import HID, IN, NODES, OUT, Case, Factory, edges, features


class Calls(nn.Module):
    """Three layers; what happens between the first and the last is a function of the model, hidden units and edges."""

    def __init__(self, between: Callable[["Calls", Tensor, Tensor], Tensor], **held: Any) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(IN, HID), nn.Linear(HID, HID), nn.Linear(HID, OUT)
        self.conv, self.between, self.calls, self.seen, self.hidden = None, between, 0, None, None
        for name, value in held.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.between(self, F.relu(self.first(x)), edge_index))

    def step(self, hidden: Tensor) -> Tensor:
        return F.relu(self.middle(hidden))


def drops(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    """Leave a layer out at every other call."""
    self.calls += 1
    return self.step(hidden) if self.calls % 2 else hidden


def alternates(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    self.calls = 1 - self.calls
    return F.relu((self.middle if self.calls else self.other)(hidden))


def recurs(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    before = torch.zeros_like(hidden) if self.hidden is None else self.hidden
    self.hidden = (self.step(hidden) + before).detach()
    return self.step(hidden) + before


def plain(**held: Any) -> Callable[[Callable[..., Tensor]], Factory]:
    """The model around a function of hidden units; what it holds is made afresh at each call."""
    return lambda between: (
        lambda: Case(
            Calls(between, **{k: v() if isinstance(v, partial) else v for k, v in held.items()}), (features(), edges())
        )
    )


def convolution() -> partial[nn.Module]:
    return partial(gnn.GCNConv, HID, HID)


def other() -> partial[nn.Module]:
    return partial(nn.Linear, HID, HID)


CHANGING: dict[str, Factory] = {
    "dropped layer": plain()(drops),
    "alternating": plain(other=other())(alternates),
    "hidden state": plain()(recurs),
}
"""Calls run different operations, or the same with other parameters."""


def against_others(self: Calls, hidden: Tensor, edge_index: Tensor) -> Tensor:
    hidden = self.step(hidden)
    others = negative_sampling(edge_index, NODES, 12)
    return torch.cat([hidden[edge_index[0]] * hidden[edge_index[1]], hidden[others[0]] * hidden[others[1]]])


def keeps_what_it_saw(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    self.seen = hidden.detach()
    return self.step(hidden)


def averages(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    hidden = self.step(hidden)
    self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean(0))
    return hidden


def centers(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    hidden = self.middle(hidden)
    out = (hidden - self.mean).relu()
    self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean())
    return out


def remembers(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    out = self.step(hidden) + self.before
    self.before.copy_(out.detach().tanh())
    return out


def is_checked(self: Calls, hidden: Tensor, _: Tensor) -> Tensor:
    hidden = F.dropout(self.step(hidden))
    if torch.isnan(hidden).any():
        raise ValueError("not a number")
    return hidden


ZOO: dict[str, Factory] = {
    "dropout": plain()(lambda self, hidden, _: F.dropout(self.step(hidden))),
    "dropped edges": plain(conv=convolution())(
        lambda self, hidden, graph: self.conv(hidden, dropout_edge(graph, p=0.3)[0]).relu()
    ),
    "dropped nodes": plain(conv=convolution())(
        lambda self, hidden, graph: self.conv(hidden, dropout_node(graph, p=0.3)[0]).relu()
    ),
    "negative sampling": plain()(against_others),
    "kept for later": plain()(keeps_what_it_saw),
    "moving average": plain(mean=partial(torch.zeros, HID))(averages),
    "moving average of one number": plain(mean=partial(torch.zeros, 1))(centers),
    "memory": plain(before=partial(torch.zeros, NODES, HID))(remembers),
    "checked": plain()(is_checked),
    "cumulative batch norm": plain(norm=partial(nn.BatchNorm1d, HID, momentum=None))(
        lambda self, hidden, _: self.norm(F.dropout(self.middle(hidden))).relu()
    ),
    "cached graph": plain(conv=partial(gnn.GCNConv, HID, HID, cached=True))(
        lambda self, hidden, graph: self.conv(hidden, graph).relu()
    ),
}
"""Random numbers are masks and data, and what is remembered changes nothing."""

"""Small stacks of every kind that the balanced schemes speak of, and what to run them on."""

from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import torch
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, Linear

from gatdiag import remedies
from gatdiag.experiments.models import Stack, gat, gcn
from gatdiag.laws import Law, Term

REMEDIES = Path(remedies.__file__).parent

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))

STACKS = {
    "gatv2": lambda: gat(5, 3, hidden_channels=6, layers=4),
    "gatv2 of one output": lambda: gat(5, 1, hidden_channels=6, layers=3),
    "gatv2 of odd widths": lambda: gat(5, 3, hidden_channels=7, layers=4),
    "gatv2 with concatenated heads": lambda: gat(5, 3, hidden_channels=4, layers=4, heads=2),
    "gatv2 with averaged heads": lambda: Stack(
        [
            GATv2Conv(5, 6, heads=2, concat=False, share_weights=True),
            GATv2Conv(6, 4, heads=3, concat=False, share_weights=True),
            GATv2Conv(4, 3, heads=2, concat=False, share_weights=True),
        ]
    ),
    "gatv2 unshared": lambda: Stack([GATv2Conv(5, 4, bias=False), GATv2Conv(4, 6), GATv2Conv(6, 3)]),
    "gatv2 unshared with heads of both kinds": lambda: Stack(
        [GATv2Conv(5, 4, heads=2), GATv2Conv(8, 6, heads=2, concat=False), GATv2Conv(6, 3)]
    ),
    "gatv2 with linear skips": lambda: Stack(
        [GATv2Conv(5, 4, heads=2, residual=True), GATv2Conv(8, 6, residual=True), GATv2Conv(6, 3)]
    ),
    "gat": lambda: Stack([GATConv(5, 4), GATConv(4, 6, heads=2), GATConv(12, 3)]),
    "gat with averaged heads": lambda: Stack([GATConv(5, 4, heads=3, concat=False), GATConv(4, 3)]),
    "gcn": lambda: gcn(5, 3, hidden_channels=6, layers=4),
    "gcn with biases": lambda: Stack([GCNConv(5, 4), GCNConv(4, 6), GCNConv(6, 3)]),
}


class Framed(torch.nn.Module):
    """A linear layer before the convolution and one after it."""

    def __init__(self):
        super().__init__()
        self.before = torch.nn.Linear(5, 4)
        self.conv = GATv2Conv(4, 6)
        self.after = Linear(6, 3)

    def forward(self, x, edge_index):
        return self.after(self.conv(self.before(x).relu(), edge_index).relu())


STACKS["gatv2 between linear layers"] = Framed


def initialized(model, *args, **kwargs):
    """The model, once `initialize_` went over it."""
    remedies.initialize_(model, *args, **kwargs)
    return model


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@contextmanager
def unchanged(model):
    """Every parameter is afterwards what it was before, bit for bit."""
    before = [parameter.clone() for parameter in model.parameters()]
    yield
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def neurons(*widths):
    """The terms of each neuron of a multilayer perceptron without biases, weights "0", "1", ... of shape (out, in)."""
    shapes = [(out, into) for into, out in pairwise(widths)]
    return [
        (
            Term(str(layer), shape, (0,), ((i,),), Fraction(1)),
            Term(str(layer + 1), following, (1,), ((i,),), Fraction(-1)),
        )
        for layer, (shape, following) in enumerate(pairwise(shapes))
        for i in range(shape[0])
    ]


def law(*terms):
    return Law("law", "neuron", "", None, terms, True, 0.0)


def weights(*widths, seed=0, spread=0.0):
    """Random ones of such a perceptron, each row as large as it happens to be."""
    generator, drawn = seeded(seed), {}
    for layer, (into, out) in enumerate(pairwise(widths)):
        size = (spread * torch.randn(out, 1, generator=generator, dtype=torch.float64)).exp()
        drawn[str(layer)] = size * torch.randn(out, into, generator=generator, dtype=torch.float64)
    return drawn

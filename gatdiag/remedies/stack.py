"""Which weights lead into a neuron of a stack of layers, and which lead out of it."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

from torch import nn

from gatdiag.errors import ModelError
from gatdiag.laws import Term
from gatdiag.remedies.balance import Neuron
from gatdiag.structure import Layer, ParameterInfo, Structure

KINDS: Final = ("GATConv", "GATv2Conv", "GCNConv", "Linear")
_ROLES: Final = ("feature weight", "attention vector", "bias")
WAY_OUT: Final = "Give the inputs of a forward pass too, so that the model's own laws say what leads where."


@dataclass(frozen=True)
class _Link:
    """One layer of the stack: its weight matrices, all of one shape, and how many heads are averaged in it."""

    name: str
    matrices: tuple[ParameterInfo, ...]
    heads: int

    @property
    def width(self) -> int:
        return self.matrices[0].shape[0] // self.heads

    @property
    def columns(self) -> int:
        return self.matrices[0].shape[1]


def neurons_of_stack(model: nn.Module, structure: Structure) -> tuple[Neuron, ...]:
    """Every neuron between two layers that follow each other in module order, with the matrices on both of its sides.

    Neuron i of a layer has row i of each of its matrices on one side, and column i of each of the next layer's on the
    other. Heads that are concatenated are so many more neurons; where they are averaged, neuron i has row i of each
    head. Attention vectors and biases, which balanced schemes set to zero, are left out.

    Raises:
        ModelError: A layer is of another kind than `KINDS`, or the widths do not follow each other.
    """
    links = [_link(model, layer) for layer in structure if layer.parameters]
    for link, following in pairwise(links):
        if link.width != following.columns:
            raise ModelError(
                f"Expected a stack in module order, but {link.name} has {link.width} outputs and {following.name} "
                f"after it takes {following.columns} inputs. {WAY_OUT}"
            )
    return tuple(_neuron(link, following, i) for link, following in pairwise(links) for i in range(link.width))


def _link(model: nn.Module, layer: Layer) -> _Link:
    matrices = tuple(info for info in layer.parameters if info.role == "feature weight")
    bipartite = any(info.module.endswith(".lin_dst") for info in layer.parameters)  # rows that reach scores alone
    known = layer.kind in KINDS and all(info.role in _ROLES for info in layer.parameters) and not bipartite
    if not known or len({info.shape for info in matrices}) != 1:
        raise ModelError(
            f"Expected a stack of {', '.join(KINDS)} layers without edge features or targets of their own, but "
            f"{layer.name} is a {layer.kind} with {', '.join(info.name for info in layer.parameters)}. {WAY_OUT}"
        )
    conv = model if layer.name == Structure.ROOT else model.get_submodule(layer.name)
    averaged = not getattr(conv, "concat", True)
    return _Link(layer.name, matrices, int(getattr(conv, "heads", 1)) if averaged else 1)


def _neuron(link: _Link, following: _Link, number: int) -> Neuron:
    rows = tuple((head * link.width + number,) for head in range(link.heads))
    incoming = (Term(info.name, info.shape, (0,), rows, Fraction(1)) for info in link.matrices)
    column = ((number,),)
    outgoing = (Term(info.name, info.shape, (1,), column, Fraction(-1)) for info in following.matrices)
    return (*incoming, *outgoing)

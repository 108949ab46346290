"""Which weights lead into a neuron of a stack of layers, which lead out of it, and how large both may be."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Final

from torch import nn

from gatdiag.errors import ModelError
from gatdiag.remedies.balance import Neuron
from gatdiag.structure import Layer, Structure
from gatdiag.structure.stack import NotPlainError, StackLayer, check_widths, path_of, stack_layer

KINDS: Final = ("GATConv", "GATv2Conv", "GCNConv", "Linear")
WAY_OUT: Final = "Give the inputs of a forward pass too, so that the model's own laws say what leads where."


def neurons_of_stack(model: nn.Module, structure: Structure) -> tuple[Neuron, ...]:
    """Every neuron between two layers that follow each other in module order, with the weights on both of its sides.

    Neuron i of a layer has row i of each of its matrices on one side, and column i of each of the next layer's on the
    other, where its own attention vectors count, too. Heads that are concatenated are so many more neurons; where they
    are averaged, neuron i has row i of each head. Biases, which are zero at the beginning, are left out.

    Raises:
        ModelError: A layer is of another kind than `KINDS`, or the widths do not follow each other.
    """
    links = _links(model, structure)
    return tuple(
        (*link.incoming(i, link.outputs), *following.outgoing(i))
        for link, following in pairwise(links)
        for i in range(link.outputs)
    )


def squared_norm_of_stack(model: nn.Module, structure: Structure, *, in_reverse: bool = False) -> float:
    """The squared norm of what leads into a neuron of the first layer with which a balanced stack passes a signal on.

    Balance makes the sum F of all squared weights the same in each layer, so one number is left to choose. A layer
    whose columns have squared norms of F / n, n being the width it reads, and which averages H heads, multiplies the
    squared norm of a signal by F / (2 n H^2): ReLU passes half of it on, and the mean of H matrices that are orthogonal
    to each other has 1 / H^2 of their squared norms. The first layer, whose rows are scaled instead, multiplies its
    inputs' mean square in this way, n being the width it writes. F is chosen so that the product over all layers is 1.

    Returns:
        F divided by the width of the first layer (in reverse: what leads out of a neuron before the last layer, so
        divided by the number of these): 2 where all hidden widths are equal and no heads are averaged, as in
        procedure 2.6 of "Are GATs Out of Balance?"; 2 H^2 where each layer averages H heads.

    Raises:
        ModelError: As `neurons_of_stack`.
    """
    links = _links(model, structure)
    first = links[0].outputs
    widths = [first, *(link.outputs for link in links[:-1])]
    logarithms = (math.log(width * (link.heads or 1) ** 2 / first) for width, link in zip(widths, links, strict=True))
    whole = 2 * first * math.exp(fmean(logarithms))
    return whole / (links[-1].inputs if in_reverse else first)


def _links(model: nn.Module, structure: Structure) -> list[StackLayer]:
    links = [_link(model, layer) for layer in structure if layer.parameters]
    try:
        for link, following in pairwise(links):
            check_widths(link, following)
    except NotPlainError as error:
        raise ModelError(f"Expected a stack in module order, but {error}. {WAY_OUT}") from error
    return links


def _link(model: nn.Module, layer: Layer) -> StackLayer:
    try:
        found = stack_layer(layer)
    except NotPlainError:
        found = None
    if found is None or layer.kind not in KINDS or len({info.shape for info in found.matrices}) != 1:
        raise ModelError(
            f"Expected a stack of {', '.join(KINDS)} layers without edge features or targets of their own, but "
            f"{layer.name} is a {layer.kind} with {', '.join(info.name for info in layer.parameters)}. {WAY_OUT}"
        )
    conv = model.get_submodule(path_of(layer))
    averaged = not getattr(conv, "concat", True)
    return replace(found, biases=(), heads=int(getattr(conv, "heads", 1)) if averaged else 1)

"""c, one value per neuron, of a state dict that is a plain stack of layers (`gatdiag.structure.stack`).

Otherwise nothing has a law, and the reason is given: a law may be missed, a false one is not claimed. What is not in
the file at all is assumed, as `ASSUMED` says. With a model, `gatdiag.find_laws` needs no assumption.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from torch import Tensor

from gatdiag.law import Exclusion, Law
from gatdiag.run.laws import RecordedLaws, pack
from gatdiag.structure import Structure
from gatdiag.structure.stack import NotPlainError, StackLayer, plain_stack

ASSUMED: Final = (
    "activations are positively homogeneous (ReLU, LeakyReLU), not ELU, GELU or tanh",
    "aggregation and pooling without weights are too (sum, mean, max), not softmax or variance",
    "no skip connection or jumping knowledge without weights leads around a layer",
    "no normalization without weights (PairNorm, LipschitzNorm, L2) stands between layers or in them",
    "weights are used as they are, each once, and of numbered layers each reads all of the one before",
)

_WAY_OUT: Final = "give --model, then c is exact"


def find_stack(tensors: Mapping[str, Tensor], structure: Structure) -> tuple[RecordedLaws, tuple[Exclusion, ...]]:
    """Find which layer feeds which, and with that the conservation laws that a state dict shows by itself.

    For neuron i of a layer l that feeds layer l + 1,

        c_i = ||W^l[i, :]||^2 + b^l[i]^2 - a^l[i]^2 - ||W^(l+1)[:, i]||^2

    with every matrix, bias and attention vector of the two layers, as `gatdiag.find_laws` finds it by tracing the
    model. Concatenated heads are neurons of their own, averaged ones are summed. It holds if `ASSUMED` is true of the
    model, which a state dict does not tell.

    Args:
        tensors: Name -> tensor, named as in a model's `state_dict()`.
        structure: Its layers, from `find_layers(tensors)`.

    Returns:
        The laws, and for each layer whose neurons have none the reason why.

    Source:
        Theorem 2.2 and equation 5 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).

    Example:
        >>> from torch_geometric.nn import GCN
        >>> from gatdiag.structure.from_names import find_layers
        >>> tensors = GCN(5, 4, 2, out_channels=3).state_dict()
        >>> laws, excluded = find_stack(tensors, find_layers(tensors))
        >>> print(laws[1])
        layer 1 (convs.0), neuron 1: convs.0.lin.weight[1, :] + convs.0.bias[1] - convs.1.lin.weight[:, 1]
        >>> print(*excluded)
        convs.1: no layer takes its outputs: they are those of the model
    """
    try:
        maps = plain_stack(tensors, structure)
    except NotPlainError as error:
        reason = f"names and shapes show no plain stack of layers ({error}): {_WAY_OUT}"
        return RecordedLaws([], "the stack"), tuple(Exclusion(layer.name, reason) for layer in structure)
    last = tuple(Exclusion(one.path, "no layer takes its outputs: they are those of the model") for one in maps[-1:])
    return RecordedLaws([_entry(one, following) for one, following in pairwise(maps)], "the stack"), last


def _entry(one: StackLayer, following: StackLayer) -> dict[str, Any]:
    """The laws of a layer as meta.json has them. They differ in a number alone, so that two of them show it."""
    (entry,) = pack(_law(one, following, neuron) for neuron in range(min(2, following.inputs)))
    return {**entry, "count": following.inputs}


def _law(one: StackLayer, following: StackLayer, neuron: int) -> Law:
    terms = (*one.incoming(neuron, following.inputs), *following.outgoing(neuron))
    inner = one.layer is following.layer
    name = f"layer {one.layer.index} ({one.layer.name}), {'product channel' if inner else 'neuron'} {neuron}"
    ordered = tuple(sorted(terms, key=lambda term: term.exponent < 0))
    return Law(name, "product" if inner else "neuron", one.layer.name, neuron, ordered, exact=True, residual=math.nan)

"""c, one value per neuron, of a state dict that is a plain stack of layers (`gatdiag.structure.stack`).

Otherwise nothing has a law, and the reason is given: a law may be missed, a false one is not claimed. What is not in
the file at all is assumed, as `ASSUMED` says. With a model, `gatdiag.find_laws` needs no assumption.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from gatdiag.law import Exclusion, Law
from gatdiag.run.laws import Floats, RecordedLaws, pack
from gatdiag.structure import Structure
from gatdiag.structure.stack import NotPlainError, StackLayer, plain_stack

if TYPE_CHECKING:
    from gatdiag.laws import Laws

ASSUMED: Final = (
    "activations are positively homogeneous (ReLU, LeakyReLU), not ELU, GELU or tanh",
    "aggregation and pooling without weights are too (sum, mean, max), not softmax or variance",
    "no skip connection or jumping knowledge without weights leads around a layer",
    "no normalization without weights (PairNorm, LipschitzNorm, L2) stands between layers or in them",
    "weights are used as they are, each once, and of numbered layers each reads all of the one before",
)

_WAY_OUT: Final = "give --model, then c is exact"


@dataclass(frozen=True, eq=False)
class Stack:
    """Which layer feeds which.

    Attributes:
        pairs: A layer, and the one that all its outputs feed and nothing else does.
        excluded: Each layer without laws, and why.
    """

    pairs: tuple[tuple[StackLayer, StackLayer], ...]
    excluded: tuple[Exclusion, ...]

    def c(self, tensors: Mapping[str, Tensor]) -> Floats:
        """c of every law, in their order.

        Args:
            tensors: Of this state dict or of another one of the same model.
        """
        used = {name: tensors[name].detach() for name in self.parameters}
        return self.recorded.c({name: (w.float() if w.itemsize == 2 else w).numpy() for name, w in used.items()})

    @cached_property
    def recorded(self) -> RecordedLaws:
        """The laws as a run has them."""
        return RecordedLaws(self.entries, "the stack")

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """The laws as meta.json has them, in the order of `laws` and of the values of `c`."""
        return [_entry(*pair) for pair in self.pairs]

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of the parameters that laws are of."""
        sides = ((*one.matrices, *one.biases, *one.scores, *following.matrices) for one, following in self.pairs)
        return frozenset(info.name for infos in sides for info in infos)

    def laws(self, tensors: Mapping[str, Tensor]) -> "Laws":
        """The same as laws with names and terms; `laws.c()` takes some 0.1 ms a neuron to prepare.

        No residual is measured, so it is NaN.
        """
        from gatdiag.laws import Laws  # which takes as long to import as a small checkpoint to inspect

        used = {name: tensor for name, tensor in tensors.items() if name in self.parameters}
        return Laws(list(self.recorded), used, self.excluded)


def find_stack(tensors: Mapping[str, Tensor], structure: Structure) -> Stack:
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
        The pairs of layers whose neurons have laws, and for each other layer the reason why its have none.

    Source:
        Theorem 2.2 and equation 5 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).

    Example:
        >>> from torch_geometric.nn import GCN
        >>> from gatdiag.structure.from_names import find_layers
        >>> tensors = GCN(5, 4, 2, out_channels=3).state_dict()
        >>> stack = find_stack(tensors, find_layers(tensors))
        >>> print(stack.laws(tensors)[1])
        layer 1 (convs.0), neuron 1: convs.0.lin.weight[1, :] + convs.0.bias[1] - convs.1.lin.weight[:, 1]
        >>> print(*stack.excluded)
        Exclusion(what='convs.1', reason='no layer takes its outputs: they are those of the model')
    """
    try:
        maps = plain_stack(tensors, structure)
    except NotPlainError as error:
        reason = f"names and shapes show no plain stack of layers ({error}): {_WAY_OUT}"
        return Stack((), tuple(Exclusion(layer.name, reason) for layer in structure))
    last = tuple(Exclusion(one.path, "no layer takes its outputs: they are those of the model") for one in maps[-1:])
    return Stack(tuple(pairwise(maps)), last)


def _entry(one: StackLayer, following: StackLayer) -> dict[str, Any]:
    """The laws of a layer, which differ in a number alone: thousands may, so that two are enough to see."""
    (entry,) = pack(_law(one, following, neuron) for neuron in range(min(2, following.inputs)))
    return {**entry, "count": following.inputs}


def _law(one: StackLayer, following: StackLayer, neuron: int) -> Law:
    terms = (*one.incoming(neuron, following.inputs), *following.outgoing(neuron))
    inner = one.layer is following.layer
    name = f"layer {one.layer.index} ({one.layer.name}), {'product channel' if inner else 'neuron'} {neuron}"
    ordered = tuple(sorted(terms, key=lambda term: term.exponent < 0))
    return Law(name, "product" if inner else "neuron", one.layer.name, neuron, ordered, exact=True, residual=math.nan)

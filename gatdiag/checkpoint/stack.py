"""Which layer feeds which, where a state dict is a plain stack; and from that c, one value per neuron.

A state dict holds no forward pass. It is taken for a plain stack where each layer, in module order, feeds the next: the
layers are maps that `structure.adapters` knows to stack, their widths follow each other, and nothing else in the file
may stand between, beside or around them. Layers whose paths differ in numbers alone (`convs.0`, `convs.1`) follow each
other by that; any other layer only where its width leaves a single way. Otherwise nothing has a law, and the reason is
given: a law may be missed, a false one is not claimed. What is not in the file at all is assumed, as `ASSUMED` says.
With a model, `gatdiag.find_laws` needs no assumption.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from gatdiag.law import Exclusion, Law
from gatdiag.run.laws import Floats, RecordedLaws, pack
from gatdiag.structure import Layer, ParameterInfo, Structure
from gatdiag.structure.adapters import OTHER, SCALE
from gatdiag.structure.from_names import output_axes, series_of
from gatdiag.structure.stack import NotPlainError, StackLayer, is_lone, path_of, stack_layer

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
# Numbered layers that may stand side by side: decoders.0, head1; not decoder.0, which is a place in a Sequential.
_BRANCH: Final = re.compile(
    r"(^|[._])(head|branch|task|classifier|predictor|decoder|dec|output|out|expert|tower)(_?\d|e?s_?\.?\d)",
    re.IGNORECASE,
)
_SKIP: Final = re.compile(r"skip|shortcut|residual|downsample|(^|[._])res(\d|[._]|$)", re.IGNORECASE)


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
        return [entry for one, following in self.pairs for entry in _entries(one, following)]

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
        maps = _maps(tensors, structure)
        for number in range(1, len(maps)):
            _check_follows(maps, number)
    except NotPlainError as error:
        reason = f"names and shapes show no plain stack of layers ({error}): {_WAY_OUT}"
        return Stack((), tuple(Exclusion(layer.name, reason) for layer in structure))
    last = tuple(Exclusion(one.path, "no layer takes its outputs: they are those of the model") for one in maps[-1:])
    return Stack(tuple(pairwise(maps)), last)


def _maps(tensors: Mapping[str, Tensor], structure: Structure) -> list[StackLayer]:
    """The maps that a state dict is made of, in order."""
    running = [name for name in tensors if name.endswith("running_mean")]
    norms = [info.name for info in structure.parameters if info.role == SCALE] + running
    if norms:
        raise NotPlainError(f"{norms[0]} is of a normalization")
    leaves: dict[str, dict[str, tuple[int, ...]]] = {}
    for info in structure.parameters:
        leaves.setdefault(info.module, {})[info.name.removeprefix(f"{info.module}.")] = info.shape
    axes = output_axes(leaves)
    return list(chain.from_iterable(_maps_of(layer, tensors, axes) for layer in structure if layer.kind != "PReLU"))


def _maps_of(layer: Layer, tensors: Mapping[str, Tensor], axes: Mapping[str, int | None]) -> Iterator[StackLayer]:
    """The maps that a layer is made of: the layer itself, or the network of linear maps inside a GINConv."""
    if _SKIP.search(layer.name):
        raise NotPlainError(f"by its name {layer.name} leads around other layers")
    for info in layer.parameters:
        _check_plain(info, layer, tensors[info.name])
    if layer.kind == "GINConv":
        for path in dict.fromkeys(info.module for info in layer.parameters if info.role != OTHER):
            infos = [info for info in layer.parameters if info.module == path]
            yield stack_layer(layer, axes.get(path), path, infos)
    else:
        yield stack_layer(layer, axes.get(path_of(layer)) if is_lone(layer) else 0)


def _check_plain(info: ParameterInfo, layer: Layer, tensor: Tensor) -> None:
    """Raises where a parameter is no plain weight of its layer alone."""
    prefix = "" if layer.name == Structure.ROOT else f"{layer.name}."
    if any(not name.startswith(prefix) for name in info.names):
        raise NotPlainError(f"{info.name} is {' and '.join(info.names[1:])} too")
    if info.name.rpartition(".")[0] != info.module:
        raise NotPlainError(f"{info.name} is no weight itself: the weight is computed from it")
    if not tensor.numel() or not info.shape:
        raise NotPlainError(f"{info.name} is empty or a single number")


def _check_follows(maps: Sequence[StackLayer], number: int) -> None:
    """Raises where a map may read anything but the one before it."""
    one, before = maps[number], maps[number - 1]
    if one.inputs not in before.widths:
        raise NotPlainError(f"{one.path} takes {one.inputs} inputs, and {before.path} before it has other widths")
    if _is_next(before, one):
        return
    if maps[0].inputs in maps[-1].widths:
        raise NotPlainError(f"{maps[0].path} may read what {maps[-1].path} puts out")
    if any(other.inputs == one.inputs and place < number for place, other in enumerate(maps)):
        _refuse_branch(maps, number)
    for place, other in enumerate(maps):
        free = place + 1 == len(maps) or not _is_next(other, maps[place + 1])
        wider = place < number and max(other.widths) > one.inputs
        if place not in (number, number - 1) and (wider or (free and one.inputs in other.widths)):
            raise NotPlainError(f"{one.path} takes {one.inputs} inputs: it may read outputs of {other.path}")


def _refuse_branch(maps: Sequence[StackLayer], number: int) -> None:
    """Raises where a map that takes as many inputs as an earlier one may read the same as that, or lead around it."""
    one = maps[number]
    if one.inputs == maps[0].inputs:
        raise NotPlainError(f"{one.path} takes {one.inputs} inputs: it may read what {maps[0].path} reads")
    if any(other.widths & one.widths for other in maps[:number]):
        raise NotPlainError(f"{one.path} has the widths of a way around the layers before it")


def _is_next(one: StackLayer, other: StackLayer) -> bool:
    """True where the numbers in their paths say that one map follows the other."""
    return series_of(one.path) == series_of(other.path) and not _BRANCH.search(other.path)


def _entries(one: StackLayer, following: StackLayer) -> list[dict[str, Any]]:
    """The laws of a layer, read off the first two and the last: thousands may differ in a number alone."""
    neurons = range(following.inputs)
    found = pack(_law(one, following, neuron) for neuron in neurons[:2])
    found[0]["count"] = len(neurons)
    if len(found) == 1 and RecordedLaws(found, one.path)[-1].terms == _law(one, following, neurons[-1]).terms:
        return found
    return pack(_law(one, following, neuron) for neuron in neurons)


def _law(one: StackLayer, following: StackLayer, neuron: int) -> Law:
    terms = (*one.incoming(neuron, following.inputs), *following.outgoing(neuron))
    inner = one.layer is following.layer
    name = f"layer {one.layer.index} ({one.layer.name}), {'product channel' if inner else 'neuron'} {neuron}"
    ordered = tuple(sorted(terms, key=lambda term: term.exponent < 0))
    return Law(name, "product" if inner else "neuron", one.layer.name, neuron, ordered, exact=True, residual=math.nan)

"""c, one value per neuron, of a state dict that is a plain stack of layers, each of which reads all of the one before.

A state dict holds no forward pass, so it has to show that nothing else in the file may stand between layers, beside or
around them: layers whose paths differ in numbers alone (`convs.0`, `convs.1`) follow each other by that; any other
layer only where its width leaves a single way. Otherwise nothing has a law, and the reason is given: a law may be
missed, a false one is not claimed. What is not in the file at all is assumed, as `ASSUMED` says. With a model,
`gatdiag.find_laws` needs no assumption.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from torch import Tensor

from gatdiag.law import Exclusion, Law
from gatdiag.roles import OTHER, SCALE
from gatdiag.run.laws import RecordedLaws, pack
from gatdiag.structure import Layer, ParameterInfo, Structure
from gatdiag.structure.from_names import FROBENIUS_NORM, output_axes, path_pattern
from gatdiag.structure.stack import NotPlainError, StackLayer, check_widths, is_single_matrix, module_path, stack_layer

ASSUMED: Final = (
    "all activations are ReLU or LeakyReLU, not ELU, GELU or tanh",
    "aggregation and pooling without weights are sum, mean or max, not softmax or variance",
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
    (entry,) = pack(_law(one, following, neuron) for neuron in range(min(2, following.in_features)))
    return {**entry, "count": following.in_features}


def _law(one: StackLayer, following: StackLayer, neuron: int) -> Law:
    terms = (*one.incoming_terms(neuron, following.in_features), *following.outgoing_terms(neuron))
    inner = one.layer is following.layer
    name = f"layer {one.layer.index} ({one.layer.name}), {'product channel' if inner else 'neuron'} {neuron}"
    ordered = tuple(sorted(terms, key=lambda term: term.exponent < 0))
    return Law(name, "product" if inner else "neuron", one.layer.name, neuron, ordered, exact=True, residual=math.nan)


# --- which layer feeds which ------------------------------------------------------------------------------------------


def plain_stack(tensors: Mapping[str, Tensor], structure: Structure) -> list[StackLayer]:
    """The maps that a state dict is made of, each of which reads all of the one before it and nothing else.

    Args:
        tensors: Name -> tensor.
        structure: Its layers, from `find_layers(tensors)`.

    Raises:
        NotPlainError: Names and shapes leave room for anything else.
    """
    running = [name for name in tensors if name.endswith(("running_mean", FROBENIUS_NORM))]
    norms = [info.name for info in structure.parameters if info.role == SCALE] + running
    if norms:
        raise NotPlainError(f"{norms[0]} is of a normalization")
    leaves: dict[str, dict[str, tuple[int, ...]]] = {}
    for info in structure.parameters:
        leaves.setdefault(info.module, {})[info.name.removeprefix(f"{info.module}.")] = info.shape
    axes = output_axes(leaves)
    maps = [one for layer in structure if layer.kind != "PReLU" for one in _maps_of(layer, tensors, axes)]
    for number in range(1, len(maps)):
        check_widths(maps[number - 1], maps[number])
        _check_follows(maps, number)
    return maps


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
        yield stack_layer(layer, axes.get(module_path(layer)) if is_single_matrix(layer) else 0)


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
    if _is_next(before, one):
        return
    if maps[0].in_features in maps[-1].widths:
        raise NotPlainError(f"{maps[0].path} may read what {maps[-1].path} puts out")
    if any(other.in_features == one.in_features and place < number for place, other in enumerate(maps)):
        _refuse_branch(maps, number)
    for place, other in enumerate(maps):
        free = place + 1 == len(maps) or not _is_next(other, maps[place + 1])
        wider = place < number and max(other.widths) > one.in_features
        if place not in (number, number - 1) and (wider or (free and one.in_features in other.widths)):
            raise NotPlainError(f"{one.path} takes {one.in_features} inputs: it may read outputs of {other.path}")


def _refuse_branch(maps: Sequence[StackLayer], number: int) -> None:
    """Raises where a map that takes as many inputs as an earlier one may read the same as that, or lead around it."""
    one = maps[number]
    if one.in_features == maps[0].in_features:
        raise NotPlainError(f"{one.path} takes {one.in_features} inputs: it may read what {maps[0].path} reads")
    if any(other.widths & one.widths for other in maps[:number]):
        raise NotPlainError(f"{one.path} has the widths of a way around the layers before it")


def _is_next(one: StackLayer, other: StackLayer) -> bool:
    """True where the numbers in their paths say that one map follows the other."""
    return path_pattern(one.path) == path_pattern(other.path) and not _BRANCH.search(other.path)

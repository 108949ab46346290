"""The conservation laws of a state dict whose layers form a plain stack: each reads all outputs of the previous one.

A state dict has no forward pass, so the order of layers is inferred from names and shapes. Layers whose paths differ
only in numbers (`convs.0`, `convs.1`) follow each other; other layers follow only if no other order fits their widths.
If anything else is possible, there are no laws but a reason: laws may be missed, but none is false. What the file does
not show is assumed (`ASSUMPTIONS`). `gatdiag.find_laws` on a model needs no assumptions.
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

ASSUMPTIONS: Final = (
    "all activations are ReLU or LeakyReLU, not ELU, GELU or tanh",
    "aggregation and pooling without weights are sum, mean or max, not softmax or variance",
    "no skip connection or jumping knowledge without weights",
    "no normalization without weights (PairNorm, LipschitzNorm, L2)",
    "each weight is used once and unchanged, and each numbered layer reads all outputs of the previous one",
)

_HINT: Final = "give --model, then c is exact"
# Numbered layers that may be parallel: decoders.0, head1; not decoder.0, an index in a Sequential.
_PARALLEL: Final = re.compile(
    r"(^|[._])(head|branch|task|classifier|predictor|decoder|dec|output|out|expert|tower)(_?\d|e?s_?\.?\d)",
    re.IGNORECASE,
)
_SKIP: Final = re.compile(r"skip|shortcut|residual|downsample|(^|[._])res(\d|[._]|$)", re.IGNORECASE)


def find_stack(tensors: Mapping[str, Tensor], structure: Structure) -> tuple[RecordedLaws, tuple[Exclusion, ...]]:
    """Find the conservation laws of a state dict whose layers form a plain stack.

    For neuron i of layer l,

        c_i = ||W^l[i, :]||^2 + b^l[i]^2 - a^l[i]^2 - ||W^(l+1)[:, i]||^2

    with every matrix, bias and attention vector of layers l and l + 1, as `gatdiag.find_laws` finds by tracing the
    model. Concatenated heads are separate neurons, averaged heads are summed. The laws hold if the model satisfies
    `ASSUMPTIONS`.

    Args:
        tensors: Name -> tensor, as in a model's `state_dict()`.
        structure: Its layers, from `find_layers(tensors)`.

    Returns:
        The laws, and the layers whose neurons have none, with the reason.

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
        convs.1: its outputs are those of the model
    """
    try:
        stack = read_plain_stack(tensors, structure)
    except NotPlainError as error:
        reason = f"names and shapes do not show a plain stack of layers ({error}): {_HINT}"
        return RecordedLaws([]), tuple(Exclusion(layer.name, reason) for layer in structure)
    last = tuple(Exclusion(layer.path, "its outputs are those of the model") for layer in stack[-1:])
    return RecordedLaws([_pack_laws(layer, successor) for layer, successor in pairwise(stack)]), last


def _pack_laws(layer: StackLayer, successor: StackLayer) -> dict[str, Any]:
    """The laws of a layer's neurons as in meta.json; two of them show how they depend on the index."""
    (entry,) = pack(_law(layer, successor, neuron) for neuron in range(min(2, successor.in_features)))
    return {**entry, "count": successor.in_features}


def _law(layer: StackLayer, successor: StackLayer, neuron: int) -> Law:
    terms = (*layer.incoming_terms(neuron, successor.in_features), *successor.outgoing_terms(neuron))
    inner = layer.layer is successor.layer
    path = layer.layer.name
    name = f"layer {layer.layer.index} ({path}), {'product channel' if inner else 'neuron'} {neuron}"
    ordered = tuple(sorted(terms, key=lambda term: term.exponent < 0))
    return Law(name, "product" if inner else "neuron", path, neuron, ordered, exact=True, residual=math.nan)


# --- order of the layers ----------------------------------------------------------------------------------------------


def read_plain_stack(tensors: Mapping[str, Tensor], structure: Structure) -> list[StackLayer]:
    """The linear maps of a state dict in order, each of which reads all outputs of the previous one and nothing else.

    Raises:
        NotPlainError: Names and shapes allow anything else.
    """
    running = [name for name in tensors if name.endswith(("running_mean", FROBENIUS_NORM))]
    norms = [info.name for info in structure.parameters if info.role == SCALE] + running
    if norms:
        raise NotPlainError(f"{norms[0]} belongs to a normalization")
    leaves: dict[str, dict[str, tuple[int, ...]]] = {}
    for info in structure.parameters:
        leaves.setdefault(info.module, {})[info.name.removeprefix(f"{info.module}.")] = info.shape
    axes = output_axes(leaves)
    stack = [part for layer in structure if layer.kind != "PReLU" for part in _linear_maps(layer, tensors, axes)]
    if not stack:
        raise NotPlainError("no layer has a weight matrix")
    for index in range(1, len(stack)):
        check_widths(stack[index - 1], stack[index])
        _check_order(stack, index)
    return stack


def _linear_maps(layer: Layer, tensors: Mapping[str, Tensor], axes: Mapping[str, int | None]) -> Iterator[StackLayer]:
    """The layer itself, or the linear layers inside a GINConv."""
    if _SKIP.search(layer.name):
        raise NotPlainError(f"the name of {layer.name} suggests a skip connection")
    for info in layer.parameters:
        _check_plain(info, layer, tensors[info.name])
    if layer.kind == "GINConv":
        for path in dict.fromkeys(info.module for info in layer.parameters if info.role != OTHER):
            infos = [info for info in layer.parameters if info.module == path]
            yield stack_layer(layer, axes.get(path), path, infos)
    else:
        yield stack_layer(layer, axes.get(module_path(layer)) if is_single_matrix(layer) else 0)


def _check_plain(info: ParameterInfo, layer: Layer, tensor: Tensor) -> None:
    """Raise if a parameter is shared, parametrized, empty or a scalar."""
    prefix = "" if layer.name == Structure.ROOT else f"{layer.name}."
    if any(not name.startswith(prefix) for name in info.names):
        raise NotPlainError(f"{info.name} is shared with {' and '.join(info.names[1:])}")
    if info.name.rpartition(".")[0] != info.module:
        raise NotPlainError(f"{info.name} is not a weight itself: the weight is computed from it")
    if not tensor.numel() or not info.shape:
        raise NotPlainError(f"{info.name} is empty or a scalar")


def _check_order(stack: Sequence[StackLayer], index: int) -> None:
    """Raise if a layer may read anything but the outputs of the previous one."""
    layer = stack[index]
    if _is_next(stack[index - 1], layer):
        return
    if stack[0].in_features in stack[-1].widths:
        raise NotPlainError(f"{stack[0].path} may read the outputs of {stack[-1].path}")
    if any(earlier.in_features == layer.in_features for earlier in stack[:index]):
        _check_not_parallel(stack, index)
    for place, other in enumerate(stack):
        is_free = place + 1 == len(stack) or not _is_next(other, stack[place + 1])
        is_wider = place < index and max(other.widths) > layer.in_features
        if place not in (index, index - 1) and (is_wider or (is_free and layer.in_features in other.widths)):
            raise NotPlainError(
                f"{layer.path} takes {layer.in_features} inputs: it may read the outputs of {other.path}"
            )


def _check_not_parallel(stack: Sequence[StackLayer], index: int) -> None:
    """Raise if a layer with as many inputs as an earlier one may read the same inputs, or be a skip connection."""
    layer = stack[index]
    if layer.in_features == stack[0].in_features:
        raise NotPlainError(f"{layer.path} takes {layer.in_features} inputs: it may read the inputs of {stack[0].path}")
    if any(earlier.widths & layer.widths for earlier in stack[:index]):
        raise NotPlainError(f"the widths of {layer.path} are those of a skip connection around the layers before it")


def _is_next(layer: StackLayer, other: StackLayer) -> bool:
    """True if the numbers in their paths show that the other layer follows."""
    return path_pattern(layer.path) == path_pattern(other.path) and not _PARALLEL.search(other.path)

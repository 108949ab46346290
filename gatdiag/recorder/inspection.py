"""What a diagnosis needs besides the tables: inputs, output, loss, autograd graph.

Most of it is inspected at about ten early records and then at every fiftieth, so that the cost is negligible; it is
written to meta.json as "signals". At every record, it is noted which batches the step uses and which gradients were
left of the step before: from these the backlog measures two columns of `steps`, the overshoot and the leftover
gradient.
"""

import inspect
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.laws.mixing import Mixing
from gatdiag.metrics.rank import ranks
from gatdiag.metrics.smoothing import as_rows
from gatdiag.names import is_mask, is_of_relation
from gatdiag.recorder import criterion
from gatdiag.recorder.axes import BatchAxes
from gatdiag.recorder.batches import Batches
from gatdiag.recorder.data import DataFacts
from gatdiag.recorder.evaluation import Evaluations
from gatdiag.recorder.loop import LoopFacts
from gatdiag.recorder.loss_graph import (
    compares_outputs,
    count_weights,
    depends_on,
    describe_loss,
    follow_slope,
    has_divergence,
    is_linear_chain,
    penalizes_weights,
    weighs_by_another,
)
from gatdiag.recorder.measure.channels import channel_axis
from gatdiag.recorder.measure.edges import find_edge_index, has_several_kinds, node_axis
from gatdiag.recorder.measure.layers import is_low_precision
from gatdiag.recorder.messages import (
    are_same_rows,
    edge_weights,
    is_rearranged,
    kinds_of_edges,
    reached_nodes,
    share_of_pairs,
    weight_statistics,
)
from gatdiag.recorder.normalization import BatchNorms
from gatdiag.recorder.outputs import asked_of_rows, latent_size, row_spread, unreachable_error, unreachable_targets
from gatdiag.recorder.precision import PrecisionFacts
from gatdiag.recorder.recurrence import Recurrence
from gatdiag.recorder.repeats import Repeats
from gatdiag.recorder.samples import FlatParameters, Sample
from gatdiag.recorder.shards import distributed_parameters, is_distributed
from gatdiag.recorder.tokens import asked_tokens, only_tokens
from gatdiag.structure.adapters import adapter_name
from gatdiag.structure.modules import (
    attributes_of,
    is_training,
    modules_of,
    named_modules,
    named_parameters,
    own_buffers,
)
from gatdiag.structure.optimizers import parameters_of
from gatdiag.structure.tensors import first_tensor, graph_leaves, named_tensors, walk

_INSPECTED: Final = frozenset({0, 1, 2, 3, 5, 8, 12, 16, 20, 30, 40})  # records, and every fiftieth
_INSPECT_EVERY: Final = 50
_FIRST_TARGETS: Final = 10  # records in which a target that all rows share is looked for
_LITTLE_SLOPE: Final = 0.01  # of the first dL/dout
_CONNECTED: Final = 0.5  # share of the nodes: once a layer's edges connect as many, no edges are inspected any more
_MAX_ARGUMENTS: Final = 100
_MAX_PLAIN: Final = 100_000  # entries of a tensor among a module's attributes; larger ones hold data
_UPDATE_SECONDS: Final = 5.0
_MAX_MOVED_BYTES: Final = 16 << 20  # of one inspection; more is inspected faster where it is
_PROPAGATING: Final = ("SGConv", "SSGConv", "APPNP")  # many hops, and weights for none of them


@dataclass(frozen=True)
class Output:
    """An output of the model in training.

    Attributes:
        values: Without its graph.
        channels: The axis of its channels, if the step is inspected.
        step: Of the forward pass.
        batch: Number of the batch it was computed from.
        tokens: That it was computed from, if the step is inspected and each has a row of the output.
    """

    values: Tensor
    channels: int
    step: int
    batch: int
    tokens: Tensor | None = None


class Inspection:
    """Inspects one training, without changing it.

    Args:
        model: The model.

    Attributes:
        parameters: The parameters that samples are taken of.
        is_due: Whether inputs, output and loss of the coming step are inspected.
        evaluations: Calls without gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = _argument_names(model)
        self.evaluations = Evaluations(model)
        self.is_due = True
        self.parameters: Sequence[Tensor] = ()
        self._step = 0
        self._record: int | None = None
        self._inputs: list[dict[str, Any]] = []
        self._arguments: dict[str, list[str]] = {}  # what the model is called with
        self._output: dict[str, Any] = {}
        self._graph: dict[str, Any] = {}
        self._foreign: list[weakref.ref[Tensor]] = []  # leaves of the graph that are not parameters of the model
        self._criteria: list[str] = []
        self._implied: dict[str, Any] = {}
        self._targets: list[dict[str, Any]] = []  # common targets of the rows of each output
        self._target_sums: Tensor | None = None  # of the targets of a squared error
        self._labels: Tensor | None = None
        self._counted, self._uncounted = 0, 0  # losses that show labels, and that do not
        self._first_slope = 0.0  # norm of the first dL/dout
        self._backward_passes, self._first_losses_in = 0, -1  # so far, and in which there was a cross-entropy
        self._sides: list[str] = []  # of the targets: above, below or around the outputs
        self._layers: dict[str, dict[str, Any]] = {}
        self._layers_at = 0  # the last step in which layers were inspected
        self._mixing: dict[str, Any] = {}
        self._rows: dict[str, int] = {}  # layer -> of its input
        self._has_several_kinds = False  # a convolution is given nodes of several kinds
        self._hops: dict[str, int] = {}  # layer -> over how many edges its messages go
        self._after_sigmoid: set[str] = set()  # layers
        self._given: dict[str, dict[str, float]] = {}  # layer -> sizes of what it is given, if that is data
        self._given_step = -1  # in which these were measured
        self._embedded: dict[str, dict[str, Any]] = {}  # layer -> number of rows of its ids, and whether all are alike
        self._edges: dict[str, dict[str, float]] = {}  # layer -> the most edges that it was given
        self._edge_weights: dict[str, dict[str, int]] = {}  # layer -> of negative ones, and of NaN
        self._reached: Tensor | None = None  # by an edge: the nodes of the last layer of this step that has edges
        self._are_lonely_alike = True  # whether the nodes that no edge reaches are given the same features
        self._messages: dict[str, int] = {}  # of nodes that the loss counts, how many are reached by an edge
        self._relations: dict[str, dict[str, Any]] = {}  # layer -> which of its kinds of edges there are
        self._first_inputs: list[tuple[str, Tensor]] = []  # of the first layer in this step
        self._batches, self._loop, self._precision = Batches(), LoopFacts(), PrecisionFacts()
        self._data, self._batch_norms, self._repeats = DataFacts(), BatchNorms(), Repeats()
        self._class_weights: dict[str, list[float]] = {}
        self._output_nodes: list[Any] = []  # that computed the outputs of this step
        self._other_nodes: list[Any] = []  # that computed what else the model returned
        self._compares = False  # the loss compares outputs with each other
        self._axes = BatchAxes()
        self._asked_tokens: dict[str, bool] = {}  # whether the loss asks for the next, or the own token of each
        self._latents: dict[str, dict[str, float]] = {}  # the "first" and the "last" size of what else is returned
        self._has_divergence = False  # the loss holds the exponential of it
        self._alike_nodes: list[Any] = []  # of as many columns as the output
        self._has_other_outputs = False  # of these, on which the loss depends
        self._loss_weights = 0  # matrices of another network between outputs and loss
        self._origins: set[str] = set()  # of the inputs: "data", "network" if another one computes them
        self._loss = math.nan  # of the running backward pass
        self._first_rows: dict[str, float] = {}  # how much the rows of the first output differ
        self._unreachable_error = math.inf  # the part of a squared error that these targets leave, smallest
        self._unreachable: float | None = None  # share of the targets that the output cannot reach, smallest
        self._recurrence = Recurrence()
        self._loss_graph: dict[str, Any] = {}
        self._broken: dict[str, Any] = {}  # the first step with a NaN in the loss or in dL/dout
        self._plain_tensors: list[dict[str, Any]] | None = None  # that were read; None if that is not known
        self._is_flat = False  # all gradients of the last inspected step were zero
        self._slope_end: dict[str, Any] = {}
        self._unreached: set[int] = set()  # ids of parameters that the output does not depend on
        self._has_scaled_loss = False
        self._modules: dict[str, Any] = {}  # what the mode of the model matters to
        self._evaluation_from: int | None = None  # the step since which the model is trained in evaluation mode
        self._has_changed = False
        self._updated = -math.inf  # when meta.json was last to be updated

    # --- forward and backward -----------------------------------------------------------------------------------------

    def on_layer(self, layer: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Called after a layer in training: note its edges, dead inputs, and whether they come from a sigmoid."""
        inputs = (*args, *kwargs.values())
        self._note_kind(layer, module, inputs)
        self._note_ids(layer, module, inputs)
        self._note_given(layer, module, inputs)
        self._axes.note_layer(layer, module, inputs)
        self._inspect_edges(layer, module, inputs)
        self._layers_at = self._step
        if not self._inputs and not self._first_inputs:
            self._first_inputs = _data(_named_inputs(_argument_names(module), args, kwargs))
        tensors = [x for _, x in named_tensors(inputs) if not is_distributed(x)]
        self._precision.on_activations(tensors)
        x = next((x for x in tensors if x.is_floating_point() and x.dim() > 1), None)
        if x is None or not x.numel():
            return
        channels = channel_axis(module, x)
        self._rows[layer] = x.numel() // x.shape[channels]
        if not x.requires_grad:  # zero columns in the data are not dead units
            return
        if criterion.last_operation(x).startswith("Sigmoid"):
            self._after_sigmoid.add(layer)
        share = criterion.zero_column_fraction(as_rows(x.detach(), channels))
        if share is not None:
            _call_on_host(self._note_zero_inputs, layer, self._step, share)

    def _note_ids(self, layer: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Note whether all rows that are embedded are alike."""
        given = (x for _, x in named_tensors(inputs) if x.layout is torch.strided and not is_distributed(x))
        ids = next(given, None) if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
        if ids is None or not ids.dim() or not ids.numel():
            return
        known = self._embedded.get(layer, {"rows": 0, "entries": 0, "are_alike": True})
        sizes = {"rows": max(known["rows"], len(ids)), "entries": max(known["entries"], ids.numel())}
        alike = known["are_alike"] and bool((ids == ids[:1]).all())
        self._embedded[layer], self._has_changed = {**sizes, "are_alike": alike}, True

    def _note_given(self, layer: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Note what the first weights are given, behind what rescales the data."""
        if self._given_step not in (-1, self._step) or layer in self._given:
            return
        if not any(parameter.dim() > 1 for _, parameter in named_parameters(module)):
            return
        tensors = [x for _, x in named_tensors(inputs) if x.layout is torch.strided and not is_distributed(x)]
        data = [x for x in tensors if x.is_floating_point() and x.dim() > 1 and x.numel() and not _is_weighed(x)]
        if found := [criterion.input_statistics(layer, x) for x in data]:
            self._given_step, self._has_changed = self._step, True
            self._given[layer] = {
                name: max(one.get(name, math.inf) for one in found) for name in ("largest_column", "largest_row")
            } | {"row_norm": min(one.get("row_norm", math.inf) for one in found)}

    def _note_zero_inputs(self, layer: str, step: int, fraction: Tensor) -> None:
        share = float(fraction)
        if math.isnan(share):
            return
        known = self._layers.setdefault(layer, {"first": share, "since": None})
        known |= {"last": share, "seen": step}
        known["since"] = (step if known["since"] is None else known["since"]) if share >= 0.9 else None
        self._has_changed = True

    def _note_kind(self, layer: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Note whether a convolution is given nodes of several kinds, and over how many hops it sums."""
        self._has_several_kinds |= hasattr(type(module), "propagate") and has_several_kinds(inputs)
        if adapter_name(module) in _PROPAGATING and type(hops := attributes_of(module).get("K")) is int:
            self._hops[layer] = hops

    def _inspect_edges(self, layer: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        edges, x = find_edge_index(module, inputs), first_tensor(inputs)
        if edges is None or x is None or x.dim() < 2:
            return
        axis = node_axis(module, x)
        nodes = x.shape[-2 if axis is None else axis]
        needed = int(edges.max()) + 1 if edges.numel() else 0
        is_plain = needed > 0 and not has_several_kinds(inputs) and needed <= nodes
        if is_plain:
            self._data.note_edges(nodes, needed)
            self._data.note_cached(layer, edges, is_cached=attributes_of(module).get("cached") is True)
            self._inspect_messages(layer, module, inputs, x, edges, nodes)
        self._inspect_relations(layer, module, inputs)
        is_known = any(each["connected"] >= _CONNECTED for each in self._edges.values())
        if is_known and not is_of_relation(layer):
            return
        found = {"edges": edges.shape[1], "loops": 0, "connected": float(edges.numel() > 0)}
        if is_plain and not is_known:
            found = criterion.edge_statistics(edges, nodes)
            if pairs := share_of_pairs(edges, nodes):
                found["pairs"] = pairs
            if is_rearranged(edges, nodes):
                found["is_rearranged"] = True
        if layer not in self._edges or found["connected"] > self._edges[layer]["connected"]:
            self._edges[layer] = found
            self._has_changed = True

    def _inspect_relations(self, layer: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        kinds = kinds_of_edges(module, inputs)
        known = self._relations.setdefault(layer, {"count": kinds[0], "seen": []}) if kinds else {}
        if kinds and (new := {*kinds[1]}.difference(known["seen"])):
            known["seen"] = sorted({*known["seen"], *new})
            self._has_changed = True

    def _inspect_messages(
        self, layer: str, module: nn.Module, inputs: Sequence[Any], x: Tensor, edges: Tensor, nodes: int
    ) -> None:
        flow = attributes_of(module).get("flow")
        if type(flow) is str and flow == "target_to_source":
            edges = edges.flip(0)
        is_first, self._reached = self._reached is None, reached_nodes(edges, nodes)
        if is_first and len(x) == nodes and x.layout is torch.strided:
            self._are_lonely_alike = are_same_rows(x.detach()[~self._reached])
        weights = edge_weights(inputs, edges)
        if weights is not None and not self._edge_weights.get(layer, {}).get("negative_degrees"):
            self._edge_weights[layer] = weight_statistics(module, weights, edges, nodes)
            self._has_changed = True

    def on_forward(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any, *, is_autocast: bool
    ) -> Output | None:
        """Called after a training forward pass of the model; returns what `on_output_gradient` needs."""
        if not self._arguments:
            self._arguments = {"arguments": self._names[: len(args)], "keywords": [*kwargs]}
        inputs = _named_inputs(self._names, args, kwargs)
        batch, is_new = self._batches.number([x for _, x in inputs])
        if is_new:
            self._inspect_inputs(inputs)
        if self.is_due:
            self._note_data(inputs)
            others = [each for each in (*args, *kwargs.values()) if not issubclass(type(each), Tensor)]
            is_seen = len(inputs) == len(args) + len(kwargs) - len(others)  # else some are sparse
            self._repeats.note_inputs(batch, [x for _, x in inputs], others if is_seen else [object()])
            self._note_origin([x for _, x in inputs if x.is_floating_point()])
            self._data.note_graphs([x for _, x in walk((args, kwargs)) if issubclass(type(x), Tensor)])
        o = first_tensor(output)
        if o is None:
            return None
        if not self._graph and not distributed_parameters(self._model):
            self._inspect_graph(o, [x for _, x in inputs], is_autocast=is_autocast)
        channels = channel_axis(self._model, o) if self.is_due else -1
        if o.grad_fn is not None:
            self._output_nodes.append(o.grad_fn)
        if self.is_due:
            self._precision.on_activations([o])
            others = [x for _, x in named_tensors(output) if x.grad_fn is not None]
            self._other_nodes += [x.grad_fn for x in others]
            self._alike_nodes += [x.grad_fn for x in others if x.shape[1:] == o.shape[1:]]
            self._has_changed |= self._axes.note_output(o)
            _call_on_host(self._note_latents, *(x.detach() for x in others if x is not o))
            operation, is_over_rows = criterion.last_operation(o), criterion.is_softmax_over_rows(o)
            rows = as_rows(o.detach(), channels)
            _call_on_host(self._note_output, rows, operation, is_over_rows)
        tokens = only_tokens([x for _, x in inputs], o) if self.is_due else None
        return Output(o.detach(), channels, self._step, batch, tokens)

    def _note_data(self, inputs: Sequence[tuple[str, Tensor]]) -> None:
        for name, x in inputs:
            is_small = x.dtype.itemsize < 2  # of eight bits, for which torch has hardly an operation
            if x.is_floating_point() and x.dim() > 1 and x.numel() and not x.requires_grad and not is_small:
                self._data.note_input(name, x)
                size = x.detach().norm(dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)
                _call_on_host(self._data.note_size, name, self._step, size / math.sqrt(x.numel()), len(x))
                self._data.note_rows(name, x)
        self._has_changed = True

    def _note_origin(self, inputs: Sequence[Tensor]) -> None:
        own = {id(parameter) for _, parameter in named_parameters(self._model)}
        behind = (leaf for x in inputs if x.grad_fn is not None for leaf in graph_leaves(x))
        is_computed = any(isinstance(leaf, nn.Parameter) and id(leaf) not in own for leaf in behind)
        self._origins |= {"network" if is_computed else "data"} if inputs else set()

    def on_evaluation_end(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Called after a call of the model without gradients."""
        named = _named_inputs(self._names, args, kwargs)
        self.evaluations.end([(name, x) for name, x in named if x.is_floating_point() and x.dim() > 1])
        self._has_changed = True

    def on_batch_norm(self, name: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Called after a batch normalization in training."""
        self._batch_norms.note(name, module, first_tensor(inputs), _call_on_host)
        self._has_changed = True

    def _note_latents(self, *latents: Tensor) -> None:
        if size := latent_size(latents):
            self._latents = {"first": size, **self._latents, "last": size}

    def _note_output(self, o: Tensor, last_operation: str, softmax_over_rows: bool) -> None:
        if found := criterion.output_statistics(o):
            rows = row_spread(o)
            self._first_rows = self._first_rows or rows
            now = {"last_operation": last_operation, "softmax_over_rows": softmax_over_rows}
            lowest = min(found["min"], self._output.get("lowest", math.inf))
            self._output = {**found, **now, "lowest": lowest, "first_rows": self._first_rows, "last_rows": rows}
            self._has_changed = True

    def _inspect_inputs(self, inputs: Sequence[tuple[str, Tensor]]) -> None:
        floating = [(name, x) for name, x in inputs if x.is_floating_point()]
        if not self._inputs and floating:
            self._inputs = [criterion.input_statistics(name, x) for name, x in floating]
            self.evaluations.note_training_inputs([(name, x) for name, x in floating if x.dim() > 1])
            self._has_changed = True
        elif not any(map(criterion.is_broken, self._inputs)):
            masks = {each["name"] for each in self._inputs if each["non_finite"]}
            for name, x in floating:
                x = as_rows(x.detach())
                if x.numel() and not (x.is_cpu and bool(x.sum().isfinite())):
                    broken = criterion.non_finite_entries(x)
                    _call_on_host(self._note_broken_input, name, x.shape, self._step, name in masks, broken)

    def _note_broken_input(self, name: str, shape: Sequence[int], step: int, is_mask: bool, broken: Tensor) -> None:
        found = {**criterion.describe_broken_input(name, shape, broken), "step": step}
        is_new = criterion.is_broken(found) or (bool(broken[0]) and not is_mask)
        if is_new and not any(map(criterion.is_broken, self._inputs)):
            self._inputs = [found, *self._inputs]
            self._has_changed = True

    def _inspect_graph(self, o: Tensor, inputs: Sequence[Tensor], *, is_autocast: bool) -> None:
        """Find the parameters that the output does not depend on, and leaves that are neither parameters nor inputs."""
        names = {id(parameter): name for name, parameter in named_parameters(self._model)}
        given = {id(leaf) for x in inputs for leaf in (x, *graph_leaves(x))}  # adversarial noise, another network
        self._unreached = {*names}
        for leaf in graph_leaves(o):
            if id(leaf) in names:
                self._unreached.discard(id(leaf))
            elif id(leaf) not in given:
                self._foreign.append(weakref.ref(leaf))
        self._graph = {
            "has_graph": o.grad_fn is not None,
            "is_linear_chain": is_linear_chain(o.grad_fn),
            "unreached": sorted(names[key] for key in self._unreached),
            "foreign_leaves": 0,
            "is_rough": is_low_precision(o, is_autocast=is_autocast),
        }
        self._has_changed = True

    def note_plain_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Describe tensors that the forward pass read among the attributes of modules, and that are no parameters."""
        small = {name: x.detach() for name, x in tensors.items() if 1 < x.numel() <= _MAX_PLAIN and not x.is_meta}
        self._plain_tensors = [
            {"name": name, "distinct": len(x.unique()) / x.numel(), "is_regular": _is_regular(x.flatten())}
            for name, x in small.items()
        ]
        self._has_changed = True

    def note_mixing(self, mixing: Mixing) -> None:
        """Note what was seen of sums over neighbors and of attention in the first step."""
        peaks = {module: float(share) for module, share in mixing.peaks.items()}
        known = {module: share for module, share in peaks.items() if math.isfinite(share)}
        self._mixing = {
            "propagations": mixing.propagations,
            "attention_peaks": known,
            "dropped": {module: float(rate) for module, rate in mixing.dropped.items()},
            "softmax_along_rows": {module: list(shape) for module, shape in mixing.along_rows.items()},
            "attention_ahead": {module: int(length) for module, length in mixing.ahead.items()},
        }
        if mixing.data is not None:
            before, after = (x.to_dense() if x.layout is not torch.strided else x for x in mixing.data)
            found = [float(ranks(x.detach().flatten(1).float()).effective_rank) for x in (before, after)]
            self._mixing["data_hops"] = {"hops": mixing.hops, "before": found[0], "after": found[1]}
        self._has_changed = True

    def on_backward_start(self, parameters: Sequence[Tensor]) -> bool:
        """Called at the beginning of a backward pass; returns whether gradients were cleared before it."""
        self._has_changed |= self._loop.on_backward_start(parameters)
        reached = [tensor for tensor in parameters if id(tensor) not in self._unreached]
        return self._batches.on_backward_start([(tensor, tensor.grad) for tensor in reached if tensor.grad is not None])

    def on_loss(self, losses: Sequence[Tensor]) -> None:
        """Called at the beginning of a backward pass with what `backward()` was called on."""
        is_broken = not self._broken and any(loss.is_cpu and not bool(loss.isfinite()) for loss in losses)
        nodes, self._output_nodes = self._output_nodes, []
        self._backward_passes += 1
        others, self._other_nodes, self._loss = self._other_nodes, [], math.nan
        alike, self._alike_nodes = {*self._alike_nodes} - {*nodes}, []
        if not losses or not nodes or not (self.is_due or is_broken):
            return
        self._has_changed, self._loss = True, float(losses[0].detach())
        found = {**describe_loss(losses[0], nodes), "is_negative": self._loss < 0}
        self._compares = self._compares or compares_outputs(losses[0], {*nodes, *others})
        latents = {*others} - {*nodes}
        self._has_divergence = self._has_divergence or has_divergence(losses[0], latents, nodes)
        self._has_other_outputs = self._has_other_outputs or depends_on(losses[0], alike, nodes)
        own = {id(parameter) for _, parameter in named_parameters(self._model)}
        self._loss_weights = max(self._loss_weights, count_weights(losses[0], {*nodes, *others}, own))
        found["weighs_by_another"] = weighs_by_another(losses[0], {*nodes, *others})
        found["penalizes_weights"] = penalizes_weights(losses[0], {*nodes, *others}, own)
        if is_broken:
            self._broken = {"step": self._step, "is_infinite": any(bool(loss.isinf()) for loss in losses), **found}
        if not self._loss_graph or len(found["operations"]) > len(self._loss_graph["operations"]):
            self._loss_graph = found
        if self._is_flat and not self._slope_end:
            follow_slope(nodes[0], self._note_slope_end)

    def _note_slope_end(self, operation: str, length: int) -> None:
        if not self._slope_end:  # the first one: those behind it get zeros
            self._slope_end, self._has_changed = {"operation": operation, "length": length}, True

    def on_output_gradient(self, output: Output, gradient: Tensor) -> None:
        """Called in a backward pass with the gradient of the model's output."""
        if output.step != self._step:
            return
        is_same_batch = self._batches.on_output_gradient(output.batch, gradient)
        self._inspect_broken(output.values, gradient)
        if self.is_due:
            self._precision.on_output_gradient(gradient)
            rows = [as_rows(x, output.channels) for x in (output.values, gradient.detach())]
            self._count_reached(*rows)
            if output.tokens is not None and not self._asked_tokens:
                self._asked_tokens = asked_tokens(output.values, gradient.detach(), output.tokens)
            _call_on_host(self._inspect_loss, *rows, self._step, self._record, output.batch, is_same_batch)

    def _inspect_broken(self, o: Tensor, gradient: Tensor) -> None:
        """Note how much of the first dL/dout with a NaN is NaN, and whether the output is; on an accelerator, never."""
        is_known_broken = bool(self._broken) and self._broken["step"] == self._step
        if (self._broken and not is_known_broken) or not gradient.is_cpu:
            return
        if not is_known_broken and bool(gradient.sum().isfinite()):
            return
        bad, live = int((~gradient.isfinite()).sum()), int((gradient != 0).sum())
        counts = {"entries": gradient.numel(), "bad_entries": bad, "live_entries": live}
        self._broken |= {"step": self._step, **counts, "is_output_finite": bool(o.isfinite().all())}
        self._has_changed = True

    def _count_reached(self, o: Tensor, gradient: Tensor) -> None:
        """How many of the nodes that the loss counts get a message; rows of other things than nodes are not counted."""
        reached, rows = self._reached, (gradient != 0).any(1)
        if reached is None or rows.shape != reached.shape:
            return
        labeled, of_labeled = int(rows.sum()), int((reached & rows).sum())
        share = of_labeled / labeled if labeled else 1.0
        if labeled and (not self._messages or share > self._messages["reached"] / self._messages["labeled"]):
            is_known = self._are_lonely_alike or are_same_rows(o[reached])  # then they may have one output
            are_alike = not is_known and are_same_rows(o[rows & ~reached])
            self._messages = {"labeled": labeled, "reached": of_labeled, "nodes": len(rows),
                              "reached_nodes": int(reached.sum()),
                              "alike": are_alike * (labeled - of_labeled)}  # fmt: skip
            self._has_changed = True

    def _inspect_loss(
        self, o: Tensor, gradient: Tensor, step: int, record: int | None, batch: int, is_same_batch: bool | Tensor
    ) -> None:
        self._has_changed = True
        name, misfit, labels = criterion.identify(o, gradient)
        self._inspect_repeats(name, labels, o, gradient, batch)
        self._criteria.append(name)
        self._output |= {"criterion_misfit": misfit} if name else {}
        if name in criterion.ON_LOGITS:
            self._inspect_predictions(o, gradient)
        if record is not None and record < _FIRST_TARGETS:
            self._inspect_targets(o, gradient, step)
        self._inspect_classes(name, labels, o, gradient, step)
        self._count_labels(labels, float(gradient.norm()))
        self._sides.append(criterion.side_of_targets(gradient))
        if not name:
            self._inspect_error(o, gradient, step)
        if name.startswith("bce") and o.shape[1] > 1 and "columns_entropy" not in self._implied:
            scale = criterion.scale_of_mean(name, o, gradient)
            self._implied["columns_entropy"] = criterion.columns_entropy(gradient) * scale
        if labels is None or (self._labels is not None and len(labels) != len(self._labels)):
            return
        if self._labels is None or not is_same_batch:
            self._labels = labels if self._labels is None else self._labels + labels
        if name in criterion.ON_LOGITS and self._first_losses_in in (-1, self._backward_passes):
            self._first_losses_in = self._backward_passes
            found = criterion.cross_entropy(o, gradient), criterion.scale_of_mean(name, o, gradient)
            self._implied |= criterion.add_losses(self._implied, *found)

    def _inspect_predictions(self, o: Tensor, gradient: Tensor) -> None:
        self._output["predicted_share"] = criterion.predicted_share(o, gradient)
        self._output["separation"] = criterion.separation(o, gradient)
        self._output["last_cross_entropy"] = criterion.cross_entropy(o, gradient)

    def _inspect_repeats(self, name: str, labels: Tensor | None, o: Tensor, gradient: Tensor, batch: int) -> None:
        """What a cross-entropy, or a squared error that is not one of two outputs, asks of each row."""
        are_classes = labels is not None and name in criterion.ON_LOGITS
        if self._compares or not (are_classes or not name):
            return
        asked = criterion.labels_of_rows(gradient) if are_classes else asked_of_rows(o, gradient, self._loss)
        if asked is not None:
            self._repeats.note_targets(batch, asked, are_classes=are_classes)

    def _inspect_classes(self, name: str, labels: Tensor | None, o: Tensor, gradient: Tensor, step: int) -> None:
        if labels is not None:
            self._data.note_labels(step, labels)
        elif name in ("", *criterion.ON_LOGITS):
            self._class_weights = criterion.join_weights(self._class_weights, criterion.class_weights(o, gradient))

    def _count_labels(self, labels: Tensor | None, slope: float) -> None:
        """Count the losses that show labels; where nothing is left to learn, nothing is shown."""
        self._first_slope = self._first_slope or slope
        self._counted += labels is not None
        self._uncounted += labels is None and slope > _LITTLE_SLOPE * self._first_slope

    def _inspect_error(self, o: Tensor, gradient: Tensor, step: int) -> None:
        """What is known of the targets if the loss is an error of them."""
        self._output["columns"] = criterion.column_errors(o, gradient)
        if "binary_targets" not in self._implied and (targets := criterion.binary_targets(o, gradient, self._loss)):
            self._implied["binary_targets"] = targets
        self._inspect_range(o, gradient)
        if "implied_mse" not in self._implied:
            self._implied |= criterion.implied_target_statistics(o, gradient) | {"implied_step": step}
        if (sums := criterion.target_sums(o, gradient, self._loss)) is not None:
            known = self._target_sums
            self._target_sums = sums if known is None or known.shape != sums.shape else known + sums

    def _inspect_range(self, o: Tensor, gradient: Tensor) -> None:
        """Find out which targets the output cannot reach; it counts if every inspected loss is an error of them."""
        operation = str(self._output.get("last_operation", "")).removesuffix("Backward0")
        bound = self._loss_graph.get("bounded_slope")
        operations = {*self._loss_graph.get("operations", ())}
        has_parts = not operations.isdisjoint(("MseLoss", "Pow")) and (
            self._has_divergence or bool(self._loss_graph.get("penalizes_weights"))
        )
        share = unreachable_targets(o, gradient, self._loss, operation, bound, has_parts=has_parts)
        if share is not None or not has_parts:  # of which the error may be too small a part
            least = max if bound else min  # what is known of a Huber error is a bound from below
            self._unreachable = least(share or 0.0, (share or 0.0) if self._unreachable is None else self._unreachable)
        if (error := unreachable_error(o, gradient, self._loss, operation, has_parts=has_parts)) is not None:
            self._unreachable_error = min(error, self._unreachable_error)

    def on_repeated_run(self, layer: str, of_pass: int, runs: int, gradient: Tensor, *, is_first: bool) -> None:
        """Called with the gradient of the first or the last run of a layer that runs many times in a pass."""
        self._has_changed |= self._recurrence.note(layer, of_pass, runs, gradient, is_first=is_first)

    def _inspect_targets(self, o: Tensor, gradient: Tensor, step: int) -> None:
        """Find out whether the loss compares each output with the targets of all rows."""
        differ = bool(self._targets) and not math.isfinite(self._targets[-1]["spread"])
        if not differ and (found := criterion.common_target(o, gradient)):
            self._targets.append({"step": step, **found})
        if values := criterion.counted_targets(o, gradient):
            self._implied["counted_targets"] = values

    def _are_reached(self) -> list[bool]:
        """Of each parameter, whether the output depends on it; sparse ones, which are not measured, do not count."""
        return [id(tensor) not in self._unreached and tensor.layout is torch.strided for tensor in self.parameters]

    # --- steps --------------------------------------------------------------------------------------------------------

    def before_step(self, optimizers: Sequence[Optimizer], sample: Sample) -> None:
        """Called before the weights move; adds to the sample of the step."""
        if not self._modules:
            self._modules = modules_with_modes(self._model)
            self._has_changed = True
        trains = is_training(self._model) or any(map(is_training, modules_of(self._model)))
        since = None if trains else self._step if self._evaluation_from is None else self._evaluation_from
        self._has_changed |= since != self._evaluation_from
        self._evaluation_from = since
        if self._step == 0 and self._foreign:
            held = parameters_of(*optimizers)
            alive = [leaf for reference in self._foreign if (leaf := reference()) is not None]
            self._graph["foreign_leaves"] = sum(id(leaf) not in held for leaf in alive)
            self._has_changed = True
        if self.is_due and sample.forward_pass is not None:
            self._has_changed |= self._recurrence.note_outputs(sample.forward_pass.norms)
        sample.is_reached = np.array(self._are_reached(), dtype=bool)
        self._batches.before_step(sample)
        self._has_changed |= self._loop.before_step(optimizers, self.parameters, self._step)
        if not self._inputs and self._first_inputs:
            self._inspect_inputs(self._first_inputs)
        if self.is_due:
            self._precision.on_parameters(self.parameters)
            gradients = [each.grad for each in self.parameters if each.grad is not None]
            self._is_flat = bool(gradients) and not any(bool(gradient.any()) for gradient in gradients)
        if sample.unscale_raw is not None and not self._has_scaled_loss:
            self._has_scaled_loss = self._has_changed = True

    def on_optimizer_joined(self, optimizer: Optimizer) -> None:
        """Called if another optimizer takes part in the step."""
        self._loop.on_optimizer(optimizer)

    def after_step(self, sample: Sample, flat: FlatParameters) -> None:
        """Called after the weights of a recorded step have moved.

        Args:
            sample: Of the step.
            flat: The parameters in it.
        """
        self._loop.after_step(self.parameters, self._step, is_due=self.is_due)
        if self.is_due:
            self._precision.after_step(sample, flat)

    def start_step(self, step: int, record: int | None) -> None:
        """Begin a step.

        Args:
            step: Counted from the start of this recording.
            record: Number of the record that it will be; None if it is not recorded.
        """
        self._step, self._record = step, record
        self._output_nodes, self._other_nodes, self._first_inputs = [], [], []
        self._reached, self._are_lonely_alike = None, True
        self._data.start_step()
        self._axes.start_step()
        self._batches.start_step(is_recorded=record is not None)
        self._repeats.start_step()
        if record is not None:
            self.is_due = record in _INSPECTED or record % _INSPECT_EVERY == 0

    # --- results ------------------------------------------------------------------------------------------------------

    def take_update(self, *, at_once: bool = False) -> dict[str, Any] | None:
        """The new entry of meta.json; None if it is unchanged, or was taken less than five seconds ago."""
        now = time.monotonic()
        is_due = at_once or now - self._updated >= _UPDATE_SECONDS
        if not is_due or not self._has_changed:
            return None
        self._updated, self._has_changed = now, False
        output = self._describe_output()
        graph = dict(self._graph)
        if "has_graph" in graph:
            output["has_graph"] = graph.pop("has_graph")
        live = {name: one for name, one in self._layers.items() if one["seen"] == self._layers_at}
        layers = {"zero_inputs": live, "after_sigmoid": sorted(self._after_sigmoid), "edges": self._edges,
                  "hops": self._hops, "rows": self._rows, "has_several_kinds": self._has_several_kinds}  # fmt: skip
        layers |= {"given": self._given, "embedded": self._embedded}
        of_edges = {"edge_weights": self._edge_weights, "messages": self._messages, "relations": self._relations}
        of_data = {**self._data.as_meta(), **self._repeats.as_meta(), "class_weights": self._class_weights}
        of_modes = {"normalization": self._batch_norms.as_meta(), "evaluation": self.evaluations.as_meta()}
        loss = {"loss_graph": self._loss_graph, "broken_loss": self._broken, "slope_end": self._slope_end,
                "compares_outputs": self._compares, "loss_weights": self._loss_weights,
                "is_critic": len(self._origins) > 1, "has_other_outputs": self._has_other_outputs,
                "latents": {**self._latents, "has_divergence": self._has_divergence}}  # fmt: skip
        loop = {"evaluation_from": self._evaluation_from, "has_scaled_loss": self._has_scaled_loss}
        if self._plain_tensors is not None:
            graph["plain_tensors"] = self._plain_tensors
        output |= self._asked_tokens
        of_time = {**self._recurrence.as_meta(), **self._axes.as_meta()}
        measured = {**self._modules, **self._precision.as_meta(), **self._mixing, **of_time}
        facts = {**layers, **of_edges, **of_data, **of_modes, **graph, **loss, **loop, **measured}
        return {"inputs": self._inputs, **self._arguments, "output": output, **facts, "loop": self._loop.as_meta()}

    def _describe_output(self) -> dict[str, Any]:
        output = {**self._output, **self._implied}
        if self._unreachable is not None:
            output["unreachable_targets"] = self._unreachable
            output["unreachable_error"] = self._unreachable_error if math.isfinite(self._unreachable_error) else None
        if self._criteria:
            name = max({*self._criteria}, key=self._criteria.count)
            output |= {"criterion": name, "criterion_share": self._criteria.count(name) / len(self._criteria)}
        if self._labels is not None and self._counted >= self._uncounted:
            output["labels"] = self._labels.tolist()
            output["are_all_labeled"] = not self._uncounted
        if self._target_sums is not None:
            count, total, squares = self._target_sums
            output["target_variance"] = float((squares / count - (total / count).square()).clamp(min=0).mean())
        if self._sides:
            output["side_of_targets"] = self._sides[0] if len({*self._sides}) == 1 else ""
        if target := self._common_target():
            output["common_target"] = target
        return output

    def _common_target(self) -> dict[str, Any] | None:
        """The target that all rows shared in the first steps; None if they differed, or a step had several outputs."""
        found = self._targets
        if not found or len({each["step"] for each in found}) < len(found):
            return None
        targets, spread = [each["target"] for each in found], max(each["spread"] for each in found)
        if not math.isfinite(spread):
            return None
        first = {name: found[0][name] for name in ("step", "loss")}
        return {**first, "low": min(targets), "high": max(targets), "spread": spread}


def _named_inputs(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors that a module is called with, by the names of the arguments of its `forward`."""
    named = [*zip(names, args, strict=False), *kwargs.items()]
    tensors = (pair for key, item in named for pair in named_tensors(item, key))
    return [(name, x) for name, x in tensors if x.layout is torch.strided and not is_distributed(x)]


def _data(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """The floating-point matrices that a layer is given as data: no sound masks, and nothing computed with weights."""
    matrices = [(name, x) for name, x in named if x.is_floating_point() and x.dim() > 1 and not x.requires_grad]
    return [(name, x) for name, x in matrices if not is_mask(name) or bool(x.isnan().any())]


def _is_weighed(x: Tensor) -> bool:
    """Whether a tensor was computed with matrices of weights, and not only rescaled."""
    return any(isinstance(leaf, nn.Parameter) and leaf.dim() > 1 for leaf in graph_leaves(x))


def _is_regular(x: Tensor) -> bool:
    """Whether numbers were made by rule: they ascend or descend, or some are exactly zero or one."""
    steps = x.diff()
    return bool(((x == 0) | (x == 1)).any() | (steps >= 0).all() | (steps <= 0).all())


def modules_with_modes(model: nn.Module) -> dict[str, Any]:
    """What differs between training and evaluation mode, as it stands in meta.json.

    Statistics of no batch that are not the initial ones were copied, as from a training before.
    Dropout by `torch.nn.functional.dropout` is known by its rate if this is in an attribute `dropout`, as in PyG.

    Example:
        >>> modules_with_modes(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9)))
        {'batch_norms': {'0': 0}, 'dropout': {'1.p': 0.9}, 'copied_statistics': []}
    """
    batch_norms: dict[str, int] = {}
    dropout: dict[str, float] = {}
    copied: list[str] = []
    for name, module in named_modules(model):
        buffers = own_buffers(module)
        if "running_mean" in buffers:
            batch_norms[name] = int(buffers.get("num_batches_tracked", 0))
            if not batch_norms[name] and bool((buffers["running_mean"] != 0).any()):
                copied.append(name)
        attribute = "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout"
        rate = attributes_of(module).get(attribute)
        if type(rate) is float and 0 < rate <= 1:
            dropout[f"{name}.{attribute}".lstrip(".")] = rate
    return {"batch_norms": batch_norms, "dropout": dropout, "copied_statistics": copied}


def _call_on_host(function: Callable[..., None], *given: Any) -> None:
    """Call a function, with small tensors on an accelerator moved to the CPU: it uses many small kernels."""
    size = sum(item.nbytes for item in given if isinstance(item, Tensor) and not item.is_cpu)
    if 0 < size <= _MAX_MOVED_BYTES:
        given = tuple(item.cpu() if isinstance(item, Tensor) else item for item in given)
    function(*given)


def _argument_names(model: nn.Module) -> list[str]:
    """Names of the arguments of `forward`; "argument 0", ... if it has no signature, and for further ones."""
    try:
        names = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"argument {number}" for number in range(len(names), _MAX_ARGUMENTS))]

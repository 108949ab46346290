"""What the tables do not hold and a diagnosis needs: inputs, output and loss, the graph, leftover gradients, overshoot.

Most of it is looked at in about fifteen early steps and then in every fiftieth, so that it costs nothing to speak of;
it stands in meta.json under "signals". The overshoot of each step and leftover gradients are columns of `steps`, which
the backlog measures of samples:

    overshoot = 1 - <g', d> / <g, d>

with d the step just made, g and g' the gradients before and after it on the same batch, before they are clipped: 0
where the slope stays, 1 at the minimum along the step, above 2 where gradient descent diverges.
"""

import inspect
import math
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag import metrics
from gatdiag.laws.prediction import held_by
from gatdiag.metrics.smoothing import as_rows
from gatdiag.recorder import criterion
from gatdiag.recorder.backlog import Sample
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.layers import is_low_precision

_CHOSEN: Final = frozenset({0, 1, 2, 3, 5, 8, 12, 16, 20, 30, 40})
_EVERY: Final = 50
_CLOSELY: Final = 30  # steps whose overshoot is measured; then of every tenth
_THEN: Final = 10
_MOST_ARGUMENTS: Final = 100
_SECONDS_BETWEEN_NEWS: Final = 5.0
_MOST_NODES: Final = 200_000  # of an autograd graph


class Signals:
    """Looks at one training. The recorder tells it what happens; nothing it does changes the training."""

    def __init__(self, model: nn.Module, guard: Guard) -> None:
        self._model, self._guard = model, guard
        self._names = _argument_names(model)
        self.is_inspected = self.measures_overshoot = True
        self.recorded: Sequence[Tensor] = ()
        self._step = 0  # counted here, for a run that is resumed has others
        self._looks = 0  # steps of these that were looked at
        self._inputs: list[dict[str, Any]] = []
        self._output: dict[str, Any] = {}
        self._graph: dict[str, Any] = {}
        self._foreign: list[weakref.ref[Tensor]] = []
        self._criteria: list[str] = []
        self._implied: dict[str, Any] = {}
        self._labels: Tensor | None = None
        self._layers: dict[str, dict[str, Any]] = {}
        self._after_sigmoid: set[str] = set()  # layers
        self._was_close = False  # whether the overshoot of the last step is wanted
        self._awaits_backward = False
        self._left: Tensor | float | None = None  # norm of the gradients at the beginning of the backward pass
        self._left_in: list[tuple[Tensor, Tensor]] = []  # (parameter, its gradient) then
        self._same: list[Any] = []  # inputs of the last forward pass, weakly
        self._is_same = False
        self._live: Tensor | None = None  # rows of the output that the loss saw
        self._has_changed = False
        self._told = -math.inf  # when the entry of meta.json was asked for last

    # --- forward and backward -----------------------------------------------------------------------------------------

    def on_layer(self, layer: str, inputs: Iterable[Any]) -> None:
        """A layer has run in training: which units that feed it are dead, and whether a sigmoid bounds them."""
        x = next((one for _, one in tensors(inputs) if one.is_floating_point() and one.dim() > 1), None)
        if x is None or not x.numel() or not x.requires_grad:  # features of the data may well never occur
            return
        if criterion.last_operation(x).startswith("Sigmoid"):
            self._after_sigmoid.add(layer)
        share = criterion.zero_column_fraction(x)
        if share is None:
            return
        known = self._layers.setdefault(layer, {"first": share, "since": None})
        known["last"] = share
        known["since"] = (self._step if known["since"] is None else known["since"]) if share >= 0.9 else None
        self._has_changed = True

    def on_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """A training forward pass of the model has ended."""
        named = [*zip(self._names, args, strict=False), *kwargs.items()]
        given = [(name, x) for key, item in named for name, x in tensors(item, key) if x.layout is torch.strided]
        self._look_at_inputs(given)
        o = next((x for _, x in tensors(output) if x.is_floating_point()), None)
        if o is None:
            return
        if not self._graph:
            self._walk(o, [x for _, x in given])
        if self.is_inspected and (found := criterion.output_statistics(o)):
            self._output = {**found, "last_operation": criterion.last_operation(o)}
            self._has_changed = True
        if (
            o.requires_grad
            and not o.is_leaf
            and (self.is_inspected or self.measures_overshoot or self._awaits_backward)
        ):
            kept, step = o.detach(), self._step

            def backward(gradient: Tensor) -> None:
                self._guard("signals", self._on_output_gradient, kept, gradient.detach(), step)

            o.register_hook(backward)

    def _look_at_inputs(self, given: Sequence[tuple[str, Tensor]]) -> None:
        self._is_same = len(given) == len(self._same) and all(
            reference() is x and version == x._version
            for (reference, version), (_, x) in zip(self._same, given, strict=True)
        )
        self._same = [(weakref.ref(x), x._version) for _, x in given]
        floating = [(name, x) for name, x in given if x.is_floating_point()]
        if not self._inputs and floating:
            self._inputs = [criterion.input_statistics(name, x) for name, x in floating]
            self._has_changed = True
        elif not self._is_same and not any(one["non_finite"] for one in self._inputs):
            for name, x in floating:
                if not bool(x.detach().sum().isfinite()) and not bool(x.detach().isfinite().all()):
                    self._inputs = [{**criterion.input_statistics(name, x), "step": self._step}, *self._inputs]
                    self._has_changed = True
                    break

    def _walk(self, o: Tensor, given: Sequence[Tensor]) -> None:
        """Which parameters the output depends on, and which leaves with a gradient are not the model's."""
        own = {id(parameter): name for name, parameter in self._model.named_parameters()}
        inputs = {id(x) for x in given}
        reached: set[str] = set()
        for leaf in leaves(o):
            if id(leaf) in own:
                reached.add(own[id(leaf)])
            elif id(leaf) not in inputs:
                self._foreign.append(weakref.ref(leaf))
        unreached = sorted({*own.values()} - reached)
        self._graph = {
            "has_graph": o.grad_fn is not None,
            "unreached": unreached,
            "foreign_leaves": 0,
            "is_rough": is_low_precision(o),
        }
        self._has_changed = True

    def _on_output_gradient(self, o: Tensor, gradient: Tensor, step: int) -> None:
        """The backward pass begins."""
        if step != self._step:
            return
        with torch.no_grad():
            if self._awaits_backward:
                self._awaits_backward = False
                self._left = self._leftover()
            live = (as_rows(gradient) != 0).any(1)
            if self._live is not None:
                self._is_same &= live.shape == self._live.shape and bool((live == self._live).all())
            self._live = live
            if self.is_inspected:
                name, misfit, labels = criterion.criterion(o, gradient)
                self._criteria.append(name)
                self._output |= {"criterion_misfit": misfit} if name else {}
                if not name and "implied_mse" not in self._implied:
                    self._implied = criterion.implied_target_statistics(o, gradient) | {"implied_step": self._step}
                if labels is not None and (self._labels is None or len(labels) == len(self._labels)):
                    self._labels = labels if self._labels is None else self._labels + labels
                self._has_changed = True

    def _leftover(self) -> Tensor | float:
        gradients = [(tensor, tensor.grad) for tensor in self.recorded]
        self._left_in = [(p, g) for p, g in gradients if g is not None and not g.is_sparse and not g.is_complex()]
        return metrics.frobenius_norm(metrics.norms([g for _, g in self._left_in])) if self._left_in else 0.0

    # --- steps --------------------------------------------------------------------------------------------------------

    def before_step(self, optimizers: Sequence[Optimizer], sample: Sample | None) -> None:
        """Gradients are there, and weights have not moved; tells the sample of the step what to measure."""
        if self._step == 0 and self._foreign:
            held = held_by(*optimizers)
            alive = [leaf for reference in self._foreign if (leaf := reference()) is not None]
            self._graph["foreign_leaves"] = sum(id(leaf) not in held for leaf in alive)
            self._has_changed = True
        if sample is not None:
            # a gradient that was put in the place of the old one, in place of being added to it, is no sum
            is_sum = not self._left_in or any(parameter.grad is old for parameter, old in self._left_in)
            sample.left = self._left if is_sum or self._left is None else 0.0
            sample.repeats = self._was_close and self._is_same
        self._left, self._left_in = None, []

    def after_step(self, *, is_recorded: bool) -> None:
        """The weights have moved. What was seen before a step that is not recorded is not compared with what comes."""
        self._was_close = self._awaits_backward = is_recorded and self.measures_overshoot
        self._step += 1
        if is_recorded:
            self._looks += 1
            self.is_inspected = self._looks in _CHOSEN or self._looks % _EVERY == 0
            self.measures_overshoot = self._looks < _CLOSELY or self._looks % _THEN == 0
        else:
            self._same = []

    # --- results ------------------------------------------------------------------------------------------------------

    def news(self, *, at_once: bool = False) -> dict[str, Any] | None:
        """The entry of meta.json, if there is anything new in it and five seconds have passed since the last one."""
        now = time.monotonic()
        if not self._has_changed or not (at_once or now - self._told >= _SECONDS_BETWEEN_NEWS):
            return None
        self._has_changed, self._told = False, now
        output = {**self._output, **self._implied}
        if self._criteria:
            name = max({*self._criteria}, key=self._criteria.count)
            output |= {"criterion": name, "criterion_share": self._criteria.count(name) / len(self._criteria)}
        if self._labels is not None:
            output["labels"] = self._labels.tolist()
        graph = dict(self._graph)
        if "has_graph" in graph:
            output["has_graph"] = graph.pop("has_graph")
        seen = {"zero_inputs": self._layers, "after_sigmoid": sorted(self._after_sigmoid)}
        return {"inputs": self._inputs, "output": output, **seen, **graph}


def tensors(item: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested tuples, lists and dicts, with their places."""
    if isinstance(item, Tensor):
        yield name or "x", item
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from tensors(value, str(key))
    elif isinstance(item, tuple | list):
        for number, value in enumerate(item):
            yield from tensors(value, f"{name}[{number}]")


def _argument_names(model: nn.Module) -> list[str]:
    """Of the forward pass; numbers where it does not tell."""
    try:
        names = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"argument {number}" for number in range(len(names), _MOST_ARGUMENTS))]


def leaves(o: Tensor) -> Iterator[Tensor]:
    """The leaves of the autograd graph of a tensor."""
    stack: list[Any] = [o.grad_fn]
    seen: set[Any] = set()
    while stack and len(seen) < _MOST_NODES:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        stack += [following for following, _ in node.next_functions]

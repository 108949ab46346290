"""The recorded model and its recording plan, which is made at the first training forward pass, from its inputs.

Parameters that get another name, as by pruning, stay recorded. If a parameter is replaced, the recording of the model
ends; parameters that are added are not recorded.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy

from gatdiag.errors import GatdiagError, InputError, TimeLimitError
from gatdiag.laws import Exclusion, Law, Laws
from gatdiag.laws.find import find_laws_with_structure
from gatdiag.names import join_names
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.neurons import NeuronRecorder
from gatdiag.recorder.settings import Selection, Settings
from gatdiag.recorder.shards import distributed_parameters, layers_with_partial_outputs
from gatdiag.recorder.tape import Tape
from gatdiag.recorder.weights import Weights
from gatdiag.roles import ATTENTION
from gatdiag.structure import Layer, Structure, discover
from gatdiag.structure.deadline import time_limit
from gatdiag.structure.program import Program
from gatdiag.structure.replica import initialized_parameters

# Laws with a larger delta at the first step, relative to its terms, are dropped. The largest of 381 models was 2e-5 in
# float32 and 0.12 in bfloat16; accelerators may come near that with TF32, their default.
_MAX_DELTA, _MAX_DELTA_LOW_PRECISION = 1e-3, 0.3
_SMALLEST = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps  # below, gradients lose digits
_NEGLIGIBLE = 1e-4  # laws with gradients this small relative to the largest may show only rounding errors

DISTRIBUTED = (
    "other processes hold shards of the parameters, as with FSDP or tensor parallelism: what depends on all of a "
    "parameter is not recorded, nor are gradient norms of the model and layers of which a process computes a part"
)

Inputs: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]  # of a forward pass; or a `Program` as the only argument


@dataclass(frozen=True)
class RecordingPlan:
    """The parts of a model that are recorded."""

    structure: Structure  # of the whole model
    layers: tuple[Layer, ...]  # in order
    weights: Weights  # of these layers
    laws: Laws | None = None  # of the whole model; None if they were not searched for or could not be found
    neurons: NeuronRecorder | None = None  # None if no law is recorded
    error: str | None = None  # why there are no laws
    is_distributed: bool = False  # other processes hold parts of some parameters

    @property
    def recorded_laws(self) -> list[Law]:
        """The laws of the recorded layers, in order."""
        return [] if self.neurons is None else self.neurons.recorded

    @property
    def excluded(self) -> tuple[Exclusion, ...]:
        """Parameters without a law, and why."""
        return () if self.laws is None else self.laws.excluded

    def needs_prediction(self, next_record: int | None) -> bool:
        """True if c after a step is to be predicted, given the number of the record that the next step will be."""
        return self.neurons is not None and self.neurons.needs_prediction(next_record)

    @property
    def positions(self) -> dict[str, int]:
        """Name of each recorded layer -> its position."""
        return {layer.name: position for position, layer in enumerate(self.layers)}

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Layer and name of each recorded parameter."""
        return [(layer.name, info.name) for layer in self.layers for info in layer.parameters]


def select_layers(structure: Structure, layer_filter: Callable[[str], bool]) -> tuple[Layer, ...]:
    """The layers whose names pass the filter.

    Raises:
        InputError: There are none.
    """
    layers = tuple(layer for layer in structure if layer_filter(layer.name))
    if not layers:
        names = join_names(layer.name for layer in structure)
        raise InputError(f"No layer is left to record after include= and exclude=. The model's layers are {names}.")
    return layers


def find_static_layers(model: nn.Module, layer_filter: Callable[[str], bool]) -> tuple[Layer, ...]:
    """The layers as far as they are known before a forward pass; empty for a lazy model."""
    if any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        return ()
    return select_layers(discover(model), layer_filter)


def build_plan(model: nn.Module, inputs: Inputs | None, settings: Settings, no_inputs: str) -> RecordingPlan:
    """Discover layers and laws, and copy the initial weights.

    Args:
        model: The model.
        inputs: Of its forward pass, if they are known.
        settings: Which layers and quantities are recorded.
        no_inputs: Why the inputs are not known, if they are not.
    """
    distributed = distributed_parameters(model)
    args, kwargs = inputs or ((), {})
    structure, error = (discover(model), DISTRIBUTED) if distributed else _discover(model, args, kwargs)
    layers = select_layers(structure, settings.layer_filter)
    if distributed:
        partial = layers_with_partial_outputs(model)
        layers = tuple(_without(layer, distributed) for layer in layers if layer.name not in partial)
    parameters = dict(model.named_parameters())
    infos = [info for layer in layers for info in layer.parameters]
    attention = [info.name for info in infos if info.role == ATTENTION]
    weights = Weights({info.name: parameters[info.name] for info in infos}, attention)
    others = initialized_parameters(model).items()
    weights.others = [tensor for name, tensor in others if name not in {*weights.names, *distributed}]
    weights.add_unfrozen()
    plan = RecordingPlan(structure, layers, weights, error=error, is_distributed=bool(distributed))
    if "balance" not in settings.selection.every:
        return plan
    if inputs is None:
        return replace(plan, error=no_inputs)
    return _search_laws(plan, model, inputs, settings.selection)


def _without(layer: Layer, names: Collection[str]) -> Layer:
    return replace(layer, parameters=tuple(info for info in layer.parameters if info.name not in names))


def drop_disproved_laws(
    plan: RecordingPlan, selection: Selection, *, is_low_precision: bool
) -> tuple[RecordingPlan, str | None]:
    """The plan without the laws that the gradients violate, and a message if there are any."""
    laws = plan.laws
    if laws is None or plan.neurons is None:
        return plan, None
    delta, residual = laws.delta().abs().cpu(), laws.residual().cpu()
    size = (delta / residual).nan_to_num(0.0, 0.0)
    is_testable = torch.tensor([law.exact and _has_gradients(law, laws) for law in laws])
    limit = _MAX_DELTA_LOW_PRECISION if is_low_precision else _MAX_DELTA
    is_accurate = (size >= _NEGLIGIBLE * size.max()) & (size >= _SMALLEST)
    violated = is_testable & (residual > limit) & is_accurate & residual.isfinite()
    if not bool(violated.any()):
        return plan, None
    reason = (
        f"delta is up to {float(residual[violated].max()):.1g} of its terms in training: the loss depends on these "
        "parameters in another way than through the traced forward pass (a penalty on weights, a second use of them), "
        "or gradients are changed in the backward pass"
    )
    dropped = [Exclusion(laws[number].name, reason) for number in violated.nonzero().flatten().tolist()]
    kept = [law for law, is_violated in zip(laws, violated.tolist(), strict=True) if not is_violated]
    message = f"{len(dropped)} of {len(laws)} conservation laws are not recorded: {reason}"
    remaining = Laws(kept, laws.parameters, [*laws.excluded, *dropped])
    plan = replace(plan, laws=remaining, neurons=_make_neuron_recorder(plan, remaining, selection))
    return replace(plan, error=plan.error if kept else message), message


def _has_gradients(law: Law, laws: Laws) -> bool:
    """True if all parameters of the law have a gradient."""
    return all(laws.parameters[term.parameter].grad is not None for term in law.terms)


def _discover(model: nn.Module, args: Any, kwargs: Any) -> tuple[Structure, str | None]:
    """The structure in execution order; in module order, with the error, if the model cannot be run."""
    try:
        return discover(model, *args, **kwargs), None
    except Exception as error:  # the user's own code runs in there
        return discover(model), str(error) if isinstance(error, GatdiagError) else f"{type(error).__name__}: {error}"


def _search_laws(plan: RecordingPlan, model: nn.Module, inputs: Inputs, selection: Selection) -> RecordingPlan:
    """The plan with the laws, or with the reason why there are none."""
    if plan.error is not None:
        return plan
    seconds = selection.law_search_seconds
    limit = "no limit" if seconds is None else f"limit {seconds:g} s"

    def announce(elapsed: float) -> None:
        print(f"gatdiag: searching for conservation laws ({elapsed:.0f} s so far, {limit})", file=sys.stderr)  # noqa: T201

    try:
        with time_limit(seconds, announce):
            laws = find_laws_with_structure(plan.structure, model, *inputs)
    except TimeLimitError:
        error = (
            f"the search was stopped after {seconds:g} s (law_search_seconds of gatdiag.watch); gatdiag.find_laws and "
            "gatdiag laws have no limit"
        )
        return replace(plan, error=error)
    except GatdiagError as failure:
        return replace(plan, error=str(failure))
    except Exception as failure:  # the user's own code runs in there; all else can be recorded without laws
        return replace(plan, error=f"the search failed with {type(failure).__name__}: {failure}")
    if len(laws) == 0:
        reasons = "; ".join(map(str, laws.excluded[:3]))
        error = f"the model has no conservation law ({reasons or 'no rescaling of its weights keeps its function'})"
        return replace(plan, laws=laws, error=error)
    return replace(plan, laws=laws, neurons=_make_neuron_recorder(plan, laws, selection))


def _make_neuron_recorder(plan: RecordingPlan, laws: Laws, selection: Selection) -> NeuronRecorder | None:
    names = plan.positions
    wanted = [number for number, law in enumerate(laws) if law.layer in names]
    every, predicts = selection.every["balance"], "predicted_c" in selection.columns
    return NeuronRecorder(laws, wanted, plan.weights, every, predicts=predicts) if wanted else None


class _Binding:
    """The modules and parameters of a model, each with the dict that holds it.

    Replacing a layer, `load_state_dict(assign=True)` and `torch.func.functional_call` put other objects into these
    dicts.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        tables: list[dict[str, Any]] = [table for module in modules for table in (module._modules, module._parameters)]
        entries = [(table, key, value) for table in tables for key, value in table.items()]
        self._table_of: list[dict[str, Any]] = [table for table, _, _ in entries]
        self._keys = [key for _, key, _ in entries]
        self._values = [value for _, _, value in entries]
        self.named = dict(model.named_parameters())

    def is_intact(self) -> bool:
        """True if nothing was replaced or removed; fast (some 30 ns per entry), because every step calls it."""
        return all(map(is_, map(dict.get, self._table_of, self._keys), self._values))


class WatchedModel:
    """The recorded model; makes the plan and keeps it up to date.

    Args:
        model: The model.
        settings: What is recorded.
        guard: Contains failures.
        on_plan: Called with the plan when it has been made; returns whether it can be recorded.
        on_plan_change: Called when the plan has changed.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        guard: Guard,
        on_plan: Callable[[RecordingPlan], bool],
        on_plan_change: Callable[[], None],
    ) -> None:
        self.plan: RecordingPlan | None = None
        self._model, self._settings, self._guard = model, settings, guard
        self._on_plan, self._on_plan_change = on_plan, on_plan_change
        self._binding = _Binding(model)
        self.has_planned = False  # even if it failed
        self._last_inputs: Inputs | None = None  # of a pass that may be training
        self.tape = Tape(model, self._on_program)

    def release(self) -> None:
        """Drop all references to the plan and to inputs: the recording has ended."""
        self.plan = self._last_inputs = None
        self.has_planned = True

    def on_forward(self, inputs: Inputs) -> None:
        """Called after the model's forward pass."""
        if self.has_planned:
            return
        if self._model.training and self._binding.is_intact() and not self.tape.is_recording:
            self._make_plan(inputs)
        else:  # maybe an evaluation with gradients enabled, or functional_call; the next optimizer step decides
            self._last_inputs = inputs

    def on_step(self, step: int) -> None:
        """Called before a step."""
        if not self.has_planned:
            self._make_plan(self._last_inputs)
        if not self._binding.is_intact():
            self._guard("all measurements", self._rebind, step)

    def _on_program(self, program: Program) -> None:
        """Called before the backward pass if training has called parts of the model instead of the model."""
        if not self.has_planned and self._binding.is_intact():
            self._make_plan(((program,), {}))

    def _make_plan(self, inputs: Inputs | None) -> None:
        self._last_inputs, self.has_planned = None, True
        self.tape.stop()
        self._binding = _Binding(self._model)
        with saved_tensors_hooks(lambda x: x, lambda x: x):  # checkpointing counts the tensors that the pass saves
            plan: RecordingPlan | None = self._guard(
                "all measurements", build_plan, self._model, inputs, self._settings, self._explain_missing_inputs()
            )
        if plan is None or not self._on_plan(plan):
            return
        self.plan = plan
        if plan.error is not None:
            self._guard.warn("laws", f"no conservation laws are recorded: {plan.error}")

    def _explain_missing_inputs(self) -> str:
        parts = list(self.tape.called)
        if not parts:
            return (
                "no training forward pass of the model was seen before its first step: call the model itself, as in "
                "model(x, edge_index), so that its inputs are known"
            )
        return (
            f"training calls {join_names(parts)} instead of the model, and what it computes with them could not be "
            f"traced: {self.tape.reason or 'no backward pass depends on it'}; call the model itself, as in "
            "model(x, edge_index), so that its inputs are known"
        )

    def check_laws(self, *, is_low_precision: bool) -> None:
        """Called after each backward pass of the first step: drop the laws that its gradients violate."""
        if self.plan is not None:
            selection = self._settings.selection
            self.plan, message = drop_disproved_laws(self.plan, selection, is_low_precision=is_low_precision)
            if message is not None:
                self._guard.warn("laws", message)
                self._on_plan_change()

    def _rebind(self, step: int) -> None:
        """Modules or parameters were replaced or removed."""
        before, self._binding = self._binding, _Binding(self._model)
        present = {id(parameter) for parameter in self._model.parameters()}
        held = set() if self.plan is None else {id(tensor) for tensor in self.plan.weights.flat.tensors} - present
        gone = [name for name, parameter in before.named.items() if id(parameter) in held]
        if gone:
            self.plan = None
            text = f"recording of the model stopped before step {step} because {gone[0]} was replaced"
            self._guard.warn("replaced parameters", f"{text}; call gatdiag.watch again")
        self._on_plan_change()

"""The model that is recorded: what is known of it, settled at its first training forward, from its own inputs.

Parameters that get other names, as by pruning, are followed; where they are replaced, the recording of the model ends;
those that are added are not recorded, and one warning says so.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gatdiag.errors import GatdiagError, InputError, TimeLimitError
from gatdiag.laws import Exclusion, Law, Laws
from gatdiag.laws.find import find_laws_with_structure
from gatdiag.laws.prediction import held_by
from gatdiag.names import join_names
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.neurons import NeuronRecorder
from gatdiag.recorder.settings import Selection, Settings
from gatdiag.recorder.tape import Tape
from gatdiag.recorder.weights import Weights
from gatdiag.roles import ATTENTION
from gatdiag.structure import Layer, Structure, discover
from gatdiag.structure.deadline import time_limit
from gatdiag.structure.program import Program

# How far from zero delta may be at the first step, as a share of what cancels in it. The largest of 381 models was 2e-5
# in float32, and 0.12 in bfloat16, to which accelerators come near unasked (TF32).
_DISPROVED, _DISPROVED_ROUGHLY = 1e-3, 0.3
_FAINT = 1e-4  # laws whose gradients are this small beside the largest may show rounding alone

Inputs: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]  # of a forward pass; or a `Program` in their place


@dataclass(frozen=True)
class RecordingPlan:
    """The parts of a model that are recorded."""

    structure: Structure  # of the whole model
    layers: tuple[Layer, ...]  # those that are recorded, in order
    weights: Weights  # their parameters
    laws: Laws | None = None  # all laws of the model; None where they were not looked for, or could not be found
    neurons: NeuronRecorder | None = None  # the laws of these layers, where any are recorded
    error: str | None = None  # why there are no laws

    @property
    def recorded_laws(self) -> list[Law]:
        """The laws that are recorded, in order."""
        return [] if self.neurons is None else self.neurons.recorded

    @property
    def excluded(self) -> tuple[Exclusion, ...]:
        """Parameters without a law, and why."""
        return () if self.laws is None else self.laws.excluded

    def foresees(self, next_record: int | None) -> bool:
        """True if what a step makes of c is wanted, where the step after it will be this record."""
        return self.neurons is not None and self.neurons.foresees(next_record)

    @property
    def positions(self) -> dict[str, int]:
        """Layer -> its position among those that are recorded."""
        return {layer.name: position for position, layer in enumerate(self.layers)}

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Layer and name of each recorded parameter."""
        return [(layer.name, info.name) for layer in self.layers for info in layer.parameters]


def recorded_layers(structure: Structure, keeps: Callable[[str], bool]) -> tuple[Layer, ...]:
    """The layers that are recorded."""
    layers = tuple(layer for layer in structure if keeps(layer.name))
    if not layers:
        names = join_names(layer.name for layer in structure)
        raise InputError(f"No layer is left to record after include= and exclude=. The model's layers are {names}.")
    return layers


def static_layers(model: nn.Module, keeps: Callable[[str], bool]) -> tuple[Layer, ...]:
    """The layers as far as they are known before a forward pass; none of a model that is lazy."""
    if any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        return ()
    return recorded_layers(discover(model), keeps)


def build_plan(model: nn.Module, inputs: Inputs | None, settings: Settings, unseen: str) -> RecordingPlan:
    """Discover layers and laws, and copy the initial weights."""
    args, kwargs = inputs or ((), {})
    structure, error = _structure(model, args, kwargs)
    layers = recorded_layers(structure, settings.keeps)
    parameters = dict(model.named_parameters())
    infos = [info for layer in layers for info in layer.parameters]
    attention = [info.name for info in infos if info.role == ATTENTION]
    weights = Weights({info.name: parameters[info.name] for info in infos}, attention)
    weights.take_also(tensor for tensor in model.parameters() if tensor.requires_grad)
    plan = RecordingPlan(structure, layers, weights, error=error)
    if "balance" not in settings.selection.every:
        return plan
    if inputs is None:
        return replace(plan, error=unseen)
    return _with_laws(plan, model, inputs, settings.selection)


def add_laws(plan: RecordingPlan, model: nn.Module, inputs: Inputs, settings: Settings) -> RecordingPlan:
    """The plan with the laws, of a model whose inputs were not known when all else was settled."""
    structure, error = _structure(model, *inputs)
    return _with_laws(replace(plan, structure=structure, error=error), model, inputs, settings.selection)


def without_disproved(plan: RecordingPlan, selection: Selection, *, is_rough: bool) -> tuple[RecordingPlan, str | None]:
    """The plan without the laws that the gradients of training disobey, and what to say of these, if there are any."""
    laws = plan.laws
    if laws is None or plan.neurons is None:
        return plan, None
    delta, residual = laws.delta().abs().cpu(), laws.residual().cpu()
    size = (delta / residual).nan_to_num(0.0, 0.0)
    judged = torch.tensor([law.exact and _has_gradients(law, laws) for law in laws])
    limit = _DISPROVED_ROUGHLY if is_rough else _DISPROVED
    false = judged & (residual > limit) & (size >= _FAINT * size.max()) & residual.isfinite()
    if not bool(false.any()):
        return plan, None
    reason = (
        f"delta is up to {float(residual[false].max()):.1g} of its terms in training: the loss depends on these "
        "parameters in another way than by the forward pass that was traced (a penalty on weights, a second use of "
        "them), or gradients are changed in the backward pass"
    )
    dropped = [Exclusion(laws[number].name, reason) for number in false.nonzero().flatten().tolist()]
    kept = [law for law, is_false in zip(laws, false.tolist(), strict=True) if not is_false]
    message = f"{len(dropped)} of {len(laws)} conservation laws are not recorded: {reason}"
    remaining = Laws(kept, laws.parameters, [*laws.excluded, *dropped])
    plan = replace(plan, laws=remaining, neurons=_neurons(plan, remaining, selection))
    return replace(plan, error=plan.error if kept else message), message


def _has_gradients(law: Law, laws: Laws) -> bool:
    """True if all of its parameters took part in the backward passes so far."""
    return all(laws.parameters[term.parameter].grad is not None for term in law.terms)


def _structure(model: nn.Module, args: Any, kwargs: Any) -> tuple[Structure, str | None]:
    """In execution order if the model can be run for it, else in module order, with what was wrong."""
    try:
        return discover(model, *args, **kwargs), None
    except Exception as error:  # the user's own code runs in there
        return discover(model), str(error) if isinstance(error, GatdiagError) else f"{type(error).__name__}: {error}"


def _with_laws(plan: RecordingPlan, model: nn.Module, inputs: Inputs, selection: Selection) -> RecordingPlan:
    """The plan with the laws, or with the reason why there are none."""
    if plan.error is not None:
        return plan
    seconds = selection.law_search_seconds
    bound = "no limit" if seconds is None else f"limit {seconds:g} s"

    def announce(elapsed: float) -> None:
        print(f"gatdiag: looking for conservation laws ({elapsed:.0f} s so far, {bound})", file=sys.stderr)  # noqa: T201

    try:
        with time_limit(seconds, announce):
            laws = find_laws_with_structure(plan.structure, model, *inputs)
    except TimeLimitError:
        error = (
            f"the search for them was stopped after {seconds:g} s, and training goes on. Give gatdiag.watch more time "
            "(law_search_seconds=..., None for no limit), or call gatdiag.find_laws(model, ...), which has no limit"
        )
        return replace(plan, error=error)
    except GatdiagError as failure:
        return replace(plan, error=str(failure))
    except Exception as failure:  # the user's own code runs in there; all else can be recorded without laws
        return replace(plan, error=f"looking for them failed with {type(failure).__name__}: {failure}")
    if len(laws) == 0:
        reasons = "; ".join(map(str, laws.excluded[:3]))
        error = f"the model has no conservation law ({reasons or 'no rescaling of its weights keeps its function'})"
        return replace(plan, laws=laws, error=error)
    return replace(plan, laws=laws, neurons=_neurons(plan, laws, selection))


def _neurons(plan: RecordingPlan, laws: Laws, selection: Selection) -> NeuronRecorder | None:
    names = plan.positions
    wanted = [number for number, law in enumerate(laws) if law.layer in names]
    every, predicts = selection.every["balance"], "predicted_c" in selection.columns
    return NeuronRecorder(laws, wanted, plan.weights, every, predicts=predicts) if wanted else None


class _Binding:
    """The modules and parameters of a model, each with the place that holds it.

    A layer that is replaced, `load_state_dict(assign=True)` and `torch.func.functional_call` put other objects into
    these places.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        self._tables: list[dict[str, Any]] = [
            place for module in modules for place in (module._modules, module._parameters)
        ]
        held = [(place, key, value) for place in self._tables for key, value in place.items()]
        self._places: list[dict[str, Any]] = [place for place, _, _ in held]
        self._keys = [key for _, key, _ in held]
        self._held = [value for _, _, value in held]
        self.named = dict(model.named_parameters())

    def holds(self) -> bool:
        """True if each is where it was; a few dozen nanoseconds for each, for every step asks."""
        return all(map(is_, map(dict.get, self._places, self._keys), self._held))

    def is_complete(self) -> bool:
        """True if there are no others."""
        return sum(map(len, self._tables)) == len(self._held)


class WatchedModel:
    """The model that is recorded, from its first training forward on."""

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        guard: Guard,
        begin: Callable[[RecordingPlan], bool],
        follow: Callable[[], None],
    ) -> None:
        self.plan: RecordingPlan | None = None
        self._model, self._settings, self._guard = model, settings, guard
        self._begin, self._follow = begin, follow
        self._binding = _Binding(model)
        self._is_settled = False  # whether the plan was made, or failed
        self.wants_inputs = True  # whether the model's inputs are needed, and were not seen yet
        self._candidate: Inputs | None = None
        self.tape = Tape(model, self._on_program)

    def forget(self) -> None:
        """Recording has ended."""
        self.plan = self._candidate = None
        self.wants_inputs = False

    def on_forward(self, inputs: Inputs) -> None:
        """The model's forward pass has ended."""
        if not self.wants_inputs:
            return
        if self._model.training and self._binding.holds() and not self.tape.is_rolling:
            self._settle(inputs)
        else:  # perhaps an evaluation with gradients enabled, or with parameters lent for this call; a step will tell
            self._candidate = inputs

    def on_step(self, step: int, optimizers: Sequence[Optimizer]) -> None:
        """A step is about to be made."""
        if self.tape.is_rolling and (program := self.tape.stop()) is not None:
            self._candidate = (program,), {}
        if not self._is_settled or (self.wants_inputs and self._candidate is not None):
            self._settle(self._candidate)
        if not (self._binding.holds() and self._binding.is_complete()):
            self._guard("all measurements", self._bind_anew, step, optimizers)

    def _on_program(self, program: Program) -> None:
        """The backward pass is about to begin, after training has called parts of the model by themselves."""
        if self.wants_inputs and self._binding.holds():
            self._settle(((program,), {}))

    def _settle(self, inputs: Inputs | None) -> None:
        """Layers in order of execution, laws, initial weights: once, at the first training forward."""
        self._candidate = None
        self.wants_inputs = False
        if inputs is not None:
            self.tape.stop()
        if self._is_settled:
            self.plan = self._guard("laws", add_laws, self.plan, self._model, inputs, self._settings) or self.plan
            self._follow()
            return
        self._is_settled = True
        self._binding = _Binding(self._model)
        plan: RecordingPlan | None = self._guard(
            "all measurements", build_plan, self._model, inputs, self._settings, self._unseen()
        )
        if plan is None or not self._begin(plan):
            return
        self.plan = plan
        self.wants_inputs = inputs is None and "balance" in self._settings.selection.every
        if not self.wants_inputs:
            self.warn_of_missing_laws()

    def _unseen(self) -> str:
        """Why no inputs are known, if none are."""
        parts = list(self.tape.called)
        if not parts:
            return (
                "no training forward of the model itself was seen: its forward must be called through the model, as in "
                "model(x, edge_index), for its inputs to be known"
            )
        return (
            f"training calls {join_names(parts)} and not the model's forward pass, and what it computes with "
            f"them could not be followed: {self.tape.reason or 'no backward pass depends on it'}; call the model "
            "itself, as in model(x, edge_index), for its inputs to be known"
        )

    def check_laws(self, *, is_rough: bool) -> None:
        """A backward pass of the first step has ended: laws that its gradients disobey are none of this training."""
        if self.plan is not None:
            self.plan, message = without_disproved(self.plan, self._settings.selection, is_rough=is_rough)
            if message is not None:
                self._guard.warn("laws", message)
                self._follow()

    def warn_of_missing_laws(self) -> None:
        """Say why there are no laws, if there are none."""
        if self.plan is not None and self.plan.error is not None:
            self._guard.warn("laws", f"no conservation laws are recorded: {self.plan.error}")

    def _bind_anew(self, step: int, optimizers: Sequence[Optimizer]) -> None:
        """Modules or parameters were replaced: nothing is known of new parameters but their names."""
        before, self._binding = self._binding, _Binding(self._model)
        present = {id(parameter) for parameter in self._model.parameters()}
        held = set() if self.plan is None else {id(tensor) for tensor in self.plan.weights.flat.tensors} - present
        gone = [name for name, parameter in before.named.items() if id(parameter) in held]
        if gone:
            self.plan = None
            text = f"nothing is recorded of the model from step {step} on, since {gone[0]} was replaced; watch it anew"
            if optimizers and held_by(*optimizers).keys().isdisjoint(present):
                text += (
                    f", with a new optimizer: that of step {step} moves parameters that the model no longer has, and "
                    "has to be made from model.parameters()"
                )
            self._guard.warn("replaced parameters", text)
        known = {id(parameter) for parameter in before.named.values()}
        added = [name for name, parameter in self._binding.named.items() if id(parameter) not in known]
        if added and self.plan is not None:
            text = f"nothing is recorded of {join_names(added)}, added to the model before step {step}; watch it anew"
            self._guard.warn("added parameters", text)
        self._follow()

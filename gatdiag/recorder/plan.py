"""What of a model is recorded: decided when its first step is about to be made, from the passes that were seen by then.

Parameters that get another name, as by pruning, stay recorded. If a parameter is replaced, the recording of the model
ends; parameters that are added are not recorded.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gatdiag.errors import GatdiagError, InputError, TimeLimitError
from gatdiag.laws import Exclusion, Law, Laws
from gatdiag.laws.live import ForwardTrace
from gatdiag.names import join_names
from gatdiag.recorder.hooks.modules import has_compiled
from gatdiag.recorder.measure.laws import LawMeasurer
from gatdiag.recorder.measure.parameters import ParameterMeasurer
from gatdiag.recorder.settings import Selection, Settings
from gatdiag.recorder.shards import distributed_parameters, layers_with_partial_outputs
from gatdiag.roles import ATTENTION
from gatdiag.structure import Layer, Structure, discover
from gatdiag.structure.deadline import time_limit
from gatdiag.structure.discovery import discover_in_order
from gatdiag.structure.modules import attributes_of, modules_of, named_buffers, named_parameters
from gatdiag.structure.replica import initialized_parameters

# Laws with a larger delta at the first step, relative to its terms, are dropped. The largest of 381 models was 2e-5 in
# float32 and 0.12 in bfloat16; accelerators may come near that with TF32, their default.
_MAX_DELTA: Final = 1e-3
_MAX_DELTA_LOW_PRECISION: Final = 0.3
_SMALLEST: Final = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps  # below, gradients lose digits
_MAX_SEARCH_SECONDS: Final = 20.0  # of computing time, with that of the trace
_NEGLIGIBLE: Final = 1e-4  # laws with gradients this small relative to the largest may show only rounding errors
_DISTRIBUTED: Final = (
    "other processes hold shards of the parameters, as with FSDP or tensor parallelism: what depends on all of a "
    "parameter is not recorded, nor are gradient norms of the model and layers of which a process computes a part"
)
_COMPILED: Final = "laws of compiled code can be passed: watch(..., laws=gatdiag.find_laws(model, x, ...))"


@dataclass(frozen=True)
class RecordingPlan:
    """The parts of a model that are recorded.

    Attributes:
        structure: Of the whole model.
        layers: The recorded ones, in order.
        parameters: Measures the parameters of these layers.
        laws: Of the whole model; None if they are not recorded.
        law_measurer: Measures those of the recorded layers; None if there are none.
        error: Why there are no laws.
        can_be_passed: There may be laws that the trace did not see, and that `find_laws` finds.
        is_distributed: Other processes hold parts of some parameters.
    """

    structure: Structure
    layers: tuple[Layer, ...]
    parameters: ParameterMeasurer
    laws: Laws | None = None
    law_measurer: LawMeasurer | None = None
    error: str | None = None
    can_be_passed: bool = False
    is_distributed: bool = False

    @property
    def recorded_laws(self) -> list[Law]:
        """The laws of the recorded layers, in order."""
        return [] if self.law_measurer is None else self.law_measurer.recorded

    @property
    def excluded(self) -> tuple[Exclusion, ...]:
        """Parameters without a law, and why."""
        return () if self.laws is None else self.laws.excluded

    def needs_prediction(self, next_record: int | None) -> bool:
        """True if c after a step is to be predicted, given the number of the record that the next step will be."""
        return self.law_measurer is not None and self.law_measurer.needs_prediction(next_record)

    @property
    def positions(self) -> dict[str, int]:
        """Name of each recorded layer -> its position."""
        return {layer.name: position for position, layer in enumerate(self.layers)}

    @property
    def parameter_names(self) -> list[tuple[str, str]]:
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
    if any(is_lazy(tensor) for _, tensor in (*named_parameters(model), *named_buffers(model))):
        return ()
    return select_layers(discover(model), layer_filter)


def make_plan(
    model: nn.Module,
    trace: ForwardTrace | None,
    settings: Settings,
    gradients: Mapping[int, Tensor],
    *,
    is_low_precision: bool,
) -> tuple[RecordingPlan, str | None]:
    """The plan, and a message if laws are not recorded that were expected.

    Args:
        model: Before its first step.
        trace: Of its forward passes so far; None if there were none.
        settings: Which layers and quantities are recorded.
        gradients: id of a parameter -> its gradient after the backward pass, before it can have been clipped.
        is_low_precision: Whether gradients may have been computed in less than single precision.
    """
    distributed = distributed_parameters(model)
    structure = discover_in_order(model, trace.order) if trace is not None and trace.order else discover(model)
    layers = select_layers(structure, settings.layer_filter)
    if distributed:
        partial = layers_with_partial_outputs(model)
        layers = tuple(_without(layer, distributed) for layer in layers if layer.name not in partial)
    tensors = dict(named_parameters(model))
    infos = [info for layer in layers for info in layer.parameters]
    attention = frozenset(info.name for info in infos if info.role == ATTENTION)
    parameters = ParameterMeasurer({info.name: tensors[info.name] for info in infos}, attention)
    every, known = initialized_parameters(model).items(), {*parameters.names, *distributed}
    parameters.others = [tensor for name, tensor in every if name not in known]
    parameters.add_unfrozen()
    plan = RecordingPlan(structure, layers, parameters, is_distributed=bool(distributed))
    if distributed:
        return replace(plan, error=_DISTRIBUTED), _DISTRIBUTED
    if "balance" not in settings.selection.every:
        return plan, None
    laws, error = _find_laws(structure, trace, settings)
    plan = replace(plan, can_be_passed=settings.laws is None and trace is not None and _has_missed(trace))
    plan = _with_laws(plan, laws, settings.selection, error, is_low_precision=is_low_precision)
    if error is not None:
        return plan, f"no conservation laws are recorded: {error}"
    return _drop_disproved_laws(plan, settings.selection, gradients, is_low_precision=is_low_precision)


def _without(layer: Layer, names: Collection[str]) -> Layer:
    return replace(layer, parameters=tuple(info for info in layer.parameters if info.name not in names))


def _find_laws(structure: Structure, trace: ForwardTrace | None, settings: Settings) -> tuple[Laws | None, str | None]:
    """The laws, or why there are none."""
    laws = settings.laws
    if laws is None:
        if trace is None or not trace.order:
            return None, (
                "no training forward pass of the model, or of its parts, was seen before its first step: call modules "
                f"as in model(x, edge_index); {_COMPILED}"
            )
        try:
            with time_limit(_MAX_SEARCH_SECONDS - trace.seconds, _announce):
                laws = trace.find_laws(structure)
        except TimeLimitError:
            return None, (
                f"the search was stopped after {_MAX_SEARCH_SECONDS:g} s; gatdiag.find_laws has no limit, and what it "
                "finds can be passed: watch(..., laws=gatdiag.find_laws(model, x, ...))"
            )
        except GatdiagError as failure:
            return None, str(failure)
        except Exception as failure:  # all else can be recorded without laws
            return None, f"the search failed with {type(failure).__name__}: {failure}"
    if len(laws) == 0:
        reasons = "; ".join(map(str, laws.excluded[:3])) or "no rescaling of its weights keeps its function"
        hint = f"; {_COMPILED}" if trace is not None and not trace.is_stopped and _has_missed(trace) else ""
        return laws, f"the model has no conservation law ({reasons}){hint}"
    return laws, None


def _has_missed(trace: ForwardTrace) -> bool:
    """Whether a trace has missed a part of the model: it was compiled, or took too long."""
    return trace.is_stopped or (trace.has_unseen and has_compiled())


def _announce(elapsed: float) -> None:
    limit = f"limit {_MAX_SEARCH_SECONDS:g} s"
    print(f"gatdiag: searching for conservation laws ({elapsed:.0f} s so far, {limit})", file=sys.stderr)  # noqa: T201


def _with_laws(
    plan: RecordingPlan, laws: Laws | None, selection: Selection, error: str | None, *, is_low_precision: bool
) -> RecordingPlan:
    measurer = None
    if laws is not None:
        names = plan.positions
        wanted = [number for number, law in enumerate(laws) if law.layer in names]
        every, predicts = selection.every["balance"], "predicted_c" in selection.columns
        options = {"predicts": predicts, "is_low_precision": is_low_precision}
        measurer = LawMeasurer(laws, wanted, plan.parameters, every, **options) if wanted else None
    return replace(plan, laws=laws, law_measurer=measurer, error=error)


def _drop_disproved_laws(
    plan: RecordingPlan, selection: Selection, gradients: Mapping[int, Tensor], *, is_low_precision: bool
) -> tuple[RecordingPlan, str | None]:
    """The plan without the laws that the gradients violate, and a message if there are any."""
    laws = plan.laws
    if laws is None or plan.law_measurer is None:
        return plan, None
    known = {name: gradients[id(p)].view(p.shape) for name, p in laws.parameters.items() if id(p) in gradients}
    delta, residual = laws.delta(known).abs().cpu(), laws.residual(known).cpu()
    size = (delta / residual).nan_to_num(0.0, 0.0)
    is_testable = torch.tensor([law.exact and all(term.parameter in known for term in law.terms) for law in laws])
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
    error = None if kept else message
    return _with_laws(plan, remaining, selection, error, is_low_precision=is_low_precision), message


class Binding:
    """The modules and parameters of a model, each with the dict that holds it.

    Replacing a layer, `load_state_dict(assign=True)` and `torch.func.functional_call` put other objects into these
    dicts.

    Attributes:
        named: Name -> parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [module for module in modules_of(model) if not isinstance(module, torch.jit.ScriptModule)]
        of_modules = map(attributes_of, modules)
        tables: list[dict[str, Any]] = [own[table] for own in of_modules for table in ("_modules", "_parameters")]
        entries = [(table, key, value) for table in tables for key, value in table.items()]
        self._table_of: list[dict[str, Any]] = [table for table, _, _ in entries]
        self._keys = [key for _, key, _ in entries]
        self._values = [value for _, _, value in entries]
        self.named = dict(named_parameters(model))

    def is_intact(self) -> bool:
        """True if nothing was replaced or removed; fast (some 30 ns per entry), because every step calls it."""
        return all(map(is_, map(dict.get, self._table_of, self._keys), self._values))


def first_replaced(before: Binding, model: nn.Module, recorded: Sequence[Tensor]) -> str | None:
    """The name of a recorded parameter that the model no longer holds; None if it holds all."""
    present = {id(parameter) for _, parameter in named_parameters(model)}
    held = {id(tensor) for tensor in recorded} - present
    return next((name for name, parameter in before.named.items() if id(parameter) in held), None)

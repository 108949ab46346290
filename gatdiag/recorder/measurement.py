"""What is measured at one step -> rows of the tables `layers`, `parameters` and `neurons`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.recorder import rows
from gatdiag.recorder.groups import Selection
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.outbox import Columns, Measured
from gatdiag.recorder.passes import Pass
from gatdiag.recorder.plan import Plan

_SCALED = ("output_gradient_norm", "gradient_mu")
_SCALED_SQUARE = ("gradient_dirichlet_energy",)


@dataclass
class StepMeasurement:
    """The measurement of one step, from its gradients to the moved weights.

    Attributes:
        step: The step.
        record: Number of the record.
        parameters: Columns of the table `parameters` so far.
        layers: Columns of the table `layers`.
        neurons: Columns of the table `neurons`.
        gradient_norm: Of all recorded parameters together.
        relative_gradients: Relative gradient norm of each.
        is_piecewise: Whether the step is made inside the backward pass, where each optimizer moves its weights as soon
            as their gradients are there: all of these never exist together.
    """

    step: int
    record: int
    parameters: Columns = field(default_factory=dict)
    layers: Columns = field(default_factory=dict)
    neurons: Columns = field(default_factory=dict)
    gradient_norm: Tensor | None = None
    relative_gradients: Tensor | None = None
    is_piecewise: bool = False
    _norms: Tensor | None = None  # of weights, and of gradients, a parameter each
    _gradients: Tensor | None = None
    _has_laws: bool = False

    def measure(self, plan: Plan, selection: Selection, guard: Guard, unscale: Any) -> None:
        """Weights and gradients, before the weights move."""
        weights = plan.weights
        measured: Columns | None = guard("norms of parameters", weights.before, unscale)
        if measured is None:
            return
        present = weights.has_gradient()
        self._norms, self._gradients = measured["norm"], measured["gradient_norm"]
        self.gradient_norm = torch.linalg.vector_norm(self._gradients)
        self.relative_gradients = measured["relative_gradient_norm"]
        if selection.due("health", self.record):
            measured["non_finite"] = weights.non_finite(measured["norm"], gradient=False)
            counts = weights.non_finite(measured["gradient_norm"], gradient=True)
            measured["gradient_non_finite"] = _partly(counts, present)
        measurable = weights.is_measurable
        for column in ("gradient_norm", "relative_gradient_norm"):
            measured[column] = _partly(measured[column], present & measurable)
        for group, what, function in (
            ("changes", "fractions of changed weights", weights.changes),
            ("quantiles", "quantiles of changes", weights.quantiles),
            ("spectral_norms", "spectral norms", weights.spectral_norms),
        ):
            if selection.due(group, self.record):
                measured |= guard(what, function) or {}
        if "spectral_norm" in measured:
            measured["spectral_norm"] = _partly(measured["spectral_norm"], weights.is_matrix)
        self.parameters = {
            name: value if isinstance(value, Measured) else _partly(value, measurable)
            for name, value in measured.items()
            if name in selection.columns
        }
        self.parameters["parameter"] = np.arange(len(weights.names), dtype=np.int32)

    def measure_joined(self, plan: Plan, guard: Guard, optimizer: Optimizer, unscale: Any) -> None:
        """The gradients of an optimizer that joins the step, which may be others than when it began."""
        if plan.balance is not None and not self.is_piecewise:
            guard("delta and c", plan.balance.join, optimizer, unscale)
        if self._norms is None or self._gradients is None:
            return  # measuring failed when the step began
        weights = plan.weights
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        norms = guard("norms of gradients", weights.gradient_norms, held)
        if norms is None:
            return
        here = np.array([id(tensor) in held and tensor.grad is not None for tensor in weights.tensors])
        here &= weights.is_measurable
        norms = norms if unscale is None else norms * unscale
        found = {"gradient_norm": norms, "relative_gradient_norm": norms / self._norms}
        found["gradient_non_finite"] = weights.non_finite(norms, gradient=True)
        for name in found.keys() & self.parameters.keys():
            self.parameters[name] = _joined(self.parameters[name], found[name], here)
        self._gradients = _joined(self._gradients, norms, here)
        self.relative_gradients = _joined(self.relative_gradients, found["relative_gradient_norm"], here)
        self.gradient_norm = torch.linalg.vector_norm(self._gradients)

    def measure_laws(
        self,
        plan: Plan,
        selection: Selection,
        guard: Guard,
        optimizers: Sequence[Optimizer],
        unscale: Any,
        next_record: int | None,
    ) -> None:
        """delta and c, and what c must become if the next step is recorded; `finish_laws` makes the rows."""
        balance = plan.balance
        if balance is None:
            return
        is_due = self.record >= 0 and self.record % plan.laws_every == 0
        foresee = next_record is not None and next_record % plan.laws_every == 0 and "predicted_c" in selection.columns
        foresee &= not self.is_piecewise
        if is_due or foresee:
            self._has_laws = is_due
            guard("delta and c", balance.measure, self.step, optimizers, unscale, foresee=foresee)

    def finish_laws(self, plan: Plan, selection: Selection, guard: Guard) -> None:
        """The rows of the table `neurons`, of a step in which all optimizers have taken part that do."""
        if plan.balance is None:
            return
        measured: Columns = guard("delta and c", plan.balance.end) or {}
        if self._has_laws and measured:
            lost = {"delta"} if self.is_piecewise else set()
            self.neurons = {name: value for name, value in measured.items() if name in selection.columns - lost}
            self.neurons["law"] = np.arange(len(plan.balance.wanted), dtype=np.int32)

    def close(self, plan: Plan, selection: Selection) -> None:
        """How far the weights have moved; nothing new if that was measured."""
        moved = plan.weights.after()
        measurable = plan.weights.is_measurable
        self.parameters |= {
            name: _partly(value, measurable) for name, value in moved.items() if name in selection.columns
        }

    def relative_gradients_of_layers(self, plan: Plan) -> tuple[float, ...]:
        """The largest among each recorded layer's feature weights, or else of all it has; NaN where there is none.

        Biases are zero at first, and any gradient is infinite relative to that: what is finite goes before.
        """
        if self.relative_gradients is None:
            return ()
        values = iter(self.relative_gradients.tolist())
        found = []
        for layer in plan.layers:
            of = [(info.role == "feature weight", next(values)) for info in layer.parameters]
            known = [(math.isfinite(value), is_weight, value) for is_weight, value in of if not math.isnan(value)]
            found.append(max(known, default=(False, False, math.nan))[-1])
        return tuple(found)

    def add_pass(self, seen: Pass, positions: dict[str, int], selection: Selection, unscale: Any) -> None:
        """The rows of the layers that ran."""
        names = [name for name in positions if name in seen.numbers]
        if not names:
            return
        columns: Columns = {}
        for found, group in ((seen.outputs, rows.COLUMNS), (seen.gradients, rows.GRADIENT_COLUMNS)):
            measured = [found[name] for name in names if name in found]
            if measured:
                table = _spread(rows.finished(measured), np.array([name in found for name in names]))
                columns |= {column: _partly(table[0][:, at], table[1]) for at, column in enumerate(group)}
        for column in dict.fromkeys(column for name in names for column in seen.others.get(name, ())):
            values = [seen.others[name][column] for name in names if column in seen.others.get(name, ())]
            present = np.array([column in seen.others.get(name, ()) for name in names])
            columns[column] = _partly(*_spread(torch.stack(values).double(), present))
        if unscale is not None:
            _unscale(columns, unscale)
        self.layers = {name: value for name, value in columns.items() if name in selection.columns}
        self.layers["layer"] = np.array([positions[name] for name in names], dtype=np.int32)


def _spread(values: Tensor, present: np.ndarray[Any, Any]) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """One row a layer, zeros where a layer has none; and which layers have one."""
    if bool(present.all()):
        return values, present
    spread = values.new_zeros(len(present), *values.shape[1:])
    spread[torch.from_numpy(present).to(values.device)] = values
    return spread, present


def _joined(earlier: Any, later: Tensor, here: np.ndarray[Any, Any]) -> Any:
    """The later values where they are, the earlier ones elsewhere."""
    if isinstance(earlier, Measured):
        return Measured(_joined(earlier.values, later, here), earlier.where | here)
    return torch.where(torch.from_numpy(here).to(later.device), later, earlier)


def _partly(values: Any, where: np.ndarray[Any, Any]) -> Any:
    return values if bool(where.all()) else Measured(values, where)


def _unscale(columns: Columns, factor: Any) -> None:
    for names, scale in ((_SCALED, factor), (_SCALED_SQUARE, factor * factor)):
        for name in names:
            column = columns.get(name)
            if isinstance(column, Measured):
                columns[name] = Measured(column.values * scale, column.where)
            elif column is not None:
                columns[name] = column * scale

"""What is measured at one step -> rows of the tables `layers`, `parameters` and `neurons`."""

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
    """

    step: int
    record: int
    parameters: Columns = field(default_factory=dict)
    layers: Columns = field(default_factory=dict)
    neurons: Columns = field(default_factory=dict)
    gradient_norm: Tensor | None = None
    relative_gradients: Tensor | None = None

    def measure(self, plan: Plan, selection: Selection, guard: Guard, unscale: Any) -> None:
        """Weights and gradients, before the weights move."""
        weights = plan.weights
        measured: Columns | None = guard("norms of parameters", weights.before, unscale)
        if measured is None:
            return
        present = weights.has_gradient()
        self.gradient_norm = torch.linalg.vector_norm(measured["gradient_norm"])
        self.relative_gradients = measured["relative_gradient_norm"]
        if selection.due("health", self.record):
            measured["non_finite"] = weights.non_finite(measured["norm"], gradient=False)
            counts = weights.non_finite(measured["gradient_norm"], gradient=True)
            measured["gradient_non_finite"] = _partly(counts, present)
        for column in ("gradient_norm", "relative_gradient_norm"):
            measured[column] = _partly(measured[column], present)
        for group, what, function in (
            ("changes", "fractions of changed weights", weights.changes),
            ("quantiles", "quantiles of changes", weights.quantiles),
            ("spectra", "spectral norms", weights.spectral_norms),
        ):
            if selection.due(group, self.record):
                measured |= guard(what, function) or {}
        if "spectral_norm" in measured:
            measured["spectral_norm"] = _partly(measured["spectral_norm"], weights.is_matrix())
        self.parameters = {name: value for name, value in measured.items() if name in selection.columns}
        self.parameters["parameter"] = np.arange(len(weights.names), dtype=np.int32)

    def measure_laws(
        self,
        plan: Plan,
        selection: Selection,
        guard: Guard,
        optimizers: Sequence[Optimizer],
        unscale: Any,
        next_is_due: bool,
    ) -> None:
        """delta and c, and what c must become if the next step is recorded."""
        balance = plan.balance
        if balance is None:
            return
        c = None
        if self.record >= 0 and self.record % plan.laws_every == 0:
            measured: Columns = guard("delta and c", balance.measure, self.step, unscale) or {}
            c = measured.pop("all_c", None)
            self.neurons = {name: value for name, value in measured.items() if name in selection.columns}
            self.neurons["law"] = np.arange(len(balance.wanted), dtype=np.int32)
        is_followed = next_is_due and (self.record + 1) % plan.laws_every == 0
        if is_followed and "predicted_c" in selection.columns:
            guard("predictions of c", balance.predict, self.step, c, optimizers, unscale)

    def close(self, plan: Plan, selection: Selection) -> None:
        """How far the weights have moved; nothing new if that was measured."""
        moved = plan.weights.after()
        self.parameters |= {name: value for name, value in moved.items() if name in selection.columns}

    def largest_relative_gradients(self, plan: Plan) -> tuple[float, ...]:
        """Of each recorded layer; NaN where there is none."""
        if self.relative_gradients is None:
            return ()
        values = iter(self.relative_gradients.tolist())
        by_layer = [[next(values) for _ in layer.parameters] for layer in plan.layers]
        return tuple(max((value for value in of if value == value), default=float("nan")) for of in by_layer)

    def add_pass(self, seen: Pass, positions: dict[str, int], selection: Selection, unscale: Any) -> None:
        """The rows of the layers that ran."""
        names = [name for name in positions if name in seen.numbers]
        if not names:
            return
        columns: Columns = {}
        for found, group in ((seen.outputs, rows.COLUMNS), (seen.gradients, rows.GRADIENT_COLUMNS)):
            table, present = _stacked([found.get(name) for name in names], len(group))
            if table is not None:
                columns |= {column: _partly(table[:, at], present) for at, column in enumerate(group)}
        for column in dict.fromkeys(column for name in names for column in seen.others.get(name, ())):
            values, present = _stacked([seen.others.get(name, {}).get(column) for name in names], 1)
            if values is not None:
                columns[column] = _partly(values[:, 0], present)
        if unscale is not None:
            _unscale(columns, unscale)
        self.layers = {name: value for name, value in columns.items() if name in selection.columns}
        self.layers["layer"] = np.array([positions[name] for name in names], dtype=np.int32)


def _stacked(values: list[Tensor | None], width: int) -> tuple[Tensor | None, np.ndarray[Any, Any]]:
    """Rows one below the other, zeros where there is none; and where there is one."""
    present = np.array([value is not None for value in values])
    example = next((value for value in values if value is not None), None)
    if example is None:
        return None, present
    absent = torch.zeros(width, dtype=torch.float64, device=example.device)
    return torch.stack([absent if value is None else value.reshape(width).to(absent) for value in values]), present


def _partly(values: Tensor, where: np.ndarray[Any, Any]) -> Tensor | Measured:
    return values if bool(where.all()) else Measured(values, where)


def _unscale(columns: Columns, factor: Any) -> None:
    for names, scale in ((_SCALED, factor), (_SCALED_SQUARE, factor * factor)):
        for name in names:
            column = columns.get(name)
            if isinstance(column, Measured):
                columns[name] = Measured(column.values * scale, column.where)
            elif column is not None:
                columns[name] = column * scale

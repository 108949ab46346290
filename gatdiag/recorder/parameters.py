"""Weights and gradients of one step -> the rows of the table `parameters`."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.recorder.guard import Guard
from gatdiag.recorder.outbox import Columns, Masked, masked
from gatdiag.recorder.settings import Selection
from gatdiag.recorder.weights import Weights
from gatdiag.structure import Layer


class ParameterRows:
    """The rows of one step, from its gradients to the moved weights.

    Attributes:
        columns: The rows so far; none if measuring failed.
        gradient_norm: Of all recorded parameters together.
    """

    def __init__(self, weights: Weights, selection: Selection, guard: Guard) -> None:
        self._weights, self._selection, self._guard = weights, selection, guard
        self.columns: Columns = {}
        self.gradient_norm: Tensor | None = None
        self._norms: Tensor | None = None  # of weights, and of gradients, a parameter each
        self._gradients: Tensor | None = None
        self._relative_gradients: Tensor | None = None

    def measure(self, record: int, unscale: Any) -> None:
        """Weights and gradients, before the weights move.

        Args:
            record: The number of the record.
            unscale: What gradients are multiplied by, where a gradient scaler has not done so yet.
        """
        weights = self._weights
        found: Columns | None = self._guard("norms of parameters", weights.before, unscale)
        if found is None:
            return
        due = self._selection.groups_due(record)
        self._norms, self._gradients = found["norm"], found["gradient_norm"]
        self._relative_gradients = found["relative_gradient_norm"]
        self.gradient_norm = torch.linalg.vector_norm(self._gradients)
        has_gradient = weights.has_gradient()
        if "health" in due:
            found["non_finite"] = weights.non_finite(found["norm"], gradient=False)
            counts = weights.non_finite(found["gradient_norm"], gradient=True)
            found["gradient_non_finite"] = masked(counts, has_gradient)
        for column in ("gradient_norm", "relative_gradient_norm"):
            found[column] = masked(found[column], has_gradient & weights.is_measurable)
        for group, what, function in (
            ("changes", "fractions of changed weights", weights.changes),
            ("quantiles", "quantiles of changes", weights.quantiles),
            ("spectral_norms", "spectral norms", weights.spectral_norms),
        ):
            if group in due:
                found |= self._guard(what, function) or {}
        if "spectral_norm" in found:
            found["spectral_norm"] = masked(found["spectral_norm"], weights.is_matrix)
        self._keep(found)
        self.columns["parameter"] = np.arange(len(weights.names), dtype=np.int32)

    def join(self, optimizer: Optimizer, unscale: Any) -> None:
        """The gradients of an optimizer that joins the step, which may be others than when it began."""
        weights = self._weights
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        norms = self._guard("norms of gradients", weights.gradient_norms, held)
        if norms is None or self._norms is None or self._gradients is None:
            return
        here = np.array([id(tensor) in held and tensor.grad is not None for tensor in weights.tensors])
        here &= weights.is_measurable
        norms = norms if unscale is None else norms * unscale
        found = {"gradient_norm": norms, "relative_gradient_norm": norms / self._norms}
        found["gradient_non_finite"] = weights.non_finite(norms, gradient=True)
        for name in found.keys() & self.columns.keys():
            self.columns[name] = _joined(self.columns[name], found[name], here)
        self._gradients = _joined(self._gradients, norms, here)
        self._relative_gradients = _joined(self._relative_gradients, found["relative_gradient_norm"], here)
        self.gradient_norm = torch.linalg.vector_norm(self._gradients)

    def forget_gradients(self) -> None:
        """Keep what is known of weights alone."""
        self.columns = {name: column for name, column in self.columns.items() if "gradient" not in name}
        self.gradient_norm = self._relative_gradients = None

    def measure_moved(self) -> None:
        """How far the weights have moved; nothing new if that was measured."""
        self._keep(self._weights.after())

    def _keep(self, found: Columns) -> None:
        for name, values in found.items():
            if name in self._selection.columns:
                is_masked = isinstance(values, Masked)
                self.columns[name] = values if is_masked else masked(values, self._weights.is_measurable)

    def relative_gradients_of(self, layers: Sequence[Layer]) -> tuple[float, ...]:
        """The largest among each layer's feature weights, or else of all it has; NaN where there is none.

        Biases are zero at first, and any gradient is infinite relative to that: what is finite goes before.
        """
        if self._relative_gradients is None:
            return ()
        values = iter(self._relative_gradients.tolist())
        found = []
        for layer in layers:
            of = [(info.role == "feature weight", next(values)) for info in layer.parameters]
            known = [(math.isfinite(value), is_weight, value) for is_weight, value in of if not math.isnan(value)]
            found.append(max(known, default=(False, False, math.nan))[-1])
        return tuple(found)


def _joined(earlier: Any, later: Tensor, here: np.ndarray[Any, Any]) -> Any:
    """The later values where they are, the earlier ones elsewhere."""
    if isinstance(earlier, Masked):
        return masked(_joined(earlier.values, later, here), earlier.where | here)
    return torch.where(torch.from_numpy(here).to(later.device), later, earlier)


def are_suspect(gradients: Iterable[Tensor | None]) -> bool:
    """True if any of these may hold a NaN or an infinity, found out quickly; on a device, always."""
    with np.errstate(all="ignore"):
        for gradient in gradients:
            if gradient is None:
                continue
            if gradient.dtype != torch.float32 or gradient.device.type != "cpu" or gradient.layout != torch.strided:
                return True
            values = gradient.detach().numpy().reshape(-1)
            if not math.isfinite(values.dot(values)):
                return True
    return False


class UnclippedNorm:
    """The norm of all gradients at the end of each backward pass, which is before anything can clip them.

    It is measured even where nothing clips them, for that cannot be known: what goes through `.data` leaves no trace.
    """

    def __init__(self) -> None:
        self._norm: Tensor | None = None
        self._backward_pass = -1
        self._earlier: list[tuple[int, int]] = []

    def on_gradient(self, weights: Weights) -> bool:
        """Remember the gradients as they are before a backward pass; returns whether this is its first call in it."""
        number = torch._C._current_graph_task_id()
        if number == self._backward_pass:
            return False
        self._backward_pass, self._earlier = number, weights.versions()
        return True

    def on_backward_ended(self, weights: Weights) -> None:
        """The gradients are as the backward pass left them."""
        if weights.versions() != self._earlier:  # else nothing was accumulated: gradients were asked for elsewhere
            self._norm = torch.linalg.vector_norm(weights.gradient_norms())

    def take(self) -> Tensor | None:
        """The norm before clipping of a step that begins; None where no backward pass was seen since the last one."""
        norm, self._norm = self._norm, None
        return norm

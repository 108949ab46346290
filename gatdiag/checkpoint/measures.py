"""Measures of a parameter in a state dict: norm, NaN and infinities, dead rows and columns, change."""

import math

import numpy as np
import torch
from torch import Tensor

from gatdiag import metrics
from gatdiag.checkpoint.opening import Checkpoint
from gatdiag.quantities import STORED, metric_functions
from gatdiag.roles import FEATURE
from gatdiag.structure import Structure
from gatdiag.weight_change import change_fractions, change_quantiles

_TABLES = ("Embedding", "EmbeddingBag")  # rows are no neurons, and that of the padding index is zero


def measure(tensor: Tensor, *, matrix: bool = False) -> dict[str, float]:
    """Columns of the `parameters` table of one parameter; those of matrices, which take most of the time, if asked."""
    values = _as_floating(tensor)
    norm = float(metrics.frobenius_norm(values))
    found = {"norm": norm, "non_finite": 0.0 if math.isfinite(norm) else float(metrics.non_finite_count(values))}
    for metric in metric_functions("parameters"):
        if metric.of == "weight" and matrix and tensor.dim() > 1:
            result = metric.by_column(getattr(metrics, metric.function)(values))
            found |= {column: float(value) for column, value in result.items()}
    return found


def count_dead(tensor: Tensor) -> tuple[int, int]:
    """Count the rows of a matrix that are all zero (dead neurons), and the columns.

    Example:
        >>> count_dead(torch.tensor([[3.0, 0.0], [0.0, 0.0]])), count_dead(torch.zeros(0, 4))
        ((1, 1), (0, 0))
    """
    if not tensor.numel():
        return 0, 0
    rows = torch.atleast_1d(tensor.detach())
    matrix = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    return _count_zero_rows(matrix), _count_zero_rows(matrix.T)


def measure_stored(structure: Structure, saved: Checkpoint) -> dict[str, dict[str, float]]:
    """The columns `gatdiag.quantities.STORED` of a checkpoint: column -> parameter -> value."""
    found: dict[str, dict[str, float]] = {each.name: {} for each in STORED}
    moments = {} if saved.optimizer is None else saved.optimizer.moments
    for layer in structure:
        for info in layer.parameters:
            tensor, second = saved.tensors.get(info.name), moments.get(info.name, {}).get("exp_avg_sq")
            is_computed_from = "parametrizations." in info.name
            if tensor is not None and info.role == FEATURE and layer.kind not in _TABLES and not is_computed_from:
                found["dead_rows"][info.name], found["dead_columns"][info.name] = count_dead(tensor)
            if second is not None:
                found["second_moment"][info.name] = measure(second)["norm"]
    return found


def measure_changes(
    initial: Tensor | None, trained: Tensor, *, attention: bool, quick: bool = False
) -> dict[str, float]:
    """Columns of the `parameters` table that measure the change of one parameter.

    Empty if there is no initial value of the same shape. The change of an attention vector is absolute, as it may start
    at zero. Without `quick`, there are quantiles, too.
    """
    if initial is None or initial.shape != trained.shape:
        return {}
    is_single = initial.dtype == trained.dtype == torch.float32
    dtype = (
        torch.float32 if is_single else torch.float64
    )  # in which the difference of two half-precision numbers is exact
    w_0, w = (tensor.detach().flatten().to(dtype).numpy() for tensor in (initial, trained))
    fractions = change_fractions(w_0, w, [len(w)], np.arange(len(w) if attention else 0))
    found = {column: float(value) for column, (value,) in fractions.items()}
    return found if quick else found | change_quantiles(w_0, w, "relative") | change_quantiles(w_0, w, "absolute")


def _count_zero_rows(matrix: Tensor) -> int:
    candidates = matrix[(matrix[:, :1] == 0).all(1)]  # usually few
    return int((candidates == 0).all(1).sum())


def _as_floating(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.is_floating_point() else tensor.to(torch.float64)

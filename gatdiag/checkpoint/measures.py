"""Measures of a parameter of a state dict: norm, NaN and infinities, dead rows and columns, how far it has moved."""

import math

import torch
from torch import Tensor

from gatdiag import metrics
from gatdiag.quantities import GROUPS
from gatdiag.recorder.weights import MATRIX_METRICS, measure_matrix


def measure(tensor: Tensor, *, matrix: bool = False) -> dict[str, float]:
    """Measure one parameter as a recorder does.

    Args:
        tensor: Any shape; axis 0 counts rows, all others are columns.
        matrix: Measure what is of matrices alone, too, if it is one: the spectral norm takes many times as long as all
            the rest.

    Returns:
        Column of the table `parameters` -> value.

    Example:
        >>> measure(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        {'norm': 3.0, 'non_finite': 0.0}
    """
    values = _values(tensor)
    norm = float(metrics.frobenius_norm(values))
    found = {"norm": norm, "non_finite": 0.0 if math.isfinite(norm) else float(metrics.non_finite_count(values))}
    for metric in MATRIX_METRICS if matrix and tensor.dim() > 1 else ():
        found |= measure_matrix(metric, values)
    return found


def dead(tensor: Tensor) -> tuple[int, int]:
    """How many rows of a matrix are zero throughout (neurons that nothing leads into), and how many columns.

    Example:
        >>> dead(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        (1, 1)
    """
    matrix = tensor.detach().reshape(len(tensor), math.prod(tensor.shape[1:]))
    return _zero_rows(matrix), _zero_rows(matrix.T)


def changes(initial: Tensor | None, trained: Tensor, *, attention: bool, quick: bool = False) -> dict[str, float]:
    """How far one parameter has moved, as a recorder measures it.

    Args:
        initial: w_0; its number type may be another one.
        trained: w.
        attention: True for an attention vector, whose change is absolute, for it may start at zero.
        quick: Leave out the quantiles.

    Returns:
        Column of the table `parameters` -> value. Nothing where w_0 is missing or of another shape.

    Example:
        >>> before, after = torch.ones(2, 2), torch.tensor([[1.0, 1.0], [1.0, 4.0]])
        >>> changes(before, after, attention=False, quick=True)["changed_fraction_050"]
        0.25
    """
    if initial is None or initial.shape != trained.shape:
        return {}
    w_0, w = _values(initial).flatten(), _values(trained).flatten()
    kind = torch.promote_types(w_0.dtype, w.dtype)
    w_0, w = w_0.to(kind), w.to(kind)
    absolute = torch.arange(len(w)) if attention else torch.zeros(0, dtype=torch.int64)
    fractions = metrics.change_fractions(w_0, w, [len(w)], absolute).flatten().tolist()
    found = dict(zip(GROUPS["changes"].columns, fractions, strict=True))
    if not quick:
        quantiles = metrics.change_quantiles(w_0, w).flatten().tolist()
        found |= zip(GROUPS["quantiles"].columns, quantiles, strict=True)
    return found


def _zero_rows(matrix: Tensor) -> int:
    suspects = matrix[(matrix[:, :1] == 0).all(1)]  # few, of most weights
    return int((suspects == 0).all(1).sum())


def _values(tensor: Tensor) -> Tensor:
    """Floating-point values; a count may be among the parameters."""
    return tensor.detach() if tensor.is_floating_point() else tensor.to(torch.float64)

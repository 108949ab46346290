"""How far the parameters of one state dict are from those of another: one pass, block by block.

The columns are those of a run's table `parameters`, with the numbers that `gatdiag.metrics` gives.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag.checkpoint.blocks import blocks, stored
from gatdiag.quantities import LEVELS, THRESHOLDS, change_quantile
from gatdiag.recorder.quantiles import least_significant, sorted_quantiles
from gatdiag.structure import ParameterInfo, Role


@dataclass(frozen=True)
class Comparison:
    """How far a state dict is from a reference.

    Attributes:
        columns: Parameter -> column of a run's table `parameters` -> value.
        missing: What only the reference has, by name.
        new: What the reference has not.
        incomparable: Parameter -> why it cannot be compared: another shape, other entries stored.
    """

    columns: Mapping[str, Mapping[str, float]]
    missing: tuple[str, ...]
    new: tuple[str, ...]
    incomparable: Mapping[str, str]


def compare(
    reference: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    parameters: Iterable[ParameterInfo],
    *,
    quantiles: bool = False,
) -> Comparison:
    """How far each parameter is from its reference, in the columns that a run records.

    Args:
        reference: Name -> w_0.
        tensors: Name -> w.
        parameters: Those to compare, with their roles: `find_layers(tensors).parameters`.
        quantiles: Also the quantiles of relative and absolute change, which take longer than all the rest.

    Raises:
        InputError: A tensor is on the meta device.

    Example:
        >>> from gatdiag.structure.from_names import find_layers
        >>> before, after = {"lin.weight": torch.ones(2, 2)}, {"lin.weight": torch.tensor([[1.0, 1.0], [1.0, 4.0]])}
        >>> compare(before, after, find_layers(after).parameters).columns["lin.weight"]["changed_fraction_050"]
        0.25
    """
    shared = [info for info in parameters if info.name in reference and info.name in tensors]
    reasons = {info.name: _incomparable(reference[info.name], tensors[info.name]) for info in shared}
    columns = {
        info.name: change(reference[info.name], tensors[info.name], info.role, quantiles=quantiles)
        for info in shared
        if not reasons[info.name]
    }
    return Comparison(
        columns=columns,
        missing=tuple(name for name in reference if name not in tensors),
        new=tuple(name for name in tensors if name not in reference),
        incomparable={name: reason for name, reason in reasons.items() if reason},
    )


def _incomparable(reference: Tensor, tensor: Tensor) -> str:
    """Why two tensors cannot be compared entry by entry; "" if they can."""
    if reference.shape != tensor.shape:
        return f"its shape was {list(reference.shape)} and is {list(tensor.shape)}"
    if reference.layout != tensor.layout or stored(reference).shape != stored(tensor).shape:
        return "other entries are stored"
    if tensor.layout is torch.sparse_coo and not torch.equal(_places(reference), _places(tensor)):
        return "other entries are stored"
    return ""


def _places(tensor: Tensor) -> Tensor:
    return tensor.detach().coalesce().indices()


def change(reference: Tensor, tensor: Tensor, role: Role, *, quantiles: bool = False) -> dict[str, float]:
    """How far a parameter is from its reference.

    Args:
        reference: w_0.
        tensor: w, of the same shape; the number types may differ.
        role: Attention vectors are judged by |w - w_0|, all else by |w - w_0| / |w| where |w| >= 1e-4.
        quantiles: Also the quantiles of both.

    Returns:
        `unchanged_fraction`, `changed_fraction_005`, `changed_fraction_050`, and if asked for `relative_change_q0` to
        `absolute_change_q100`. NaN as in `gatdiag.metrics`: where entries are NaN, or none counts.

    Source:
        Figures 3a, 4a, 8 and 11 of "Are GATs Out of Balance?"; see `gatdiag.metrics.change`.

    Example:
        >>> change(torch.zeros(2), torch.tensor([0.0, 0.1]), "attention vector")
        {'unchanged_fraction': 0.5, 'changed_fraction_005': 0.5, 'changed_fraction_050': 0.0}
    """
    counts: NDArray[np.int64] = np.zeros(2 + len(THRESHOLDS), dtype=np.int64)
    undefined = relative_undefined = False
    changes: list[NDArray[Any]] = []
    sizes: list[NDArray[Any]] = []
    with np.errstate(all="ignore"):  # NaN is marked below
        for before, after in zip(blocks(reference), blocks(tensor), strict=True):
            w, w_0 = after.values.numpy(), before.values.numpy()
            moved, size = np.abs(w - w_0), np.abs(w)
            undefined |= not math.isfinite(float(moved.sum())) and bool(np.isnan(moved).any())
            relative_undefined |= not math.isfinite(float(size.sum())) and bool(np.isinf(size).any())
            counts += _counted(moved, size, role)
            if quantiles:
                changes.append(moved.ravel())
                sizes.append(size.ravel())
    unchanged, counted, *beyond = counts.tolist()
    total = stored(tensor).numel()
    spoilt = undefined or (relative_undefined and role != "attention vector")
    found = {"unchanged_fraction": math.nan if undefined else _share(unchanged, total)}
    found |= {
        name: math.nan if spoilt else _share(number, counted) for name, number in zip(THRESHOLDS, beyond, strict=True)
    }
    if quantiles:
        found |= _quantiles(_joined(changes), _joined(sizes))
    return found


def _counted(moved: NDArray[Any], size: NDArray[Any], role: Role) -> NDArray[np.int64]:
    """How many entries did not change, how many count, and how many of these changed by more than each threshold."""
    unchanged = moved.size - np.count_nonzero(moved)
    if role == "attention vector":
        beyond = [np.count_nonzero(moved > threshold) for threshold in THRESHOLDS.values()]
        return np.array([unchanged, moved.size, *beyond])
    significant = size >= least_significant(size.dtype)
    beyond = [np.count_nonzero((moved > threshold * size) & significant) for threshold in THRESHOLDS.values()]
    return np.array([unchanged, np.count_nonzero(significant), *beyond])


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.empty(0)


def _quantiles(moved: NDArray[Any], size: NDArray[Any]) -> dict[str, float]:
    """Quantiles of relative change over significant entries, and of absolute change over all."""
    significant = size >= least_significant(size.dtype)
    with np.errstate(all="ignore"):
        relative = moved[significant] / size[significant]
    found: dict[str, float] = {}
    for kind, values in (("relative", relative), ("absolute", moved)):
        columns = (change_quantile(kind, level) for level in LEVELS)
        found |= dict(zip(columns, sorted_quantiles(values).tolist(), strict=True))
    return found

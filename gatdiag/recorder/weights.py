"""Parameters before and after an optimizer step -> one number each for each column of the table `parameters`.

The numbers are those of `gatdiag.metrics`, for all parameters of one device and type together: one flat copy of the
initial weights is kept, a second one lives during a step.
"""

import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatdiag import metrics
from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.weight_change import FRACTIONS

Columns = dict[str, Tensor]

_WITHOUT_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass
class _Batch:
    """Parameters of one device and type, side by side in one flat tensor."""

    positions: list[int]
    parameters: list[Tensor]
    sizes: list[int]
    absolute: Tensor  # positions of the entries whose change is absolute: those of attention vectors
    initial: Tensor
    before: Tensor | None = None
    norm: Tensor | None = None  # of what is in `before`

    def flat(self) -> Tensor:
        flat: Tensor = torch._C._nn.flatten_dense_tensors([*self.parameters]).detach()
        return flat.clone() if len(self.parameters) == 1 else flat

    def now(self) -> Tensor:
        return self.flat() if self.before is None else self.before


class Weights:
    """The parameters of a model, watched from their initial values on.

    Args:
        parameters: Name -> parameter, in the order of the table's rows.
        attention: Names of the attention vectors: their change is absolute, for they may start at zero.

    Attributes:
        names: Of the parameters, in order.
        tensors: The parameters.
        is_measurable: Which parameters are real numbers in a dense tensor; nothing is measured of all others.
        is_matrix: Which parameters have a spectral norm: not vectors, nor what stands for one.
    """

    def __init__(self, parameters: Mapping[str, Tensor], attention: Sequence[str]) -> None:
        self.names = tuple(parameters)
        self.tensors = list(parameters.values())
        self._attention = set(attention)
        self.is_measurable = np.array([p.is_floating_point() and not p.is_sparse for p in self.tensors], dtype=bool)
        self.is_matrix = np.array([p.dim() > 1 and name not in self._attention for name, p in parameters.items()])
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for position, parameter in enumerate(self.tensors):
            if self.is_measurable[position]:
                alike[parameter.device, parameter.dtype].append(position)
        self._batches = [self._batch(positions) for positions in alike.values()]

    def _batch(self, positions: list[int]) -> _Batch:
        parameters = [self.tensors[position] for position in positions]
        flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
        chosen = [
            torch.full((parameter.numel(),), self.names[position] in self._attention, device=flat.device)
            for position, parameter in zip(positions, parameters, strict=True)
        ]
        absolute = torch.cat(chosen).nonzero().flatten()
        return _Batch(positions, parameters, [p.numel() for p in parameters], absolute, flat)

    def rebound(self, parameters: Mapping[str, Tensor]) -> "Weights":
        """The same for other tensors of these names and shapes; changes are measured against the old initial values."""
        bound = Weights({name: parameters[name] for name in self.names}, sorted(self._attention))
        pieces = ((batch.positions, batch.initial.split(batch.sizes)) for batch in self._batches)
        bound.set_initial({self.names[at]: piece for all_of in pieces for at, piece in zip(*all_of, strict=True)})
        return bound

    def set_initial(self, initial: Mapping[str, Tensor]) -> None:
        """Measure changes against these values instead, as a run does that is continued."""
        for batch in self._batches:
            pieces = [
                initial.get(self.names[position], parameter.detach()).to(parameter).flatten()
                for position, parameter in zip(batch.positions, batch.parameters, strict=True)
            ]
            batch.initial = torch.cat(pieces)

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The parameters as they are, on the host; types that numpy lacks become float32."""
        return {name: _array(parameter) for name, parameter in zip(self.names, self.tensors, strict=True)}

    def before(self, unscale: Tensor | float | None = None) -> Columns:
        """Norms of weights and gradients; the weights are kept until `after`.

        Args:
            unscale: What gradients are multiplied by, where a gradient scaler has not done so yet.
        """
        found: Columns = {}
        for batch in self._batches:
            batch.before = batch.flat()
            batch.norm = metrics.norms(batch.parameters)
            self._put(found, "norm", batch, batch.norm)
        gradients = self.gradient_norms()
        found["gradient_norm"] = gradients if unscale is None else gradients * unscale
        found["relative_gradient_norm"] = found["gradient_norm"] / found["norm"]
        return found

    def gradient_norms(self, only: Container[int] | None = None) -> Tensor:
        """(parameters,), float64; 0 where there is no gradient, and for parameters whose id is not among these."""
        gradients = [parameter.grad if only is None or id(parameter) in only else None for parameter in self.tensors]
        whole = [gradient for gradient in gradients if gradient is not None and not gradient.is_sparse]
        if len(self._batches) == 1 and len(whole) == len(self.names):
            return metrics.norms(whole)
        norms_of = torch.zeros(len(self.names), dtype=torch.float64)
        present = [(position, gradient) for position, gradient in enumerate(gradients) if gradient is not None]
        dense: dict[object, list[tuple[int, Tensor]]] = defaultdict(list)
        for position, gradient in present:
            if not gradient.is_floating_point():
                continue
            values = _dense(gradient.detach())
            dense[values.device, values.dtype].append((position, values))
        for items in dense.values():
            found = metrics.norms([values for _, values in items])
            norms_of = norms_of.to(found.device)
            norms_of[[position for position, _ in items]] = found
        return norms_of

    def versions(self) -> list[tuple[int, int]]:
        """What changes when a gradient is replaced or changed in place, as by clipping."""
        gradients = [parameter.grad for parameter in self.tensors]
        return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]

    def has_gradient(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which parameters have a gradient."""
        return np.array([parameter.grad is not None for parameter in self.tensors])

    def non_finite(self, norms: Tensor, gradient: bool) -> Tensor:
        """How many entries of each weight, or of each gradient, are not finite; none where the norm is finite.

        Args:
            norms: Of the weights, or of the gradients.
            gradient: Which of the two it is about.
        """
        counts = torch.zeros_like(norms)
        if norms.is_cpu and math.isfinite(float(norms.sum())):
            return counts
        # On an accelerator all are counted: looking at the norms would wait for the device.
        suspects = (~norms.isfinite()).nonzero().flatten().tolist() if norms.is_cpu else range(len(self.names))
        for position in suspects:
            tensor = self.tensors[position].grad if gradient else self.tensors[position]
            if tensor is not None:
                counts[position] = metrics.non_finite_count(_dense(tensor.detach()))
        return counts

    def changes(self) -> Columns:
        """Fractions of the weights that changed, and that did not change at all; after `before`."""
        found: Columns = {}
        for batch in self._batches:
            shares = metrics.change_fractions(batch.initial, batch.now(), batch.sizes, batch.absolute)
            for column, share in zip(FRACTIONS, shares, strict=True):
                self._put(found, column, batch, share)
        return found

    def quantiles(self) -> Columns:
        """Quantiles of relative and absolute change; after `before`."""
        found: Columns = {}
        for batch in self._batches:
            pairs = zip(batch.initial.split(batch.sizes), batch.now().split(batch.sizes), strict=True)
            table = torch.stack([metrics.change_quantiles(initial, now) for initial, now in pairs])
            for kind, name in enumerate(("relative", "absolute")):
                for number, level in enumerate(LEVELS):
                    self._put(found, change_quantile(name, level), batch, table[:, kind, number])
        return found

    def spectral_norms(self) -> Columns:
        """Spectral norms of the weights with two axes or more, except attention vectors."""
        found: Columns = {}
        for batch in self._batches:
            for position, parameter in zip(batch.positions, batch.parameters, strict=True):
                if self.is_matrix[position]:
                    sigma = metrics.spectral_norm(parameter.detach())
                    self._place(found, "spectral_norm", [position], sigma.unsqueeze(0))
        return found

    def after(self) -> Columns:
        """How far the step moved each parameter; forgets the weights that `before` kept."""
        found: Columns = {}
        for batch in self._batches:
            if batch.before is None or batch.norm is None:
                continue
            moved = batch.before.split(batch.sizes)
            torch._foreach_sub_(moved, [parameter.detach().flatten() for parameter in batch.parameters])
            self._put(found, "update_ratio", batch, metrics.norms(moved) / batch.norm)
            batch.before = batch.norm = None
        return found

    def _put(self, found: Columns, column: str, batch: _Batch, values: Tensor) -> None:
        self._place(found, column, batch.positions, values)

    def _place(self, found: Columns, column: str, positions: list[int], values: Tensor) -> None:
        """Into a column with one entry a parameter; all the rest is NaN."""
        if len(positions) == len(self.names):
            found[column] = values
            return
        if column not in found:
            found[column] = torch.full((len(self.names),), torch.nan, dtype=torch.float64, device=values.device)
        found[column][positions] = values.to(found[column].device)


def _dense(tensor: Tensor) -> Tensor:
    """The tensor, or the values that a sparse one holds."""
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _array(parameter: Tensor) -> np.ndarray[Any, Any]:
    values = parameter.detach().cpu()
    values = values.to_dense() if values.is_sparse else values
    return (values.float() if values.dtype in _WITHOUT_NUMPY else values).numpy()

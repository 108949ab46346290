"""Weights and gradients of steps -> the columns of the table `parameters`, by the functions of `gatdiag.metrics`."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag import metrics
from gatdiag.errors import InputError
from gatdiag.quantities import LEVELS, change_quantile, metric_functions, values_by_column
from gatdiag.weight_change import FRACTIONS

if TYPE_CHECKING:
    from gatdiag.recorder.backlog import Sample

Flat: TypeAlias = list[Tensor]  # one for each device and type
Floats: TypeAlias = NDArray[np.float64]
Guarded: TypeAlias = Callable[..., Any]  # calls what comes after a name

# What a function of `metrics` measures of one weight matrix: its name -> the columns.
OF_MATRICES: Final = {metric: found for (metric, *_), found in metric_functions("parameters").items()}
_MOST_ENTRIES = 1 << 20  # of parameters that are stacked at a time, so that they stay in a processor's cache
_WITHOUT_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class FlatParameters:
    """Parameters side by side, one flat tensor for each device and type, so that few kernels copy them all.

    Half precision becomes float32. Parameters that are neither real nor complex, and sparse ones, have no entries.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.shapes = [tensor.shape for tensor in self.tensors]
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for position, tensor in enumerate(self.tensors):
            if (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided:
                alike[tensor.device, tensor.dtype].append(position)
        self.positions = list(alike.values())
        self.sizes = [[self.tensors[position].numel() for position in positions] for positions in self.positions]
        self._alike = [[self.tensors[position] for position in positions] for positions in self.positions]
        self._lacks_some = sum(map(len, self.positions)) < len(self.tensors)
        self._totals = [sum(sizes) for sizes in self.sizes]
        self._zeros = [tensor.detach().new_zeros(()).expand(tensor.shape) for tensor in self.tensors]

    def weights(self) -> Flat:
        """A copy of the weights as they are."""
        flats = [_flat(alike) for alike in self._alike]
        if [len(flat) for flat in flats] != self._totals:
            pairs = zip(self.shapes, self.tensors, strict=True)
            old, new = next((shape, now.shape) for shape, now in pairs if shape != now.shape)
            raise InputError(
                f"A parameter of shape {tuple(old)} was given data of shape {tuple(new)}, and parameters keep their "
                "shapes during a run; record what follows as another run, with another call of gatdiag.watch"
            )
        return flats

    def gradients(self) -> Flat:
        """A copy of the gradients as they are; zeros where there is none."""
        return self.side_by_side([tensor.grad for tensor in self.tensors])

    def side_by_side(self, gradients: Sequence[Tensor | None]) -> Flat:
        """A copy of the gradients of all parameters, zeros for None."""
        dense = [
            zero if gradient is None else gradient if gradient.layout is torch.strided else gradient.to_dense()
            for gradient, zero in zip(gradients, self._zeros, strict=True)
        ]
        if len(self.positions) == 1 and not self._lacks_some:
            return [_flat(dense)]
        return [_flat([dense[position] for position in positions]) for positions in self.positions]

    def few(self, samples: Sequence["Sample"]) -> Iterator[Sequence["Sample"]]:
        """The samples, as many at a time as are quickly stacked."""
        count = max(1, _MOST_ENTRIES // max(1, sum(self._totals)))
        return (samples[start : start + count] for start in range(0, len(samples), count))

    def pieces(self, flats: Flat) -> list[Tensor]:
        """The entries of each parameter: views along the last axis, which may have others in front."""
        found = [zero.new_zeros(0) for zero in self._zeros] if self._lacks_some else [*self._zeros]
        for positions, sizes, flat in zip(self.positions, self.sizes, flats, strict=True):
            for position, piece in zip(positions, flat.split(sizes, -1), strict=True):
                found[position] = piece
        return found


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    flat: Tensor = torch._C._nn.flatten_dense_tensors([*tensors]).detach()
    if flat.is_floating_point() and flat.dtype.itemsize < 4:
        return flat.float()
    return flat.clone() if len(tensors) == 1 else flat


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """True if all entries of real ones are known to be finite, by their sums; False where the host would have to wait.

    A sum that overflows is not: whoever has to know looks closely then.
    """
    for tensor in tensors:
        entries = tensor._values() if tensor.is_sparse else tensor
        if not entries.is_cpu or entries.layout is not torch.strided or not math.isfinite(abs(entries.sum().item())):
            return False
    return True


def are_equal(one: Flat, other: Flat) -> bool:
    """True if all entries are known to be equal; False where the host would have to wait."""
    return all(a.is_cpu and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def dot(one: Flat, other: Flat) -> float:
    """The inner product of real ones; it waits for the device."""
    return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True) if not a.is_complex())


@dataclass(frozen=True)
class WeightColumns:
    """The parameters at several steps."""

    columns: dict[str, Any]  # (samples, parameters) each, masked where nothing was measured
    gradient_norm: Floats  # (samples,), of all parameters together
    relative_gradient_norm: Floats  # (samples, parameters)
    changes: list[Flat | None]  # of each sample, by how much its step moved the weights, if that was taken


class Weights:
    """The parameters of a model, watched from their initial values on."""

    def __init__(self, parameters: Mapping[str, Tensor], attention: Sequence[str]) -> None:
        self.names = tuple(parameters)
        self.tensors = list(parameters.values())
        self._attention = set(attention)
        self.is_measurable = np.array([p.is_floating_point() and not p.is_sparse for p in self.tensors], dtype=bool)
        self.is_matrix = np.array([p.dim() > 1 and name not in self._attention for name, p in parameters.items()])
        self._own = FlatParameters(self.tensors)
        self.flat = self._own  # those that samples are taken of: first these, then others, which laws and slopes need
        self._initial = self._own.weights()
        self._absolute = []  # of each flat tensor: the entries whose change is absolute, those of attention vectors
        for positions, sizes, flat in zip(self._own.positions, self._own.sizes, self._initial, strict=True):
            chosen = torch.tensor([self.names[position] in self._attention for position in positions])
            entries = chosen.repeat_interleave(torch.tensor(sizes)).nonzero().flatten()
            self._absolute.append(entries.to(flat.device))

    def take_also(self, others: Iterable[Tensor]) -> None:
        """Take samples of further parameters, too."""
        known = {id(tensor) for tensor in self.flat.tensors}
        new = [tensor for tensor in others if id(tensor) not in known]
        self.flat = FlatParameters([*self.flat.tensors, *new]) if new else self.flat

    def set_initial(self, initial: Mapping[str, Tensor]) -> None:
        """Measure changes against these values instead, as a run does that is continued."""
        for name, piece in zip(self.names, self._own.pieces(self._initial), strict=True):
            if name in initial and len(piece):
                piece.copy_(initial[name].flatten())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters as they are, on the host; types that numpy lacks become float32."""
        return {name: _array(parameter) for name, parameter in zip(self.names, self.tensors, strict=True)}

    def gradient_norms(self) -> Tensor:
        """(parameters,), float64, on the device of the first; 0 where there is no gradient."""
        found = torch.zeros(len(self.names), dtype=torch.float64)
        for positions, sizes, _, _, flat in self._batches(self._own.gradients()):
            found = found.to(flat.device)
            found[positions] = metrics.norms_of_pieces([flat], sizes)[0]
        return found

    @torch.no_grad()
    def measure(self, samples: Sequence["Sample"], guard: Guarded, columns: frozenset[str]) -> WeightColumns:
        """The columns of a few steps together."""
        weights, gradients = [sample.weights for sample in samples], [sample.gradients for sample in samples]
        norm = self._by_parameter(weights, metrics.norms_of_pieces)
        gradient_norm = self._by_parameter(gradients, metrics.norms_of_pieces)
        moved = [sample.change() for sample in samples]
        with np.errstate(all="ignore"):  # relative to a bias of zero, any gradient is infinite
            relative = gradient_norm / norm
            ratio = self._by_parameter(moved, metrics.norms_of_pieces) / norm
        every = np.ones(norm.shape, dtype=bool)
        has_gradient = np.stack([sample.has_gradient[: len(self.names)] for sample in samples])
        found: dict[str, tuple[Floats, NDArray[np.bool_]]] = {
            "norm": (norm, every),
            "gradient_norm": (gradient_norm, has_gradient),
            "relative_gradient_norm": (relative, has_gradient),
            "update_ratio": (ratio, every & [[flats is not None] for flats in moved]),
        }
        if any("health" in sample.due for sample in samples):
            is_due = every & [["health" in sample.due] for sample in samples]
            found["non_finite"] = self._non_finite(weights, norm), is_due
            found["gradient_non_finite"] = self._non_finite(gradients, gradient_norm), is_due & has_gradient
        for group, what, function, where in (
            ("changes", "fractions of changed weights", self.changes, every),
            ("quantiles", "quantiles of changes", self.quantiles, every),
            *(
                (of[0].group, " and ".join(one.label for one in of), partial(self.of_matrices, metric), self.is_matrix)
                for metric, of in OF_MATRICES.items()
                if any(each.name in columns for each in of)
            ),
        ):
            is_due = np.array([group in sample.due for sample in samples])
            chosen = [sample for sample in samples if group in sample.due]
            of_group: Mapping[str, Floats] = (guard(what, function, chosen) if chosen else None) or {}
            for name, values in of_group.items():
                of_all = np.full(norm.shape, np.nan)
                of_all[is_due] = values
                found[name] = of_all, where & is_due[:, np.newaxis]
        kept = {
            name: np.ma.masked_array(values, mask=~(where & self.is_measurable))
            for name, (values, where) in found.items()
            if name in columns
        }
        return WeightColumns(kept, self._together(gradient_norm), relative, moved)

    def total_norms(self, of_samples: Sequence[Flat | None]) -> Floats:
        """Norms of all parameters, or of all gradients, together, one a sample."""
        return self._together(self._by_parameter(of_samples, metrics.norms_of_pieces))

    def _together(self, norms: Floats) -> Floats:
        together: Floats = np.linalg.norm(np.where(self.is_measurable, norms, 0.0), axis=1)
        return together

    def _non_finite(self, of_samples: Sequence[Flat], norms: Floats) -> Floats:
        """How many entries of each are NaN or infinite: none where all norms of a step are numbers."""
        counts = np.zeros(norms.shape)
        doubtful = np.flatnonzero(~np.isfinite(norms[:, self.is_measurable]).all(axis=1)).tolist()
        counts[doubtful] = self._by_parameter([of_samples[row] for row in doubtful], _counts)
        return counts

    def changes(self, samples: Sequence["Sample"]) -> dict[str, Floats]:
        """Fractions of the weights that changed since the beginning, and that did not change at all."""
        pieces = []
        for some in self.flat.few(samples):
            found = np.full((len(FRACTIONS), len(some), len(self.names)), np.nan)
            together = [torch.stack(flats) for flats in zip(*(sample.weights for sample in some), strict=True)]
            for positions, sizes, initial, absolute, flats in self._batches(together):
                found[:, :, positions] = metrics.change_fractions(initial, flats, sizes, absolute).cpu().numpy()
            pieces.append(found)
        return dict(zip(FRACTIONS, np.concatenate(pieces, axis=1), strict=True))

    def quantiles(self, samples: Sequence["Sample"]) -> dict[str, Floats]:
        """Quantiles of relative and absolute change since the beginning."""
        found = np.full((2, len(LEVELS), len(samples), len(self.names)), np.nan)
        for row, sample in enumerate(samples):
            for positions, sizes, initial, _, flat in self._batches(sample.weights):
                pairs = zip(initial.split(sizes), flat.split(sizes), strict=True)
                table = torch.stack([metrics.change_quantiles(before, now) for before, now in pairs], -1)
                found[:, :, row, positions] = table.cpu().numpy()
        return {
            change_quantile(kind, level): found[number, at]
            for number, kind in enumerate(("relative", "absolute"))
            for at, level in enumerate(LEVELS)
        }

    def of_matrices(self, metric: str, samples: Sequence["Sample"]) -> dict[str, Floats]:
        """What a function of `metrics` measures of the weights with two axes or more, except attention vectors."""
        found = {each.name: np.full((len(samples), len(self.names)), np.nan) for each in OF_MATRICES[metric]}
        for row, sample in enumerate(samples):
            for positions, sizes, _, _, flat in self._batches(sample.weights):
                for position, piece in zip(positions, flat.split(sizes), strict=True):
                    if self.is_matrix[position]:
                        for name, value in of_matrix(metric, piece.view(self._own.shapes[position])).items():
                            found[name][row, position] = value
        return found

    def _by_parameter(
        self, of_samples: Sequence[Flat | None], measure: Callable[[list[Tensor], list[int]], Tensor]
    ) -> Floats:
        """A number of each parameter of each sample, (samples, parameters); NaN where there is nothing to measure."""
        found = np.full((len(of_samples), len(self.names)), np.nan)
        rows = [row for row, flats in enumerate(of_samples) if flats is not None]
        for number, (positions, sizes) in enumerate(zip(self._own.positions, self._own.sizes, strict=True)):
            end = len(self._initial[number])
            flats = [flats[number][:end] for flats in of_samples if flats is not None]
            if flats and not flats[0].is_complex():
                found[np.ix_(rows, positions)] = measure(flats, sizes).cpu().numpy()
        return found

    def _batches(self, flats: Flat) -> Iterator[tuple[list[int], list[int], Tensor, Tensor, Tensor]]:
        """Positions and sizes of parameters, their initial values, entries whose change is absolute, and values."""
        own = zip(self._own.positions, self._own.sizes, self._initial, self._absolute, strict=True)
        for (positions, sizes, initial, absolute), flat in zip(own, flats, strict=False):
            if not flat.is_complex():
                yield positions, sizes, initial, absolute, flat[..., : len(initial)]


def of_matrix(metric: str, weight: Tensor) -> dict[str, float]:
    """The columns that a function of `metrics` measures of one weight matrix."""
    found = values_by_column(OF_MATRICES[metric], getattr(metrics, metric)(weight))
    return {name: float(value) for name, value in found.items()}


def _counts(flats: list[Tensor], sizes: list[int]) -> Tensor:
    found = [metrics.non_finite_count(piece) for flat in flats for piece in flat.split(sizes)]
    return torch.stack(found).view(len(flats), len(sizes))


def _array(parameter: Tensor) -> NDArray[Any]:
    values = parameter.detach().cpu()
    values = values.to_dense() if values.is_sparse else values
    return (values.float() if values.dtype in _WITHOUT_NUMPY else values).numpy()

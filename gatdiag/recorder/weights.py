"""Weights and gradients of steps -> the columns of the table `parameters`, with the functions of `gatdiag.metrics`."""

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
from gatdiag.quantities import LEVELS, change_quantile, metric_functions, values_by_column
from gatdiag.weight_change import FRACTIONS

if TYPE_CHECKING:
    from gatdiag.recorder.backlog import Sample

Flat: TypeAlias = list[Tensor]  # one for each device and dtype
Floats: TypeAlias = NDArray[np.float64]

# Functions of `gatdiag.metrics` of a weight matrix -> their columns.
MATRIX_METRICS: Final = {metric: found for (metric, *_), found in metric_functions("parameters").items()}
_MAX_ENTRIES = 1 << 20  # of parameters that are stacked at a time, to fit into the CPU cache
_MAX_ENTRIES_AWAY = 1 << 22  # the same on an accelerator, for whose memory stacks and their temporaries must be small
_WITHOUT_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class FlatParameters:
    """Parameters concatenated into one flat tensor for each device and dtype, so that few kernels copy them all.

    Half precision becomes float32. Sparse parameters, and those that are neither real nor complex, are left out.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.shapes = [tensor.shape for tensor in self.tensors]
        buckets: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for position, tensor in enumerate(self.tensors):
            if (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided:
                buckets[tensor.device, tensor.dtype].append(position)
        self.positions = list(buckets.values())
        self.included = sorted(position for positions in self.positions for position in positions)
        self.sizes = [[self.tensors[position].numel() for position in positions] for positions in self.positions]
        self._buckets = [[self.tensors[position] for position in positions] for positions in self.positions]
        self._lacks_some = sum(map(len, self.positions)) < len(self.tensors)
        self._zeros = [tensor.detach().new_zeros(()).expand(tensor.shape) for tensor in self.tensors]

    def weights(self) -> Flat:
        """A copy of the weights."""
        return [_flatten(bucket) for bucket in self._buckets]

    def gradients(self) -> Flat:
        """A copy of the gradients; zeros where there is none."""
        return self.flatten([tensor.grad for tensor in self.tensors])

    def flatten(self, gradients: Sequence[Tensor | None]) -> Flat:
        """A flat copy of gradients, one for each parameter; zeros for None."""
        dense = [
            zero if gradient is None else gradient if gradient.layout is torch.strided else gradient.to_dense()
            for gradient, zero in zip(gradients, self._zeros, strict=True)
        ]
        if len(self.positions) == 1 and not self._lacks_some:
            return [_flatten(dense)]
        return [_flatten([dense[position] for position in positions]) for positions in self.positions]

    def chunk(self, samples: Sequence["Sample"]) -> Iterator[Sequence["Sample"]]:
        """Chunks of samples that are quickly stacked."""
        entries = _MAX_ENTRIES if all(tensor.is_cpu for tensor in self.tensors) else _MAX_ENTRIES_AWAY
        count = max(1, entries // max(1, sum(map(sum, self.sizes))))
        return (samples[start : start + count] for start in range(0, len(samples), count))

    def split(self, flats: Flat) -> list[Tensor]:
        """The entries of each parameter, as views; flat tensors are split along their last axis."""
        found = [zero.new_zeros(0) for zero in self._zeros] if self._lacks_some else [*self._zeros]
        for positions, sizes, flat in zip(self.positions, self.sizes, flats, strict=True):
            for position, piece in zip(positions, flat.split(sizes, -1), strict=True):
                found[position] = piece
        return found


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    flat: Tensor = torch._C._nn.flatten_dense_tensors([*tensors]).detach()
    if flat.is_floating_point() and flat.dtype.itemsize < 4:
        return flat.float()
    return flat.clone() if len(tensors) == 1 else flat


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """True if all entries are known to be finite; False if the host would have to wait for the device.

    Checks their sum only, so it is also False if that overflows.
    """
    total = 0.0
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout not in (torch.strided, torch.sparse_coo):
            return False
        total += abs(tensor.sum().item())
    return math.isfinite(total)


def are_equal(one: Flat, other: Flat) -> bool:
    """True if all entries are known to be equal; False if the host would have to wait for the device."""
    return all(a.is_cpu and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def dot(one: Flat, other: Flat) -> float:
    """Inner product, whose complex entries count as pairs of real ones; waits for the device."""
    return sum(float((as_real(a) * as_real(b)).sum()) for a, b in zip(one, other, strict=True))


def as_real(x: Tensor) -> Tensor:
    """A flat view of the real and imaginary parts of a complex tensor; any other tensor as it is."""
    return torch.view_as_real(x.resolve_conj()).flatten() if x.is_complex() else x


@dataclass(frozen=True)
class WeightColumns:
    """Measurements of the parameters at several steps."""

    columns: dict[str, Any]  # (samples, parameters) each, masked where nothing was measured
    gradient_norm: Floats  # (samples,), of all parameters of the model together
    gradient_norms: Floats  # (samples, parameters that samples are taken of)
    relative_gradient_norm: Floats  # (samples, parameters)
    weight_changes: list[Flat | None]  # of each sample


class Weights:
    """The recorded parameters, with a copy of their initial values.

    Args:
        parameters: Name -> parameter.
        attention: Names of attention vectors, whose change is absolute.

    Attributes:
        flat: The parameters that samples are taken of: first the recorded ones, then those of `add_parameters`.
        others: Further parameters, which are added once they are trained.
    """

    def __init__(self, parameters: Mapping[str, Tensor], attention: Sequence[str]) -> None:
        self.names = tuple(parameters)
        self.tensors = list(parameters.values())
        self._attention = set(attention)
        self.others: list[Tensor] = []
        self.is_measurable = np.array([p.is_floating_point() and not p.is_sparse for p in self.tensors], dtype=bool)
        is_matrix = [p.dim() > 1 and name not in self._attention for name, p in parameters.items()]
        self.is_matrix = np.array(is_matrix, dtype=bool)
        self._recorded = self.flat = FlatParameters(self.tensors)
        self._initial = self._recorded.weights()
        self._absolute = []  # of each flat tensor: positions of the entries of attention vectors
        for positions, sizes, flat in zip(self._recorded.positions, self._recorded.sizes, self._initial, strict=True):
            is_attention = torch.tensor([self.names[position] in self._attention for position in positions])
            entries = is_attention.repeat_interleave(torch.tensor(sizes)).nonzero().flatten()
            self._absolute.append(entries.to(flat.device))

    def add_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Take samples of these parameters, too: laws, the norm of all gradients and the overshoot need them."""
        known = {id(tensor) for tensor in self.flat.tensors}
        new = [tensor for tensor in parameters if id(tensor) not in known]
        self.flat = FlatParameters([*self.flat.tensors, *new]) if new else self.flat

    def add_unfrozen(self) -> None:
        """Take samples of others that have become trainable, too."""
        self.add_parameters(tensor for tensor in self.others if tensor.requires_grad)
        self.others = [tensor for tensor in self.others if not tensor.requires_grad]

    def set_initial(self, initial: Mapping[str, Tensor]) -> None:
        """Measure changes against these values, as a resumed run does."""
        for name, piece in zip(self.names, self._recorded.split(self._initial), strict=True):
            if name in initial and len(piece):
                piece.copy_(initial[name].flatten())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name -> current values; dtypes that NumPy lacks become float32."""
        return {name: _to_numpy(parameter) for name, parameter in zip(self.names, self.tensors, strict=True)}

    def gradient_norms(self) -> Tensor:
        """(parameters,), float64, on the device of the parameters; 0 for a parameter without a gradient."""
        found = torch.zeros(len(self.names), dtype=torch.float64)
        for positions, sizes, _, _, flat in self._zip_real(self._recorded.gradients()):
            found = found.to(flat.device)
            found[positions] = metrics.norms_of_pieces([flat], sizes)[0]
        return found

    @torch.no_grad()
    def measure(self, samples: Sequence["Sample"], guard: Callable[..., Any], columns: frozenset[str]) -> WeightColumns:
        """Measure the columns of several steps together.

        Args:
            samples: Of the steps.
            guard: A `Guard`, through which each group of columns is measured.
            columns: Names of the columns that are recorded.
        """
        weights, gradients = [sample.weights for sample in samples], [sample.gradients for sample in samples]
        norm = self._measure_each(weights, metrics.norms_of_pieces)
        gradient_norms = self._measure_each(gradients, metrics.norms_of_pieces, self.flat)
        gradient_norm = gradient_norms[:, : len(self.names)]
        changes = [sample.weight_change() for sample in samples]
        with np.errstate(all="ignore"):  # the norm of a bias may be 0
            relative = gradient_norm / norm
            ratio = self._measure_each(changes, metrics.norms_of_pieces) / norm
        every = np.ones(norm.shape, dtype=bool)
        has_gradient = np.stack([sample.has_gradient[: len(self.names)] for sample in samples])
        found: dict[str, tuple[Floats, NDArray[np.bool_]]] = {  # column -> values, and where they were measured
            "norm": (norm, every),
            "gradient_norm": (gradient_norm, has_gradient),
            "relative_gradient_norm": (relative, has_gradient),
            "update_ratio": (ratio, every & [[flats is not None] for flats in changes]),
        }
        if any("health" in sample.due_groups for sample in samples):
            is_due = every & [["health" in sample.due_groups] for sample in samples]
            found["non_finite"] = self._count_non_finite(weights, norm), is_due
            found["gradient_non_finite"] = self._count_non_finite(gradients, gradient_norm), is_due & has_gradient
        for group, what, function, where in (
            ("changes", "fractions of changed weights", self.changes, every),
            ("quantiles", "quantiles of changes", self.quantiles, every),
            *(
                (of[0].group, " and ".join(one.label for one in of), partial(self.matrices, metric), self.is_matrix)
                for metric, of in MATRIX_METRICS.items()
                if any(each.name in columns for each in of)
            ),
        ):
            is_due = np.array([group in sample.due_groups for sample in samples])
            due = [sample for sample in samples if group in sample.due_groups]
            of_group: Mapping[str, Floats] = (guard(what, function, due) if due else None) or {}
            for name, values in of_group.items():
                of_all = np.full(norm.shape, np.nan)
                of_all[is_due] = values
                found[name] = of_all, where & is_due[:, np.newaxis]
        masked = {
            name: np.ma.masked_array(values, mask=~(where & self.is_measurable))
            for name, (values, where) in found.items()
            if name in columns
        }
        return WeightColumns(masked, self._total_norm(gradient_norms), gradient_norms, relative, changes)

    def total_gradient_norms(self, of_samples: Sequence[Flat | None]) -> Floats:
        """Norm of the gradients of all parameters of the model, (samples,)."""
        return self._total_norm(self._measure_each(of_samples, metrics.norms_of_pieces, self.flat))

    def _total_norm(self, norms: Floats) -> Floats:
        total: Floats = np.linalg.norm(norms[:, self.flat.included], axis=1)
        return total

    def _count_non_finite(self, of_samples: Sequence[Flat], norms: Floats) -> Floats:
        """Number of NaN and infinite entries; counted only in samples with a norm that is not finite."""
        counts = np.zeros(norms.shape)
        suspect = np.flatnonzero(~np.isfinite(norms[:, self.is_measurable]).all(axis=1)).tolist()
        counts[suspect] = self._measure_each([of_samples[row] for row in suspect], _non_finite_counts)
        return counts

    def changes(self, samples: Sequence["Sample"]) -> dict[str, Floats]:
        """Fractions of weights that changed since the beginning, that never did, and that are large enough to count."""
        found = self._measure_change(samples, (len(FRACTIONS),), metrics.change_fractions)
        return dict(zip(FRACTIONS, found, strict=True))

    def quantiles(self, samples: Sequence["Sample"]) -> dict[str, Floats]:
        """Quantiles of relative and absolute change since the beginning."""
        found = self._measure_change(
            samples, (2, len(LEVELS)), lambda initial, now, sizes, _: metrics.change_quantiles(initial, now, sizes)
        )
        return {
            change_quantile(kind, level): found[number, at]
            for number, kind in enumerate(("relative", "absolute"))
            for at, level in enumerate(LEVELS)
        }

    def _measure_change(
        self, samples: Sequence["Sample"], shape: tuple[int, ...], measure: Callable[..., Tensor]
    ) -> Floats:
        """(*shape, samples, parameters), of initial values, values, sizes and absolute entries."""
        chunks = []
        for chunk in self.flat.chunk(samples):
            found = np.full((*shape, len(chunk), len(self.names)), np.nan)
            stacked = [torch.stack(flats) for flats in zip(*(sample.weights for sample in chunk), strict=True)]
            for positions, sizes, initial, absolute, flats in self._zip_real(stacked):
                found[..., positions] = measure(initial, flats, sizes, absolute).cpu().numpy()
            chunks.append(found)
        return np.concatenate(chunks, axis=-2)

    def matrices(self, metric: str, samples: Sequence["Sample"]) -> dict[str, Floats]:
        """The columns of a function of `gatdiag.metrics`, of weights with two or more axes except attention vectors."""
        found = {each.name: np.full((len(samples), len(self.names)), np.nan) for each in MATRIX_METRICS[metric]}
        for row, sample in enumerate(samples):
            for positions, sizes, _, _, flat in self._zip_real(sample.weights):
                for position, piece in zip(positions, flat.split(sizes), strict=True):
                    if self.is_matrix[position]:
                        for name, value in measure_matrix(metric, piece.view(self._recorded.shapes[position])).items():
                            found[name][row, position] = value
        return found

    def _measure_each(
        self,
        of_samples: Sequence[Flat | None],
        measure: Callable[[list[Tensor], list[int]], Tensor],
        parameters: FlatParameters | None = None,
    ) -> Floats:
        """One number for each parameter of each sample, (samples, parameters); NaN where nothing is measured.

        Args:
            of_samples: Weights or gradients.
            measure: Of flat tensors with the same sizes of their pieces.
            parameters: All that samples are taken of; by default the recorded ones.
        """
        parameters = parameters or self._recorded
        found = np.full((len(of_samples), len(parameters.tensors)), np.nan)
        rows = [row for row, flats in enumerate(of_samples) if flats is not None]
        for number, (positions, sizes) in enumerate(zip(parameters.positions, parameters.sizes, strict=True)):
            flats = [flats[number][: sum(sizes)] for flats in of_samples if flats is not None]
            if flats:
                parts = 1 + flats[0].is_complex()
                real = [as_real(flat) for flat in flats]
                found[np.ix_(rows, positions)] = measure(real, [parts * size for size in sizes]).cpu().numpy()
        return found

    def _zip_real(self, flats: Flat) -> Iterator[tuple[list[int], list[int], Tensor, Tensor, Tensor]]:
        """For each flat tensor that is not complex: positions, sizes, initial values, absolute entries, and values."""
        recorded = self._recorded
        columns = zip(recorded.positions, recorded.sizes, self._initial, self._absolute, strict=True)
        for (positions, sizes, initial, absolute), flat in zip(columns, flats, strict=False):
            if not flat.is_complex():
                yield positions, sizes, initial, absolute, flat[..., : len(initial)]


def measure_matrix(metric: str, weight: Tensor) -> dict[str, float]:
    """The columns of a function of `gatdiag.metrics`, of one weight matrix."""
    found = values_by_column(MATRIX_METRICS[metric], getattr(metrics, metric)(weight))
    return {name: float(value) for name, value in found.items()}


def _non_finite_counts(flats: list[Tensor], sizes: list[int]) -> Tensor:
    found = [metrics.non_finite_count(piece) for flat in flats for piece in flat.split(sizes)]
    return torch.stack(found).view(len(flats), len(sizes))


def _to_numpy(parameter: Tensor) -> NDArray[Any]:
    values = parameter.detach().cpu()
    values = values.to_dense() if values.is_sparse else values
    return (values.float() if values.dtype in _WITHOUT_NUMPY else values).numpy()

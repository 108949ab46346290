"""Weights, gradients and updates of steps -> the columns of the table `parameters`."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from gatdiag import metrics
from gatdiag.names import escape_surrogates
from gatdiag.quantities import Metric, metric_functions
from gatdiag.recorder.samples import Flat, FlatParameters, Sample
from gatdiag.weight_change import change_fractions, change_quantiles

Floats: TypeAlias = NDArray[np.float64]

_METRICS: Final = metric_functions("parameters")
_WITHOUT_NUMPY: Final = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


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
class ParameterColumns:
    """Measurements of the parameters at several steps, before the weights moved.

    Attributes:
        columns: Name -> (samples, parameters), masked where nothing was measured.
        norms: Norms of the weights, (samples, parameters).
        gradient_norms: Norms of the gradients, (samples, all parameters that samples are taken of).
        relative_gradient_norms: The quotient of the two, (samples, parameters).
    """

    columns: dict[str, Any]
    norms: Floats
    gradient_norms: Floats
    relative_gradient_norms: Floats


class ParameterMeasurer:
    """Measures the recorded parameters.

    Args:
        parameters: Name -> parameter.
        attention: Names of attention vectors, whose change is absolute.

    Attributes:
        names: Of the recorded parameters.
        flat: The parameters that samples are taken of: first the recorded ones, then those of `add_parameters`.
        others: Further parameters, which are added once they are trained.
    """

    def __init__(self, parameters: Mapping[str, Tensor], attention: Collection[str]) -> None:
        self.names = tuple(parameters)
        self.tensors = list(parameters.values())
        self.others: list[Tensor] = []
        self.flat = FlatParameters(self.tensors)
        self._is_measurable = np.array([p.is_floating_point() and not p.is_sparse for p in self.tensors], dtype=bool)
        self._is_attention = [name in attention for name in self.names]
        is_matrix = [p.dim() > 1 and not known for p, known in zip(self.tensors, self._is_attention, strict=True)]
        self._is_matrix = np.array(is_matrix, dtype=bool)
        self._initial = _Initial([*map(escape_surrogates, self.names)], self.flat)

    def add_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Take samples of these parameters, too: laws, the norm of all gradients and the overshoot need them."""
        known = {id(tensor) for tensor in self.flat.tensors}
        new = [tensor for tensor in parameters if id(tensor) not in known]
        self.flat = FlatParameters([*self.flat.tensors, *new]) if new else self.flat

    def add_unfrozen(self) -> None:
        """Take samples of others that have become trainable, too."""
        self.add_parameters(tensor for tensor in self.others if tensor.requires_grad)
        self.others = [tensor for tensor in self.others if not tensor.requires_grad]

    def set_initial(self, snapshot: Path) -> None:
        """Measure changes against the values in this file."""
        self._initial.set_file(snapshot)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name -> current values; dtypes that NumPy lacks become float32."""
        return {name: _to_numpy(parameter) for name, parameter in zip(self.names, self.tensors, strict=True)}

    def before(self, samples: Sequence[Sample], guard: Callable[..., Any], columns: frozenset[str]) -> ParameterColumns:
        """Measure several steps together, as they were before the weights moved.

        Args:
            samples: Of the steps.
            guard: A `Guard`, through which each group of columns is measured.
            columns: Names of the columns that are recorded.
        """
        count = len(self.names)
        weights, gradients = [sample.weights for sample in samples], [sample.gradients for sample in samples]
        norms = measure_pieces(self.flat, weights)[:, :count]
        gradient_norms = measure_pieces(self.flat, gradients)
        gradient_norm = gradient_norms[:, :count]
        with np.errstate(all="ignore"):  # the norm of a bias may be 0
            relative = gradient_norm / norms
        every = np.ones(norms.shape, dtype=bool)
        has_gradient = np.stack([sample.has_gradient[:count] for sample in samples])
        found: dict[str, tuple[Floats, NDArray[np.bool_]]] = {  # column -> values, and where they were measured
            "norm": (norms, every),
            "gradient_norm": (gradient_norm, has_gradient),
            "relative_gradient_norm": (relative, has_gradient),
        }
        if any("health" in sample.due_groups for sample in samples):
            is_due = every & [["health" in sample.due_groups] for sample in samples]
            found["non_finite"] = self._count_non_finite(weights, norms), is_due
            found["gradient_non_finite"] = self._count_non_finite(gradients, gradient_norm), is_due & has_gradient
        measure = partial(self._measure_group, samples=samples, guard=guard)
        found |= measure("changes", "fractions of changed weights", self._changes, every)
        found |= measure("quantiles", "quantiles of changes", self._quantiles, every)
        for metric in _METRICS:
            if metric.of != "update" and any(each.name in columns for each in metric.quantities):
                where = (every if metric.of == "weight" else has_gradient) & self._is_for(metric)
                found |= measure(metric.group, metric.label, partial(self._call, metric), where)
        masked = {name: self._mask(*of_column) for name, of_column in found.items() if name in columns}
        return ParameterColumns(masked, norms, gradient_norms, relative)

    def after(
        self,
        found: ParameterColumns,
        samples: Sequence[Sample],
        changes: Sequence[Flat | None],
        guard: Callable[..., Any],
        columns: frozenset[str],
    ) -> dict[str, Any]:
        """The columns of the updates, given the changes of the weights in each step."""
        with np.errstate(all="ignore"):  # the norm of a bias may be 0
            ratios = measure_pieces(self.flat, changes)[:, : len(self.names)] / found.norms
        where = np.broadcast_to(np.array([[change is not None] for change in changes]), ratios.shape)
        of_updates = {"update_ratio": (ratios, where)}
        for metric in _METRICS:
            if metric.of == "update" and any(each.name in columns for each in metric.quantities):
                function = partial(self._call, metric, updates=dict(zip(samples, changes, strict=True)))
                there = where & self._is_for(metric)
                of_updates |= self._measure_group(metric.group, metric.label, function, there, samples, guard)
        return {name: self._mask(*of_column) for name, of_column in of_updates.items() if name in columns}

    def _measure_group(
        self,
        group: str,
        what: str,
        function: Callable[..., Mapping[str, Floats]],
        where: NDArray[np.bool_],
        samples: Sequence[Sample],
        guard: Callable[..., Any],
    ) -> dict[str, tuple[Floats, NDArray[np.bool_]]]:
        """Column -> values and where they were measured, of the samples in which the group is due."""
        is_due = np.array([group in sample.due_groups for sample in samples])
        due = [sample for sample in samples if group in sample.due_groups]
        of_group: Mapping[str, Floats] = (guard(what, function, due) if due else None) or {}
        found = {}
        for name, values in of_group.items():
            of_all = np.full((len(samples), len(self.names)), np.nan)
            of_all[is_due] = values
            found[name] = of_all, where & is_due[:, np.newaxis]
        return found

    def total(self, norms: Floats) -> Floats:
        """Norm of all parameters of the model, (samples,), from the norms of each."""
        total: Floats = np.linalg.norm(norms[:, np.array(self.flat.included, dtype=np.int64)], axis=1)
        return total

    def norms(self, flats: Flat) -> Floats:
        """Norms of all parameters that samples are taken of, (parameters,)."""
        found: Floats = measure_pieces(self.flat, [flats])[0]
        return found

    def _mask(self, values: Floats, where: NDArray[np.bool_]) -> Any:
        return np.ma.masked_array(values, mask=~(where & self._is_measurable))

    def _count_non_finite(self, of_samples: Sequence[Flat], norms: Floats) -> Floats:
        """Number of NaN and infinite entries; counted only in samples with a norm that is not finite."""
        counts = np.zeros(norms.shape)
        suspect = np.flatnonzero(~np.isfinite(norms[:, self._is_measurable]).all(axis=1)).tolist()
        if suspect:
            found = measure_pieces(self.flat, [of_samples[row] for row in suspect], _non_finite_counts)
            counts[suspect] = found[:, : len(self.names)]
        return counts

    def _changes(self, samples: Sequence[Sample]) -> dict[str, Floats]:
        """Fractions of weights that changed since the beginning, that never did, and that are large enough to count."""
        found = self._new_columns(len(samples))
        for row, sample in enumerate(samples):
            for positions, sizes, initial, now in self._initial_and_now(sample):
                absolute = self._absolute_entries(positions, sizes)
                for column, values in change_fractions(initial, now, sizes, absolute).items():
                    found[column][row, positions] = values
        return found

    def _quantiles(self, samples: Sequence[Sample]) -> dict[str, Floats]:
        """Quantiles of relative and absolute change since the beginning."""
        found = self._new_columns(len(samples))
        for row, sample in enumerate(samples):
            for positions, sizes, initial, now in self._initial_and_now(sample):
                ends = np.cumsum(sizes)
                for position, size, end in zip(positions, sizes, ends, strict=True):
                    arrays = initial[end - size : end], now[end - size : end]
                    both = change_quantiles(*arrays, "relative") | change_quantiles(*arrays, "absolute")
                    for column, value in both.items():
                        found[column][row, position] = value
        return found

    def _new_columns(self, samples: int) -> dict[str, Floats]:
        return defaultdict(partial(np.full, (samples, len(self.names)), np.nan))

    def _initial_and_now(self, sample: Sample) -> Iterator[tuple[list[int], list[int], Any, Any]]:
        """Of each piece that is not complex: positions, sizes, initial values and weights."""
        for number, positions, sizes in self._recorded_pieces():
            now = sample.weights[number][: sum(sizes)]
            if not now.is_complex():
                initial = self._initial.piece(positions).to(now.dtype)
                yield positions, sizes, initial.cpu().numpy(), now.cpu().numpy()

    def _absolute_entries(self, positions: Sequence[int], sizes: Sequence[int]) -> NDArray[np.int64]:
        """Positions in a piece of the entries of attention vectors."""
        found: NDArray[np.int64] = np.flatnonzero(np.repeat([self._is_attention[at] for at in positions], sizes))
        return found

    def _is_for(self, metric: Metric) -> NDArray[np.bool_]:
        """The parameters that a function of `gatdiag.metrics` is for."""
        found: NDArray[np.bool_] = self._is_matrix if metric.needs == "matrix" else np.ones_like(self._is_matrix)
        return found

    def _call(
        self, metric: Metric, samples: Sequence[Sample], updates: Mapping[Sample, Flat | None] | None = None
    ) -> dict[str, Floats]:
        """The columns of a function of `gatdiag.metrics`, of each parameter that it is for."""
        found, is_for = self._new_columns(len(samples)), self._is_for(metric)
        for row, sample in enumerate(samples):
            update = None if updates is None else updates[sample]
            flats = {"weight": sample.weights, "gradient": sample.gradients, "update": update or ()}[metric.of]
            for number, positions, sizes in self._recorded_pieces() if len(flats) else ():
                piece = flats[number][: sum(sizes)]
                for position, values in zip(positions, piece.split(sizes), strict=True):
                    if is_for[position] and not piece.is_complex():
                        result = getattr(metrics, metric.function)(values.view(self.flat.shapes[position]))
                        for name, value in metric.by_column(result).items():
                            found[name][row, position] = float(value)
        return found

    def _recorded_pieces(self) -> Iterator[tuple[int, list[int], list[int]]]:
        """Of each piece: its number, the positions of the recorded parameters in it, which come first, and sizes."""
        for number, (positions, sizes) in enumerate(zip(self.flat.positions, self.flat.sizes, strict=True)):
            recorded = [position for position in positions if position < len(self.names)]
            if recorded:
                yield number, recorded, sizes[: len(recorded)]


def measure_pieces(
    flat: FlatParameters,
    of_samples: Sequence[Flat | None],
    measure: Callable[[list[Tensor], list[int]], Tensor] = metrics.norms_of_pieces,
) -> Floats:
    """One number for each parameter of each sample, (samples, parameters); NaN where nothing is measured.

    Args:
        flat: The parameters.
        of_samples: Weights or gradients.
        measure: Of flat tensors with the same sizes of their pieces.
    """
    found = np.full((len(of_samples), len(flat.tensors)), np.nan)
    rows = [row for row, flats in enumerate(of_samples) if flats is not None]
    for number, (positions, sizes) in enumerate(zip(flat.positions, flat.sizes, strict=True)):
        pieces = [flats[number] for flats in of_samples if flats is not None]
        if pieces:
            parts = 1 + pieces[0].is_complex()
            real = [as_real(piece) for piece in pieces]
            found[np.ix_(rows, positions)] = measure(real, [parts * size for size in sizes]).cpu().numpy()
    return found


class _Initial:
    """Initial values of parameters; those of a large model are read from its snapshot when they are needed."""

    def __init__(self, names: Sequence[str], flat: FlatParameters) -> None:
        self._names = names
        self._file: Path | None = None
        self._pieces: dict[tuple[int, ...], Tensor] = {}
        self._values: list[Tensor] | None = None if flat.is_large else flat.split(flat.weights())

    def set_file(self, snapshot: Path) -> None:
        """Take the values from this file."""
        self._file, self._pieces = snapshot, {}
        if self._values is not None:
            with safe_open(snapshot, framework="pt") as file:
                known = {*file.keys()}
                self._values = [
                    file.get_tensor(name).flatten() if name in known else value
                    for name, value in zip(self._names, self._values, strict=True)
                ]

    def piece(self, positions: Sequence[int]) -> Tensor:
        """The values of these parameters, one after the other."""
        key = tuple(positions)
        if (kept := self._pieces.get(key)) is not None:
            return kept
        if self._values is not None:
            found = self._pieces[key] = torch.cat([self._values[position] for position in positions])
            return found
        if self._file is None:
            raise OSError("the initial weights were not saved, so changes cannot be measured")
        with safe_open(self._file, framework="pt") as file:
            return torch.cat([file.get_tensor(self._names[position]).flatten() for position in positions])


def _non_finite_counts(flats: list[Tensor], sizes: list[int]) -> Tensor:
    found = [metrics.non_finite_count(piece) for flat in flats for piece in flat.split(sizes)]
    return torch.stack(found).view(len(flats), len(sizes))


def _to_numpy(parameter: Tensor) -> NDArray[Any]:
    values = parameter.detach().cpu().resolve_conj().resolve_neg()
    values = values.to_dense() if values.is_sparse else values
    return (values.float() if values.dtype in _WITHOUT_NUMPY else values).numpy()

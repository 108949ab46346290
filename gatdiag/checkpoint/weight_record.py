"""Checkpoints -> rows of a run, from the weights alone."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
from torch import Tensor

from gatdiag.checkpoint.change import compare
from gatdiag.checkpoint.measures import Measured, measure
from gatdiag.laws import Laws
from gatdiag.recorder import description
from gatdiag.recorder.groups import select
from gatdiag.run import Store
from gatdiag.structure import Structure

Tensors: TypeAlias = Mapping[str, Tensor]
Values: TypeAlias = Callable[[Tensors, Mapping[str, Measured]], Tensor]

_ALWAYS: Final = ("norm", "non_finite", "spectral_norm", "c")
_OF_TWO: Final = ("changes", "quantiles")


class WeightRecord:
    """Writes a step of a run for each checkpoint, from its weights alone.

    Args:
        folder: The run's.
        model: What the model is called.
        structure: The layers.
        laws: Whose values c are.
        c: A checkpoint's tensors, and what each of them measures -> value of each law.
        compared: Whether there is something to measure changes from.
        spectral: Also estimate spectral norms, which takes many times as long as all the rest.
        overwrite: Delete the run that is there.

    Attributes:
        measured: Parameter -> what it measures in the last checkpoint.

    Raises:
        InputError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        structure: Structure,
        laws: Laws,
        c: Values,
        *,
        compared: bool,
        spectral: bool,
        overwrite: bool,
    ) -> None:
        """Begins the run."""
        self._infos, self._compared, self._spectral = structure.parameters, compared, spectral
        self._laws, self._c = laws, c
        self._reference: Tensors = {}
        self.measured: Mapping[str, Measured] = {}
        metrics = (*_ALWAYS, *_OF_TWO) if compared else _ALWAYS
        about = {
            "model": model,
            "device": "cpu",
            "cadence": {"every": "checkpoint", "budget": None, "metrics": ", ".join(metrics), "groups": {}},
            "structure": description.of_structure(structure, structure.order),
            "laws": description.of_laws(laws, laws.excluded, None),
            **description.fixed(select(metrics)),
        }
        self._store = Store.create(folder, about, overwrite=overwrite)

    def start(self, reference: Tensors) -> None:
        """Measure changes from these weights on."""
        self._reference = reference

    def add(self, step: int, tensors: Tensors, scalars: Mapping[str, float]) -> None:
        """Write one checkpoint. c is left out if a parameter of a law is missing or has another shape."""
        held = [(at, info) for at, info in enumerate(self._infos) if info.name in tensors]
        measured = {info.name: measure(tensors[info.name], spectral=self._spectral) for _, info in held}
        self.measured = measured
        rows = [_numbers(measured[info.name]) for _, info in held]
        if self._compared:
            change = compare(self._reference, tensors, [info for _, info in held], quantiles=True).columns
            rows = [{**row, **change.get(info.name, {})} for row, (_, info) in zip(rows, held, strict=True)]
        self._store.append("steps", {"step": step, **scalars})
        if rows:
            positions = np.array([at for at, _ in held], dtype=np.int32)
            self._store.append("parameters", {"step": step, "parameter": positions, **_columns(rows)})
        if self._has_laws_of(tensors):
            c = self._c(tensors, measured).numpy()
            self._store.append("neurons", {"step": step, "law": np.arange(len(c), dtype=np.int32), "c": c})

    def _has_laws_of(self, tensors: Tensors) -> bool:
        weights = self._laws.parameters.items()
        return len(self._laws) > 0 and all(n in tensors and tensors[n].shape == weight.shape for n, weight in weights)

    def __enter__(self) -> Self:
        """The run has begun already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        """Seal the run."""
        if isinstance(error, KeyboardInterrupt):
            self._store.seal("interrupted")
        else:
            self._store.seal("finished" if error is None else "failed", None if error is None else str(error))


def _numbers(measured: Measured) -> dict[str, float]:
    spectral = {} if math.isnan(measured.spectral_norm) else {"spectral_norm": measured.spectral_norm}
    return {"norm": measured.norm, "non_finite": measured.non_finite, **spectral}


def _columns(rows: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """One array a column; what a row lacks is masked."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: np.ma.masked_array(
            [row.get(name, math.nan) for row in rows], mask=[name not in row for row in rows], dtype=np.float64
        )
        for name in names
    }

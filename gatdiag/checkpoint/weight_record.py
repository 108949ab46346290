"""Checkpoints -> rows of a run, from the weights alone."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gatdiag.checkpoint.fitting import plain
from gatdiag.checkpoint.measures import Measured, measure, parameter_columns
from gatdiag.checkpoint.stack import Stack
from gatdiag.laws import Laws
from gatdiag.recorder import meta, select
from gatdiag.run import Store
from gatdiag.structure import Structure

Tensors: TypeAlias = Mapping[str, Tensor]

_ALWAYS: Final = ("norm", "non_finite", "spectral_norm", "c")
_OF_TWO: Final = ("changes", "quantiles")


@dataclass(frozen=True)
class Balance:
    """The laws whose values c are.

    Attributes:
        described: As meta.json has them.
        parameters: Names of those that the laws are of.
        c: A checkpoint's tensors, and what each of them measures -> value of each law.
    """

    described: Mapping[str, Any]
    parameters: frozenset[str]
    c: Callable[[Tensors, Mapping[str, Measured]], Tensor]


def traced_balance(laws: Laws) -> Balance:
    """The laws of a model."""
    return Balance(
        meta.of_laws(laws, laws.excluded, None),
        frozenset(laws.parameters),
        lambda tensors, _: laws.c({name: plain(tensors[name]) for name in laws.parameters}),
    )


def stacked_balance(stack: Stack) -> Balance:
    """The laws that names and shapes show."""
    return Balance(
        meta.of_laws([], stack.excluded, None) | {"found": stack.entries},
        stack.parameters,
        lambda _, measured: torch.cat(list(stack.c(measured).values())),
    )


class WeightRecord:
    """Writes a step of a run for each checkpoint, from its weights alone.

    Args:
        folder: The run's.
        name: What the run is called.
        model: What the model is called.
        structure: The layers.
        balance: Its laws.
        compared: Whether there is something to measure changes from.
        quick: Leave out spectral norms and quantiles of change, which take many times as long as all the rest.
        overwrite: Delete the run that is there.

    Attributes:
        measured: Parameter -> what it measures in the last checkpoint.

    Raises:
        InputError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        model: str,
        structure: Structure,
        balance: Balance,
        *,
        compared: bool,
        quick: bool,
        overwrite: bool,
    ) -> None:
        """Begins the run."""
        self._layers, self._compared, self._quick = structure.layers, compared, quick
        self._infos = structure.parameters
        self._balance = balance
        self._reference: Tensors = {}
        self.measured: Mapping[str, Measured] = {}
        metrics = (*_ALWAYS, *_OF_TWO) if compared else _ALWAYS
        about = {
            "name": name,
            "model": model,
            "device": "cpu",
            "cadence": {"every": "checkpoint", "budget": None, "metrics": ", ".join(metrics), "groups": {}},
            "structure": meta.of_structure(structure, structure.order),
            "laws": balance.described,
            **meta.fixed(select(metrics)),
        }
        self._store = Store.create(folder, about, overwrite=overwrite)

    def start(self, reference: Tensors) -> None:
        """Measure changes from these weights on."""
        self._reference = reference

    def add(self, step: int, tensors: Tensors, scalars: Mapping[str, float]) -> None:
        """Write one checkpoint. c is left out if a parameter of a law is missing or has another shape."""
        held = [(at, info) for at, info in enumerate(self._infos) if info.name in tensors]
        measured = {info.name: measure(tensors[info.name]) for _, info in held}
        reference = self._reference if self._compared else None
        rows: list[Mapping[str, float]] = []
        for layer in self._layers:  # one of them is copied at a time
            columns = parameter_columns(layer.parameters, tensors, reference, quick=self._quick)
            rows += columns.values()
            for name, values in columns.items():
                sigma = values.get("spectral_norm", math.nan)
                measured[name] = replace(measured[name], spectral_norm=sigma)
        self.measured = measured
        self._store.append("steps", {"step": step, **scalars})
        if rows:
            positions = np.array([at for at, _ in held], dtype=np.int32)
            self._store.append("parameters", {"step": step, "parameter": positions, **_columns(rows)})
        if self._balance.parameters and self._has_balance(tensors):
            c = self._balance.c(tensors, measured).numpy()
            self._store.append("neurons", {"step": step, "law": np.arange(len(c), dtype=np.int32), "c": c})

    def _has_balance(self, tensors: Tensors) -> bool:
        shapes = {info.name: info.shape for info in self._infos if info.name in self._balance.parameters}
        return all(name in tensors and tuple(tensors[name].shape) == shape for name, shape in shapes.items())

    def tell(self, notes: Iterable[str]) -> None:
        """Keep remarks with the run."""
        self._store.update_meta(notes=[*self._store.meta["notes"], *notes])

    def __enter__(self) -> Self:
        """The run has begun already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        """Seal the run."""
        if isinstance(error, KeyboardInterrupt):
            self._store.seal("interrupted")
        else:
            self._store.seal("finished" if error is None else "failed", None if error is None else str(error))


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

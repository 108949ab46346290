"""Checkpoints -> rows of a run: from the weights alone, or by a forward and a backward pass of the model with each."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag.checkpoint.measures import WeightStats, changes, measure
from gatdiag.checkpoint.stack import Stack
from gatdiag.checkpoint.state_dict import load_weights_
from gatdiag.errors import InputError, ModelError
from gatdiag.quantities import GROUPS
from gatdiag.recorder import meta
from gatdiag.recorder.settings import Settings, select
from gatdiag.run import Store
from gatdiag.structure import Structure
from gatdiag.structure.adapters import ATTENTION

if TYPE_CHECKING:
    from gatdiag.laws import Laws

Tensors: TypeAlias = Mapping[str, Tensor]

_ALWAYS: Final = ("norm", "non_finite", "spectral_norm", "c")
_OF_TWO: Final = ("changes", "quantiles")
_CHANGES: Final = (*GROUPS["changes"].columns, *GROUPS["quantiles"].columns)
# The optimizer's steps from one checkpoint to the next were not seen.
_UNSEEN: Final = ("update_ratio", "predicted_c")
_RECORDED: Final = tuple(name for group in GROUPS.values() for name in group.columns if name not in _UNSEEN)


@dataclass(frozen=True)
class ModelCase:
    """The model that checkpoints are of, and what it is run on.

    Attributes:
        model: The model; its weights are replaced by those of each checkpoint.
        args: Positional inputs of its forward pass.
        kwargs: Keyword inputs.
        loss: Its output -> scalar; None: nothing is differentiated.
        source: Where the inputs come from, in words.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Tensor] | None = None
    source: str = ""


class WeightRecord:
    """Writes a step of a run for each checkpoint, from its weights alone; `measured` is what the last one measures."""

    def __init__(
        self,
        folder: Path,
        name: str,
        model: str,
        structure: Structure,
        laws: "Laws | Stack",
        *,
        compared: bool,
        quick: bool,
        overwrite: bool,
    ) -> None:
        self._compared, self._quick = compared, quick
        self._infos = structure.parameters
        self._laws, self._of_laws = laws, frozenset(laws.parameters)
        self._reference: Tensors = {}
        self.measured: Mapping[str, WeightStats] = {}
        metrics = (*_ALWAYS, *_OF_TWO) if compared else _ALWAYS
        about = {
            "name": name,
            "model": model,
            "device": "cpu",
            "cadence": {"every": "checkpoint", "budget": None, "metrics": ", ".join(metrics), "groups": {}},
            "structure": meta.of_structure(structure, structure.order),
            "laws": _described(laws),
            **meta.fixed(select(metrics)),
        }
        self._store = Store.create(folder, about, overwrite=overwrite)

    def start(self, reference: Tensors) -> None:
        """Measure changes from these weights on."""
        self._reference = reference

    def add(self, step: int, tensors: Tensors, scalars: Mapping[str, float]) -> None:
        """Write one checkpoint. c is left out if a parameter of a law is missing or has another shape."""
        measured: dict[str, WeightStats] = {}
        rows: list[dict[str, float]] = []
        positions = []
        for position, info in enumerate(self._infos):
            if info.name not in tensors:
                continue
            attention, tensor = info.role == ATTENTION, tensors[info.name]
            spectral = not self._quick and not attention and tensor.dim() > 1
            stats = measure(tensor, spectral=spectral)
            row = {"norm": stats.norm, "non_finite": float(stats.non_finite)}
            if spectral:
                row["spectral_norm"] = stats.spectral_norm
            if self._compared:
                row |= changes(self._reference.get(info.name), tensor, attention=attention, quick=self._quick)
            measured[info.name] = stats
            rows.append(row)
            positions.append(position)
        self.measured = measured
        self._store.append("steps", {"step": step, **scalars})
        if rows:
            at = np.array(positions, dtype=np.int32)
            self._store.append("parameters", {"step": step, "parameter": at, **_columns(rows)})
        shapes = {info.name: info.shape for info in self._infos if info.name in self._of_laws}
        if shapes and all(name in tensors and tuple(tensors[name].shape) == shape for name, shape in shapes.items()):
            c = np.asarray(self._laws.c(tensors))
            self._store.append("neurons", {"step": step, "law": np.arange(len(c), dtype=np.int32), "c": c})

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


def _described(laws: "Laws | Stack") -> dict[str, Any]:
    """As meta.json has them."""
    if isinstance(laws, Stack):
        return meta.of_laws([], laws.excluded, None) | {"found": laws.entries}
    return meta.of_laws(laws, laws.excluded, None)


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


def checkpoint(_: int) -> bool:
    """Every one is recorded; the run's settings show this name."""
    return True


class PassRecord:
    """Writes a step of a run for each checkpoint: what a step of training would have measured there.

    The model runs in training mode, with the same random numbers for each checkpoint.
    """

    def __init__(
        self, case: ModelCase, structure: Structure, folder: Path, name: str, *, compared: bool, overwrite: bool
    ) -> None:
        from gatdiag.recorder import Recorder  # a heavy import that weights alone do not need

        self._case = case
        self._names = [info.name for info in structure.parameters]
        self.measured: Mapping[str, WeightStats] = {}
        metrics = _RECORDED if compared else [name for name in _RECORDED if name not in _CHANGES]
        settings = Settings(select(metrics, 20.0), every=checkpoint, overwrite=overwrite, name=name)
        self._recorder = Recorder(case.model, folder, settings)
        if not self._recorder.enabled:
            raise InputError("GATDIAG_DISABLE is set, so nothing can be recorded: unset it")
        case.model.train()
        self._recorder.start()

    def start(self, reference: Mapping[str, Tensor]) -> None:
        """Measure changes from these weights on; the laws are found with them."""
        load_weights_(self._case.model, reference)
        self._loss()

    def add(self, step: int, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
        """Write one checkpoint; ModelError where the model or the loss fails."""
        load_weights_(self._case.model, tensors)
        self._case.model.zero_grad()
        loss = self._loss()
        loss.backward()
        with self._recorder.step(step):
            self._recorder.log(loss=loss, **scalars)
        self.measured = {name: measure(tensors[name]) for name in self._names if name in tensors}

    def tell(self, notes: Iterable[str]) -> None:
        """Keep remarks with the run."""
        for note in notes:
            self._recorder.note(note)

    def __enter__(self) -> Self:
        """The run has begun already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        """Seal the run."""
        self._case.model.zero_grad()
        self._recorder.__exit__(kind, error, None)

    def _loss(self) -> Tensor:
        case = self._case
        torch.manual_seed(0)
        try:
            output = case.model(*case.args, **case.kwargs)
            loss = case.loss(output) if case.loss is not None else output
        except Exception as error:  # the user's code
            raise ModelError(f"The model fails with these weights: {type(error).__name__}: {error}") from error
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ModelError("The loss has to be a scalar tensor that depends on the weights")
        return loss

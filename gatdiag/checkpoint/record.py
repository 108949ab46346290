"""Checkpoints -> rows of a run: from the weights alone, or by a forward and a backward pass of the model with each."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag.checkpoint.measures import changes, measure
from gatdiag.checkpoint.state_dict import load_weights_
from gatdiag.errors import InputError, ModelError
from gatdiag.quantities import GROUPS, columns
from gatdiag.recorder import meta
from gatdiag.recorder.settings import Settings, select
from gatdiag.roles import ATTENTION
from gatdiag.run import Store
from gatdiag.run.laws import RecordedLaws
from gatdiag.structure import ParameterInfo, Structure

Tensors: TypeAlias = Mapping[str, Tensor]
Saved: TypeAlias = tuple[int, Tensors, Mapping[str, float]]  # step, weights, what is logged with them
Remarks: TypeAlias = Callable[[], Iterable[str]]  # asked for when all checkpoints are written

_ALWAYS: Final = ("norm", "non_finite", *(each.name for each in columns("parameters") if each.takes), "c")
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


def record_weights(
    folder: Path,
    name: str,
    checkpoints: Iterable[Saved],
    remarks: Remarks,
    model: str,
    structure: Structure,
    laws: Mapping[str, Any],
    reference: Tensors | None,
    *,
    quick: bool,
    overwrite: bool,
) -> None:
    """Write a run with a step for each checkpoint, from its weights alone.

    Args:
        folder: Of the run.
        name: Of the run.
        checkpoints: Taken one by one.
        remarks: Notes to keep with the run.
        model: What it is called there.
        structure: Its layers.
        laws: As meta.json has them. c is left out where a parameter of a law is missing or has another shape.
        reference: The weights that changes are measured from; None: none are measured.
        quick: Leave out spectral norms and quantiles of change.
        overwrite: Delete the run that is in the folder.
    """
    metrics = _ALWAYS if reference is None else (*_ALWAYS, *_OF_TWO)
    about = {
        "name": name,
        "model": model,
        "device": "cpu",
        "cadence": {"every": "checkpoint", "budget": None, "metrics": ", ".join(metrics), "groups": {}},
        "structure": meta.describe_structure(structure, structure.order),
        "laws": laws,
        **meta.describe_recording(select(metrics)),
    }
    store = Store.create(folder, about, overwrite=overwrite)
    recorded = RecordedLaws(laws["found"], "the laws")
    shapes = {term["parameter"]: tuple(term["shape"]) for entry in laws["found"] for term in entry["terms"]}
    try:
        for step, tensors, scalars in checkpoints:
            store.append("steps", {"step": step, **scalars})
            held = {at: info for at, info in enumerate(structure.parameters) if info.name in tensors}
            rows = [_row(info, tensors[info.name], reference, quick=quick) for info in held.values()]
            if rows:
                store.append("parameters", {"step": step, "parameter": np.array([*held], np.int32), **_columns(rows)})
            if shapes and shapes == {name: tuple(tensors[name].shape) for name in shapes if name in tensors}:
                c = recorded.c({name: _array(tensors[name]) for name in shapes})
                store.append("neurons", {"step": step, "law": np.arange(len(c), dtype=np.int32), "c": c})
        store.update_meta(notes=[*store.meta["notes"], *remarks()])
    except KeyboardInterrupt:
        store.seal("interrupted")
        raise
    except BaseException as error:
        store.seal("failed", str(error))
        raise
    store.seal("finished")


def _row(info: ParameterInfo, tensor: Tensor, reference: Tensors | None, *, quick: bool) -> dict[str, float]:
    attention = info.role == ATTENTION
    row = measure(tensor, matrix=not quick and not attention)
    if reference is not None:
        row |= changes(reference.get(info.name), tensor, attention=attention, quick=quick)
    return row


def _columns(rows: list[dict[str, float]]) -> dict[str, Any]:
    """One array a column; what a row lacks is masked."""
    return {
        name: np.ma.masked_array(
            [row.get(name, np.nan) for row in rows], mask=[name not in row for row in rows], dtype=np.float64
        )
        for name in dict.fromkeys(name for row in rows for name in row)
    }


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """On the host, in a type that numpy has."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.itemsize == 2 else tensor).numpy()


def checkpoint(_: int) -> bool:
    """Every one is recorded; the run's settings show this name."""
    return True


def record_passes(
    folder: Path,
    name: str,
    checkpoints: Iterable[Saved],
    remarks: Remarks,
    case: ModelCase,
    reference: Tensors,
    *,
    compared: bool,
    overwrite: bool,
) -> None:
    """Write a run with a step for each checkpoint: what a step of training would have measured there.

    The model runs in training mode, with the same random numbers for each checkpoint.

    Args:
        folder: Of the run.
        name: Of the run.
        checkpoints: Taken one by one.
        remarks: Notes to keep with the run.
        case: The model, its inputs and its loss.
        reference: The weights that laws are found with, and changes measured from.
        compared: Measure changes.
        overwrite: Delete the run that is in the folder.
    """
    from gatdiag.recorder import Recorder  # a heavy import that weights alone do not need

    metrics = _RECORDED if compared else [name for name in _RECORDED if name not in _CHANGES]
    settings = Settings(select(metrics, 20.0), every=checkpoint, overwrite=overwrite, name=name)
    recorder = Recorder(case.model, folder, settings)
    if not recorder.enabled:
        raise InputError("GATDIAG_DISABLE is set, so nothing can be recorded: unset it")
    case.model.train()
    with recorder:
        load_weights_(case.model, reference)
        _loss(case)
        try:
            for step, tensors, scalars in checkpoints:
                load_weights_(case.model, tensors)
                case.model.zero_grad()
                loss = _loss(case)
                loss.backward()
                with recorder.step(step):
                    recorder.log(loss=loss, **scalars)
        finally:
            case.model.zero_grad()
        for note in remarks():
            recorder.note(note)


def _loss(case: ModelCase) -> Tensor:
    torch.manual_seed(0)
    try:
        output = case.model(*case.args, **case.kwargs)
        loss = case.loss(output) if case.loss is not None else output
    except Exception as error:  # the user's code
        raise ModelError(f"The model fails with these weights: {type(error).__name__}: {error}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ModelError("The loss has to be a scalar tensor that depends on the weights")
    return loss

"""Write checkpoints as rows of a run: from weights alone, or from a forward and a backward pass of the model."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag.checkpoint.measures import measure, measure_changes
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
SavedStep: TypeAlias = tuple[int, Tensors, Mapping[str, float]]  # step, weights, logged scalars
GetNotes: TypeAlias = Callable[[], Iterable[str]]  # called once all checkpoints are written

_ALWAYS: Final = ("norm", "non_finite", *(each.name for each in columns("parameters") if each.takes), "c")
_CHANGE_GROUPS: Final = ("changes", "quantiles")
_CHANGES: Final = (*GROUPS["changes"].columns, *GROUPS["quantiles"].columns)
_OF_UPDATES: Final = ("update_ratio", "predicted_c")  # no optimizer step is taken
_RECORDED: Final = tuple(name for group in GROUPS.values() for name in group.columns if name not in _OF_UPDATES)


@dataclass(frozen=True)
class ModelCase:
    """The model that was saved, with its inputs and loss.

    Attributes:
        model: The model; the weights of each checkpoint are loaded into it.
        args: Positional inputs of its forward pass.
        kwargs: Keyword inputs.
        loss: Maps the model's output to a scalar; None for no backward pass.
        source: Description of where the inputs come from.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Tensor] | None = None
    source: str = ""


def record_weights(
    folder: Path,
    name: str,
    checkpoints: Iterable[SavedStep],
    get_notes: GetNotes,
    model: str,
    structure: Structure,
    laws: Mapping[str, Any],
    reference: Tensors | None,
    *,
    quick: bool,
    overwrite: bool,
) -> None:
    """Write a run with one step per checkpoint, from its weights alone.

    Args:
        folder: Folder of the run.
        name: Name of the run.
        checkpoints: One at a time.
        get_notes: Returns notes to keep with the run.
        model: Name of the model.
        structure: Its layers.
        laws: As in meta.json. c is skipped where a parameter of a law is missing or has another shape.
        reference: The weights that changes are measured from; None to measure none.
        quick: Skip spectral norms and quantiles of weight changes.
        overwrite: Delete an existing run in the folder.
    """
    metrics = _ALWAYS if reference is None else (*_ALWAYS, *_CHANGE_GROUPS)
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
    recorded = RecordedLaws(laws["found"])
    shapes = {term["parameter"]: tuple(term["shape"]) for entry in laws["found"] for term in entry["terms"]}
    try:
        for step, tensors, scalars in checkpoints:
            store.append("steps", {"step": step, **scalars})
            stored = {index: info for index, info in enumerate(structure.parameters) if info.name in tensors}
            rows = [_measure_row(info, tensors[info.name], reference, quick=quick) for info in stored.values()]
            if rows:
                indices = np.array([*stored], np.int32)
                store.append("parameters", {"step": step, "parameter": indices, **_to_columns(rows)})
            if shapes and shapes == {name: tuple(tensors[name].shape) for name in shapes if name in tensors}:
                c = recorded.c({name: _to_numpy(tensors[name]) for name in shapes})
                store.append("neurons", {"step": step, "law": np.arange(len(c), dtype=np.int32), "c": c})
        store.update_meta(notes=[*store.meta["notes"], *get_notes()])
    except KeyboardInterrupt:
        store.seal("interrupted")
        raise
    except BaseException as error:
        store.seal("failed", str(error))
        raise
    store.seal("finished")


def _measure_row(info: ParameterInfo, tensor: Tensor, reference: Tensors | None, *, quick: bool) -> dict[str, float]:
    attention = info.role == ATTENTION
    row = measure(tensor, matrix=not quick and not attention)
    if reference is not None:
        row |= measure_changes(reference.get(info.name), tensor, attention=attention, quick=quick)
    return row


def _to_columns(rows: list[dict[str, float]]) -> dict[str, Any]:
    """One array per column, masked where a row has no value."""
    return {
        name: np.ma.masked_array(
            [row.get(name, np.nan) for row in rows], mask=[name not in row for row in rows], dtype=np.float64
        )
        for name in dict.fromkeys(name for row in rows for name in row)
    }


def _to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach()
    return (tensor.float() if tensor.itemsize == 2 else tensor).numpy()  # numpy has no bfloat16


def checkpoint(_: int) -> bool:
    """Record each step; the settings of the run show this function's name."""
    return True


def record_passes(
    folder: Path,
    name: str,
    checkpoints: Iterable[SavedStep],
    get_notes: GetNotes,
    case: ModelCase,
    reference: Tensors,
    *,
    compared: bool,
    overwrite: bool,
) -> None:
    """Write a run with one step per checkpoint, as recorded in a training step.

    The model runs in training mode, with the same random numbers for each checkpoint.

    Args:
        folder: Folder of the run.
        name: Name of the run.
        checkpoints: One at a time.
        get_notes: Returns notes to keep with the run.
        case: The model, its inputs and its loss.
        reference: The weights with which laws are found, and from which changes are measured.
        compared: Measure weight changes.
        overwrite: Delete an existing run in the folder.
    """
    from gatdiag.recorder import Recorder  # slow to import, and not needed for weights alone

    metrics = _RECORDED if compared else [name for name in _RECORDED if name not in _CHANGES]
    settings = Settings(select(metrics, 20.0), every=checkpoint, overwrite=overwrite, name=name)
    recorder = Recorder(case.model, folder, settings)
    if not recorder.enabled:
        raise InputError("GATDIAG_DISABLE is set, so nothing can be recorded: unset it")
    case.model.train()
    with recorder:
        load_weights_(case.model, reference)
        _run_forward(case)
        try:
            for step, tensors, scalars in checkpoints:
                load_weights_(case.model, tensors)
                case.model.zero_grad()
                loss = _run_forward(case)
                loss.backward()
                with recorder.step(step):
                    recorder.log(loss=loss, **scalars)
        finally:
            case.model.zero_grad()
        for note in get_notes():
            recorder.note(note)


def _run_forward(case: ModelCase) -> Tensor:
    """The loss."""
    torch.manual_seed(0)
    try:
        output = case.model(*case.args, **case.kwargs)
        loss = case.loss(output) if case.loss is not None else output
    except Exception as error:  # the user's code
        raise ModelError(f"The forward pass or the loss failed: {type(error).__name__}: {error}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ModelError("Expected the loss to be a scalar tensor that depends on the weights")
    return loss

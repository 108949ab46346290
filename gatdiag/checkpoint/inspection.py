"""Turn saved checkpoints into a run folder, so that all figures and reports of runs work on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag.checkpoint.measures import measure, measure_changes
from gatdiag.checkpoint.opening import Checkpoint, PathLike, format_path, list_checkpoints, open_checkpoint
from gatdiag.checkpoint.stack import ASSUMPTIONS, find_stack
from gatdiag.checkpoint.state_dict import load_weights_, match_tensors
from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names, quote
from gatdiag.quantities import GROUPS, columns
from gatdiag.recorder import meta
from gatdiag.recorder.settings import Selection, Settings, select
from gatdiag.roles import ATTENTION
from gatdiag.run import Run, Store, load
from gatdiag.run.laws import RecordedLaws
from gatdiag.structure import Structure, discover
from gatdiag.structure.from_names import find_layers

Tensors: TypeAlias = Mapping[str, Tensor]
SavedStep: TypeAlias = tuple[int, Checkpoint]
Notes: TypeAlias = dict[str, list[Path]]  # text -> checkpoints it applies to; empty: all

_MAX_REASONS: Final = 3  # shown of why a model has no laws
_MAX_PATHS: Final = 2  # shown in a note
_ALWAYS: Final = ("norm", "non_finite", *(each.name for each in columns("parameters") if each.takes), "c")
_CHANGE_GROUPS: Final = ("changes", "quantiles")
_OF_UPDATES: Final = ("update_ratio", "predicted_c")  # no optimizer step is taken


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


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`.

    Attributes:
        run: The run, with one step per checkpoint.
        checkpoints: Paths of the checkpoints, in order.
        structure: The layers.
        last: The last checkpoint, with parameters named as in the run. Tensors are read from its file on first use.
        notes: Notes for the user.
        mismatches: Tensors of the checkpoints or the model without a match in the other; they are not measured.
    """

    run: Run
    checkpoints: tuple[Path, ...]
    structure: Structure
    last: Checkpoint
    notes: tuple[str, ...]
    mismatches: tuple[str, ...]


def inspect(
    sources: PathLike | Iterable[PathLike],
    folder: PathLike,
    *,
    case: ModelCase | None = None,
    quick: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int], object] = lambda _done, _of: None,
) -> Inspection:
    """Measure saved checkpoints as `gatdiag.watch` measures a training loop.

    Weights alone give norms, NaN and infinities, weight changes, and c if names and shapes show a plain stack of
    layers. With a model, c comes from its own laws. With inputs and a loss as well, one forward and one backward pass
    per checkpoint give everything that is recorded in a training step.

    Args:
        sources: Files, glob patterns and folders (`gatdiag.checkpoint.list_checkpoints`). Changes are measured from
            the first. Only this and another one are in memory at a time.
        folder: Where the run is written.
        case: The model, its inputs and its loss.
        quick: Skip spectral norms and quantiles of weight changes, which take most of the time. No effect with a loss.
        overwrite: Delete an existing run in the folder.
        on_progress: Called after each checkpoint with the number done and the total.

    Raises:
        InputError: A checkpoint cannot be read or does not match the model, or the folder cannot be written.
        ModelError: The forward or backward pass fails.

    Example:
        >>> import tempfile, torch
        >>> from torch_geometric.nn import GCN
        >>> with tempfile.TemporaryDirectory() as at:
        ...     torch.save(GCN(5, 4, 2, out_channels=3).state_dict(), f"{at}/model.pt")
        ...     inspection = inspect(f"{at}/model.pt", f"{at}/run")
        ...     inspection.run.parameter_names
        ('convs.0.bias', 'convs.0.lin.weight', 'convs.1.bias', 'convs.1.lin.weight')
    """
    paths = list_checkpoints(sources)
    notes: Notes = {}
    mismatches: Notes = {}
    if case is not None and case.source:
        _note(notes, f"the model ran on {case.source}")
    first = last = _open(paths[0], case, notes, mismatches)
    compared = len(paths) > 1
    structure = _find_structure(case, first)

    def open_series() -> Iterator[SavedStep]:
        nonlocal last
        step = -1
        for done, path in enumerate(paths, 1):
            last = first if done == 1 else _open(path, case, notes, mismatches)
            step = _next_step(last, step, notes)
            _compare_tensors(first, last, notes)
            yield step, last
            on_progress(done, len(paths))

    def format_all_notes() -> tuple[str, ...]:
        return (*_format_notes(mismatches), *_format_notes(notes))

    if case is None or case.loss is None:
        metrics = (*_ALWAYS, *_CHANGE_GROUPS) if compared else _ALWAYS
        about = {
            "name": _run_name(paths),
            "model": "state dict" if case is None else type(case.model).__name__,
            "device": "cpu",
            "cadence": {"every": "checkpoint", "budget": None, "metrics": ", ".join(metrics), "groups": {}},
            "structure": meta.describe_structure(structure, structure.order),
            "laws": _find_laws(case, first, structure, notes),
            **meta.describe_recording(select(metrics)),
        }
        with _sealed(Store.create(Path(folder), about, overwrite=overwrite)) as store:
            _append_weights(store, open_series(), structure, first.tensors if compared else None, quick=quick)
            store.update_meta(notes=[*store.meta["notes"], *format_all_notes()])
    else:
        settings = Settings(_recorded(compared), every=checkpoint, overwrite=overwrite, name=_run_name(paths))
        _record_passes(Path(folder), settings, case, first.tensors, open_series(), format_all_notes)
    return Inspection(load(folder), tuple(paths), structure, last, _format_notes(notes), _format_notes(mismatches))


def _find_structure(case: ModelCase | None, first: Checkpoint) -> Structure:
    if case is None:
        structure = find_layers(first.tensors)
    else:
        load_weights_(case.model, first.tensors)
        structure = discover(case.model, *case.args, **case.kwargs)
    if not structure.parameters:
        raise InputError(
            f"{format_path(first.path)} has no parameters of a layer, only {join_names(map(quote, first.tensors), 5)}"
        )
    return structure


def _run_name(paths: Sequence[Path]) -> str:
    """The name of a single checkpoint, else that of the first one's folder."""
    name = paths[0].stem if len(paths) == 1 else paths[0].absolute().parent.name
    return name.encode(errors="replace").decode() or "checkpoints"


def _find_laws(case: ModelCase | None, first: Checkpoint, structure: Structure, notes: Notes) -> dict[str, Any]:
    """The laws of the model, or of a plain stack, as in meta.json."""
    if case is None:
        laws_of_stack, excluded = find_stack(first.tensors, structure)
        if len(laws_of_stack):
            assumptions = "; ".join(ASSUMPTIONS)
            _note(notes, f"c assumes what a state dict does not show: {assumptions}. With --model, c is exact")
        else:
            _note(notes, f"no c: {excluded[0].reason}")
        return {**meta.describe_laws([], excluded, None), "found": laws_of_stack.entries}
    from gatdiag.laws import find_laws  # slow to import, and not needed for weights alone

    try:
        laws = find_laws(case.model, *case.args, **case.kwargs)
    except ModelError as error:
        _note(notes, f"no c: {error}")
        return meta.describe_laws([], [], None)
    if not len(laws):
        reasons = dict.fromkeys(excluded.reason for excluded in laws.excluded)
        _note(notes, f"no c, as the model has no laws: {join_names(reasons, _MAX_REASONS)}")
    return meta.describe_laws(laws, laws.excluded, None)


def _open(path: Path, case: ModelCase | None, notes: Notes, mismatches: Notes) -> Checkpoint:
    """Open a checkpoint; if there is a model, name its tensors as in the model."""
    checkpoint = open_checkpoint(path)
    for note in checkpoint.notes:
        _note(notes, note)
    if case is None:
        return checkpoint
    match = match_tensors(case.model, checkpoint.tensors, checkpoint.keys)
    for difference in match.describe_differences(20):
        _note(mismatches, difference)
    return replace(checkpoint, tensors=match.tensors)


def _next_step(checkpoint: Checkpoint, previous: int, notes: Notes) -> int:
    """The step of a checkpoint if it is later than the previous one, else previous + 1."""
    step = checkpoint.position
    if step is not None and previous < step < 2**63:
        return step
    if step is not None or previous >= 0:
        _note(notes, "no step later than that of the previous checkpoint; counted as the next step", checkpoint.path)
    return previous + 1


def _compare_tensors(first: Checkpoint, last: Checkpoint, notes: Notes) -> None:
    """Note which tensors differ in name or shape; raise InputError if no tensor is the same."""
    before, after = ({name: list(tensor.shape) for name, tensor in of.tensors.items()} for of in (first, last))
    if not any(after.get(name) == shape for name, shape in before.items()):
        raise InputError(
            f"{format_path(last.path)} and {format_path(first.path)} are checkpoints of different models: no tensor "
            f"has the same name and shape in both ({join_names(map(quote, after), 3)}; "
            f"{join_names(map(quote, before), 3)}). Inspect them one by one"
        )
    different = [
        f"{quote(name)} of shape {after.get(name, 'none')} instead of {before.get(name, 'none')}"
        for name in {**before, **after}
        if after.get(name) != before.get(name)
    ]
    if different:
        text = f"tensors that differ from {format_path(first.path)} are not compared: {join_names(different, 3)}"
        _note(notes, text, last.path)


def _note(notes: Notes, text: str, *paths: Path) -> None:
    notes.setdefault(text, []).extend(paths)


def _format_notes(notes: Notes) -> tuple[str, ...]:
    """One text per note, after the checkpoints it applies to."""
    return tuple(
        f"{join_names(map(format_path, paths), _MAX_PATHS)}: {text}" if paths else text for text, paths in notes.items()
    )


# --- from weights alone -----------------------------------------------------------------------------------------------


@contextmanager
def _sealed(store: Store) -> Iterator[Store]:
    """Seal a run at the end, also after an error."""
    try:
        yield store
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        store.seal("interrupted" if interrupted else "failed", None if interrupted else str(error))
        raise
    store.seal("finished")


def _append_weights(
    store: Store, series: Iterable[SavedStep], structure: Structure, reference: Tensors | None, *, quick: bool
) -> None:
    """Append the rows of each checkpoint; c is left out where a parameter of a law is missing or has another shape."""
    entries = store.meta["laws"]["found"]
    laws = RecordedLaws(entries)
    shapes = {term["parameter"]: tuple(term["shape"]) for entry in entries for term in entry["terms"]}
    for step, saved in series:
        tensors = saved.tensors
        store.append("steps", {"step": step, **_epoch(saved)})
        stored = {index: info for index, info in enumerate(structure.parameters) if info.name in tensors}
        rows = []
        for info in stored.values():
            attention = info.role == ATTENTION
            row = measure(tensors[info.name], matrix=not quick and not attention)
            if reference is not None:
                before = reference.get(info.name)
                row |= measure_changes(before, tensors[info.name], attention=attention, quick=quick)
            rows.append(row)
        if rows:
            indices = np.array([*stored], np.int32)
            store.append("parameters", {"step": step, "parameter": indices, **_to_columns(rows)})
        if shapes and shapes == {name: tuple(tensors[name].shape) for name in shapes if name in tensors}:
            c = laws.c({name: _to_numpy(tensors[name]) for name in shapes})
            store.append("neurons", {"step": step, "law": np.arange(len(c), dtype=np.int32), "c": c})


def _epoch(saved: Checkpoint) -> dict[str, float]:
    return {} if saved.epoch is None else {"epoch": saved.epoch}


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


# --- from forward and backward passes ---------------------------------------------------------------------------------


def checkpoint(_: int) -> bool:
    """Record each step; the settings of the run show this function's name."""
    return True


def _recorded(compared: bool) -> Selection:
    left_out = {*_OF_UPDATES, *(name for group in _CHANGE_GROUPS if not compared for name in GROUPS[group].columns)}
    return select([name for group in GROUPS.values() for name in group.columns if name not in left_out], 20.0)


def _record_passes(
    folder: Path,
    settings: Settings,
    case: ModelCase,
    reference: Tensors,
    series: Iterable[SavedStep],
    format_notes: Callable[[], Iterable[str]],
) -> None:
    """Record each checkpoint as a training step, in training mode, with the same random numbers for each.

    Laws are found with the weights of the reference, from which changes are measured.
    """
    from gatdiag.recorder import Recorder  # slow to import, and not needed for weights alone

    recorder = Recorder(case.model, folder, settings)
    if not recorder.enabled:
        raise InputError("GATDIAG_DISABLE is set, so nothing can be recorded: unset it")
    case.model.train()
    with recorder:
        load_weights_(case.model, reference)
        _run_forward(case)
        try:
            for step, saved in series:
                load_weights_(case.model, saved.tensors)
                case.model.zero_grad()
                loss = _run_forward(case)
                loss.backward()
                with recorder.step(step):
                    recorder.log(loss=loss, **_epoch(saved))
        finally:
            case.model.zero_grad()
        for note in format_notes():
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

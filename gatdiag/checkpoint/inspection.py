"""Turn saved checkpoints into a run folder, so that all figures and reports of runs work on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from torch import Tensor

from gatdiag.checkpoint.measures import measure, measure_changes, measure_stored
from gatdiag.checkpoint.opening import Checkpoint, PathLike, format_path
from gatdiag.checkpoint.passes import CHANGE_GROUPS, ModelCase, checkpoint, record_passes, recorded_columns
from gatdiag.checkpoint.stack import ASSUMPTIONS, find_stack
from gatdiag.checkpoint.state_dict import load_weights_, match_tensors
from gatdiag.errors import InputError, ModelError
from gatdiag.names import escape_surrogates, join_names, quote
from gatdiag.quantities import columns
from gatdiag.recorder import meta
from gatdiag.recorder.settings import Settings, select
from gatdiag.roles import ATTENTION
from gatdiag.run import Run, Store, fill_parameters, load
from gatdiag.run.laws import RecordedLaws
from gatdiag.structure import Structure, discover
from gatdiag.structure.from_names import find_layers

Tensors: TypeAlias = Mapping[str, Tensor]
Notes: TypeAlias = dict[str, list[Path]]  # text -> checkpoints it applies to; empty: all

_MAX_REASONS: Final = 3  # shown of why a model has no laws
_MAX_PATHS: Final = 2  # shown in a note
_ALWAYS: Final = ("norm", "non_finite", *(each.name for each in columns("parameters") if each.function), "c")


@dataclass(frozen=True, repr=False)
class Inspection:
    """The result of `inspect`.

    Attributes:
        run: The run, with one step per checkpoint.
        checkpoints: The checkpoints, in order, with parameters named as in the run.
        structure: The layers.
        notes: Notes for the user.
        mismatches: Tensors of the checkpoints or the model without a match in the other; they are not measured.
    """

    run: Run
    checkpoints: tuple[Checkpoint, ...]
    structure: Structure
    notes: tuple[str, ...]
    mismatches: tuple[str, ...]

    def __repr__(self) -> str:
        """For example ``Inspection(3 checkpoints, 10 layers, 0 mismatches)``."""
        counts = len(self.checkpoints), len(self.structure)
        checkpoints, layers = (
            f"{n} {what}{'s' * (n != 1)}" for n, what in zip(counts, ("checkpoint", "layer"), strict=True)
        )
        return f"Inspection({checkpoints}, {layers}, {len(self.mismatches)} mismatches)"


def inspect(
    checkpoints: Sequence[Checkpoint],
    folder: PathLike,
    *,
    case: ModelCase | None = None,
    quick: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int], object] = lambda _done, _of: None,
) -> Inspection:
    """Measure opened checkpoints as `gatdiag.watch` measures a training loop.

    Weights alone give norms, NaN and infinities, weight changes, and c if names and shapes show a plain stack of
    layers. With a model, c comes from its own laws. With inputs and a loss as well, one forward and one backward pass
    per checkpoint give everything that is recorded in a training step. The run holds all that `gatdiag.diagnose` needs.

    Args:
        checkpoints: The checkpoints, in the order of `gatdiag.checkpoint.open_all`. Changes are measured from the
            first.
        folder: Where the run is written.
        case: The model, its inputs and its loss.
        quick: Skip spectral norms and quantiles of weight changes, which take most of the time. No effect with a loss.
        overwrite: Delete an existing run in the folder.
        on_progress: Called after each checkpoint with the number done and the total.

    Raises:
        InputError: A checkpoint does not match the model or the others, or the folder cannot be written.
        ModelError: The forward or backward pass fails.

    Example:
        >>> import tempfile, torch
        >>> from gatdiag.checkpoint import open_all
        >>> from torch_geometric.nn import GCN
        >>> with tempfile.TemporaryDirectory() as at:
        ...     torch.save(GCN(5, 4, 2, out_channels=3).state_dict(), f"{at}/model.pt")
        ...     inspection = inspect(open_all(f"{at}/model.pt"), f"{at}/run")
        ...     inspection.run.parameter_names
        ('convs.0.bias', 'convs.0.lin.weight', 'convs.1.bias', 'convs.1.lin.weight')
    """
    notes: Notes = {}
    mismatches: Notes = {}
    if case is not None and case.source:
        _note(notes, f"the model ran on {case.source}")
    saved = [_match(one, case, notes, mismatches) for one in checkpoints]
    steps, first, compared = _number_steps(saved, notes), saved[0], len(saved) > 1
    for later in saved[1:]:
        _compare_tensors(first, later, notes)
    structure, folder, name = _find_structure(case, first), Path(folder), _run_name([one.path for one in saved])

    def series() -> Iterator[tuple[int, Checkpoint]]:
        for done, pair in enumerate(zip(steps, saved, strict=True), 1):
            yield pair
            on_progress(done, len(saved))

    if case is None or case.loss is None:
        metrics = (*_ALWAYS, *CHANGE_GROUPS) if compared else _ALWAYS
        laws = _find_laws(case, first, structure, notes)
        about = {
            "name": name,
            "model": "state dict" if case is None else type(case.model).__name__,
            "device": "cpu",
            "cadence": {"every": "checkpoint", "budget": None, "metrics": ", ".join(metrics), "groups": {}},
            "structure": meta.describe_structure(structure, structure.order),
            "laws": laws,
            "notes": [*_format_notes(mismatches), *_format_notes(notes)],
            **meta.describe_recording(select(metrics)),
        }
        with _sealed(Store.create(folder, about, overwrite=overwrite)) as store:
            _append_weights(store, series(), structure, first.tensors if compared else None, quick=quick)
    else:
        settings = Settings(recorded_columns(compared=compared), every=checkpoint, overwrite=overwrite, name=name)
        about_all = (*_format_notes(mismatches), *_format_notes(notes))
        record_passes(folder, settings, case, first.tensors, series(), about_all)
    fill_parameters(folder, steps[-1], measure_stored(structure, saved[-1]))
    return Inspection(load(folder), tuple(saved), structure, _format_notes(notes), _format_notes(mismatches))


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
    return escape_surrogates(name) or "checkpoints"


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


def _match(saved: Checkpoint, case: ModelCase | None, notes: Notes, mismatches: Notes) -> Checkpoint:
    """The checkpoint; if there is a model, with tensors and moments named as in the model."""
    for note in saved.notes:
        _note(notes, note)
    if case is None:
        return saved
    match, optimizer = match_tensors(case.model, saved.tensors, saved.keys), saved.optimizer
    for difference in match.describe_differences(20):
        _note(mismatches, difference)
    if optimizer is not None:
        moments = {name: optimizer.moments[own] for name, own in match.names.items() if own in optimizer.moments}
        optimizer = replace(optimizer, moments=moments)
    return replace(saved, tensors=match.tensors, optimizer=optimizer)


def _number_steps(checkpoints: Sequence[Checkpoint], notes: Notes) -> list[int]:
    """The step of each checkpoint if it is later than that of the previous one, else that plus 1."""
    steps: list[int] = []
    for one in checkpoints:
        step, previous = one.position, steps[-1] if steps else -1
        if step is None or not previous < step < 2**63:
            if step is not None or previous >= 0:
                text = "no step later than that of the previous checkpoint; counted as the next step"
                _note(notes, text, one.path)
            step = previous + 1
        steps.append(step)
    return steps


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
    store: Store,
    series: Iterable[tuple[int, Checkpoint]],
    structure: Structure,
    reference: Tensors | None,
    *,
    quick: bool,
) -> None:
    """Append the rows of each checkpoint; c is left out where a parameter of a law is missing or has another shape."""
    entries = store.meta["laws"]["found"]
    laws = RecordedLaws(entries)
    shapes = {term["parameter"]: tuple(term["shape"]) for entry in entries for term in entry["terms"]}
    for step, saved in series:
        tensors = saved.tensors
        store.append("steps", {"step": step, **saved.scalars})
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

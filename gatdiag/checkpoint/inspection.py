"""Turn saved checkpoints into a run folder, so that all figures and reports of runs work on them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from gatdiag.checkpoint.opening import Checkpoint, PathLike, format_path, list_checkpoints, open_checkpoint
from gatdiag.checkpoint.record import ModelCase, SavedStep, record_passes, record_weights
from gatdiag.checkpoint.stack import ASSUMPTIONS, find_stack
from gatdiag.checkpoint.state_dict import load_weights_, match_tensors
from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names, quote
from gatdiag.recorder import meta
from gatdiag.run import Run, load
from gatdiag.structure import Structure, discover
from gatdiag.structure.from_names import find_layers

Notes: TypeAlias = dict[str, list[Path]]  # text -> checkpoints it applies to; empty: all

_MAX_REASONS: Final = 3  # shown of why a model has no laws
_MAX_PATHS: Final = 2  # shown in a note


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
    reference: PathLike | None = None,
    quick: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int], object] = lambda _done, _of: None,
) -> Inspection:
    """Measure saved checkpoints as `gatdiag.watch` measures a training loop.

    Weights alone give norms, NaN and infinities, weight changes, and c if names and shapes show a plain stack of
    layers. With a model, c comes from its own laws. With inputs and a loss as well, one forward and one backward pass
    per checkpoint give everything that is recorded in a training step.

    Args:
        sources: Files, glob patterns and folders (`gatdiag.checkpoint.list_checkpoints`). Only one checkpoint and the
            reference are in memory at a time.
        folder: Where the run is written.
        case: The model, its inputs and its loss.
        reference: The checkpoint that changes are measured from. Default: the first one.
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
    first = last = _open(paths[0] if reference is None else Path(reference), case, notes, mismatches)
    compared = len(paths) > 1 or reference is not None
    structure = _find_structure(case, first)

    def checkpoints() -> Iterator[SavedStep]:
        nonlocal last
        step = -1
        for done, path in enumerate(paths, 1):
            last = first if done == 1 and reference is None else _open(path, case, notes, mismatches)
            step = _next_step(last, step, notes)
            _compare_tensors(first, last, notes)
            yield step, last.tensors, {} if last.epoch is None else {"epoch": last.epoch}
            on_progress(done, len(paths))

    about = Path(folder), _run_name(paths), checkpoints(), lambda: [*_format_notes(mismatches), *_format_notes(notes)]
    if case is None or case.loss is None:
        laws = _find_laws(case, first, structure, notes)
        model = "state dict" if case is None else type(case.model).__name__
        weights = first.tensors if compared else None
        record_weights(*about, model, structure, laws, weights, quick=quick, overwrite=overwrite)
    else:
        record_passes(*about, case, first.tensors, compared=compared, overwrite=overwrite)
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

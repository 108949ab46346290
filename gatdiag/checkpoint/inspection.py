"""Saved checkpoints -> a run folder, so that every figure and report of a run works on them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from gatdiag.checkpoint.opening import Checkpoint, PathLike, open_checkpoint, series, shown_path
from gatdiag.checkpoint.record import ModelCase, Saved, record_passes, record_weights
from gatdiag.checkpoint.stack import ASSUMED, find_stack
from gatdiag.checkpoint.state_dict import fit, load_weights_
from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names, quote
from gatdiag.recorder import meta
from gatdiag.run import Run, load
from gatdiag.run.meta import MAX_STEP
from gatdiag.structure import Structure, discover
from gatdiag.structure.from_names import find_layers

Notes: TypeAlias = dict[str, list[Path]]  # text -> the checkpoints it is true of; none: all of them

_REASONS: Final = 3  # of layers without laws, that are noted
_NAMED: Final = 2  # checkpoints that a note is of


@dataclass(frozen=True)
class Inspection:
    """Answers of saved checkpoints.

    Attributes:
        run: The run made of them, a step for each.
        checkpoints: Their paths, in order.
        structure: The layers.
        last: The last of them, under the names of the run; tensors are read from its file when they are used.
        notes: Remarks for the reader.
        misfits: What of the checkpoints and of the model does not fit: all that is measured is of the rest.
    """

    run: Run
    checkpoints: tuple[Path, ...]
    structure: Structure
    last: Checkpoint
    notes: tuple[str, ...]
    misfits: tuple[str, ...]


def inspect(
    sources: PathLike | Iterable[PathLike],
    folder: PathLike,
    *,
    subject: ModelCase | None = None,
    reference: PathLike | None = None,
    quick: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int], object] = lambda _done, _of: None,
) -> Inspection:
    """Ask saved checkpoints what `gatdiag.watch` asks of a training loop.

    From the weights alone: norms, what is not finite, changes, and c where names and shapes show a plain
    stack of layers. With a model, c is that of its own laws. With inputs and a loss, one forward and one backward pass
    for each checkpoint give all that a step of training shows.

    Args:
        sources: Files, globs and folders (`gatdiag.checkpoint.series`). One checkpoint is in memory at a time, beside
            the one that changes are measured from.
        folder: Of the run that is made of them.
        subject: The model, its inputs and its loss.
        reference: The checkpoint that changes are measured from; the first one if left out.
        quick: Leave out spectral norms and quantiles of change, which take many times as long as all else that is read
            off weights. With a loss it makes no difference.
        overwrite: Delete the run that is in the folder.
        on_progress: Called after each checkpoint with how many are done, and of how many.

    Raises:
        InputError: A checkpoint cannot be read or is not of the model, or the folder cannot be written.
        ModelError: The model fails.

    Example:
        >>> import tempfile, torch
        >>> from torch_geometric.nn import GCN
        >>> with tempfile.TemporaryDirectory() as at:
        ...     torch.save(GCN(5, 4, 2, out_channels=3).state_dict(), f"{at}/model.pt")
        ...     inspection = inspect(f"{at}/model.pt", f"{at}/run")
        ...     inspection.run.parameter_names
        ('convs.0.bias', 'convs.0.lin.weight', 'convs.1.bias', 'convs.1.lin.weight')
    """
    paths = series(sources)
    notes: Notes = {}
    misfits: Notes = {}
    if subject is not None and subject.source:
        _note(notes, f"the model ran on {subject.source}")
    first = last = _opened(paths[0] if reference is None else Path(reference), subject, notes, misfits)
    compared = len(paths) > 1 or reference is not None
    structure = _structure(subject, first)

    def checkpoints() -> Iterator[Saved]:
        nonlocal last
        step = -1
        for done, path in enumerate(paths, 1):
            last = first if done == 1 and reference is None else _opened(path, subject, notes, misfits)
            step = _step(last, step, notes)
            _note_differences(first, last, notes)
            yield step, last.tensors, {} if last.epoch is None else {"epoch": last.epoch}
            on_progress(done, len(paths))

    about = Path(folder), _name(paths), checkpoints(), lambda: [*_texts(misfits), *_texts(notes)]
    if subject is None or subject.loss is None:
        laws = _laws(subject, first, structure, notes)
        model = "state dict" if subject is None else type(subject.model).__name__
        weights = first.tensors if compared else None
        record_weights(*about, model, structure, laws, weights, quick=quick, overwrite=overwrite)
    else:
        record_passes(*about, subject, first.tensors, compared=compared, overwrite=overwrite)
    return Inspection(load(folder), tuple(paths), structure, last, _texts(notes), _texts(misfits))


def _structure(subject: ModelCase | None, first: Checkpoint) -> Structure:
    if subject is None:
        structure = find_layers(first.tensors)
    else:
        load_weights_(subject.model, first.tensors)
        structure = discover(subject.model, *subject.args, **subject.kwargs)
    if not structure.parameters:
        raise InputError(
            f"{shown_path(first.path)} holds no parameters of a layer, only {join_names(map(quote, first.tensors), 5)}"
        )
    return structure


def _name(paths: Sequence[Path]) -> str:
    """Name of the run: a lone checkpoint's own name, or that of the folder that the first of many is in."""
    name = paths[0].stem if len(paths) == 1 else paths[0].absolute().parent.name
    return name.encode(errors="replace").decode() or "checkpoints"


def _laws(subject: ModelCase | None, first: Checkpoint, structure: Structure, notes: Notes) -> dict[str, Any]:
    """As meta.json has them: the model's own, or those that names and shapes show."""
    if subject is None:
        shown, excluded = find_stack(first.tensors, structure)
        if len(shown):
            holds = f"c holds only where {'; where '.join(ASSUMED)}"
            _note(notes, f"{holds}. A state dict does not show this; with --model, c is exact")
        else:
            _note(notes, f"no c: {excluded[0].reason}")
        return {**meta.describe_laws([], excluded, None), "found": shown.entries}
    from gatdiag.laws import find_laws  # a heavy import that weights alone do not need

    try:
        laws = find_laws(subject.model, *subject.args, **subject.kwargs)
    except ModelError as error:
        _note(notes, f"no c: {error}")
        return meta.describe_laws([], [], None)
    if not len(laws):
        reasons = dict.fromkeys(excluded.reason for excluded in laws.excluded)
        _note(notes, f"no c, for the model has no laws: {join_names(reasons, _REASONS)}")
    return meta.describe_laws(laws, laws.excluded, None)


def _opened(path: Path, subject: ModelCase | None, notes: Notes, misfits: Notes) -> Checkpoint:
    """A checkpoint, under the model's own names if there is a model."""
    checkpoint = open_checkpoint(path)
    for note in checkpoint.notes:
        _note(notes, note)
    if subject is None:
        return checkpoint
    found = fit(subject.model, checkpoint.tensors, checkpoint.keys)
    for difference in found.differences(20):
        _note(misfits, difference)
    return replace(checkpoint, tensors=found.tensors)


def _step(checkpoint: Checkpoint, before: int, notes: Notes) -> int:
    """The step of a checkpoint: what it says itself, if that is after the one before; else the next."""
    says = checkpoint.position
    if says is not None and before < says <= MAX_STEP:
        return says
    if says is not None or before >= 0:
        _note(notes, "tells no step after the one before it, and is counted as the next", checkpoint.path)
    return before + 1


def _note_differences(first: Checkpoint, last: Checkpoint, notes: Notes) -> None:
    """Notes which tensors the two do not share; InputError where they have nothing in common."""
    before, after = ({name: list(tensor.shape) for name, tensor in of.tensors.items()} for of in (first, last))
    if not any(after.get(name) == shape for name, shape in before.items()):
        raise InputError(
            f"{shown_path(last.path)} is of another model than {shown_path(first.path)}: they share no tensor of the "
            f"same name and shape ({join_names(map(quote, after), 3)}; {join_names(map(quote, before), 3)}). Inspect "
            "them one by one"
        )
    differing = [
        f"{quote(name)} of shape {after.get(name, 'none')} instead of {before.get(name, 'none')}"
        for name in {**before, **after}
        if after.get(name) != before.get(name)
    ]
    if differing:
        text = f"has other tensors than {shown_path(first.path)}, which are not compared: {join_names(differing, 3)}"
        _note(notes, text, last.path)


def _note(notes: Notes, text: str, *paths: Path) -> None:
    notes.setdefault(text, []).extend(paths)


def _texts(notes: Notes) -> tuple[str, ...]:
    """All of them, and before each the checkpoints it is true of."""
    return tuple(
        f"{join_names(map(shown_path, paths), _NAMED)}: {text}" if paths else text for text, paths in notes.items()
    )

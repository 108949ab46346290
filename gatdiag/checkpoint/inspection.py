"""Saved checkpoints -> a run folder, so that every figure and report of a run works on them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from torch import Tensor

from gatdiag.checkpoint.measures import WeightStats
from gatdiag.checkpoint.opening import Checkpoint, open_checkpoint, series, shown_path
from gatdiag.checkpoint.optimizer import OptimizerState
from gatdiag.checkpoint.record import ModelCase, PassRecord, WeightRecord
from gatdiag.checkpoint.stack import ASSUMED, find_stack
from gatdiag.checkpoint.state_dict import fit, load_weights_
from gatdiag.errors import InputError, ModelError
from gatdiag.names import listed, quoted
from gatdiag.run import Run, load
from gatdiag.run.meta import LARGEST_STEP
from gatdiag.structure import Structure, discover
from gatdiag.structure.from_names import find_layers

PathLike = str | os.PathLike[str]
Tensors: TypeAlias = Mapping[str, Tensor]

_REASONS: Final = 3  # of layers without laws, that are noted
_NAMED: Final = 2  # checkpoints that a note is of


class Notes:
    """Texts, and the checkpoints each is true of."""

    def __init__(self) -> None:
        self._found: dict[str, dict[Path, None]] = {}

    def add(self, text: str, path: Path | None = None) -> None:
        """Note what is true of a checkpoint, or of all of them."""
        paths = self._found.setdefault(text, {})
        if path is not None:
            paths[path] = None

    def texts(self) -> tuple[str, ...]:
        """All of them, in order, and before each the checkpoints it is true of."""
        return tuple(
            f"{listed(map(shown_path, paths), _NAMED)}: {text}" if paths else text
            for text, paths in self._found.items()
        )


@dataclass(frozen=True)
class Inspection:
    """Answers of saved checkpoints.

    Attributes:
        run: The run made of them, a step for each.
        checkpoints: Their paths, in order.
        structure: The layers.
        tensors: The weights of the last one, under the names of the run; read from its file when they are used.
        measured: Parameter -> what it measures in the last one.
        optimizer: The optimizer's state in the last one.
        notes: Remarks for the reader.
        misfits: What of the checkpoints and of the model does not fit: all that is measured is of the rest.
        has_steps: True if any of them stores its step; if none does, steps are counted.
    """

    run: Run
    checkpoints: tuple[Path, ...]
    structure: Structure
    tensors: Tensors
    measured: Mapping[str, WeightStats]
    optimizer: OptimizerState | None
    notes: tuple[str, ...]
    misfits: tuple[str, ...]
    has_steps: bool


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
    notes, misfits = Notes(), Notes()
    if subject is not None and subject.source:
        notes.add(f"the model ran on {subject.source}")
    first = _opened(paths[0] if reference is None else Path(reference), subject, notes, misfits)
    compared = len(paths) > 1 or reference is not None
    structure = _structure(subject, first)
    options = {"compared": compared, "quick": quick, "overwrite": overwrite}
    record = _record(subject, first, structure, Path(folder), _name(paths), notes, **options)
    with record:
        record.start(first.tensors)
        last, step, has_steps = first, -1, False
        for done, path in enumerate(paths, 1):
            last = first if done == 1 and reference is None else _opened(path, subject, notes, misfits)
            has_steps |= _says(last) is not None
            step = _step(last, step, notes)
            _tell_of_differences(first, last, notes)
            record.add(step, last.tensors, {} if last.epoch is None else {"epoch": last.epoch})
            on_progress(done, len(paths))
        record.tell([*misfits.texts(), *notes.texts()])
    return Inspection(
        run=load(folder),
        checkpoints=tuple(paths),
        structure=structure,
        tensors=last.tensors,
        measured=record.measured,
        optimizer=last.optimizer,
        notes=notes.texts(),
        misfits=misfits.texts(),
        has_steps=has_steps,
    )


def _structure(subject: ModelCase | None, first: Checkpoint) -> Structure:
    if subject is None:
        structure = find_layers(first.tensors)
    else:
        load_weights_(subject.model, first.tensors)
        structure = discover(subject.model, *subject.args, **subject.kwargs)
    if not structure.parameters:
        raise InputError(
            f"{shown_path(first.path)} holds no parameters of a layer, only {listed(map(quoted, first.tensors), 5)}"
        )
    return structure


def _name(paths: Sequence[Path]) -> str:
    """Name of the run: a lone checkpoint's own name, or that of the folder that the first of many is in."""
    name = paths[0].stem if len(paths) == 1 else paths[0].absolute().parent.name
    return name.encode(errors="replace").decode() or "checkpoints"


def _record(
    subject: ModelCase | None,
    first: Checkpoint,
    structure: Structure,
    folder: Path,
    name: str,
    notes: Notes,
    **options: bool,
) -> WeightRecord | PassRecord:
    """Writer of the run: of the most that model, inputs and loss allow."""
    if subject is None:
        stack = find_stack(first.tensors, structure)
        if stack.pairs:
            notes.add(f"c supposes that {'; that '.join(ASSUMED)}. A state dict does not tell; a model does")
        else:
            notes.add(f"no c: {stack.excluded[0].reason}")
        return WeightRecord(folder, name, "state dict", structure, stack, **options)
    if subject.loss is not None:
        return PassRecord(
            subject, structure, folder, name, compared=options["compared"], overwrite=options["overwrite"]
        )
    from gatdiag.laws import Laws, find_laws  # a heavy import that weights alone do not need

    try:
        laws = find_laws(subject.model, *subject.args, **subject.kwargs)
    except ModelError as error:
        laws = Laws([], dict(subject.model.named_parameters()))
        notes.add(f"no c: {error}")
        return WeightRecord(folder, name, type(subject.model).__name__, structure, laws, **options)
    if not len(laws):
        reasons = dict.fromkeys(excluded.reason for excluded in laws.excluded)
        notes.add(f"no c, for the model has no laws: {listed(reasons, _REASONS)}")
    return WeightRecord(folder, name, type(subject.model).__name__, structure, laws, **options)


def _opened(path: Path, subject: ModelCase | None, notes: Notes, misfits: Notes) -> Checkpoint:
    """A checkpoint, under the model's own names if there is a model."""
    checkpoint = open_checkpoint(path)
    for note in checkpoint.notes:
        notes.add(note)
    if subject is None:
        return checkpoint
    found = fit(subject.model, checkpoint.tensors, checkpoint.keys)
    for difference in found.differences(20):
        misfits.add(difference)
    return replace(checkpoint, tensors=found.tensors)


def _says(checkpoint: Checkpoint) -> int | None:
    return checkpoint.step if checkpoint.step is not None else checkpoint.epoch


def _step(checkpoint: Checkpoint, before: int, notes: Notes) -> int:
    """The step of a checkpoint: what it says itself, if that is after the one before; else the next."""
    says = _says(checkpoint)
    if says is not None and before < says <= LARGEST_STEP:
        return says
    if says is not None or before >= 0:
        notes.add("tells no step after the one before it, and is counted as the next", checkpoint.path)
    return before + 1


def _tell_of_differences(first: Checkpoint, last: Checkpoint, notes: Notes) -> None:
    """Notes what only the last or only the first checkpoint has; InputError where they have nothing in common."""
    before, after = ({name: list(tensor.shape) for name, tensor in of.tensors.items()} for of in (first, last))
    if not any(after.get(name) == shape for name, shape in before.items()):
        raise InputError(
            f"{shown_path(last.path)} is of another model than {shown_path(first.path)}: they share no tensor of the "
            f"same name and shape ({listed(map(quoted, after), 3)}; {listed(map(quoted, before), 3)}). Inspect them "
            "one by one"
        )
    if lacking := [quoted(name) for name in before if name not in after]:
        notes.add(f"lacks {listed(lacking, 3)} of {shown_path(first.path)}", last.path)
    if further := [quoted(name) for name in after if name not in before]:
        notes.add(f"has {listed(further, 3)}, which {shown_path(first.path)} has not", last.path)
    reshaped = [
        f"{quoted(name)} of shape {after[name]} instead of {shape}"
        for name, shape in before.items()
        if after.get(name, shape) != shape
    ]
    if reshaped:
        notes.add(f"has {listed(reshaped, 3)}, whose change is not measured", last.path)

"""TensorBoard: gatdiag's scalars beside your own."""

import os
from pathlib import Path
from typing import Any, Final

from torch.utils.tensorboard import SummaryWriter

from gatdiag.names import printable
from gatdiag.recorder import Tracker, Update
from gatdiag.recorder.tracking import update_of_run
from gatdiag.run import Run
from gatdiag.run.files import free_folder

_FILES: Final = "events.out.tfevents.*"


def to_tensorboard(writer: SummaryWriter | str | os.PathLike[str] | None = None) -> Tracker:
    """A tracker that writes to TensorBoard, for ``gatdiag.watch(..., tracker=to_tensorboard(writer))``.

    Args:
        writer: A writer, which stays open, or the folder of a new one; by default a new folder in ``runs/``, as
            TensorBoard names it.

    Example::

        with gatdiag.watch(model, "runs/gat10", tracker=to_tensorboard("runs/tensorboard")):
            ...
    """
    is_given = isinstance(writer, SummaryWriter)
    target: Any = writer if is_given else None

    def track(update: Update) -> None:
        nonlocal target
        target = SummaryWriter(writer) if target is None else target  # not before this process is known to record
        for step, row in update.scalars.items():
            for name, value in row.items():
                target.add_scalar(name, value, step)
        if update.diagnosis is not None:
            text = printable(str(update.diagnosis).replace("\n", "\n    "))
            target.add_text("gatdiag/verdict", f"    {text}", max(update.scalars, default=0))
            (target.flush if is_given else target.close)()

    return track


def export(run: Run, folder: Path) -> str:
    """Write a run's scalars to a folder for TensorBoard, a numbered sibling if it holds some; returns the folder."""
    place = free_folder(folder, _FILES)
    to_tensorboard(place)(update_of_run(run))
    return str(place)

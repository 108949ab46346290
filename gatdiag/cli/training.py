"""Progress of trainings: a line for each, or a bar over many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from gatdiag.experiments.training import Epoch


@contextmanager
def training_progress(epochs: int) -> Iterator[Callable[[str, int, Epoch], None]]:
    """Show one line a training on standard error, so that standard output is the verdict alone."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def on_progress(name: str, position: int, epoch: Epoch) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=epochs, numbers="")
            numbers = f"loss {epoch.loss:.3f}, validation {epoch.val_accuracy:.1%}"
            bars.update(tasks[name], completed=position + 1, numbers=numbers)

        yield on_progress


@contextmanager
def trainings_progress(name: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error that each call advances by one training; none if there is nothing to train."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    if not total:
        yield lambda *_: None
        return
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(name, total=total)
        yield lambda *_: bars.advance(task)

"""Progress bars of trainings, and which of them failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
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

from gatdiag.names import printable

if TYPE_CHECKING:
    from gatdiag.experiments.training import Epoch

INTERRUPTED: Final = 130  # exit status of a process that was ended by Ctrl-C or SIGTERM


@contextmanager
def epoch_progress(epochs: int, *folders: Path) -> Iterator[Callable[[str, int, Epoch], None]]:
    """Train in one thread, with one progress bar per training on standard error.

    After Ctrl-C, a message names the run folders that can be read.
    """
    from gatdiag.experiments.pool import one_thread

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
    )
    try:
        with one_thread(), ExitStack() as shown:
            bars = Progress(*columns, console=Console(stderr=True))
            tasks: dict[str, TaskID] = {}

            def on_progress(name: str, position: int, epoch: Epoch) -> None:
                if not tasks:
                    shown.enter_context(bars)  # ends with an empty line, even if nothing was shown before an error
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=epochs, numbers="")
                numbers = f"loss {epoch.loss:.3f}, validation {epoch.val_accuracy:.1%}"
                bars.update(tasks[name], completed=position + 1, numbers=numbers)

            yield on_progress
    except KeyboardInterrupt:
        begun = [str(folder) for folder in folders if (folder / "meta.json").exists()]
        hint = f"see what was recorded with: gatdiag report {' '.join(begun)}" if begun else "nothing was recorded"
        typer.echo(f"gatdiag: interrupted; {hint}", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def count_progress(name: str, total: int) -> Iterator[Callable[..., None]]:
    """Show one bar on standard error, which each call advances by one training; none if ``total`` is 0.

    After Ctrl-C, a message says that the command can be continued.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=Console(stderr=True), disable=not total) as bars:
            task = bars.add_task(name, total=total)
            yield lambda *_: bars.advance(task)
    except KeyboardInterrupt:
        typer.echo("gatdiag: interrupted; finished trainings are kept, and the same command continues", err=True)
        raise typer.Exit(INTERRUPTED) from None


def report_failures(reasons: Collection[str], total: int) -> str:
    """Print each reason with its number of trainings on standard error; returns the message of the whole command."""
    for reason, count in Counter(reasons).items():
        typer.echo(printable(f"gatdiag: {count} failed: {reason}"), err=True)
    return f"{len(reasons)} of {total} trainings failed and will be retried by the next run"

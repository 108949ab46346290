"""`gatdiag demo`: one network trained from two initializations, watched, and compared on a page."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from gatdiag.cli.finding import Finding, finding_of, spoken, verdict
from gatdiag.errors import InputError
from gatdiag.experiments.initializations import (
    SCHEMES,
    compare_initializations,
    folder_name,
    prepared_graph,
    settings_for,
)
from gatdiag.experiments.training import Epoch, TrainingSettings
from gatdiag.figures import save_figures
from gatdiag.remedies import Scheme
from gatdiag.report import write_report
from gatdiag.run import Run, load

REPORT, FIGURES = "report.html", "figures"

ROWS: Final[Mapping[str, Callable[[Finding], str]]] = {
    "loss, first and lowest": lambda finding: f"{finding.first_loss:.3g}, {finding.best_loss:.3g}",
    "best validation accuracy": lambda finding: f"{finding.val_accuracy:.1%}",
    "test accuracy there": lambda finding: f"{finding.test_accuracy:.1%}",
    "at epoch (from 1)": lambda finding: f"{finding.best_epoch:.0f} of {finding.epochs}",
    "relative gradient norm, hidden layers": lambda finding: (
        "" if math.isnan(finding.hidden_gradient) else f"{finding.hidden_gradient:.1e}"
    ),
    "weights that never changed": lambda finding: f"{finding.unchanged:.1%}",
    "largest imbalance |c| at the start": lambda finding: f"{finding.imbalance:.2g}",
}
INTERRUPTED = 130  # as a shell has it for a process ended by Ctrl-C


def run_demo(
    dataset: str,
    root: Path,
    out: Path,
    layers: int,
    epochs: int | None,
    learning_rate: float | None,
    seed: int,
    overwrite: bool,
) -> None:
    """Train, record, draw, write the page, and print what was found.

    Args:
        dataset: Name of a graph.
        root: Folder of the data sets.
        out: Folder for runs, page and figures.
        layers: Of the network.
        epochs: Of each training; as the data set needs if None.
        learning_rate: As the data set needs if None.
        seed: Of the weights.
        overwrite: Replace an earlier demo.

    Raises:
        InputError: The graph is not to be had, the folder is taken, or a number makes no sense.
        Exit: With status 130 if it was interrupted.
    """
    usual = settings_for(dataset)
    settings = replace(
        usual,
        seed=seed,
        epochs=usual.epochs if epochs is None else epochs,
        learning_rate=usual.learning_rate if learning_rate is None else learning_rate,
    )
    if layers < 2:
        raise InputError(f"Expected 2 layers or more, got {layers}")
    _refuse_taken(out, overwrite)
    try:
        graph = prepared_graph(dataset, root)
        with _one_thread(), _progress(settings) as progress:
            folders = compare_initializations(graph, out, settings, layers, overwrite=overwrite, progress=progress)
        runs = [load(folder) for folder in folders]
        subject = f"A GAT of {layers} layers on {dataset} ({graph.num_nodes} nodes), seed {seed}"
        findings = [finding_of(run) for run in runs]
        _print_finding(findings, f"{subject}, learning rate {settings.learning_rate:g}", int(graph.y.max()) + 1)
        title = f"{dataset}: {' and '.join(spoken(run.name) for run in runs)} weights"
        _write_page(runs, out, title, overwrite=overwrite)
    except KeyboardInterrupt:
        typer.echo(f"gatdiag: interrupted; {_readable(out)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot write below {out}: {error.strerror or error}") from error


def _refuse_taken(out: Path, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: choose another --out")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is there already: choose another --out, or replace what is in it with --overwrite")


def _readable(out: Path) -> str:
    begun = [str(out / folder_name(scheme)) for scheme in SCHEMES if (out / folder_name(scheme) / "meta.json").exists()]
    return f"what was recorded can be read: gatdiag report {' '.join(begun)}" if begun else "nothing was recorded yet"


@contextmanager
def _one_thread() -> Iterator[None]:
    """On graphs like these more threads gain little, lose much where other programs run, and change the rounding."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _progress(settings: TrainingSettings) -> Iterator[Callable[[Scheme, int, Epoch], None]]:
    """One line a training on standard error, so that standard output is the finding alone."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[Scheme, TaskID] = {}

        def told(scheme: Scheme, number: int, epoch: Epoch) -> None:
            if scheme not in tasks:
                tasks[scheme] = bars.add_task(spoken(scheme), total=settings.epochs, numbers="")
            numbers = f"loss {epoch.loss:.3f}, validation {epoch.val_accuracy:.1%}"
            bars.update(tasks[scheme], completed=number + 1, numbers=numbers)

        yield told


def _print_finding(findings: Sequence[Finding], subject: str, classes: int) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    grid = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("initial weights")
    for finding in findings:
        grid.add_column(spoken(finding.name), justify="right")
    for label, text in ROWS.items():
        texts = [text(finding) for finding in findings]
        if any(texts):  # a network of two layers has no hidden ones to speak of
            grid.add_row(label, *texts)
    console.print(subject)
    console.print(grid)
    console.print(verdict(findings, classes))


def _write_page(runs: Sequence[Run], out: Path, title: str, *, overwrite: bool) -> None:
    page = write_report(runs, out / REPORT, title=title, overwrite=overwrite)
    figures = save_figures(runs, out / FIGURES, formats=("png",))
    typer.echo(f"\nThe page: {page}\n{len(figures)} figures: {out / FIGURES}")
    typer.echo(f"The runs: {' '.join(str(run.folder) for run in runs)}")

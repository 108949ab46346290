"""`gatdiag inspect`: saved checkpoints -> a table, findings, a run with its page."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from gatdiag.cli.diagnose import diagnosis_of, end, print_diagnosis
from gatdiag.cli.options import (
    DATA_FOLDER,
    MODEL_OF_CHECKPOINT,
    Data,
    FailOn,
    Inputs,
    Level,
    Overwrite,
    Root,
    Transform,
    check_new,
)
from gatdiag.cli.printing import grid, number, plain_console
from gatdiag.errors import InputError
from gatdiag.names import elide_middle, printable
from gatdiag.roles import FEATURE

if TYPE_CHECKING:
    from gatdiag.checkpoint import Checkpoint, Inspection
    from gatdiag.diagnosis import Diagnosis

_COLUMN: Final = 10  # characters that a terminal gives to a number
_ROWS: Final = 40  # layers at each end of a table; in a terminal nobody reads thousands
_NAME: Final = 40  # characters of a layer's name
_NOTES: Final = 12  # on a terminal, and how many characters of each
_NOTE: Final = 800

# Heading, column of `checkpoint.layer_table`, format; those further right go first where the terminal is narrow.
_COLUMNS: Final[Sequence[tuple[str, str, str]]] = (
    ("‖W‖", "norm", ".3g"),
    ("largest\n|c|", "c", ".2g"),
    ("changed\n> 5 %", "changed", ".0%"),
    ("relative\ngradient", "relative_gradient", ".1e"),
    ("gradient\n(Adam)", "remembered_gradient", ".1e"),
    ("relative\nmu", "relative_mu", ".1e"),
    ("drift\nof c", "c_drift", ".2g"),
    ("un-\nchanged", "unchanged", ".0%"),
    ("attention\nchanged", "changed_attention", ".0%"),
    ("‖W‖₂", "spectral_norm", ".3g"),
)


def inspect(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Saved checkpoints, patterns such as 'ckpt/*.pt', or folders of them: torch (.pt, .pth, Lightning's "
            ".ckpt), safetensors, torch.distributed.checkpoint. Several are a series, in order of their steps.",
        ),
    ],
    model: Annotated[str | None, MODEL_OF_CHECKPOINT] = None,
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Checkpoint that changes are measured from; the first if it is not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the run made of them, its page and its figures.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Leave out spectral norms and quantiles of change, which take most of the time."),
    ] = False,
    fail_on: FailOn = Level.error,
    overwrite: Overwrite = False,
) -> None:
    """Read saved checkpoints, without running anything that is in them, and say what stands out.

    With --model the laws are its own; with --data, too, it runs forward and backward with the weights of each
    checkpoint. Ends with status 0 if nothing is as bad as --fail-on, 1 if something is, 2 if a file could not be read.
    """
    _import_quickly()
    from gatdiag import checkpoint
    from gatdiag.experiments.pool import one_thread

    if model is None and any(given is not None for given in (data, inputs, transform)):
        raise InputError("--data, --inputs and --transform are of what the model runs on: give --model, too")
    if out is not None:
        check_new(out, overwrite=overwrite)
    scratch = tempfile.TemporaryDirectory(prefix="gatdiag-") if out is None else nullcontext(str(out))
    # spectral norms are many short products, in which threads wait for each other longer than they compute
    threads = one_thread() if model is None else nullcontext()
    # the user's own code may print
    with redirect_stdout(sys.stderr), scratch as folder, _progress() as on_progress, threads:
        subject = None
        if model is not None:
            from gatdiag.cli.model_case import load_case

            first = checkpoint.open_checkpoint(checkpoint.series(files)[0])
            subject = load_case(model, data, inputs, root, transform, sizes_of(first))
        inspection = checkpoint.inspect(
            files,
            Path(folder) / "run",
            subject=subject,
            reference=reference,
            quick=quick,
            overwrite=overwrite,
            on_progress=on_progress,
        )
        diagnosis = diagnosis_of(inspection.run, inspection)
        rows = [*checkpoint.layer_table(inspection).itertuples()]
        written = [] if out is None else _write(inspection, out, overwrite=overwrite)
    _print(inspection, rows, diagnosis, written)
    end([diagnosis], fail_on)


def _import_quickly() -> None:
    """Load torch and pandas without looking, again and again, for garbage in the million objects that they make."""
    gc.disable()
    try:
        import gatdiag.checkpoint
        import gatdiag.diagnosis  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, where that is a terminal and there is more than one checkpoint."""
    columns = TextColumn("checkpoints"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("checkpoints", visible=False)
        yield lambda done, of: bar.update(task, completed=done, total=of, visible=of > 1)


def sizes_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Widths of input and output, read off the first and the last feature weight."""
    from gatdiag.checkpoint import find_layers

    layers = [[info for info in layer.parameters if info.role == FEATURE] for layer in find_layers(checkpoint.tensors)]
    weights = [infos for infos in layers if infos]
    if not weights:
        return {}
    return {"in_channels": weights[0][0].shape[-1], "out_channels": weights[-1][0].shape[0]}


def _write(inspection: Inspection, out: Path, *, overwrite: bool) -> list[str]:
    from gatdiag.figures import save_figures
    from gatdiag.report import write_report

    page = write_report(inspection.run, out / "report.html", overwrite=overwrite)
    figures = save_figures([inspection.run], out / "figures", formats=["png"])
    return [str(page), f"{len(figures)} figures in {out / 'figures'}", f"the run in {out / 'run'}"]


# --- what is printed --------------------------------------------------------------------------------------------------


def _print(inspection: Inspection, rows: Sequence[Any], diagnosis: Diagnosis, written: Sequence[str]) -> None:
    console = plain_console()
    steps, paths = inspection.run.steps["step"].tolist(), inspection.checkpoints
    if len(paths) > 1:
        title = f"{len(paths)} checkpoints from step {steps[0]} to {steps[-1]}; below the last, {paths[-1]}"
    else:
        title = f"{paths[0]}, step {steps[0]}" if inspection.last.position is not None else str(paths[0])
    console.print(printable(title))
    left_out = max(0, len(rows) - 2 * _ROWS)
    console.print(_table([*rows[:_ROWS], *rows[_ROWS + left_out :]], console.width))
    if left_out:
        last = printable(elide_middle(rows[_ROWS - 1].layer, _NAME))
        console.print(f"{left_out} layers after {last} are not shown; the page of --out has all")
    for misfit in inspection.misfits:
        console.print(printable(f"the checkpoint does not fit the model: {elide_middle(misfit, _NOTE)}"))
    print_diagnosis(diagnosis, "the page of --out")
    for note in inspection.notes[:_NOTES]:
        console.print(printable(f"note: {elide_middle(note, _NOTE)}"))
    if len(inspection.notes) > _NOTES:
        console.print(f"{len(inspection.notes) - _NOTES} more notes are not shown; the page of --out has all")
    for line in written:
        console.print(printable(f"written: {line}"), soft_wrap=True)


def _table(rows: Sequence[Any], width: int) -> Table:
    texts = [[printable(elide_middle(row.layer, _NAME)), printable(row.kind), row.initialization] for row in rows]
    names = sum(max(map(len, column)) + 1 for column in zip(*texts, strict=True))
    measured = [column for column in _COLUMNS if any(number(getattr(row, column[1]), "g") for row in rows)]
    columns = measured[: max(1, (width - names) // _COLUMN)]
    table = grid(["layer", "kind"], [heading for heading, _, _ in columns])
    if any(row.initialization for row in rows):
        table.add_column("initialization", overflow="fold")
    for row, (*name, initialization) in zip(rows, texts, strict=True):
        cells = [*name, *(number(getattr(row, attribute), form) for _, attribute, form in columns), initialization]
        table.add_row(*cells[: len(table.columns)])
    return table

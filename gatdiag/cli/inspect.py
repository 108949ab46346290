"""`gatdiag inspect`: a table and findings of saved checkpoints; optionally a run with its page."""

from __future__ import annotations

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

from gatdiag.cli.diagnose import exit_with_status, print_diagnosis
from gatdiag.cli.options import (
    CHECKPOINT_MODEL,
    DATA_FOLDER,
    OUT,
    Data,
    FailOn,
    Inputs,
    Level,
    Overwrite,
    Root,
    Transform,
    choose_folder,
)
from gatdiag.cli.printing import format_number, make_table, plain_console
from gatdiag.errors import InputError
from gatdiag.names import elide_middle, printable
from gatdiag.roles import FEATURE

if TYPE_CHECKING:
    from gatdiag.checkpoint import Checkpoint, Inspection
    from gatdiag.diagnosis import Diagnosis

_COLUMN: Final = 10  # characters of a column of numbers
_ROWS: Final = 40  # layers printed at each end of the table
_NAME: Final = 40  # characters of a layer's name

# Heading, column of `checkpoint.layer_table`, format; a narrow terminal drops columns from the right.
_COLUMNS: Final[Sequence[tuple[str, str, str]]] = (
    ("‖W‖", "norm", ".3g"),
    ("largest\n|c|", "c", ".2g"),
    ("changed\n> 5%", "changed", ".0%"),
    ("relative\ngradient", "relative_gradient", ".1e"),
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
            help="Checkpoints, folders of checkpoints, or patterns such as 'ckpt/*.pt': torch (.pt, .pth, Lightning's "
            ".ckpt), safetensors. Several form a series, ordered by step.",
        ),
    ],
    model: Annotated[str | None, CHECKPOINT_MODEL] = None,
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    out: Annotated[Path | None, OUT] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Skip spectral norms and quantiles of change, which take most of the time."),
    ] = False,
    fail_on: FailOn = Level.error,
    overwrite: Overwrite = False,
) -> None:
    """Read saved checkpoints and report what stands out.

    Nothing in a file is ever executed. With --model, the laws are those of the model; with --data as well, it also runs
    forward and backward with the weights of each checkpoint. --out keeps a run made of the checkpoints, its page and
    its figures. Exits with status 0 if every finding is less severe than
    --fail-on, 1 if one is not, 2 if a file cannot be read.
    """
    from gatdiag import checkpoint
    from gatdiag.diagnosis import diagnose
    from gatdiag.experiments.pool import one_thread
    from gatdiag.run.files import META

    if model is None and any(given is not None for given in (data, inputs, transform)):
        raise InputError("--data, --inputs and --transform need a model: give --model, too")
    if out is not None:
        out = choose_folder(out, f"run/{META}", overwrite=overwrite)
    scratch = tempfile.TemporaryDirectory(prefix="gatdiag-") if out is None else nullcontext(str(out))
    # spectral norms are many small products, for which threads cost more than they gain
    threads = one_thread() if model is None else nullcontext()
    # the user's code may print
    with redirect_stdout(sys.stderr), scratch as folder, _progress() as on_progress, threads:
        opened, case = checkpoint.open_all(files), None
        if model is not None:
            from gatdiag.cli.model_case import load_case

            case = load_case(model, data, inputs, root, transform, infer_sizes(opened[0]))
        inspection = checkpoint.inspect(
            opened,
            Path(folder) / "run",
            case=case,
            quick=quick,
            overwrite=overwrite,
            on_progress=on_progress,
        )
        diagnosis = diagnose(inspection.run)
        rows = [*checkpoint.layer_table(inspection).itertuples()]
        written = [] if out is None else _save(inspection, out, overwrite=overwrite)
    _print_inspection(inspection, rows, diagnosis, written)
    exit_with_status([diagnosis], fail_on)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if standard error is a terminal and there are several checkpoints."""
    columns = TextColumn("checkpoints"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("checkpoints", visible=False)
        yield lambda done, of: bar.update(task, completed=done, total=of, visible=of > 1)


def infer_sizes(checkpoint: Checkpoint) -> dict[str, int]:
    """in_channels and out_channels, from the first and the last feature weight; empty if there are none."""
    from gatdiag.checkpoint import find_layers

    layers = [[info for info in layer.parameters if info.role == FEATURE] for layer in find_layers(checkpoint.tensors)]
    weights = [infos for infos in layers if infos]
    if not weights:
        return {}
    return {"in_channels": weights[0][0].shape[-1], "out_channels": weights[-1][0].shape[0]}


def _save(inspection: Inspection, out: Path, *, overwrite: bool) -> list[str]:
    from gatdiag.figures import save_figures
    from gatdiag.page import report

    page = report(inspection.run, out / "report.html", overwrite=overwrite)
    figures = save_figures([inspection.run], out / "figures", formats=["png"])
    return [str(page), f"{len(figures)} figures in {out / 'figures'}", f"the run in {out / 'run'}"]


# --- output -----------------------------------------------------------------------------------------------------------


def _print_inspection(
    inspection: Inspection, rows: Sequence[Any], diagnosis: Diagnosis, written: Sequence[str]
) -> None:
    console = plain_console()
    steps, count, last = inspection.run.steps["step"].tolist(), len(inspection.checkpoints), inspection.checkpoints[-1]
    if count > 1:
        title = f"{count} checkpoints from step {steps[0]} to {steps[-1]}; the table shows the last, {last.path}"
    else:
        title = f"{last.path}, step {steps[0]}" if last.position is not None else str(last.path)
    console.print(printable(title))
    left_out = max(0, len(rows) - 2 * _ROWS)
    console.print(_layer_table([*rows[:_ROWS], *rows[_ROWS + left_out :]], console.width))
    if left_out:
        before = printable(elide_middle(rows[_ROWS - 1].layer, _NAME))
        console.print(f"{left_out} layers after {before} are not shown; --out writes a page with all of them")
    for mismatch in inspection.mismatches:
        console.print(printable(f"the checkpoint does not fit the model: {mismatch}"))
    print_diagnosis(diagnosis, "the page of --out")
    for note in inspection.notes:
        console.print(printable(f"note: {note}"))
    for line in written:
        console.print(printable(f"written: {line}"), soft_wrap=True)


def _layer_table(rows: Sequence[Any], width: int) -> Table:
    names = [[printable(elide_middle(row.layer, _NAME)), printable(row.kind)] for row in rows]
    taken = sum(max(map(len, column)) + 1 for column in zip(*names, strict=True))
    measured = [column for column in _COLUMNS if any(format_number(getattr(row, column[1]), "g") for row in rows)]
    columns = measured[: max(1, (width - taken) // _COLUMN)]
    table = make_table(["layer", "kind"], [heading for heading, _, _ in columns])
    for row, name in zip(rows, names, strict=True):
        table.add_row(*name, *(format_number(getattr(row, attribute), form) for _, attribute, form in columns))
    return table

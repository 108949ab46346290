"""`gatdiag inspect`: saved checkpoints -> a table, findings, a page, a JSON document.

The JSON document has these keys; numbers that are not finite, or were not measured, are null:

- ``version``: 1, the version of this description
- ``checkpoints``: for each ``path`` and ``step``
- ``model``: class of the model, or "state dict"
- ``layers``: for each layer of the last checkpoint the attributes of `gatdiag.checkpoint.overview.LayerRow`
- ``parameters``: for each parameter of the last checkpoint ``name``, ``role``, ``shape``, ``norm``, ``spectral_norm``,
  ``non_finite``, ``dead_rows``, ``dead_columns``
- ``findings``: for each ``code``, ``level``, ``where``, ``text``
- ``notes``: texts
- ``run``: folder of the run, or null
"""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import Tensor

from gatdiag.checkpoint import Checkpoint, open_checkpoint, series
from gatdiag.checkpoint.findings import LEVELS, Finding, findings
from gatdiag.checkpoint.inspection import Inspection, inspect
from gatdiag.checkpoint.layers import find_layers
from gatdiag.checkpoint.measures import Measured
from gatdiag.checkpoint.overview import LayerRow, layer_rows
from gatdiag.checkpoint.pass_record import Subject
from gatdiag.cli.printing import print_document
from gatdiag.errors import InputError
from gatdiag.names import listed, printable, shortened
from gatdiag.structure import ParameterInfo
from gatdiag.summary import FEATURES

_FINDINGS: Final = 1  # exit status where a finding is at or above --fail-on
RUN: Final = "run"  # the run's folder inside --out
_COLUMN: Final = 10  # characters that a terminal gives to a number
_LISTED: Final = 6  # layers or parameters that a finding names
_ROWS: Final = 40  # layers at each end of a table; in a terminal nobody reads thousands
_NAME: Final = 40  # characters of a layer's name
_NOTES: Final = 12  # on a terminal, and how many characters of each
_NOTE: Final = 800

# Heading, attribute, format; those further right go first where the terminal is narrow.
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


def inspect_files(
    files: Sequence[str],
    *,
    model: str | None,
    data: str | None,
    inputs: str | None,
    root: Path,
    transform: str | None,
    reference: str | None,
    out: Path | None,
    as_json: bool,
    quick: bool,
    fail_on: str,
    overwrite: bool,
) -> None:
    """Inspect checkpoints, print what was found, and write the run and its page if asked to.

    Raises:
        InputError: A file cannot be read, an option does not fit, or the folder holds something.
        ModelError: The model fails.
        Exit: With status 1 if a finding is at or above `fail_on`.
    """
    if fail_on not in (*LEVELS, "never"):
        raise InputError(f"--fail-on: expected {', '.join(LEVELS)} or never, got {fail_on!r}")
    if model is None and any(given is not None for given in (data, inputs, transform)):
        raise InputError("--data, --inputs and --transform are of what the model runs on: give --model, too")
    _refuse_taken(out, overwrite=overwrite)
    with redirect_stdout(sys.stderr), _folder(out) as folder, _progress() as told:  # the user's own code may print
        subject = None if model is None else _subject(model, data, inputs, root, transform, files)
        inspection = inspect(
            files, folder, subject=subject, reference=reference, quick=quick, overwrite=overwrite, told=told
        )
        found, rows = findings(inspection), layer_rows(inspection)
        written = [] if out is None else _write(inspection, out, overwrite=overwrite)
    if as_json:
        print_document(_document(inspection, rows, found, out))
    else:
        _print(inspection, rows, found, written)
    if fail_on != "never" and any(LEVELS.index(finding.level) >= LEVELS.index(fail_on) for finding in found):
        raise typer.Exit(_FINDINGS)


def _refuse_taken(out: Path | None, *, overwrite: bool) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, got the file {str(out)!r}")
    if out is None or overwrite:
        return
    if out.exists() and any(out.iterdir()):
        raise InputError(f"--out: {str(out)!r} holds something already: give another folder, or --overwrite")


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where the run goes: inside `out`, or for as long as it takes."""
    if out is not None:
        yield out / RUN
        return
    with tempfile.TemporaryDirectory(prefix="gatdiag-") as folder:
        yield Path(folder) / "checkpoints"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal and there is more than one checkpoint."""
    columns = TextColumn("checkpoints"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("checkpoints", visible=False)
        yield lambda done, of: bar.update(task, completed=done, total=of, visible=of > 1)


def _subject(
    model: str, data: str | None, inputs: str | None, root: Path, transform: str | None, files: Sequence[str]
) -> Subject:
    from gatdiag.cli.subject import load_subject  # PyG and the drawing libraries are loaded where they are needed

    first = open_checkpoint(series(files)[0])
    made = load_subject(model, data, inputs, root, sizes_of(first), transform)
    return Subject(made.model, made.args, made.kwargs, made.loss, made.source)


def sizes_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Widths of input and output, read off the first and the last feature weight."""
    layers = [[info for info in layer.parameters if info.role == FEATURES] for layer in find_layers(checkpoint.tensors)]
    weights = [infos for infos in layers if infos]
    if not weights:
        return {}
    return {"in_channels": weights[0][0].shape[-1], "out_channels": weights[-1][0].shape[0]}


def _write(inspection: Inspection, out: Path, *, overwrite: bool) -> list[str]:
    from gatdiag.figures import save_figures
    from gatdiag.report import write_report

    page = write_report(inspection.run, out / "report.html", overwrite=overwrite)
    figures = save_figures([inspection.run], out / "figures", formats=["png"])
    return [str(page), f"{len(figures)} figures in {out / 'figures'}", f"the run in {out / RUN}"]


# --- what is printed --------------------------------------------------------------------------------------------------


def _print(inspection: Inspection, rows: Sequence[LayerRow], found: Sequence[Finding], written: Sequence[str]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)  # a layer may be called [red]
    console.print(printable(_title(inspection)))
    between = max(0, len(rows) - 2 * _ROWS)
    console.print(_table([*rows[:_ROWS], *rows[_ROWS + between :]], console.width))
    if between:
        console.print(
            f"{between} layers after {printable(shortened(rows[_ROWS - 1].layer, _NAME))} are not shown; --json has all"
        )
    for finding in found:
        console.print(printable(f"{finding.level}: {_places(finding.where)}: {finding.text} [{finding.code}]"))
    if not found:
        console.print("nothing stands out")
    for note in inspection.notes[:_NOTES]:
        console.print(printable(f"note: {shortened(note, _NOTE)}"))
    if len(inspection.notes) > _NOTES:
        console.print(f"{len(inspection.notes) - _NOTES} more notes are not shown; --json has all")
    for line in written:
        console.print(printable(f"written: {line}"), soft_wrap=True)


def _title(inspection: Inspection) -> str:
    steps, paths = inspection.run.steps["step"].tolist(), inspection.checkpoints
    if len(paths) == 1:
        return f"{paths[0]}, step {steps[0]}" if inspection.has_steps else str(paths[0])
    return f"{len(paths)} checkpoints from step {steps[0]} to {steps[-1]}; below the last, {paths[-1]}"


def _table(rows: Sequence[LayerRow], width: int) -> Table:
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("layer", overflow="fold")
    grid.add_column("kind", overflow="fold")
    shown = [column for column in _COLUMNS if any(not math.isnan(getattr(row, column[1])) for row in rows)]
    texts = [(printable(shortened(row.layer, _NAME)), printable(row.kind), row.initialization) for row in rows]
    names = sum(max(map(len, column)) + 1 for column in zip(*texts, strict=True))
    shown = shown[: max(1, (width - names) // _COLUMN)]
    for heading, _, _ in shown:
        grid.add_column(heading, justify="right")
    tells = any(row.initialization for row in rows)
    if tells:
        grid.add_column("initialization", overflow="fold")
    for row, (name, kind, initialization) in zip(rows, texts, strict=True):
        numbers = [getattr(row, attribute) for _, attribute, _ in shown]
        cells = ["" if math.isnan(x) else format(x, form) for x, (_, _, form) in zip(numbers, shown, strict=True)]
        grid.add_row(name, kind, *cells, *[initialization] * tells)
    return grid


def _places(names: Sequence[str]) -> str:
    return listed((shortened(name, _NAME) for name in names), _LISTED)


def _document(
    inspection: Inspection, rows: Sequence[LayerRow], found: Sequence[Finding], out: Path | None
) -> dict[str, Any]:
    steps = inspection.run.steps["step"].tolist()
    return {
        "version": 1,
        "checkpoints": [
            {"path": str(path), "step": step} for path, step in zip(inspection.checkpoints, steps, strict=True)
        ],
        "model": inspection.run.meta["model"],
        "layers": [asdict(row) for row in rows],
        "parameters": [
            _parameter(info, inspection.measured[info.name])
            for info in inspection.structure.parameters
            if info.name in inspection.measured
        ],
        "findings": [asdict(finding) for finding in found],
        "notes": list(inspection.notes),
        "run": None if out is None else str(out / RUN),
    }


def _parameter(info: ParameterInfo, measured: Measured) -> dict[str, Any]:
    return {
        "name": info.name,
        "role": info.role,
        "shape": info.shape,
        "norm": measured.norm,
        "row_norms": _range(measured.row_norms) if measured.is_matrix else None,
        "column_norms": _range(measured.column_norms) if measured.is_matrix else None,
        "spectral_norm": measured.spectral_norm,
        "non_finite": measured.non_finite,
        "dead_rows": measured.dead_rows,
        "dead_columns": measured.dead_columns,
    }


def _range(norms: Tensor) -> dict[str, float]:
    return {"smallest": float(norms.min()), "largest": float(norms.max())} if len(norms) else {}

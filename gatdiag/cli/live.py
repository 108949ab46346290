"""`gatdiag live`: a training as it goes, from another terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gatdiag.cli.printing import plain_console
from gatdiag.names import one_line, printable, short

if TYPE_CHECKING:
    from rich.text import Text

    from gatdiag.page.screen import Strip
    from gatdiag.run import Run

_NOTHING: Final = 3  # exit status where nothing is written yet
_SECONDS: Final = 1.0  # between two looks
_PATIENCE: Final = 10  # times as long as the last look took, so that looking takes a tenth of a processor's time
_BARS: Final = "▁▂▃▄▅▆▇█"
_MOST_BARS: Final = 60
_COLORS: Final = {"failing": "bold red", "degraded": "bold yellow", "healthy": "bold green", "unknown": "bold"}
_CELLS: Final = {
    "inside": ("■", "green"),
    "near": ("▲", "yellow"),
    "far": ("✖", "red"),
    "broken": ("!", "bold magenta"),
    "unmeasured": ("·", "dim"),
}


def live(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that is being recorded.")],
    once: Annotated[bool, typer.Option("--once", help="Print what is there now, and exit.")] = False,
) -> None:
    """Watch a training from another terminal.

    Shows the verdict so far, the loss, and how far each layer is from healthy, as far as it is written, which is about
    every two seconds. Ends with the run. With --once, exits with status 3 if nothing is written yet.
    """
    from rich.live import Live

    console = plain_console()
    if once:
        text, _ = look(folder)
        console.print(text)
        if not _is_there(folder):
            raise typer.Exit(_NOTHING)
        return
    with Live(console=console) as display:
        is_over = False
        while not is_over:
            started = time.monotonic()
            text, is_over = look(folder)
            display.update(text, refresh=True)
            time.sleep(0 if is_over else max(_SECONDS, _PATIENCE * (time.monotonic() - started)))


def look(folder: Path) -> tuple[Text, bool]:
    """What is to be shown of a run now, and whether nothing more will come."""
    from rich.text import Text

    from gatdiag.run import load
    from gatdiag.run.files import is_locked, run_folder

    if not _is_there(folder):
        return Text(printable(f"{folder}: nothing is written yet; a run is written from its first step on")), False
    is_recorded = is_locked(run_folder(folder))  # asked before its status is read, which it may end meanwhile
    run = load(folder)
    lines = [*_lines(run, folder, is_recorded=is_recorded)]
    return Text("\n").join(lines), run.status != "recording" or not is_recorded


def _is_there(folder: Path) -> bool:
    from gatdiag.run.files import META, runs_inside

    # opening what is no run raises an error that says what it is
    return (folder / META).exists() or folder.is_file() or bool(runs_inside(folder))


def _lines(run: Run, folder: Path, *, is_recorded: bool) -> Iterator[Text]:
    from rich.text import Text

    from gatdiag.diagnosis import diagnose
    from gatdiag.page.screen import screen
    from gatdiag.summary import is_empty

    status = run.status if is_recorded or run.status != "recording" else "ended without finishing: its process is gone"
    yield Text(printable(f"{folder}: {status}"))
    if is_empty(run):
        yield Text("no step is written yet")
        return
    diagnosis = diagnose(run)
    first, verdict = screen(run, diagnosis), diagnosis.verdict
    code = f" [{verdict.code}]" if verdict.is_cause else ""
    yield Text.assemble((first.word, _COLORS[first.tone]), f": {one_line(verdict.title)}{code}")
    yield Text(f"  {one_line(verdict.text)}")
    yield from (
        Text(f"  {one_line(f'{tile.label}: {tile.value}, {tile.detail}'.rstrip(', '))}") for tile in first.tiles[:3]
    )
    yield from _loss(run)
    if first.strip is not None:
        yield from _strip(first.strip)


def _loss(run: Run) -> Iterator[Text]:
    from rich.text import Text

    from gatdiag.diagnosis.wording import number, plain
    from gatdiag.summary import in_words, logged_series, loss_name, thin

    if (name := loss_name(run)) is not None:
        values = thin(logged_series(run, name), _MOST_BARS)["value"].tolist()
        low, high = _ends(values)
        over_time = "first to last step, bars from"
        yield Text(f"  {short(in_words(name))}, {over_time} {plain(number(low))} to {plain(number(high))}:")
        yield Text(f"  {sparkline(values)}")


def _strip(strip: Strip) -> Iterator[Text]:
    from rich.text import Text

    from gatdiag.diagnosis.wording import plain

    yield Text(
        f"  {strip.label}, {strip.when}, first to last layer, beside healthy trainings ({plain(strip.healthy)}):"
    )
    yield Text.assemble("  ", *(_CELLS[cell.distance] for cell in strip.cells), f"  {strip.summary}")
    known = {cell.distance for cell in strip.cells}
    meant = [Text.assemble(_CELLS[one], f" {words}") for one, words in strip.legend if one in known]
    yield Text("  ").append_text(Text("  ").join(meant))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """What the lowest and the highest bar stand for: zero is among them, so that a loss that hardly falls is level."""
    finite = [0.0, *(value for value in values if abs(value) < float("inf"))]
    return min(finite), max(finite)


def sparkline(values: Sequence[float]) -> str:
    """Numbers as bars, from ▁ for zero (or the smallest below it) to █ for the largest; "!" is NaN or infinite.

    Example:
        >>> sparkline([1.0, 0.5, float("nan"), 0.0]), sparkline([2.0, 1.999]), sparkline([float("nan")] * 2)
        ('█▅!▁', '██', '!!')
    """
    low, high = _ends(values)
    size = high - low
    last = len(_BARS) - 1
    heights = [(value - low) / size if size else 0.0 * value for value in values]
    return "".join(_BARS[round(last * height)] if 0 <= height <= 1 else "!" for height in heights)

"""A run as Markdown of less than 200 lines, for assistants and issues: verdict, evidence, what to try, short tables."""

import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from gatdiag.diagnosis import Diagnosis, Finding
from gatdiag.diagnosis.wording import plain
from gatdiag.names import one_line, printable, short
from gatdiag.page.screen import Screen, screen
from gatdiag.page.story import run_warnings, story
from gatdiag.page.tables import Cell, Table, cell_text, run_tables
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import evenly_spaced, in_words, is_of_checkpoints

HEADING: Final = "# gatdiag: "
"""How each begins."""

_MOST: Final = 10  # rows, columns or items of each kind
_MOST_CODE: Final = 30  # lines
_MOST_NAMES: Final = 40
_LONGEST: Final = 2_000  # characters of a text
_MARKS: Final = re.compile(r"([\\`*\[\]<>|])")


def markdown(run: Run, diagnosis: Diagnosis, source: Path | None = None) -> str:
    """A run and its diagnosis as Markdown, in less than 200 lines.

    Names that come from the model are escaped, so that they cannot become headings, links or HTML.

    Args:
        run: The run.
        diagnosis: What `gatdiag.diagnose` returns for it.
        source: What is named as its place: the run's folder by default, or the checkpoint that the run was made of.

    Example:
        >>> import gatdiag
        >>> print(markdown(gatdiag.load("runs/gat10"), gatdiag.diagnose("runs/gat10")))  # doctest: +SKIP
    """
    first = screen(run, diagnosis)
    parts = (
        _verdict(run, diagnosis, first),
        _evidence(diagnosis.verdict),
        _remedy(diagnosis.verdict),
        _other_findings(diagnosis),
        _training(run, first),
        chain.from_iterable(map(_table, (_scalars(run), *run_tables(run, "")))),
        _queries(run, source or run.folder),
    )
    return "\n".join(chain.from_iterable(parts)) + "\n"


def _verdict(run: Run, diagnosis: Diagnosis, first: Screen) -> Iterator[str]:
    verdict = diagnosis.verdict
    yield from (f"{HEADING}{_escape(short(run.name))}: {first.word}", "")
    code = f"{verdict.code}, severity {verdict.severity}" if verdict.is_cause else verdict.code
    yield from (f"**{_escape(verdict.title)}** ({code}). {_escape(verdict.text)}", "")
    yield from (f"How it went: {_escape(diagnosis.reason)}.", "")


def _evidence(verdict: Finding) -> Iterator[str]:
    if not verdict.evidence:
        return
    yield from ("## Evidence", "")
    for one in verdict.evidence[:_MOST]:
        yield f"- {_escape(one.what)}: {_escape(one.amount)}"
    if verdict.threshold:
        yield f"- {_escape(verdict.threshold)}"
    if verdict.steps:
        first, last = verdict.steps[0], verdict.steps[-1]
        yield f"- at step {first:,}" if first == last else f"- steps: {first:,} to {last:,}"
    for kind, names in (("layers", verdict.layers), ("parameters", verdict.parameters)):
        if names:
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            yield f"- {kind}: {', '.join(map(_code, names[:_MOST_NAMES]))}{more}"
    yield ""


def _remedy(verdict: Finding) -> Iterator[str]:
    if verdict.remedy:
        yield from ("## What to try", "", *_block("python", verdict.remedy.splitlines()[:_MOST_CODE]))
    if verdict.falsified_by:
        yield from (f"Wrong if: {_escape(verdict.falsified_by)}", "")
    if verdict.symptoms:
        yield from (f"It would also look like: {_titles(verdict)}.", "")


def _titles(finding: Finding) -> str:
    return ", ".join(f"{_escape(one.title.lower())} ({one.code})" for one in finding.symptoms[:_MOST])


def _other_findings(diagnosis: Diagnosis) -> Iterator[str]:
    others = [one for one in diagnosis if one.text != diagnosis.verdict.text]
    if others:
        yield from ("## Also found", "")
        yield from (
            f"- {one.severity}: {_escape(one.title)} ({one.code}). {_escape(one.text)}" for one in others[:_MOST]
        )
        yield ""
    if diagnosis.remarks:
        yield from (*(f"- {_escape(text)}" for text in diagnosis.remarks[:_MOST]), "")
    if diagnosis.skipped:
        yield from (f"Not checked, {len(diagnosis.skipped)} causes: {', '.join(diagnosis.skipped)}.", "")


def _training(run: Run, first: Screen) -> Iterator[str]:
    yield from ("## The training", "", *(f"- {_escape(text)}" for text in (*run_warnings(run), *story(run))))
    yield from (f"- {_escape(f'{tile.label}: {tile.value}, {tile.detail}'.rstrip(', '))}" for tile in first.tiles)
    if (strip := first.strip) is not None:
        healthy = f"the range of healthy trainings is {strip.healthy}"
        yield f"- {_escape(strip.label)}, {strip.when}; {healthy}: {strip.summary}"
    yield ""


def _scalars(run: Run) -> Table:
    """Logged scalars, and the gradient norm, at some steps."""
    names = [*run.logged_names, *(name for name in ("gradient_norm",) if name in run.steps)]
    values = {name: run.steps[name].astype(object).where(run.is_measured("steps", name), None) for name in names}
    rows: list[list[Cell]] = [[int(step), *row] for step, *row in zip(run.steps["step"], *values.values(), strict=True)]
    return Table("Logged scalars", "", rows, ["step", *map(in_words, names)])


def _table(table: Table) -> Iterator[str]:
    """A table in short: evenly spaced rows, of parameters feature weights, and the first columns."""
    if not table.rows:
        return
    kept = [column for column in range(len(table.columns)) if any(row[column] is not None for row in table.rows)][
        :_MOST
    ]
    rows = table.rows if len(table.rows) <= _MOST else [row for row in table.rows if FEATURE in row] or table.rows
    shown = [rows[place] for place in evenly_spaced(len(rows), _MOST)]
    some = f" ({len(shown)} of {len(table.rows):,})" if len(shown) < len(table.rows) else ""
    yield from (f"## {table.title}{some}", "")
    yield _row(_escape(short(table.columns[column])) for column in kept)
    yield _row("---" for _ in kept)
    yield from (_row(_cell(row[column], is_name=column == kept[0]) for column in kept) for row in shown)
    yield ""


def _cell(cell: Cell, *, is_name: bool) -> str:
    text = cell_text(cell)
    return _code(text) if is_name and isinstance(cell, str) else _escape(text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _queries(run: Run, source: Path) -> Iterator[str]:
    place = shlex.quote(str(source))
    yield from ("## Ask for more", "")
    if is_of_checkpoints(run):
        yield from _block("sh", [f"gatdiag inspect {place} --json  # all measurements of all parameters"])
        return
    tables = {
        "steps": "a row per step, with logged scalars",
        "layers": "per step and layer",
        "parameters": "per step and parameter",
        "neurons": "per step and conservation law",
    }
    rows = {name: len(getattr(run, name)) for name in tables}
    yield from _block(
        "python",
        [
            "import gatdiag",
            f"run = gatdiag.load({str(source)!a})",
            *(f"run.{name}  # pandas, {rows[name]:,} rows: {what}" for name, what in tables.items()),
            'print(run.quantity("layers", "relative_mu"))  # what a column is: its equation, what high and low mean',
            "print(gatdiag.diagnose(run))  # all findings, each with .evidence, .threshold, .layers, .remedy",
        ],
    )
    commands = {
        f"gatdiag diagnose {place} --json": "every finding, with its evidence, and why causes were not checked",
        "gatdiag explain CODE": "what is known of a cause",
        f"gatdiag report {place}": "a page with figures",
        f"gatdiag export {place} --to csv": "the tables",
    }
    yield from _block("sh", (f"{command}  # {what}" for command, what in commands.items()))


def _block(language: str, lines: Iterable[str]) -> Iterator[str]:
    """Code in a fence that nothing in it can close."""
    code = [printable(line) for line in lines]
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", "\n".join(code))), default=0))
    yield from (f"{fence}{language}", *code, fence, "")


def _code(name: str) -> str:
    """A name from outside as code; a vertical bar would end a table's cell."""
    text = one_line(short(name, 80)).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " * ("`" in text)
    return f"{fence}{space}{text}{space}{fence}"


def _escape(text: str) -> str:
    """A text, on one line, in which names from outside mean nothing to Markdown."""
    return _MARKS.sub(r"\\\1", one_line(plain(text))[:_LONGEST])

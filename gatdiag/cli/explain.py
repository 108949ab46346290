"""`gatdiag explain`: what is known of a cause, from its declaration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gatdiag.cli.options import suggest
from gatdiag.cli.printing import make_table, plain_console
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.diagnosis.causes import Cause

_SEVERITY: Final = {
    "by loss": "error if the training fails, warning if it goes partly, note if the network trains",
    "certain": "error; warning if the network trains nevertheless",
}
_OF_RUN: Final = "depends on the run: gatdiag diagnose RUN prints it with the run's names and numbers"
_VERDICTS: Final = {
    "healthy": "the network trains, and no check found anything wrong.",
    "unexplained": "the training fails or stands still, and no check says why.",
    "undetermined": "what was recorded does not tell whether the network trains.",
}


def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="Code of a finding. Default: list all codes.")
    ] = None,
) -> None:
    """Explain a cause, its thresholds and its remedy.

    Without CODE, lists all codes in the order in which findings of equal severity are ranked.
    """
    from gatdiag.diagnosis.causes import CAUSES, load_plugins

    load_plugins()
    console = plain_console()
    if code is None:
        table = make_table(["code", "cause"], [])
        table.show_edge = False  # no empty lines
        for name, cause in CAUSES.items():
            table.add_row(name, cause.title)
        console.print(table)
    elif code in CAUSES:
        for line in _lines(code, CAUSES[code]):
            console.print(line, soft_wrap=True)
    elif code in _VERDICTS:
        console.print(f"{code}: {_VERDICTS[code]}", soft_wrap=True)
    else:
        raise InputError(f"no cause is called {code!r}: gatdiag explain lists all{suggest(code, CAUSES)}")


def _lines(code: str, cause: Cause) -> Iterator[str]:
    from gatdiag.diagnosis.thresholds import limits_of
    from gatdiag.diagnosis.wording import describe_range, plain
    from gatdiag.quantities import HEALTHY, HEALTHY_RANGE, compared_label

    yield f"{cause.title} [{code}]"
    yield from filter(None, [cause.text])
    yield f"severity: {_SEVERITY.get(cause.severity, cause.severity)}"
    yield f"place in the order of causes: {cause.why}"
    if cause.limits:
        yield "thresholds:"
    yield from (f"    {plain(one.amount)}: {one.reason}" for one in limits_of(cause.limits).values())
    if cause.column in HEALTHY:
        usual = plain(describe_range(*HEALTHY[cause.column]))
        yield f"shown by layer: {compared_label(cause.column)}; {HEALTHY_RANGE}: {usual}"
    if cause.figure:
        yield f"figure{' beside it' if cause.column else ''}: {cause.figure}"
    yield "to paste:" if cause.remedy else f"to paste: {_OF_RUN}"
    yield from (f"    {line}" for line in (cause.remedy.code.splitlines() if cause.remedy else ()))
    yield f"wrong if: {cause.falsified_by or _OF_RUN}"

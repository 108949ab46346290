"""Pages of the site that are made of what stands elsewhere: causes, quantities, laws, the run folder, how to extend.

A cause's page is its docstring and limits, with how often the bank of planted faults (reports/diagnosis) names it, and
an example of it (`reports/examples.py`).
"""

from collections.abc import Iterator
from inspect import cleandoc
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from mkdocs.structure.files import File, Files

import gatdiag.diagnosis
import gatdiag.figures
import gatdiag.laws.rules
import gatdiag.quantities
import gatdiag.run
from gatdiag.diagnosis import CAUSES
from gatdiag.diagnosis.causes import Cause
from gatdiag.diagnosis.thresholds import limits_of
from reports.examples import draw_examples, draw_gallery

ROOT = Path(__file__).parents[1]
_OF_RUN = "It depends on the run: `gatdiag diagnose RUN` prints lines to paste, with the run's own names and numbers."
HALVES = {"calibration": "used for calibration", "held-out": "never used for calibration"}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    folder = ROOT / "reports" / "diagnosis"
    scores = {half: pd.read_csv(folder / f"{half}.csv", keep_default_na=False) for half in HALVES}
    examples = {code: (text, pictures) for code, text, pictures in draw_examples(pd.concat(scores.values()))}
    gallery = draw_gallery()
    for path, text in pages(scores, {code: text for code, (text, _) in examples.items()}):
        files.append(File.generated(config, path, content=text))
    for picture in chain.from_iterable(pictures for _, pictures in examples.values()):
        files.append(File.generated(config, f"examples/{picture.name}", abs_src_path=str(picture)))
    for path in gallery:
        files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
    if not gallery:
        files.append(File.generated(config, "gallery/index.md", content="# Gallery\n\nNot drawn in this build.\n"))
    return files


def pages(scores: dict[str, pd.DataFrame], examples: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Path and Markdown of each generated page."""
    yield "causes/index.md", _index_of_causes(scores)
    for one in CAUSES.values():
        yield f"causes/{one.code}.md", _page_of_cause(one, scores, examples.get(one.code, ""))
    yield "quantities.md", _page_of_quantities()
    yield "convolutions.md", _page_of_convolutions()
    yield "run-format.md", f"# The run folder\n\n```text\n{cleandoc(gatdiag.run.__doc__ or '')}\n```\n"
    yield "extending.md", _page_of_extensions()


def count(scores: dict[str, pd.DataFrame], code: str) -> dict[str, tuple[int, int]]:
    """Half of the bank -> how many trainings with this fault count, and of how many it is the verdict."""
    planted = {half: rows[(rows["planted"] == code) & rows["counts"]] for half, rows in scores.items()}
    return {half: (len(rows), int(rows["right"].sum())) for half, rows in planted.items() if len(rows)}


def _index_of_causes(scores: dict[str, pd.DataFrame]) -> str:
    lines = [
        "# Causes",
        "",
        "In the order in which they are named: of two findings of the same severity, the upper one is the verdict, as "
        "it explains those below. The last columns count trainings with this planted fault, and of how many it is the "
        "verdict.",
        "",
        "| code | cause | calibration | held out |",
        "| --- | --- | --- | --- |",
    ]
    for one in CAUSES.values():
        known = count(scores, one.code)
        shown = (f"{known[half][1]} of {known[half][0]}" if half in known else "" for half in HALVES)
        lines.append(f"| [{one.code}]({one.code}.md) | {one.title} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _page_of_cause(one: Cause, scores: dict[str, pd.DataFrame], example: str) -> str:
    parts = [f"# {one.title}", f"`{one.code}`", one.text]
    if one.why:
        parts.append(f"**Its place in the [order of causes](index.md):** {one.why}.")
    if one.limits:
        parts += [
            "## Limits",
            "\n".join(f"- {limit.amount}: {_cell(limit.reason)}" for limit in limits_of(one.limits).values()),
        ]
    fix = one.remedy.code if one.remedy else ""
    parts += ["## What to do", f"```python\n{fix}\n```" if fix else _OF_RUN]
    if one.falsified_by:
        parts.append(f"**The diagnosis is wrong if:** {one.falsified_by}")
    parts += [example] if example else []
    known = count(scores, one.code)
    if known:
        parts += ["## How often it is right", *(_score(half, *known[half], scores[half], one.code) for half in known)]
    return "\n\n".join(parts) + "\n"


def _score(half: str, total: int, right: int, rows: pd.DataFrame, code: str) -> str:
    alarms = rows[(rows["verdict"] == code) & (rows["planted"] != code) & rows["counts"]]
    others = f" It was the verdict on {len(alarms)} with another fault." if len(alarms) else ""
    return f"Of {total} trainings with this fault planted ({HALVES[half]}), it is the verdict on {right}.{others}"


def _page_of_convolutions() -> str:
    text = (ROOT / "reports" / "laws" / "README.md").read_text()
    return "---\nhide: [toc]\n---\n" + text.replace("[results.csv](results.csv)", "`reports/laws/results.csv`").replace(
        "# laws: ", "# ", 1
    )


def _page_of_quantities() -> str:
    lines = ["# Quantities", "", "What a run records, column by column."]
    for table in ("steps", "layers", "parameters", "neurons"):
        lines += ["", f"## {table}", "", "| column | what it is | formula |", "| --- | --- | --- |"]
        for one in gatdiag.quantities.columns(table):
            meaning = one.meaning or one.label
            lines.append(f"| `{one.name}` | {_cell(meaning)} | {_cell(one.equation)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _page_of_extensions() -> str:
    plugin = (ROOT / "tests" / "diagnosis" / "plugin" / "few_labels.py").read_text()
    parts = [
        "# Adding your own",
        "Each package says at its top how it is extended; here are these texts.",
        "## A cause",
        "A module of your own, made known by an entry point:",
        f"```python\n{plugin}```",
    ]
    for title, module in {
        "Causes, in the package itself": gatdiag.diagnosis,
        "A recorded quantity": gatdiag.quantities,
        "A figure": gatdiag.figures,
        "An operation that laws pass through": gatdiag.laws.rules,
    }.items():
        parts += [f"## {title}", f"```text\n{cleandoc(module.__doc__ or '')}\n```"]
    return "\n\n".join(parts) + "\n"

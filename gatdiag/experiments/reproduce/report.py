"""The folder of a name: README.md (published and measured), the same as a page, results.csv, and the figures.

If trainings were recorded, there is also the page of `gatdiag report` for two of them.
"""

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd
from markdown_it import MarkdownIt
from markupsafe import Markup

from gatdiag.experiments.markdown import table as markdown
from gatdiag.experiments.reproduce.engine import DEFAULTS, Row, Trainings, compare, notable
from gatdiag.experiments.reproduce.reproduction import Drawing, Evidence, Reproduction
from gatdiag.experiments.settings import Experiment
from gatdiag.figures import FIGURES, Figure, render
from gatdiag.report import write_report
from gatdiag.report.page import Labeled, write
from gatdiag.report.page import render as render_page
from gatdiag.run import Run
from gatdiag.run.files import atomic_write

PAGE: Final = "report.html"
RUNS: Final = "runs.html"
_DPI: Final = 110
_MAX_RUNS: Final = 2  # on the page of runs, a megabyte each
_VERDICTS: Final[Mapping[str, str]] = {
    "in the interval": "published mean in the measured interval",
    "intervals overlap": "intervals overlap",
    "apart": "NOT reproduced: intervals do not overlap",
    "too few trainings": "fewer than 3 trainings: no interval",
    "other settings": "quick settings: not comparable",
    "not run": "not run",
    "not known": "no published value known",
}


class Picture(NamedTuple):
    """File name and content of a PNG, and its figure if it is one of `gatdiag.figures`."""

    name: str
    content: bytes
    figure: Figure | None = None


def write_reproduction(trainings: Trainings, out: Path) -> Path:
    """Write the folder ``OUT/NAME``; returns its path."""
    folder = out / trainings.reproduction.name
    folder.mkdir(parents=True, exist_ok=True)
    evidence = trainings.reproduction.evidence(trainings.options.root) if trainings.reproduction.evidence else None
    measured = evidence.pictures if evidence else {}
    pictures = [*_pictures(trainings), *(Picture(name, content) for name, content in measured.items())]
    for picture in pictures:
        with atomic_write(folder / picture.name) as part:
            part.write_bytes(picture.content)
    table = pd.DataFrame(trainings.results.values()) if evidence is None else evidence.table
    with atomic_write(folder / "results.csv") as part:
        table.to_csv(part, index=False, float_format="%.6g")
    shown = [*_first_runs(trainings, {}).values()][:_MAX_RUNS]
    if shown:
        write_report(shown, folder / RUNS, title=trainings.reproduction.title, overwrite=True)
    text = "\n".join(_lines(trainings, evidence, pictures, has_runs=bool(shown))) + "\n"
    with atomic_write(folder / "README.md") as part:
        part.write_text(text)
    write(_page(text, pictures), folder / PAGE)
    return folder


def _page(text: str, pictures: Sequence[Picture]) -> str:
    """The Markdown as a self-contained page."""
    title, _, rest = text.partition("\n")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(rest)
    body = body.replace("<table>", '<div class="table-frame" tabindex="0"><table>')  # it scrolls, not the page
    body = body.replace("</table>", "</table></div>")
    for name, content, _ in pictures:
        body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{base64.b64encode(content).decode()}"')
    return render_page(title.removeprefix("# "), (), body=Markup(body))


# --- README.md --------------------------------------------------------------------------------------------------------


def _lines(
    trainings: Trainings, evidence: Evidence | None, pictures: Sequence[Picture], *, has_runs: bool
) -> Iterator[str]:
    one, rows = trainings.reproduction, compare(trainings)
    yield f"# {one.name}: {one.title}\n"
    yield f"{one.paper or 'Beyond the papers'}. {'The paper' if one.paper else 'The finding'}: {one.claim}\n"
    runs = f"; `{RUNS}` (not under version control) shows runs in full" if has_runs else ""
    yield f"Written by `{_command(trainings)}`. [results.csv](results.csv) has all measurements{runs}.\n"
    if evidence:
        yield f"{evidence.text}\n"
    if one.judge and trainings.complete and (sentences := one.judge(pd.DataFrame(trainings.complete.values()))):
        yield "## Is the claim reproduced?\n"
        yield "\n".join(f"- {sentence}" for sentence in sentences) + "\n"
    if rows:
        yield from _comparison(trainings, rows)
    if pictures:
        yield "## Figures\n"
        yield from _figures(pictures)
    if trainings.documents:
        yield from _settings(trainings)
    if one.notes:
        yield "## Notes\n"
        yield from (f"- {note}" for note in one.notes)


def _figures(pictures: Sequence[Picture]) -> Iterator[str]:
    """The pictures, with the description of a figure before its first one."""
    described = set()
    for name, _, figure in pictures:
        if figure and figure.name not in described:
            described.add(figure.name)
            yield f"{figure.title}. {figure.caption} {figure.interpretation}\n"
        yield f"`{name.removesuffix('.png')}`:\n\n![{name}]({name})\n"


def _command(trainings: Trainings) -> str:
    device = " --device cuda" if trainings.options.device == "cuda" else ""
    return f"gatdiag reproduce {trainings.reproduction.name} --{'full' if trainings.options.full else 'quick'}{device}"


def _comparison(trainings: Trainings, rows: Sequence[Row]) -> Iterator[str]:
    done, planned = len(trainings.documents), len(trainings.cells)
    counts = Counter(row.verdict for row in rows if row.published)
    yield "## Published and measured\n"
    partial = "" if done == planned else f" **Incomplete: {planned - done} trainings are missing.**"
    protocol = "the paper's protocol" if trainings.options.full else "--quick"
    yield f"{done} of {planned} trainings ({protocol}) are done.{partial}"
    if counts:
        verdicts = "; ".join(f"{_VERDICTS[verdict]}: {count}" for verdict, count in counts.items())
        yield f"Known numbers of the paper: {sum(counts.values())} ({verdicts})."
    else:
        yield "No published value is known."
    yield (
        "± is the 95 % confidence interval of the mean over seeds (Student's t). Accuracies are in percent; test "
        "accuracy is that of the first epoch with the highest validation accuracy.\n"
    )
    heads = ["training", "quantity", "seeds", "measured", "published", "difference", "verdict"]
    width = len(heads) if counts else 4
    shown = [_cells(row)[:width] for row in rows if row.done or row.published]
    yield markdown(pd.DataFrame(shown, columns=heads[:width]))
    if gaps := [*_gaps(trainings, rows)]:
        yield "\n## Not run or not known\n"
        yield from (f"- {gap}" for gap in gaps)
    yield ""


def _cells(row: Row) -> list[str]:
    published, difference = row.published, row.difference
    form = ".1f" if row.column.endswith("accuracy") else ".3g"
    return [
        row.label,
        row.column.replace("_", " "),
        f"{row.done} of {row.planned}",
        _spread(row.mean, row.ci95, form),
        f"{_spread(published.value, published.ci95, form)} ({published.source})" if published else "",
        "" if difference is None else f"{difference:+{form}}",
        _VERDICTS[row.verdict],
    ]


def _spread(mean: float | None, ci95: float | None, form: str) -> str:
    return "" if mean is None else f"{mean:{form}}" if ci95 is None else f"{mean:{form}} ± {ci95:{form}}"


def _gaps(trainings: Trainings, rows: Sequence[Row]) -> Iterator[str]:
    if not trainings.options.full:
        yield f"--quick leaves out: {_left_out(trainings.reproduction)}."
    yield from _not_trained(trainings, [row for row in rows if row.column == rows[0].column])
    unknown = sum(row.published is None for row in rows)
    if unknown:
        yield f"Rows without a known published value: {unknown} of {len(rows)}."
    without_run = len(trainings.documents) - len(trainings.runs)
    if trainings.reproduction.record and without_run:
        yield f"Results without a recorded run, which cannot be drawn: {without_run}."
    for cell in trainings.failed:
        yield f"Failed: {trainings.label(cell)}, seed {cell.seed}."


def _not_trained(trainings: Trainings, rows: Sequence[Row]) -> Iterator[str]:
    """Values of settings without any training, and groups with missing seeds."""
    gone = _missing(trainings.cells, trainings.documents)
    if not trainings.documents:
        yield "No training is done yet."
    elif gone:
        yield f"Not trained: {'; '.join(f'{name} {_join(values)}' for name, values in gone.items())}."
    rest = [row for row in rows if not any(row.settings[name] in gone.get(name, ()) for name in row.settings)]
    part = [f"{row.label} ({row.done} of {row.planned})" for row in rest if row.done < row.planned]
    if part:
        yield f"Seeds are missing: {'; '.join(part)}."


def _left_out(one: Reproduction) -> str:
    """Settings of the paper's protocol that quick omits, with those in their place."""
    gone, instead = _missing(one.full, one.quick), _missing(one.quick, one.full)
    return "; ".join(
        f"{name} {_join(_values(one.full, name))} (here {_join(_values(one.quick, name))})"
        if name in instead
        else f"{name} {_join(values)}"
        for name, values in gone.items()
    )


def _missing(every: Iterable[Experiment], some: Iterable[Experiment]) -> dict[str, list[Any]]:
    """Setting -> its values in the first trainings that are missing in the second."""
    cells, others = [*every], [*some]
    missing = {
        name: [value for value in _values(cells, name) if value not in _values(others, name)] for name in DEFAULTS
    }
    return {name: values for name, values in missing.items() if values}


def _values(cells: Iterable[Experiment], name: str) -> dict[Any, None]:
    return dict.fromkeys(getattr(cell, name) for cell in cells)


def _join(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _settings(trainings: Trainings) -> Iterator[str]:
    """All settings, the versions, and the command for a single training."""
    table = pd.DataFrame(trainings.results.values())
    yield "## Settings\n"
    values = [_join(table[name].unique()) for name in DEFAULTS]
    yield markdown(pd.DataFrame({"setting": [*DEFAULTS], "value": values}))
    versions = [one["versions"] for one in trainings.documents.values()]
    used = [f"{name} {' and '.join(sorted({str(one.get(name)) for one in versions}))}" for name in versions[0]]
    yield f"\nTrained with {', '.join(used)}."
    first = next(iter(trainings.documents))
    yield f"Command for a single training, here with another seed:\n\n    {_train_command(first)}\n"


def _train_command(cell: Experiment) -> str:
    options = []
    for name, value in {**cell.non_defaults, "seed": cell.seed + 100}.items():
        option = name.replace("_", "-")
        options.append(f"--{'' if value else 'no-'}{option}" if isinstance(value, bool) else f"--{option} {value}")
    return f"gatdiag train runs/one {' '.join(options)}"


# --- figures ----------------------------------------------------------------------------------------------------------


def _pictures(trainings: Trainings) -> Iterator[Picture]:
    for drawing in trainings.reproduction.drawings:
        figure = next(one for one in FIGURES if one.name == drawing.figure)
        if drawing.table is None:
            yield from _draw_runs(trainings, drawing, figure)
        elif rows := [row for cell, row in trainings.complete.items() if cell.matches(drawing.where)]:
            yield _draw(figure, drawing.where, (), values=drawing.table(pd.DataFrame(rows)))


def _draw_runs(trainings: Trainings, drawing: Drawing, figure: Figure) -> Iterator[Picture]:
    runs = _first_runs(trainings, drawing.where)
    if runs and figure.is_comparison:
        yield _draw(figure, drawing.where, [*runs.values()], **drawing.options)
    elif runs:
        options = {**figure.shared_options([*runs.values()]), **drawing.options}
        yield from (_draw(figure, trainings.settings(cell), run, **options) for cell, run in runs.items())


def _draw(figure: Figure, settings: Mapping[str, Any], runs: Run | Sequence[Run], **options: Any) -> Picture:
    """Render a figure; the notable settings are part of the file name."""
    words = [value if isinstance(value, str) else f"{name}-{value}" for name, value in notable(settings).items()]
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([figure.name, *words]))
    return Picture(f"{name}.png", render(figure, runs, format="png", dpi=_DPI, **options), figure)


def _first_runs(trainings: Trainings, where: Mapping[str, Any]) -> dict[Experiment, Labeled]:
    """The recorded run with the lowest seed of each combination of settings."""
    runs = {}
    for cells in trainings.groups:
        fitting = [cell for cell in cells if cell in trainings.runs and cell.matches(where)]
        if fitting:
            first = min(fitting, key=lambda cell: cell.seed)
            runs[first] = Labeled(trainings.runs[first], trainings.label(first))
    return runs

"""The folder of a name: README.md (published and measured) and the figures, beside its results.csv.

Figures of results are drawn anew each time. Those of recorded runs, and pictures of scripts, are drawn only where these
were made, as runs are not under version control: else the pictures that are there stay, and the page says so. Nothing
else stays in the folder.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd

from gatdiag.experiments.settings import Experiment
from gatdiag.figures import FIGURES, Figure, render
from gatdiag.page.document import Labeled
from gatdiag.run import Run
from gatdiag.run.files import atomic_write
from reports.papers.agreement import FIGURE, compared, describe_agreement, describe_other_seeds, draw_agreement
from reports.papers.comparison import Comparison, compare
from reports.papers.markdown import table as markdown
from reports.papers.runner import DEFAULTS, TABLE, Results, commit_of_code, commit_of_file, notable
from reports.papers.study import Drawing, Study, matches

PAGE: Final = "README.md"
_DPI: Final = 110
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
    """A PNG of the page: file name, its figure if it is one of `gatdiag.figures`, and the commit that it is from."""

    name: str
    figure: Figure | None = None
    commit: str = ""
    caption: str = ""


def write_study(results: Results, folder: Path, command: str) -> None:
    """Write the folder of a study of trainings; ``command`` is what the page says that it was written by."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [*_agreement(results, folder), *_pictures(results, folder)]
    _write(folder, results.study, command, results.table, pictures, study_lines(results))


def write_script(study: Study, table: pd.DataFrame, drawn: Mapping[str, bytes], folder: Path, command: str) -> None:
    """Write the folder of a script: its statements, and the pictures that it drew or had drawn."""
    for name, content in drawn.items():
        _save(folder / name, content)
    names = [*drawn] or sorted(path.name for path in folder.glob("*.png"))
    pictures = [Picture(name, commit="" if drawn else commit_of_file(folder / name)) for name in names]
    text = study.describe(table) if study.describe and len(table) else "Nothing is measured yet."
    _write(folder, study, command, table, pictures, iter([f"{text}\n"]))


def _write(
    folder: Path,
    study: Study,
    command: str,
    table: pd.DataFrame,
    pictures: Sequence[Picture],
    lines: Iterator[str],
) -> None:
    text = "\n".join([*_head(study, command, table), *lines, *_figures(pictures), *_notes(study)]) + "\n"
    _save(folder / PAGE, text.encode())
    for path in folder.iterdir():
        if path.name not in (PAGE, TABLE, *(picture.name for picture in pictures)):
            path.unlink()


def _save(file: Path, content: bytes) -> None:
    with atomic_write(file) as part:
        part.write_bytes(content)


# --- README.md --------------------------------------------------------------------------------------------------------


def _head(study: Study, command: str, table: pd.DataFrame) -> Iterator[str]:
    yield f"# {study.name}: {study.title}\n"
    yield f"{study.paper or 'Beyond the papers'}. {'The paper' if study.paper else 'The finding'}: {study.claim}\n"
    yield f"Written by `{command}` at commit {commit_of_code()}."
    if len(table):
        counts = ", ".join(f"{commit} ({count})" for commit, count in table["commit"].value_counts().items())
        yield f"The measurements are in [{TABLE}]({TABLE}): rows by the commit that made or first kept them: {counts}."
    yield ""


def study_lines(results: Results) -> Iterator[str]:
    """What the trainings show, published and measured, and their settings."""
    study, rows = results.study, compare(results)
    if agreement := [*describe_agreement(rows)]:
        yield "## Are the published numbers reproduced?\n"
        yield from agreement
    if study.judge and results.rows and (sentences := study.judge(results.table)):
        yield "## Is the claim reproduced?\n"
        yield "\n".join(f"- {sentence}" for sentence in sentences) + "\n"
    yield from describe_other_seeds(results, rows)
    yield from _comparison(results, rows)
    if results.rows:
        yield "## Settings\n"
        values = [_join(dict.fromkeys(map(_plain, results.table[name]))) for name in DEFAULTS]
        yield markdown(pd.DataFrame({"setting": [*DEFAULTS], "value": values})) + "\n"


def _comparison(results: Results, rows: Sequence[Comparison]) -> Iterator[str]:
    done, planned = len(results.rows), len(results.cells)
    counts = Counter(row.verdict for row in rows if row.published)
    yield "## Published and measured\n"
    missing = "" if done == planned else f" **Incomplete: {planned - done} trainings are missing.**"
    protocol = "the paper's protocol" if results.full else "--quick"
    yield f"{done} of {planned} trainings ({protocol}) are done.{missing}"
    if counts:
        verdicts = "; ".join(f"{_VERDICTS[verdict]}: {count}" for verdict, count in counts.items())
        yield f"Known numbers of the paper: {sum(counts.values())} ({verdicts})."
    else:
        yield "No published value is known."
    yield (
        "± is the 95% confidence interval of the mean over seeds (Student's t). Accuracies are in percent; test "
        "accuracy is that of the first epoch with the highest validation accuracy.\n"
    )
    heads = ["training", "quantity", "seeds", "measured", "published", "difference", "verdict"]
    width = len(heads) if counts else 4
    shown = [_cells(row)[:width] for row in rows if row.done or row.published]
    yield markdown(pd.DataFrame(shown, columns=heads[:width])) + "\n"
    if gaps := [*_gaps(results, rows)]:
        yield "## Not run or not known\n"
        yield "\n".join(f"- {gap}" for gap in gaps) + "\n"


def _cells(row: Comparison) -> list[str]:
    published = row.published
    form = ".1f" if row.column.endswith("accuracy") else ".3g"
    return [
        row.label,
        row.column.replace("_", " "),
        f"{row.done} of {len(row.cells)}",
        _spread(row.mean, row.ci95, form),
        f"{_spread(published.value, published.ci95, form)} ({published.source})" if published else "",
        f"{row.mean - published.value:+{form}}" if published and row.done else "",
        _VERDICTS[row.verdict] + ("; on a plateau" if row.plateau else ""),
    ]


def _spread(mean: float, ci95: float, form: str) -> str:
    parts = [f"{value:{form}}" for value in (mean, ci95) if not pd.isna(value)]
    return " ± ".join(parts)


def _gaps(results: Results, rows: Sequence[Comparison]) -> Iterator[str]:
    if not results.full:
        left_out = _missing(results.study.full, results.study.quick)
        yield f"--quick leaves out: {'; '.join(f'{name} {_join(values)}' for name, values in left_out.items())}."
    yield from _not_trained(results)
    unknown = sum(row.published is None for row in rows)
    if unknown:
        yield f"Rows without a known published value: {unknown} of {len(rows)}."
    for cell in results.failed:
        yield f"Failed: {results.label(cell)}, seed {cell.seed}."


def _not_trained(results: Results) -> Iterator[str]:
    """Values of settings without any training, and groups with missing seeds."""
    missing = _missing(results.cells, results.rows)
    gone = {name: values for name, values in missing.items() if name in results.telling}
    if not results.rows:
        yield "No training is done yet."
    elif gone:
        yield f"Not trained: {'; '.join(f'{name} {_join(values)}' for name, values in gone.items())}."
    parts = []
    for cells in results.groups:
        done = sum(cell in results.rows for cell in cells)
        if done < len(cells) and not any(getattr(cells[0], name) in values for name, values in gone.items()):
            parts.append(f"{results.label(cells[0])} ({done} of {len(cells)})")
    if parts:
        yield f"Seeds are missing: {'; '.join(parts)}."


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


def _plain(value: object) -> str:
    """A setting as text, the same before and after it was in a file: 0 and 0.0 are 0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _figures(pictures: Sequence[Picture]) -> Iterator[str]:
    """The pictures, with the description of a figure before its first one."""
    if pictures:
        yield "## Figures\n"
    described = set()
    for name, figure, commit, caption in pictures:
        if figure and figure.name not in described:
            described.add(figure.name)
            yield f"{figure.title}. {figure.caption} {figure.interpretation}\n"
        if caption:
            yield f"{caption}\n"
        then = f" (not drawn anew, as its run is not kept: from commit {commit})" if commit else ""
        yield f"`{name.removesuffix('.png')}`{then}:\n\n![{name}]({name})\n"


def _notes(study: Study) -> Iterator[str]:
    if study.notes:
        yield "## Notes\n"
        yield from (f"- {note}" for note in study.notes)


# --- figures ----------------------------------------------------------------------------------------------------------


def _agreement(results: Results, folder: Path) -> Iterator[Picture]:
    if known := compared(compare(results)):
        _save(folder / FIGURE, draw_agreement(known))
        yield Picture(FIGURE, caption="Each point is a mean over seeds; equal means are on the line.")


def _pictures(results: Results, folder: Path) -> Iterator[Picture]:
    for drawing in results.study.drawings:
        figure = next(one for one in FIGURES if one.name == drawing.figure)
        if drawing.table is None:
            yield from _draw_runs(results, drawing, figure, folder)
        elif rows := [row for cell, row in results.rows.items() if matches(cell, drawing.where)]:
            yield _draw(figure, drawing.where, (), folder, values=drawing.table(pd.DataFrame(rows)))


def _draw_runs(results: Results, drawing: Drawing, figure: Figure, folder: Path) -> Iterator[Picture]:
    """Draw the runs that are at hand; if none is, the pictures of earlier ones stay."""
    runs = _first_runs(results, drawing.where)
    if not runs:
        for cells in [()] if figure.is_comparison else results.groups:
            if all(matches(cell, drawing.where) for cell in cells):
                name = _name(figure, results.settings(cells[0]) if cells else drawing.where)
                if (folder / name).exists():
                    yield Picture(name, figure, commit_of_file(folder / name))
    elif figure.is_comparison:
        yield _draw(figure, drawing.where, [*runs.values()], folder, **drawing.options)
    else:
        options = {**figure.shared_options([*runs.values()]), **drawing.options}
        yield from (_draw(figure, results.settings(cell), run, folder, **options) for cell, run in runs.items())


def _draw(
    figure: Figure, settings: Mapping[str, Any], runs: Run | Sequence[Run], folder: Path, **options: Any
) -> Picture:
    picture = Picture(_name(figure, settings), figure)
    _save(folder / picture.name, render(figure, runs, format="png", dpi=_DPI, **options))
    return picture


def _name(figure: Figure, settings: Mapping[str, Any]) -> str:
    """The file of a figure, with the notable settings as part of its name."""
    words = [value if isinstance(value, str) else f"{name}-{value}" for name, value in notable(settings).items()]
    return re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([figure.name, *words])) + ".png"


def _first_runs(results: Results, where: Mapping[str, Any]) -> dict[Experiment, Labeled]:
    """The recorded run with the lowest seed of each combination of settings."""
    runs = {}
    for cells in results.groups:
        fitting = [cell for cell in cells if cell in results.runs and matches(cell, where)]
        if fitting:
            first = min(fitting, key=lambda cell: cell.seed)
            runs[first] = Labeled(results.runs[first], results.label(first))
    return runs

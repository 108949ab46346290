"""How far measured and published numbers agree: what is apart, with other seeds, a figure, and one table of all."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.figure import Figure

from gatdiag.experiments.settings import Experiment
from gatdiag.figures.style import COLORS, MARKERS
from gatdiag.run.files import atomic_write
from reports.papers.comparison import COMPARED, CONSTANT_LOSS, Comparison, compare, interval
from reports.papers.markdown import table as markdown
from reports.papers.measurements import render_png
from reports.papers.published import GATS, count_published
from reports.papers.runner import Results, Row, commit_of_code, known_results
from reports.papers.study import Study

FIGURE: Final = "measured-against-published.png"
_TABLES: Final = ("table-2", "table-3", "table-4", "table-6", "table-7", "figure-6")
"""Studies of the paper's tables: their published numbers are those of published.csv."""
_LOOKS: Final = {"in the interval": "published mean inside", "apart": "apart", "intervals overlap": "intervals overlap"}
_ALONE: Final = " (a mean published without one is apart if it is outside of the measured interval)"
_PLATEAUS: Final = (
    "On a plateau (the loss ends within 2% of that of a constant prediction), the accuracy is what a nearly constant "
    "prediction happens to hit, seed by seed: few values, far apart. Student's t assumes a normal distribution, so the "
    "intervals of five seeds mean little there, published ones included: whether they overlap is no evidence for or "
    "against."
)


def compared(rows: Sequence[Comparison], column: str = "test_accuracy") -> list[Comparison]:
    """The cells with a published number that are trained with at least three seeds."""
    return [row for row in rows if row.verdict in COMPARED and row.column == column]


def describe_agreement(rows: Sequence[Comparison]) -> Iterator[str]:
    """What is not reproduced, then how much is, as Markdown."""
    if not (known := compared(rows)):
        return
    apart = [row for row in known if row.verdict == "apart"]
    if apart:
        alone = _ALONE if any(math.isnan(row.published.ci95) for row in apart if row.published) else ""
        yield f"**Not reproduced: {len(apart)} of {len(known)} cells**, whose intervals do not overlap{alone}:\n"
        yield "\n".join(f"- {_describe(row)}" for row in apart) + "\n"
    else:
        yield f"Of {len(known)} cells, none is apart from the published one.\n"
    yield f"{_share(known)} Median difference: {_median(known):.2g} points.\n"
    if plateaus := [row for row in known if row.plateau]:
        yield f"{_PLATEAUS} Here: {'; '.join(row.label for row in plateaus)}.\n"


def _describe(row: Comparison) -> str:
    assert row.published is not None
    plateau = " (on a plateau: see below)" if row.plateau else ""
    published = _spread_of(row.published.value, row.published.ci95)
    published += " (without an interval)" if math.isnan(row.published.ci95) else ""
    return f"{row.label}: measured {_spread_of(row.mean, row.ci95)}, published {published}{plateau}"


def _spread_of(mean: float, half: float) -> str:
    return f"{mean:.1f}" if math.isnan(half) else f"{mean:.1f} ± {half:.1f}"


def _share(rows: Sequence[Comparison]) -> str:
    counts = Counter(row.verdict for row in rows)
    overlapping = len(rows) - counts["apart"]
    return (
        f"{overlapping} of {len(rows)} cells have intervals that overlap; in {counts['in the interval']} of them the "
        "published mean is in the measured interval."
    )


def _median(rows: Sequence[Comparison]) -> float:
    return float(pd.Series([abs(row.mean - row.published.value) for row in rows if row.published]).median())


# --- the cells that are apart, with other seeds -----------------------------------------------------------------------


def describe_other_seeds(results: Results, rows: Sequence[Comparison]) -> Iterator[str]:
    """What trainings with other seeds say of a cell, as Markdown."""
    if not (done := [*results.others]):
        return
    (row,) = (row for row in rows if row.column == "test_accuracy" and _is_cell_of(row, done[0]))
    own = [results.rows[cell] for cell in row.cells if cell in results.rows]
    others = [*results.others.values()]
    yield f"## {row.label}, with other seeds\n"
    yield (
        f"{len(done)} of {len(results.study.other_seeds)} trainings that differ only in their seed, and are no part of "
        "the comparison above.\n"
    )
    sets = {"of the comparison": own, "others": others, "all": [*own, *others]}
    yield markdown(pd.DataFrame([_seeds_row(name, one, row) for name, one in sets.items()])) + "\n"
    losses = [float(one["loss"]) for one in sets["all"]]
    yield (
        f"The last losses are {min(losses):.5g} to {max(losses):.5g}; that of a constant prediction is "
        f"{CONSTANT_LOSS[done[0].data]:.4g}.\n"
    )


def _is_cell_of(row: Comparison, cell: Experiment) -> bool:
    return replace(row.cells[0], seed=cell.seed) == cell


def _seeds_row(name: str, rows: Sequence[Row], row: Comparison) -> dict[str, str]:
    values = [100 * float(one["test_accuracy"]) for one in rows]
    mean, half = interval(values)
    assert row.published is not None
    published = row.published
    overlap = abs(mean - published.value) <= half + published.ci95
    return {
        "seeds": f"{name}: {', '.join(str(int(one['seed'])) for one in rows)}",
        "test accuracies": ", ".join(f"{value:.1f}" for value in values),
        "mean": _spread_of(mean, half),
        "published": _spread_of(published.value, published.ci95),
        "intervals": "overlap" if overlap else "do not overlap",
    }


# --- the figure -------------------------------------------------------------------------------------------------------


def draw_agreement(rows: Sequence[Comparison]) -> bytes:
    """A PNG of measured against published accuracies, with both intervals and the diagonal."""
    return render_png(lambda figure: _draw(figure, rows), height=3.4)


def _draw(figure: Figure, rows: Sequence[Comparison]) -> None:
    axes = figure.add_subplot()
    axes.set_aspect("equal", adjustable="box")
    axes.plot([0, 100], [0, 100], color="#808080", linewidth=0.8, zorder=1)
    for number, (verdict, label) in enumerate(_LOOKS.items()):
        of_verdict = [(row, row.published) for row in rows if row.verdict == verdict and row.published]
        for is_plateau in (False, True):
            points = [(row, known) for row, known in of_verdict if row.plateau is is_plateau]
            if points:
                color = COLORS[number]
                axes.errorbar(
                    [known.value for _, known in points],
                    [row.mean for row, _ in points],
                    xerr=[0 if math.isnan(known.ci95) else known.ci95 for _, known in points],
                    yerr=[row.ci95 for row, _ in points],
                    label=f"{label}{', on a plateau' if is_plateau else ''}: {len(points)}",
                    linestyle="none",
                    marker=MARKERS[number],
                    color=color,
                    markerfacecolor="white" if is_plateau else color,
                    elinewidth=0.7,
                )
    axes.set(xlabel="published test accuracy in percent", ylabel="measured test accuracy in percent")
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.set_title("Measured against published, with 95% intervals", loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0))


# --- all tables -------------------------------------------------------------------------------------------------------


def write_summary(studies: Mapping[str, Study], reports: Path) -> None:
    """Write README.md and the figure of the folder of all reports, from the results that are there."""
    rows = {name: compare(known_results(studies[name], reports)) for name in _TABLES}
    done = [row for of_table in rows.values() for row in compared(of_table)]
    if done:
        with atomic_write(reports / FIGURE) as part:
            part.write_bytes(draw_agreement(done))
    with atomic_write(reports / "README.md") as part:
        part.write_text("\n".join(_summary_lines(studies, rows, done)) + "\n", encoding="utf-8")


def _summary_lines(
    studies: Mapping[str, Study], rows: Mapping[str, Sequence[Comparison]], done: Sequence[Comparison]
) -> Iterator[str]:
    yield "# Tables and figures of the papers, and findings beyond them\n"
    yield f"Written by `python -m reports.papers summary` at commit {commit_of_code()}.\n"
    yield "## Published and measured\n"
    for name, of_table in rows.items():
        for row in (row for row in compared(of_table) if row.verdict == "apart"):
            yield f"- **Not reproduced**, [{name}]({name}/README.md): {_describe(row)}"
    yield ""
    counts = pd.DataFrame([*(_count_row(name, of_table) for name, of_table in rows.items()), *_not_trained()])
    total = {name: "all" if name == "numbers of" else counts[name].sum() for name in [*counts.columns][:-1]}
    yield (
        f"{total['published']} numbers are published, {total['compared']} of them are compared with trainings in the "
        f"paper's protocol (five seeds; at least three), {total['inside'] + total['overlapping']} of these have "
        f"intervals that overlap.\n"
    )
    yield markdown(pd.concat([counts, pd.DataFrame([{**total, "median difference": f"{_median(done):.2g}"}])])) + "\n"
    yield (
        "inside: the published mean is in the measured 95% interval (Student's t over seeds). overlapping: only the "
        "two intervals overlap. Settings are those of the paper's text and code, seeds 0 to 4; nothing was tuned "
        "towards the published numbers. A training that is in several tables counts once for each number.\n"
    )
    yield f"{_PLATEAUS} Cells on a plateau: {sum(row.plateau for row in done)} of {len(done)}.\n"
    yield f"![{FIGURE}]({FIGURE})\n"
    yield "## All reports\n"
    yield from (f"- [{name}]({name}/README.md): {study.title}" for name, study in studies.items())
    yield "\nThe folders `diagnosis` and `treatment` are written by `python -m tests.bank`."


def _count_row(name: str, rows: Sequence[Comparison]) -> dict[str, object]:
    known = [row for row in rows if row.published and row.column == "test_accuracy"]
    done = compared(rows)
    counts = Counter(row.verdict for row in done)
    return {
        "numbers of": f"[{name}]({name}/README.md)",
        "published": len(known),
        "compared": len(done),
        "of these with five seeds": sum(row.done >= 5 for row in done),
        "inside": counts["in the interval"],
        "overlapping": counts["intervals overlap"],
        "apart": counts["apart"],
        "median difference": f"{_median(done):.2g}" if done else "",
    }


def _not_trained() -> Iterator[dict[str, object]]:
    """Tables that have published numbers and no study."""
    reasons = {
        ("5", GATS): "table 5, in the settings of another code (pyGAT)",
        ("missing features", "lipschitz-normalization"): "missing features, of the LipschitzNorm paper: tuned depths",
    }
    for (table, paper), words in reasons.items():
        zeros = dict.fromkeys(("compared", "of these with five seeds", "inside", "overlapping", "apart"), 0)
        yield {"numbers of": f"{words}: no trainings", "published": count_published(table, paper), **zeros}

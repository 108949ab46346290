"""Accuracy (or another logged score) against depth and width, one line per variant."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from gatdiag.figures.axes import add_legend_below, not_recorded, note, panels, scale_axis
from gatdiag.figures.figure import GATS, LIPSCHITZ, Figure, tidy
from gatdiag.figures.style import MARKERS, Canvas, category, is_wide, plain_text
from gatdiag.run import Run
from gatdiag.summary import (
    UNNAMED,
    compare,
    depth,
    lines_of_runs,
    mean_by,
    score_label,
    width,
)

_WORDS = {"test": "test", "val": "validation", "train": "training"}
_SPLITS = tuple(_WORDS)  # preferred first
_PANELS = {  # panel -> the columns of `gatdiag.summary.compare` it can show, preferred first
    "accuracy": tuple(f"accuracy_{split}" for split in _SPLITS),
    "epochs to best": ("epochs_to_best",),
}
_LAST = {"accuracy": tuple(f"last_accuracy_{split}" for split in _SPLITS)}
_LINES = (
    "one line per {}: the mean of its runs with the 95% confidence interval, or with both runs (dashes) if there are "
    "only two."
)


def size_table(
    table: pd.DataFrame,
    size: str,
    values: Mapping[str, Sequence[str]],
    by: str = "variant",
    split_by: Sequence[str] = (),
) -> pd.DataFrame:
    """Means over the runs of the same variant and size.

    Args:
        table: As from `gatdiag.summary.compare`; with a column "line", the lines of the runs on the same page.
        size: "depth" or "width".
        values: For each panel the columns it can show, preferred first; the first one with values is used.
        by: The column that groups the runs.
        split_by: Columns by whose values a group is split, and its name extended, where its runs differ in them.

    Returns:
        panel, column, score (shown in the panel "accuracy": accuracy, AUC, ...), variant (a single run has its own
        name), size, mean, half_width (of the 95% interval), lowest, highest, runs, line (the index of the color and
        line style: those of its first run).
    """
    table = table.assign(variant=_variants(table, by, split_by), size=table[size])
    lines = {variant: int(line) for variant, line in _lines(table)}
    known = {panel: [name for name in columns if table[name].notna().any()] for panel, columns in values.items()}
    parts = [
        mean_by(table, column, ["variant", "size"])
        .assign(panel=panel, column=column, score=score_label(table.get("score", [])))
        .assign(line=lambda means: means["variant"].map(lines))
        .sort_values("size", kind="stable")
        for panel, (column, *_) in ((panel, columns) for panel, columns in known.items() if columns)
    ]
    shown = ("panel", "column", "score", "variant", "size", "mean", "half_width", "lowest", "highest", "runs", "line")
    return tidy(parts, *shown)


def _variants(table: pd.DataFrame, by: str, split_by: Sequence[str]) -> pd.Series:
    """The group of each run: its value in the column `by`, and those by which the group is split."""
    names = table[by].astype(str)
    for other in split_by:
        if (table.groupby(by)[other].nunique() > 1).any():
            names += ", " + table[other].map(lambda v, of=other: v if isinstance(v, str) else f"{of} {v:g}")
    if by != "variant" or not split_by:  # the groups have names of their own
        return names
    return names.mask(names.map(names.value_counts()) == 1, table["run"].astype(str))


def _lines(table: pd.DataFrame) -> Iterator[tuple[str, int]]:
    """Each variant with its line: that of its first run that has one, else a free one."""
    table = table if "line" in table else table.assign(line=range(len(table)))
    free = int(table["line"].max()) + 1
    for variant, lines in table.groupby("variant", sort=False)["line"]:
        known = lines[lines != UNNAMED]
        yield str(variant), int(known.iloc[0]) if len(known) else free
        free += not len(known)


def draw_by_size(axes: Axes, table: pd.DataFrame, *, size: str, value: str) -> list[Artist]:
    """Draw one panel of `size_table`: one line per variant, each with its own color, style and marker."""
    most = np.inf if value == "epochs to best" else 1.0 if table["highest"].max() <= 1 else 100.0
    half, mean = table["half_width"].fillna(0.0), table["mean"]
    table = table.assign(low=(mean - half).clip(lower=0.0), high=(mean + half).clip(upper=most))
    drawn = table[["mean", "low", "high", "lowest", "highest"]].to_numpy(np.float64)
    scale_axis(axes, drawn, log=False, include=(0.0, 1.05 * float(np.nanmax(drawn))))
    entries: list[Artist] = []
    for variant, part in table.groupby("variant", sort=False):
        index = int(part["line"].iloc[0])
        style = category(index) | {"marker": MARKERS[index % len(MARKERS)], "markersize": 4, "markeredgewidth": 0}
        entries += axes.plot(part["size"], part["mean"], label=plain_text(variant, 28), **style)
        sure = part.dropna(subset=["half_width"])
        if len(sure):
            reach = np.abs(sure[["low", "high"]].to_numpy().T - sure["mean"].to_numpy())
            axes.errorbar(sure["size"], sure["mean"], reach, fmt="none", ecolor=style["color"], elinewidth=0.6,
                          capsize=1.5)  # fmt: skip
        both = part[part["runs"] == 2]
        for column in ("lowest", "highest") if len(both) else ():
            axes.plot(both["size"], both[column], "_", color=style["color"], markersize=4, label="_run")
    sizes = sorted(table["size"].unique())
    if len(sizes) > 2 and sizes[0] > 0 and sizes[-1] > 8 * sizes[0]:
        axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{one:g}" for one in sizes])
    axes.set_xticks([], minor=True)
    axes.set(xlabel=size, ylabel=value)
    return entries


def _draw_panels(values: Mapping[str, Sequence[str]], size: str) -> Callable[[pd.DataFrame, Canvas], None]:
    def draw(table: pd.DataFrame, figure: Canvas) -> None:
        """Draw the panels of a `size_table` side by side, with one legend below them."""
        entries: list[Artist] = []
        for axes, panel in zip(panels(figure, len(values)), values, strict=True):
            part = table[table["panel"] == panel]
            if len(part):
                split = _WORDS.get(str(part["column"].iloc[0]).rsplit("_", 1)[-1], "")
                value = f"{split} {part['score'].iloc[0]}".strip() if panel == "accuracy" else panel
                entries += draw_by_size(axes, part, size=size, value=value)
            else:
                note(axes, not_recorded("steps.test_accuracy" if panel == "accuracy" else "steps.val_accuracy"))
        add_legend_below(figure, entries)

    return draw


def _data(
    size: str, values: Mapping[str, Sequence[str]], *split_by: str, by: str = "variant"
) -> Callable[..., pd.DataFrame]:
    def data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Means over the runs of the same variant and size.

        Args:
            *runs: The runs.
            variants: Run name -> group, for example its initialization or normalization. By default the run's name
                without numbers, or the kind of its normalization layers that have parameters: normalizations without
                any (PairNorm, LipschitzNorm) must be named here. Where runs of one group differ in name, width or
                depth, that is added to the name of the group.

        Returns:
            As `size_table`.
        """
        rows = compare(runs, variants).assign(line=lines_of_runs(runs))
        return size_table(rows, size, values, by=by, split_by=() if variants else split_by)

    return data


def _is_sweep(size: Callable[[Run], object], *split_by: str, by: str = "variant") -> Callable[[Sequence[Run]], bool]:
    """Whether runs of one variant, alike in what it is split by, differ in size: else there is nothing to compare."""

    def applies(runs: Sequence[Run]) -> bool:
        if len({size(run) for run in runs}) < 2:
            return False
        rows = compare(runs)
        sizes = pd.Series([size(run) for run in runs]).groupby(_variants(rows, by, split_by).to_numpy())
        return bool((sizes.nunique() > 1).any()) and (by == "variant" or rows[by].nunique() > 1)

    return applies


ACCURACY_BY_DEPTH = Figure(
    name="accuracy_by_depth",
    title="Accuracy and speed against depth",
    caption="Accuracy at the step of the best validation accuracy, and the number of epochs to get there, against the "
    f"number of layers; {_LINES.format('variant')}",
    interpretation="A line that falls with depth is a method that does not scale to deep networks; a level line is "
    "one that does. The second panel shows whether depth makes training slower.",
    paper=f"{GATS}, figures 6, 7, 9 and 10",
    group="comparison",
    needs=("steps.val_accuracy", "steps.test_accuracy"),
    data=_data("depth", _PANELS, "width"),
    draw_table=_draw_panels(_PANELS, "layers"),
    height=lambda table, width: 2.2 if is_wide(width) else 3.6,
    applies_to=_is_sweep(depth, "width"),
)
ACCURACY_BY_WIDTH = replace(
    ACCURACY_BY_DEPTH,
    name="accuracy_by_width",
    title="Accuracy and speed against width",
    caption=ACCURACY_BY_DEPTH.caption.replace("the number of layers", "the hidden width"),
    interpretation="A rising line is a method that trains wide networks only; a balanced initialization is high at "
    "every width.",
    paper=f"{GATS}, figure 6",
    data=_data("width", _PANELS, "depth"),
    draw_table=_draw_panels(_PANELS, "hidden width"),
    applies_to=_is_sweep(width, "depth"),
)
ACCURACY_BY_NORMALIZATION = replace(
    ACCURACY_BY_DEPTH,
    name="accuracy_by_normalization",
    title="Accuracy against depth, by normalization",
    caption="Accuracy at the last step (not the best one) against the number of layers; "
    f"{_LINES.format('normalization')}",
    interpretation="The line of a normalization that makes deep networks trainable stays level where the others fall.",
    paper=f"{LIPSCHITZ} (accuracy against depth)",
    needs=("steps.test_accuracy",),
    data=_data("depth", _LAST, "variant", "width", by="normalization"),
    draw_table=_draw_panels(_LAST, "layers"),
    height=lambda table, width: 2.3,
    applies_to=_is_sweep(depth, "variant", "width", by="normalization"),
)

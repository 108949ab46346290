"""Accuracy (or another logged score) against depth and width, one line per variant."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from gatdiag.figures.axes import add_legend_below, not_recorded, note, panels, scale_axis
from gatdiag.figures.figure import GATS, LIPSCHITZ, Figure, tidy
from gatdiag.figures.style import MARKERS, Canvas, category, is_wide, plain_text
from gatdiag.run import Run
from gatdiag.summary import compare, depth, mean_by, normalization, score_label, width

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
        table: As from `gatdiag.summary.compare`.
        size: "depth" or "width".
        values: For each panel the columns it can show, preferred first; the first one with values is used.
        by: The column that groups the runs.
        split_by: Columns by whose values a group is split, and its name extended, where its runs differ in them.

    Returns:
        panel, column, score (shown in the panel "accuracy": accuracy, AUC, ...), variant, size, mean,
        half_width (of the 95% interval), lowest, highest, runs.
    """
    names = table[by].astype(str)
    for other in split_by:
        if (table.groupby(by)[other].nunique() > 1).any():
            names += ", " + table[other].map(lambda v, of=other: v if isinstance(v, str) else f"{of} {v:g}")
    table = table.drop(columns="variant", errors="ignore").assign(variant=names, size=table[size])
    known = {panel: [name for name in columns if table[name].notna().any()] for panel, columns in values.items()}
    parts = [
        mean_by(table, column, ["variant", "size"])
        .assign(panel=panel, column=column, score=score_label(table.get("score", [])))
        .sort_values("size", kind="stable")
        for panel, (column, *_) in ((panel, columns) for panel, columns in known.items() if columns)
    ]
    return tidy(parts, "panel", "column", "score", "variant", "size", "mean", "half_width", "lowest", "highest", "runs")


def draw_by_size(axes: Axes, table: pd.DataFrame, order: Sequence[str], *, size: str, value: str) -> list[Artist]:
    """Draw one panel of `size_table`: one line per variant of `order`, each with its own color, style and marker."""
    most = np.inf if value == "epochs to best" else 1.0 if table["highest"].max() <= 1 else 100.0
    half, mean = table["half_width"].fillna(0.0), table["mean"]
    table = table.assign(low=(mean - half).clip(lower=0.0), high=(mean + half).clip(upper=most))
    drawn = table[["mean", "low", "high", "lowest", "highest"]].to_numpy(np.float64)
    scale_axis(axes, drawn, log=False, include=(0.0, 1.05 * float(np.nanmax(drawn))))
    entries: list[Artist] = []
    for variant, part in table.groupby("variant", sort=False):
        index = order.index(str(variant))
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
        order = list(dict.fromkeys(table["variant"]))
        entries: list[Artist] = []
        for axes, panel in zip(panels(figure, len(values)), values, strict=True):
            part = table[table["panel"] == panel]
            if len(part):
                split = _WORDS.get(str(part["column"].iloc[0]).rsplit("_", 1)[-1], "")
                value = f"{split} {part['score'].iloc[0]}".strip() if panel == "accuracy" else panel
                entries += draw_by_size(axes, part, order, size=size, value=value)
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
        return size_table(compare(runs, variants), size, values, by=by, split_by=() if variants else split_by)

    return data


def _differ_in(*sizes: Callable[[Run], object]) -> Callable[[Sequence[Run]], bool]:
    return lambda runs: all(len({size(run) for run in runs}) > 1 for size in sizes)


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
    applies_to=_differ_in(depth),
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
    applies_to=_differ_in(width),
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
    applies_to=_differ_in(depth, normalization),
)

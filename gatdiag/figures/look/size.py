"""Something measured once a run, against the depth or width of the network: a line a variant, with 95 % intervals."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from gatdiag.figures.look.legend import legend_below
from gatdiag.figures.look.notes import not_recorded, note
from gatdiag.figures.look.scales import scale_axis
from gatdiag.figures.look.style import DASHES, Canvas, category, is_wide
from gatdiag.figures.look.text import plain
from gatdiag.summary import mean_by, score_label

ACCURACY_PANELS = {
    "accuracy": ("accuracy_test", "accuracy_val", "accuracy_train"),
    "epochs to best": ("epochs_to_best",),
}
_COLUMNS = ["panel", "column", "score", "variant", "size", "mean", "half_width", "lowest", "highest", "runs"]
_WORDS = {"test": "test", "val": "validation", "train": "training"}


def size_table(
    table: pd.DataFrame,
    size: str,
    values: Mapping[str, Sequence[str]],
    by: str = "variant",
    apart: Sequence[str] = (),
) -> pd.DataFrame:
    """Means over the runs of the same variant and size.

    Args:
        table: As from `gatdiag.summary.compare`.
        size: "depth" or "width".
        values: For each panel the columns it may show, the best choice first; the first that holds values is taken.
        by: The column that groups the runs.
        apart: Columns in which runs of one group may differ; if they do, what they hold is part of the group's name.

    Returns:
        panel, column, score (what is averaged in the panel "accuracy": accuracy, AUC, ...), variant, size, mean,
        half_width, lowest, highest, runs.
    """
    table = _apart(table, by, apart)
    parts = []
    for panel, columns in values.items():
        column = next((name for name in columns if table[name].notna().any()), None)
        if column is not None:
            means = mean_by(table, column, [by, size]).rename(columns={by: "variant", size: "size"})
            means = means.assign(panel=panel, column=column, score=score_label(table.get("score", [])))
            parts.append(means.sort_values("size", kind="stable"))
    if not parts:
        return pd.DataFrame(columns=_COLUMNS)
    return pd.concat(parts, ignore_index=True)[_COLUMNS]


def _apart(table: pd.DataFrame, by: str, columns: Sequence[str]) -> pd.DataFrame:
    names = table[by].astype(str)
    for column in columns:
        if (table.groupby(by)[column].nunique() > 1).any():
            shown = table[column].map(lambda held, of=column: held if isinstance(held, str) else f"{of} {held:g}")
            names = names + ", " + shown
    return table.assign(**{by: names})


def draw_by_size(axes: Axes, table: pd.DataFrame, order: Sequence[str], *, size: str, value: str) -> None:
    """Draw one panel of `size_table`: a line a variant of `order`, each with its own color, style and marker."""
    most = np.inf if value == "epochs to best" else 1.0 if table["highest"].max() <= 1 else 100.0
    half, mean = table["half_width"].fillna(0.0), table["mean"]
    table = table.assign(low=(mean - half).clip(lower=0.0), high=(mean + half).clip(upper=most))
    drawn = table[["mean", "low", "high", "lowest", "highest"]].to_numpy(np.float64)
    scale_axis(axes, drawn, log=False, hold=(0.0, 1.05 * float(np.nanmax(drawn))))
    _draw_means(axes, table, order)
    sizes = sorted(table["size"].unique())
    if len(sizes) > 2 and sizes[0] > 0 and sizes[-1] > 8 * sizes[0]:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([float(s) for s in sizes]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel(size)
    axes.set_ylabel(value)


def _draw_means(axes: Axes, table: pd.DataFrame, order: Sequence[str]) -> None:
    import seaborn  # loads slowly, and only comparisons need it

    styles = {variant: category(index) for index, variant in enumerate(order)}
    seaborn.lineplot(
        table,
        x="size",
        y="mean",
        hue="variant",
        style="variant",
        palette={variant: style["color"] for variant, style in styles.items()},
        markers={variant: style["marker"] for variant, style in styles.items()},
        dashes={variant: DASHES[style["linestyle"]] for variant, style in styles.items()},
        estimator=None,
        legend=False,
        ax=axes,
        markeredgewidth=0,
        markersize=4,
    )
    for variant, part in table.dropna(subset=["half_width"]).groupby("variant", sort=False):
        color = styles[str(variant)]["color"]
        size, mean, low, high = (part[column].to_numpy() for column in ("size", "mean", "low", "high"))
        axes.errorbar(size, mean, (mean - low, high - mean), fmt="none", ecolor=color, elinewidth=0.6, capsize=1.5)
    for variant, part in table[table["runs"] == 2].groupby("variant", sort=False):
        color = styles[str(variant)]["color"]
        for column in ("lowest", "highest"):
            axes.plot(part["size"], part[column], "_", color=color, markersize=4, label="_run")


def draw_size_panels(figure: Canvas, table: pd.DataFrame, panels: Mapping[str, Sequence[str]], *, size: str) -> None:
    """Draw a `size_table`: its panels beside each other, and one legend below them."""
    shape = (1, len(panels)) if is_wide(figure) else (len(panels), 1)
    order = list(dict.fromkeys(table["variant"]))
    for axes, (panel, columns) in zip(figure.subplots(*shape, squeeze=False).flat, panels.items(), strict=True):
        part = table[table["panel"] == panel]
        if not len(part):
            split = columns[0].rsplit("_", 1)[-1]
            note(axes, not_recorded(f"steps.{split if split in _WORDS else 'val'}_accuracy"))
            continue
        split = _WORDS.get(str(part["column"].iloc[0]).rsplit("_", 1)[-1], "")
        label = f"{split} {part['score'].iloc[0]}".strip()
        draw_by_size(axes, part, order, size=size, value=label if panel == "accuracy" else panel)
    handles = [
        Line2D([], [], label=plain(variant, 28), **{key: v for key, v in category(index).items() if key != "hatch"})
        for index, variant in enumerate(order)
    ]
    legend_below(figure, handles)

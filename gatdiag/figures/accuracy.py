"""Accuracy (or what other score was logged) against depth, width and tree depth, a line per variant."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from gatdiag.figures.look import (
    DASHES,
    Canvas,
    Figure,
    category,
    is_wide,
    legend_below,
    not_recorded,
    note,
    plain,
    scale_axis,
)
from gatdiag.run import Run
from gatdiag.summary import accuracies, compare, depth, logged, mean_by, normalization, score_label, width

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


def accuracy_by_depth_data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Accuracy at the best validation accuracy, and how many steps it took, by variant and depth.

    Args:
        *runs: The runs; those of the same variant and depth are averaged.
        variants: The group of each run by its name, for example its initialization; by default its name
            without numbers, and the width where runs of that name differ in it.

    Returns:
        panel, column, score, variant, size (layers), mean, half_width (of the 95 % interval), lowest, highest, runs.
    """
    apart = () if variants else ("width",)
    return size_table(compare(runs, variants), "depth", ACCURACY_PANELS, apart=apart)


ACCURACY_BY_DEPTH = Figure(
    name="accuracy_by_depth",
    title="Accuracy and speed against depth",
    shows="Accuracy at the step of the best validation accuracy, and the number of epochs it took, against the number "
    "of layers; one line per variant, the mean of its runs with its 95 % interval, or with both runs (dashes) where "
    "there are but two.",
    reading="A line that falls with depth is a recipe that does not scale to deep networks; one that stays level does. "
    "The second panel tells whether depth costs training time.",
    equation="",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 6, 7, 9 and 10",
    group="comparison",
    needs=("steps.val_accuracy", "steps.test_accuracy"),
    per="comparison",
    data=accuracy_by_depth_data,
    draw=lambda table, figure: draw_size_panels(figure, table, ACCURACY_PANELS, size="layers"),
    height=lambda table, width: 2.2 if width > 4.5 else 3.6,
    applies=lambda runs: len({depth(run) for run in runs}) > 1,
)


def accuracy_by_width_data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Accuracy at the best validation accuracy, and how many steps it took, by variant and width.

    Args:
        *runs: The runs; those of the same variant and width are averaged.
        variants: The group of each run by its name, for example its initialization; by default its name
            without numbers, and the depth where runs of that name differ in it.

    Returns:
        panel, column, score, variant, size (hidden width), mean, half_width (of the 95 % interval), lowest,
        highest, runs.
    """
    apart = () if variants else ("depth",)
    return size_table(compare(runs, variants), "width", ACCURACY_PANELS, apart=apart)


ACCURACY_BY_WIDTH = Figure(
    name="accuracy_by_width",
    title="Accuracy and speed against width",
    shows="Accuracy at the step of the best validation accuracy, and the number of epochs it took, against the hidden "
    "width; one line per variant, the mean of its runs with its 95 % interval, or with both runs (dashes) where there "
    "are but two.",
    reading="A recipe that needs width to train at all shows as a line that rises; a balanced one is high from the "
    "start.",
    equation="",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figure 6",
    group="comparison",
    needs=("steps.val_accuracy", "steps.test_accuracy"),
    per="comparison",
    data=accuracy_by_width_data,
    draw=lambda table, figure: draw_size_panels(figure, table, ACCURACY_PANELS, size="hidden width"),
    height=lambda table, width: 2.2 if width > 4.5 else 3.6,
    applies=lambda runs: len({width(run) for run in runs}) > 1,
)


_PANELS = {"accuracy": ("last_accuracy_test", "last_accuracy_val", "last_accuracy_train")}


def accuracy_by_normalization_data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Accuracy of the last recorded step, by normalization and depth.

    Args:
        *runs: The runs; those of the same normalization and depth are averaged.
        variants: The normalization of each run by its name; by default the kind of its layers with normalization
            scales, with the run's name without numbers and its width where runs of one kind differ in them.
            Normalizations without parameters (PairNorm, LipschitzNorm) must be told.

    Returns:
        panel, column, score, variant, size (layers), mean, half_width (of the 95 % interval), lowest, highest, runs.
    """
    return size_table(
        compare(runs, variants), "depth", _PANELS, by="normalization", apart=() if variants else ("variant", "width")
    )


ACCURACY_BY_NORMALIZATION = Figure(
    name="accuracy_by_normalization",
    title="Accuracy against depth, by normalization",
    shows="Accuracy of the last step (not of the best one) against the number of layers; one line per normalization, "
    "the mean of its runs with its 95 % interval, or with both runs (dashes) where there are but two.",
    reading="A normalization that makes deep networks trainable keeps its line level where the others fall.",
    equation="",
    paper="Dasoulas et al., Lipschitz Normalization for Self-Attention Layers, ICML 2021 (accuracy against depth)",
    group="comparison",
    needs=("steps.test_accuracy",),
    per="comparison",
    data=accuracy_by_normalization_data,
    draw=lambda table, figure: draw_size_panels(figure, table, _PANELS, size="layers"),
    height=lambda table, width: 2.3,
    applies=lambda runs: len({depth(run) for run in runs}) > 1 and len({normalization(run) for run in runs}) > 1,
)


_TREE_PANELS = {"training accuracy": ("best_training_accuracy",)}


def accuracy_by_tree_depth_data(
    *runs: Run, variants: Mapping[str, str] | None = None, tree_depths: Mapping[str, int] | None = None
) -> pd.DataFrame:
    """The best training accuracy, by variant and tree depth; drawn only when asked for by name.

    Args:
        *runs: The runs; those of the same variant and tree depth are averaged.
        variants: The group of each run by its name, for example its layer type; by default its name without numbers.
        tree_depths: The tree depth of each run by its name; by default its number of layers less one, as in the
            benchmark.

    Returns:
        panel, column, score, variant, size (tree depth), mean, half_width (of the 95 % interval), lowest,
        highest, runs.
    """
    table = compare(runs, variants)
    names = [accuracies(run).get("train") for run in runs]
    best = [logged(run, name).max() if name else np.nan for run, name in zip(runs, names, strict=True)]
    trees = [(tree_depths or {}).get(run.name, depth(run) - 1) for run in runs]
    return size_table(table.assign(best_training_accuracy=best, depth=trees), "depth", _TREE_PANELS)


ACCURACY_BY_TREE_DEPTH = Figure(
    name="accuracy_by_tree_depth",
    title="Training accuracy against tree depth",
    shows="On trees whose root must read one leaf: the best training accuracy against the depth of the tree; one line "
    "per variant, the mean of its runs with its 95 % interval, or with both runs (dashes) where there are but two.",
    reading="The depth at which a line leaves 1 is how far information still travels through the network.",
    equation="",
    paper="Dasoulas et al., ICML 2021 (trees of increasing depth); Alon & Yahav, ICLR 2021",
    group="comparison",
    needs=("steps.train_accuracy",),
    per="comparison",
    data=accuracy_by_tree_depth_data,
    draw=lambda table, figure: draw_size_panels(figure, table, _TREE_PANELS, size="tree depth"),
    height=lambda table, width: 2.3,
    applies=lambda runs: False,  # nothing in a run tells that its graphs are trees: it is drawn when asked for by name
)

"""Accuracy (or what other score was logged) against depth, width and tree depth, a line per variant."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from gatdiag.figures.axes import legend_below, not_recorded, note, panels, scale_axis
from gatdiag.figures.figure import GATS, LIPSCHITZ, Figure, tidy
from gatdiag.figures.style import MARKERS, Canvas, category, is_wide, plain
from gatdiag.run import Run
from gatdiag.summary import accuracies, compare, depth, logged, mean_by, normalization, score_label, width

_WORDS = {"test": "test", "val": "validation", "train": "training"}
_SPLITS = tuple(_WORDS)  # the best choice first
_PANELS = {  # panel -> the columns of `gatdiag.summary.compare` it may show, the best choice first
    "accuracy": tuple(f"accuracy_{split}" for split in _SPLITS),
    "epochs to best": ("epochs_to_best",),
}
_LAST = {"accuracy": tuple(f"last_accuracy_{split}" for split in _SPLITS)}
_TREES = {"training accuracy": ("best_training_accuracy",)}
_LINES = (
    "one line per {}, the mean of its runs with its 95 % interval, or with both runs (dashes) where there are but two."
)


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
        half_width (of the 95 % interval), lowest, highest, runs.
    """
    names = table[by].astype(str)
    for other in apart:
        if (table.groupby(by)[other].nunique() > 1).any():
            names += ", " + table[other].map(lambda held, of=other: held if isinstance(held, str) else f"{of} {held:g}")
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
    """Draw one panel of `size_table`: a line a variant of `order`, each with its own color, style and marker."""
    most = np.inf if value == "epochs to best" else 1.0 if table["highest"].max() <= 1 else 100.0
    half, mean = table["half_width"].fillna(0.0), table["mean"]
    table = table.assign(low=(mean - half).clip(lower=0.0), high=(mean + half).clip(upper=most))
    drawn = table[["mean", "low", "high", "lowest", "highest"]].to_numpy(np.float64)
    scale_axis(axes, drawn, log=False, hold=(0.0, 1.05 * float(np.nanmax(drawn))))
    entries: list[Artist] = []
    for variant, part in table.groupby("variant", sort=False):
        index = order.index(str(variant))
        style = category(index) | {"marker": MARKERS[index % len(MARKERS)], "markersize": 4, "markeredgewidth": 0}
        entries += axes.plot(part["size"], part["mean"], label=plain(variant, 28), **style)
        sure = part.dropna(subset=["half_width"])
        if len(sure):
            reach = sure["mean"] - sure["low"], sure["high"] - sure["mean"]
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


def _drawing(values: Mapping[str, Sequence[str]], size: str) -> Callable[[pd.DataFrame, Canvas], None]:
    def drawing(table: pd.DataFrame, figure: Canvas) -> None:
        """The panels of a `size_table` beside each other, and one legend below them."""
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
        legend_below(figure, entries)

    return drawing


def _data(
    size: str, values: Mapping[str, Sequence[str]], *apart: str, by: str = "variant"
) -> Callable[..., pd.DataFrame]:
    def data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Means over the runs of the same variant and size.

        Args:
            *runs: The runs.
            variants: The group of each run by its name, for example its initialization or its normalization. By
                default its name without numbers; of normalizations the kind of its layers with normalization scales,
                so that those without parameters (PairNorm, LipschitzNorm) must be named here. Where runs of one group
                differ in something else (name, width, depth), that is added to its name.

        Returns:
            As `size_table`.
        """
        return size_table(compare(runs, variants), size, values, by=by, apart=() if variants else apart)

    return data


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
        As `size_table`; size is the depth of the tree.
    """
    names = [accuracies(run).get("train") for run in runs]
    best = [logged(run, name).max() if name else np.nan for run, name in zip(runs, names, strict=True)]
    trees = [(tree_depths or {}).get(run.name, depth(run) - 1) for run in runs]
    table = compare(runs, variants).assign(best_training_accuracy=best, depth=trees)
    return size_table(table, "depth", _TREES)


def _comparable(*sizes: Callable[[Run], object]) -> Callable[[Sequence[Run]], bool]:
    return lambda runs: all(len({size(run) for run in runs}) > 1 for size in sizes)


ACCURACY_BY_DEPTH = Figure(
    name="accuracy_by_depth",
    title="Accuracy and speed against depth",
    shows="Accuracy at the step of the best validation accuracy, and the number of epochs it took, against the number "
    f"of layers; {_LINES.format('variant')}",
    reading="A line that falls with depth is a recipe that does not scale to deep networks; one that stays level does. "
    "The second panel tells whether depth costs training time.",
    paper=f"{GATS}, figures 6, 7, 9 and 10",
    group="comparison",
    needs=("steps.val_accuracy", "steps.test_accuracy"),
    data=_data("depth", _PANELS, "width"),
    drawing=_drawing(_PANELS, "layers"),
    height=lambda table, width: 2.2 if is_wide(width) else 3.6,
    applies=_comparable(depth),
)
ACCURACY_BY_WIDTH = replace(
    ACCURACY_BY_DEPTH,
    name="accuracy_by_width",
    title="Accuracy and speed against width",
    shows=ACCURACY_BY_DEPTH.shows.replace("the number of layers", "the hidden width"),
    reading="A recipe that needs width to train at all shows as a line that rises; a balanced one is high from the "
    "start.",
    paper=f"{GATS}, figure 6",
    data=_data("width", _PANELS, "depth"),
    drawing=_drawing(_PANELS, "hidden width"),
    applies=_comparable(width),
)
ACCURACY_BY_NORMALIZATION = replace(
    ACCURACY_BY_DEPTH,
    name="accuracy_by_normalization",
    title="Accuracy against depth, by normalization",
    shows="Accuracy of the last step (not of the best one) against the number of layers; "
    f"{_LINES.format('normalization')}",
    reading="A normalization that makes deep networks trainable keeps its line level where the others fall.",
    paper=f"{LIPSCHITZ} (accuracy against depth)",
    needs=("steps.test_accuracy",),
    data=_data("depth", _LAST, "variant", "width", by="normalization"),
    drawing=_drawing(_LAST, "layers"),
    height=lambda table, width: 2.3,
    applies=_comparable(depth, normalization),
)
ACCURACY_BY_TREE_DEPTH = replace(
    ACCURACY_BY_NORMALIZATION,
    name="accuracy_by_tree_depth",
    title="Training accuracy against tree depth",
    shows="On trees whose root must read one leaf: the best training accuracy against the depth of the tree; "
    f"{_LINES.format('variant')}",
    reading="The depth at which a line leaves 1 is how far information still travels through the network.",
    paper="Dasoulas et al., ICML 2021 (trees of increasing depth); Alon & Yahav, ICLR 2021",
    needs=("steps.train_accuracy",),
    data=accuracy_by_tree_depth_data,
    drawing=_drawing(_TREES, "tree depth"),
    applies=lambda runs: False,  # nothing in a run tells that its graphs are trees: it is drawn when asked for by name
)

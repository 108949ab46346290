"""The gradient by layer and step, run beside run: for example with and without a normalization (paper 2)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gatdiag.figures.look import (
    Canvas,
    Figure,
    heat_legend,
    heat_map,
    heat_steps,
    heat_table,
    is_wide,
    legend_below,
    log_bar,
    not_recorded,
    note,
    plain,
    shared_limits,
)
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series

_LIMIT = 8  # runs beside each other


def data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The gradient norm of the feature weights of each run, layer and step, thinned so that spikes stay.

    Args:
        *runs: The runs; the first eight are drawn.
        variants: What each run is called, by its name; by default its name.

    Returns:
        run (its place among the runs), label, step, layer, value. A run without the column has one row of nulls.
    """
    parts = []
    for place, run in enumerate(runs[:_LIMIT]):
        table = heat_table(role_series(run, "gradient_norm", FEATURES), "max")
        if not len(table):
            table = pd.DataFrame({"step": [None], "layer": [None], "value": [np.nan]})
        label = (variants or {}).get(run.name, run.name)
        parts.append(table.assign(run=place, label=label, layer=table["layer"].astype(object)))
    columns = ["run", "label", "step", "layer", "value"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A heat map a run, all with the same colors."""
    parts = [part for _, part in table.groupby("run", sort=True)]
    known = table[table["layer"].notna()]
    if not len(known):
        note(figure, not_recorded("parameters.gradient_norm"))
        return
    limits = shared_limits(known["value"].to_numpy(np.float64), "log")
    columns = min(len(parts), 2) if is_wide(figure) else 1
    grid = figure.subplots(-(-len(parts) // columns), columns, squeeze=False)
    panels = iter(grid.flat)
    cases = set[str]()
    for axes, part in zip(panels, parts, strict=False):
        axes.set_title(plain(part["label"].iloc[0], 44 if is_wide(figure) else 36), loc="left")
        if part["layer"].isna().all():
            note(axes, not_recorded("parameters.gradient_norm"))
            continue
        names = list(dict.fromkeys(part["layer"]))
        cells = part.assign(layer=pd.Categorical(part["layer"], categories=names), step=part["step"].astype(np.int64))
        cases |= heat_map(axes, cells, names, kind="log", label="", limits=limits, bar=False)
        heat_steps(axes, cells["step"])
    for axes in panels:
        axes.set_visible(False)
    log_bar(figure, list(grid.flat), limits, "‖∇W‖")
    legend_below(figure, heat_legend(cases))


def _height(table: pd.DataFrame, width: float) -> float:
    rows = -(-table["run"].nunique() // 2) if width > 4.5 else table["run"].nunique()
    return 0.3 + 1.8 * max(rows, 1)


FIGURE = Figure(
    name="gradient_evolution",
    title="Evolution of the gradient by layer and step",
    shows="The gradient norm of each layer's feature weights at each step, one panel per run, in the same colors.",
    reading="A panel of one color is a network whose layers all receive gradients. Brightness that grows from layer "
    "to layer is an exploding or vanishing gradient; the run beside it shows whether the remedy helps.",
    equation=r"\|\nabla_{W^l}\mathcal{L}\|_F",
    paper="Dasoulas et al., Lipschitz Normalization for Self-Attention Layers, ICML 2021 (evolution of the gradient)",
    group="comparison",
    needs=("parameters.gradient_norm",),
    per="comparison",
    data=data,
    draw=draw,
    height=_height,
)

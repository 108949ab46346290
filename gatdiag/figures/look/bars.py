"""One value a layer and role: bars while there is room for them, outlines beyond that."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from gatdiag.figures.look.lines import layer_names
from gatdiag.figures.look.scales import layer_axis, layer_codes
from gatdiag.figures.look.style import ATTENTION_STYLE, BROKEN, FEATURE_STYLE
from gatdiag.summary import ATTENTION, FEATURES

_STYLES = {FEATURES: FEATURE_STYLE, ATTENTION: ATTENTION_STYLE}
_BARS = 24  # layers


def draw_fractions(axes: Axes, table: pd.DataFrame, column: str, *, value: str) -> list[Artist]:
    """Draw a fraction in [0, 1] of each layer, feature weights beside attention vectors.

    Args:
        axes: The axes.
        table: As from `gatdiag.summary.weight_change`.
        column: The fraction.
        value: The label of the axis.

    Returns:
        The legend's entries.
    """
    names = layer_names(table)
    roles = [role for role in _STYLES if (table["role"] == role).any()]
    for index, role in enumerate(roles):
        part = table[table["role"] == role]
        x, y = layer_codes(part["layer"]), part[column].to_numpy(np.float64)
        style = _STYLES[role]
        if len(names) <= _BARS:
            width = 0.8 / len(roles)
            axes.bar(x + (index - (len(roles) - 1) / 2) * width, np.nan_to_num(y), width, color=style["color"],
                     hatch=style["hatch"], edgecolor="white", linewidth=0.3, label=f"{role}s")  # fmt: skip
        else:
            axes.step(x, y, where="mid", color=style["color"], linestyle=style["linestyle"], label=f"{role}s")
        broken = np.isnan(y)
        if broken.any():
            axes.plot(x[broken], np.full(broken.sum(), 0.02), "x", color=BROKEN, markersize=3, label="undefined",
                      transform=axes.get_xaxis_transform())  # fmt: skip
    everywhere = "undefined" if table[column].isna().all() else "" if table[column].any() else "0"
    if everywhere:
        axes.text(0.5, 0.5, f"{everywhere} in every layer", transform=axes.transAxes, ha="center", color="#555555")
    axes.set_ylim(0, 1.03)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(False, axis="x")
    axes.set_ylabel(value)
    layer_axis(axes, names)
    return list(axes.get_legend_handles_labels()[0])

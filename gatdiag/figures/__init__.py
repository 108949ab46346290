"""Figures: run -> the papers' figures, each a `Figure`: its facts, `data(...)` and `draw(table, figure)`.

    look             what all share: sizes, fonts, palettes, axes, notes; the only part that figures import
    overview         the one picture to look at first
    curves           training_curves; of several runs compared_curves
    gradients        gradient_norms, chosen_layers; of several runs gradient_evolution
    weight_change    changed_fraction, unchanged_fraction, change_boxes
    laws             balance, conservation
    smoothing        smoothing_by_layer, smoothing_over_training
    accuracy         of several runs accuracy_by_depth, _width, _normalization and _tree_depth
    rendering        a figure -> bytes, files, data

`FIGURES` holds them in reading order. Every figure can be had as data (`table`), and drawn on a matplotlib Figure of
one's own (`figure.draw(table, matplotlib_figure)`). Nothing here touches pyplot, the backend, or settings that stay.
"""

from gatdiag.figures.look import Figure
from gatdiag.figures.rendering import FIGURES, figures_for, missing, render, render_document, save_figures, table

__all__ = ["FIGURES", "Figure", "figures_for", "missing", "render", "render_document", "save_figures", "table"]

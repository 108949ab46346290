"""Figures: run -> the papers' figures, each a `Figure`: its facts, `data(...)` and `draw(table, canvas)`.

    figure           Figure, and what the catalogue of quantities knows of one
    style            sizes, fonts, palettes; names in plain characters
    axes             scales and their limits, lines, marks for what cannot be drawn, legends, notes in an empty place
    heat             layer x step heat maps
    overview         the one picture to look at first
    curves, gradients, weight_change, laws, smoothing, accuracy
                     the other figures
    rendering        the registry; a figure -> bytes, files, data

`FIGURES` holds them in reading order; a new figure is one line there. Every figure can be had as data (`table`), and
drawn on a matplotlib Figure of one's own (`figure.draw(table, matplotlib_figure)`). Nothing here touches pyplot, the
backend, or settings that stay.
"""

from gatdiag.figures.axes import not_recorded
from gatdiag.figures.figure import Figure
from gatdiag.figures.rendering import FIGURES, figures_for, render, render_document, save_figures, table

__all__ = [
    "FIGURES",
    "Figure",
    "figures_for",
    "not_recorded",
    "render",
    "render_document",
    "save_figures",
    "table",
]

"""Figures: run -> the papers' figures, each a `Figure` with its texts, `data(...)` and `draw(table, canvas)`.

    figure           the Figure class, and lookups in the catalog of quantities
    style            sizes, fonts, palettes; names in plain characters
    axes             scales and limits, lines, marks for values that cannot be drawn, legends, notes
    heat             layer x step heat maps
    overview         the one figure to look at first
    curves, gradients, by_layer, weight_change, laws, smoothing, accuracy
                     the other figures
    rendering        the registry; a figure -> bytes, files, data

`FIGURES` lists them in reading order. To add one, define it in a file here, as a constant named like the figure in
capitals, and add its line to `FIGURES`: the page, `gatdiag report --format` and the tests of all figures read that
list. Every figure is available as data (`table`), and can be drawn on matplotlib axes or figures of your own (`draw`).
seaborn, which is imported only when something is drawn, gives style, contexts, heat maps, boxes and bands. Nothing here
opens a pyplot figure, or changes the backend or global settings.
"""

from gatdiag.figures.axes import not_recorded
from gatdiag.figures.figure import Figure
from gatdiag.figures.rendering import FIGURES, draw, figures_for, plot, render, render_document, save_figures, table

__all__ = [
    "FIGURES",
    "Figure",
    "draw",
    "figures_for",
    "not_recorded",
    "plot",
    "render",
    "render_document",
    "save_figures",
    "table",
]

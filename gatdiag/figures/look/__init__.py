"""The look: the one place that fixes what every figure shares; figures import it and never each other.

figure    Figure: the facts of a figure, and its two functions
style     sizes, fonts, palettes; the context in which figures are drawn
text      names from the user's model and logs, made safe and short
scales    axes: logarithmic or linear, robust limits, marks for what cannot be drawn; steps; layers
lines     series over steps or layers
heat      layer x step heat maps
bars      a fraction for each layer
size      accuracy against depth or width
legend    below the figure, never on the lines
symbols   how quantities are written
notes     what stands in the place of a quantity that was not recorded
"""

from gatdiag.figures.look.bars import draw_fractions
from gatdiag.figures.look.figure import Figure, Group
from gatdiag.figures.look.heat import HeatKind, heat_legend, heat_map, heat_steps, heat_table, log_bar, shared_limits
from gatdiag.figures.look.legend import legend_below, legend_height
from gatdiag.figures.look.lines import (
    Line,
    curve_line,
    draw_lines,
    layer_bar,
    layer_lines,
    layer_names,
    ordered_colors,
    step_bar,
    undefined_of,
)
from gatdiag.figures.look.notes import name_change, not_recorded, note, note_panels
from gatdiag.figures.look.scales import (
    layer_axis,
    layer_codes,
    layer_room,
    mark_handles,
    mark_hidden,
    scale_axis,
    step_axis,
)
from gatdiag.figures.look.size import ACCURACY_PANELS, draw_size_panels, size_table
from gatdiag.figures.look.style import (
    ATTENTION_STYLE,
    CATEGORIES,
    DOUBLE,
    FEATURE_STYLE,
    HEAT,
    OKABE_ITO,
    SIGNED,
    SINGLE,
    SIZES,
    Canvas,
    category,
    is_wide,
    look,
)
from gatdiag.figures.look.symbols import SMOOTHING, ZERO_NORM
from gatdiag.figures.look.text import layer_labels, plain

__all__ = [
    "ACCURACY_PANELS",
    "ATTENTION_STYLE",
    "CATEGORIES",
    "DOUBLE",
    "FEATURE_STYLE",
    "HEAT",
    "OKABE_ITO",
    "SIGNED",
    "SINGLE",
    "SIZES",
    "SMOOTHING",
    "ZERO_NORM",
    "Canvas",
    "Figure",
    "Group",
    "HeatKind",
    "Line",
    "category",
    "curve_line",
    "draw_fractions",
    "draw_lines",
    "draw_size_panels",
    "heat_legend",
    "heat_map",
    "heat_steps",
    "heat_table",
    "is_wide",
    "layer_axis",
    "layer_bar",
    "layer_codes",
    "layer_labels",
    "layer_lines",
    "layer_names",
    "layer_room",
    "legend_below",
    "legend_height",
    "log_bar",
    "look",
    "mark_handles",
    "mark_hidden",
    "name_change",
    "not_recorded",
    "note",
    "note_panels",
    "ordered_colors",
    "plain",
    "scale_axis",
    "shared_limits",
    "size_table",
    "step_axis",
    "step_bar",
    "undefined_of",
]

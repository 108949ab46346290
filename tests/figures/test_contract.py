"""What every figure must do, whatever the run."""

import itertools
from importlib import import_module

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.mathtext import MathTextParser

from gatdiag.figures import FIGURES, missing, render, table
from tests.figures.canvas import drawn, words

ODD = (
    ("ordinary", "double"),
    ("stuck", "single"),
    ("one step", "double"),
    ("one layer", "single"),
    ("512 layers", "single"),
    ("broken", "double"),
    ("nothing", "single"),
    ("hostile", "single"),
)
OF_A_RUN = [figure for figure in FIGURES if figure.per == "run"]
OF_SEVERAL = [figure for figure in FIGURES if figure.per == "comparison"]

each = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
each_of_a_run = pytest.mark.parametrize("figure", OF_A_RUN, ids=lambda figure: figure.name)
each_of_several = pytest.mark.parametrize("figure", OF_SEVERAL, ids=lambda figure: figure.name)


@each
def test_its_facts_are_complete(figure):
    module = import_module(figure.data.__module__)
    assert getattr(module, figure.name.upper()) is figure
    assert figure.draw.__module__ == figure.data.__module__
    assert figure.title
    assert figure.shows.endswith(".")
    assert figure.reading.endswith(".")
    assert all(column.split(".")[0] in ("steps", "layers", "parameters", "neurons") for column in figure.needs)
    MathTextParser("path").parse(f"${figure.equation}$" if figure.equation else "none")


@pytest.mark.parametrize(("name", "width"), ODD)
@each_of_a_run
def test_it_draws_any_run_and_cuts_no_text_off(figure, name, width, runs):
    canvas = drawn(figure, table(figure, runs[name]), width)
    canvas.draw_without_rendering()
    legends = [axes.get_legend() for axes in canvas.axes if axes.get_legend()] + canvas.legends
    texts = [*canvas.texts, *(text for legend in legends for text in legend.get_texts())]
    texts += [text for axes in canvas.axes for text in (axes._left_title, axes.xaxis.label, axes.yaxis.label)]
    for text in texts:
        box, page = text.get_window_extent(), canvas.bbox
        if text.get_text() and box.width:
            assert min(box.x0, page.x1 - box.x1, box.y0, page.y1 - box.y1) >= -1, text


@pytest.mark.parametrize(("name", "width"), [("ordinary", "single"), ("ordinary", "double"), ("stuck", "single")])
@each_of_a_run
def test_no_tick_labels_touch(figure, name, width, runs):
    values = table(figure, runs[name])
    if "step" in values.columns:
        values = values.assign(step=values["step"] * 1000)
    canvas = drawn(figure, values, width)
    canvas.draw_without_rendering()
    for axes in (axes for axes in canvas.axes if axes.axison and axes.get_visible()):
        for axis, side in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
            boxes = [label.get_window_extent() for label in labels if label.get_text()]
            spans = sorted((box.min[side], box.max[side]) for box in boxes)
            gaps = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
            assert min(gaps, default=9) > (2 if side == 0 else 0), (
                axes.get_ylabel(),
                [label.get_text() for label in labels],
            )


@pytest.mark.parametrize("names", [("ordinary", "stuck"), ("ordinary", "nothing"), ("broken", "hostile", "one step")])
@each_of_several
def test_it_draws_any_runs(figure, names, runs):
    image = render(figure, [runs[name] for name in names], format="png", width="single", dpi=40)
    assert image.startswith(b"\x89PNG")


@each_of_a_run
def test_what_is_missing_leaves_a_note_and_no_empty_axis(figure, runs):
    canvas = drawn(figure, table(figure, runs["nothing"]))
    assert "not recorded" in words(canvas)
    assert not [axes for axes in canvas.axes if axes.axison and not axes.has_data()]
    assert missing(figure, runs["nothing"]) == figure.needs
    assert missing(figure, runs["ordinary"]) == ()


@each
def test_its_data_is_tidy(figure, runs, grown):
    values = table(figure, runs["ordinary"] if figure.per == "run" else grown)
    assert isinstance(values, pd.DataFrame)
    assert len(values)
    assert values.columns.is_unique
    assert isinstance(values.index, pd.RangeIndex)
    assert values.equals(table(figure, runs["ordinary"] if figure.per == "run" else grown))


@each
def test_drawing_changes_neither_the_data_nor_the_settings(figure, runs, grown):
    values = table(figure, runs["ordinary"] if figure.per == "run" else grown)
    before, settings = values.copy(), dict(mpl.rcParams)
    drawn(figure, values)
    pd.testing.assert_frame_equal(values, before)
    assert dict(mpl.rcParams) == settings


@each
def test_categories_differ_in_gray(figure, runs, grown):
    canvas = drawn(figure, table(figure, runs["ordinary"] if figure.per == "run" else grown))
    legends = [axes.get_legend() for axes in canvas.axes if axes.get_legend()] + canvas.legends
    for legend in legends:
        for one, other in itertools.combinations(legend.legend_handles, 2):
            assert gray(one) != gray(other)


def gray(handle):
    """What is left of a legend entry in a print in gray: style, marker, hatch and luminance."""
    if hasattr(handle, "get_hatch"):
        return handle.get_hatch(), round(luminance(handle.get_facecolor()[:3]), 1)
    return handle.get_linestyle(), handle.get_marker(), round(luminance(handle.get_color()), 1)


def luminance(color):
    red, green, blue = to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue

"""What every figure must do, whatever the run."""

import itertools
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from gatdiag.figures import FIGURES, table
from gatdiag.figures.style import COLORS
from tests.figures.canvas import drawn, luminance, texts, words
from tests.page.builder import contrast

OF_A_RUN = [figure for figure in FIGURES if not figure.is_comparison]
OVER_STEPS = [figure for figure in OF_A_RUN if figure.group != "changes" and figure.name != "by_layer"]
OF_SEVERAL = [figure for figure in FIGURES if figure.is_comparison]
ODD = [
    ("ordinary", "double"),
    ("stuck", "single"),
    ("one step", "double"),
    ("one layer", "single"),
    ("512 layers", "single"),
    ("broken", "double"),
    ("paused", "single"),
    ("nothing", "single"),
    ("hostile", "single"),
]
SEVERAL = [("ordinary", "stuck"), ("ordinary", "nothing"), ("broken", "hostile", "one step")]
DRAWINGS = [
    *((figure, name, width) for figure in OF_A_RUN for name, width in ODD),
    *((figure, names, "single") for figure in OF_SEVERAL for names in SEVERAL),
    *((figure, "ordinary", "double") for figure in OF_SEVERAL),
]
each = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
each_of_a_run = pytest.mark.parametrize("figure", OF_A_RUN, ids=lambda figure: figure.name)


@each
def test_its_facts_are_complete_and_its_data_tidy(figure, runs, grown, shown):
    module = import_module(figure.data.__module__)
    assert getattr(module, figure.name.upper()) is figure
    assert figure.title
    assert figure.caption.endswith(".")
    assert figure.interpretation.endswith(".")
    assert all(column.split(".")[0] in ("steps", "layers", "parameters", "neurons") for column in figure.needs)
    assert not {*"\\$"} & {*figure.equation}
    values, _ = shown(figure)
    assert isinstance(values, pd.DataFrame)
    assert len(values)
    assert values.columns.is_unique
    assert isinstance(values.index, pd.RangeIndex)
    assert values.equals(table(figure, runs["ordinary"] if not figure.is_comparison else grown))


@pytest.mark.parametrize(("figure", "name", "width"), DRAWINGS, ids=lambda value: getattr(value, "name", str(value)))
def test_it_draws_anything_cuts_no_text_off_and_differs_in_gray(figure, name, width, shown):
    canvas = shown(figure, name, width)[1]
    canvas.draw_without_rendering()
    legends = [axes.get_legend() for axes in canvas.axes if axes.get_legend()] + canvas.legends
    for text in texts(canvas):
        box, page = text.get_window_extent(), canvas.bbox
        assert min(box.x0, page.x1 - box.x1, box.y0, page.y1 - box.y1) >= -1, text
    assert_texts_are_apart_and_over_no_edge(canvas)
    if name in ("ordinary", "stuck"):
        assert_no_tick_labels_touch(canvas)
    if name == "ordinary":
        for legend in legends:
            for one, other in itertools.combinations(legend.legend_handles, 2):
                assert gray(one) != gray(other)


def assert_texts_are_apart_and_over_no_edge(canvas):
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(canvas) if text.get_rotation() in (0, 90)]
    for (one, box), (other, beside) in itertools.combinations(boxes, 2):
        assert overlap(box, beside) <= 1, (one, other)
    for axes in (axes for axes in canvas.axes if axes.axison and axes.get_visible()):
        frame = axes.get_window_extent()
        for text, box in boxes:
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            assert inside or overlap(box, frame) <= 1, (text, axes.get_title("left"))


def overlap(one, other):
    """The smaller side of what two boxes have in common, in pixels; 0 if that is nothing."""
    width, height = min(one.x1, other.x1) - max(one.x0, other.x0), min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(min(width, height), 0)


@each
def test_every_text_can_be_read_on_its_ground(figure, shown):
    """White, or the range of healthy trainings, which is the darkest ground of a text outside of a map."""
    for text in texts(shown(figure)[1]):
        if text.axes is None or not text.axes.collections:
            ground = 0.85 * np.array(to_rgb("white")) + 0.15 * np.array(to_rgb(COLORS[2]))
            assert contrast(text.get_color(), ground) >= 4.5, text


@pytest.mark.parametrize("figure", OVER_STEPS, ids=lambda figure: figure.name)
def test_no_labels_of_long_runs_touch(figure, runs):
    values = table(figure, runs["stuck"])
    longer = {column: values[column] * 1000 for column in ("step", "until") if column in values.columns}
    assert longer
    canvas = drawn(figure, values.assign(**longer), "single")
    canvas.draw_without_rendering()
    assert_no_tick_labels_touch(canvas)


def assert_no_tick_labels_touch(canvas):
    for axes in (axes for axes in canvas.axes if axes.axison and axes.get_visible()):
        for axis, side in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
            boxes = [label.get_window_extent() for label in labels if label.get_text()]
            spans = sorted((box.min[side], box.max[side]) for box in boxes)
            gaps = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
            texts = axes.get_ylabel(), [label.get_text() for label in labels]
            assert min(gaps, default=9) > (2 if side == 0 else 0), texts


@each_of_a_run
def test_what_is_missing_leaves_a_note_and_no_empty_axis(figure, runs, shown):
    canvas = shown(figure, "nothing", "single")[1]
    assert "not recorded" in words(canvas)
    assert not [axes for axes in canvas.axes if axes.axison and not axes.has_data()]
    assert not len(table(figure, runs["nothing"]))
    assert len(table(figure, runs["ordinary"]))


def gray(handle):
    """What is left of a legend entry in a print in gray: style, marker, hatch and luminance."""
    if hasattr(handle, "get_hatch"):
        return handle.get_hatch(), round(luminance(handle.get_facecolor()), 1)
    return handle.get_linestyle(), handle.get_marker(), round(luminance(handle.get_color()), 1)


@each_of_a_run
def test_a_run_without_attention_is_told_nothing_of_it(figure, shown):
    values = shown(figure)[0]
    is_of_attention = values.astype(str).apply(lambda column: column.str.contains("attention")).any(axis=1)
    described = figure.described(values[~is_of_attention].reset_index(drop=True))
    if figure.group != "balance" and figure.name != "chosen_layers":  # laws and comparisons with it
        assert "attention" not in described.caption
    assert described.caption.endswith(".")
    assert described.interpretation.endswith(".")

"""The three figures of weight change; the numbers themselves are tested with the summary."""

import numpy as np
import pytest

from gatdiag.figures import table
from gatdiag.figures.weight_change import CHANGE_BOXES, CHANGED_FRACTION, UNCHANGED_FRACTION
from gatdiag.summary import weight_change
from tests.figures.canvas import drawn, words

BOTH = [CHANGED_FRACTION, UNCHANGED_FRACTION]


@pytest.mark.parametrize("figure", BOTH, ids=lambda figure: figure.name)
def test_bars_have_the_height_of_the_data(figure, runs):
    values = table(figure, runs["ordinary"])
    canvas = drawn(figure, values)
    for axes, column in zip(canvas.axes, values.columns[3:], strict=True):
        heights = [bar.get_height() for bars in axes.containers for bar in bars]
        assert heights == values[column].tolist()


def test_roles_differ_by_hatch(runs):
    canvas = drawn(CHANGED_FRACTION, table(CHANGED_FRACTION, runs["ordinary"]))
    assert {bar.get_hatch() for bar in canvas.axes[0].patches} == {"", "////"}


@pytest.mark.parametrize("figure", BOTH, ids=lambda figure: figure.name)
def test_many_layers_are_outlines(figure, runs):
    values = table(figure, runs["512 layers"])
    canvas = drawn(figure, values)
    assert not canvas.axes[0].patches
    assert len(canvas.axes[0].get_lines()) == 2
    assert len(canvas.axes[0].get_xticks()) == 12


def test_zero_everywhere_and_undefined_everywhere_are_said(runs):
    figure = UNCHANGED_FRACTION
    assert "0 in every layer" in words(drawn(figure, table(figure, runs["ordinary"])))
    assert "undefined in every layer" in words(drawn(figure, table(figure, runs["broken"])))


def test_boxes_are_the_quantiles(runs):
    figure = CHANGE_BOXES
    values = table(figure, runs["ordinary"])
    expected = weight_change(runs["ordinary"])
    assert values["q50"].tolist() == expected["q50"].tolist()
    canvas = drawn(figure, values)
    for axes, role in zip(canvas.axes, ("feature weight", "attention vector"), strict=True):
        part = values[values["role"] == role]
        boxes = [patch.get_path().vertices[:, 1] for patch in axes.patches]
        assert [box.min() for box in boxes] == pytest.approx(part["q25"].tolist())
        assert [box.max() for box in boxes] == pytest.approx(part["q75"].tolist())


def test_many_boxes_are_bands(runs):
    canvas = drawn(CHANGE_BOXES, table(CHANGE_BOXES, runs["512 layers"]))
    assert [len(axes.collections) for axes in canvas.axes] == [2, 2]
    assert [text.get_text() for text in canvas.legends[0].get_texts()][-1] == "median"
    assert np.isfinite(canvas.axes[0].get_ylim()).all()


def test_the_figure_says_which_weights_are_compared(runs):
    step = runs["ordinary"].meta["best"]["step"]
    for figure in (*BOTH, CHANGE_BOXES):
        title = drawn(figure, table(figure, runs["ordinary"])).axes[0].get_title("left")
        assert title == f"initial → best model, after step {step}"


def test_a_median_of_exactly_zero_is_marked(runs):
    values = table(CHANGE_BOXES, runs["ordinary"])
    assert "exactly 0" not in words(drawn(CHANGE_BOXES, values))
    values.loc[1, ["q0", "q5", "q25", "q50"]] = 0.0
    canvas = drawn(CHANGE_BOXES, values)
    marks = [line for axes in canvas.axes for line in axes.get_lines() if line.get_label() == "_zero"]
    assert [mark.get_xdata().tolist() for mark in marks] == [[1.0]]
    assert "exactly 0" in words(canvas)

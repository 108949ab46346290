"""The three figures of weight change; the numbers themselves are tested with the summary."""

import numpy as np
import pytest

from gatdiag.figures.weight_change import CHANGE_BOXES, CHANGED_FRACTION, UNCHANGED_FRACTION
from gatdiag.summary import weight_change
from tests.figures.canvas import drawn, words

BOTH = pytest.mark.parametrize("figure", [CHANGED_FRACTION, UNCHANGED_FRACTION], ids=lambda figure: figure.name)


@BOTH
def test_bars_have_the_height_of_the_data_and_roles_differ_by_hatch(figure, shown):
    values, canvas = shown(figure)
    for axes, column in zip(canvas.axes, values.columns[3:], strict=True):
        assert [bar.get_height() for bars in axes.containers for bar in bars] == values[column].tolist()
        assert {bars[0].get_hatch() for bars in axes.containers} == {"", "////"}


@BOTH
def test_many_layers_are_outlines(figure, shown):
    axes = shown(figure, "512 layers", "single")[1].axes[0]
    assert not axes.containers
    assert len(axes.get_lines()) == 2
    assert len(axes.get_xticks()) == 12


def test_zero_everywhere_and_undefined_everywhere_are_said(shown):
    assert "0 in every layer" in words(shown(UNCHANGED_FRACTION)[1])
    assert "undefined in every layer" in words(shown(UNCHANGED_FRACTION, "broken")[1])


def test_boxes_are_the_quantiles(runs, shown):
    values, canvas = shown(CHANGE_BOXES)
    assert values["q50"].tolist() == weight_change(runs["ordinary"])["q50"].tolist()
    for axes, role in zip(canvas.axes, ("feature weight", "attention vector"), strict=True):
        part = values[values["role"] == role]
        boxes = [patch.get_path().vertices[:, 1] for patch in axes.patches]
        assert [box.min() for box in boxes] == pytest.approx(part["q25"].tolist())
        assert [box.max() for box in boxes] == pytest.approx(part["q75"].tolist())


def test_many_boxes_are_bands(shown):
    canvas = shown(CHANGE_BOXES, "512 layers", "single")[1]
    assert [len(axes.collections) for axes in canvas.axes] == [2, 2]
    assert [text.get_text() for text in canvas.legends[0].get_texts()][-1] == "median"
    assert np.isfinite(canvas.axes[0].get_ylim()).all()


def test_the_figure_says_which_weights_are_compared(runs, shown):
    step = runs["ordinary"].meta["best"]["step"]
    for figure in (CHANGED_FRACTION, UNCHANGED_FRACTION, CHANGE_BOXES):
        assert shown(figure)[1].axes[0].get_title("left").endswith(f"initial → best model, after step {step}")


def test_a_median_of_exactly_zero_is_marked(shown):
    values, canvas = shown(CHANGE_BOXES)
    assert "exactly 0" not in words(canvas)
    values = values.copy()
    values.loc[1, ["q0", "q5", "q25", "q50"]] = 0.0
    canvas = drawn(CHANGE_BOXES, values)
    marks = [line for axes in canvas.axes for line in axes.get_lines() if line.get_label() == "_zero"]
    assert [mark.get_xdata().tolist() for mark in marks] == [[1.0]]
    assert "exactly 0" in words(canvas)

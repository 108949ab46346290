"""The three figures of weight change; the numbers themselves are tested with the summary."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from gatdiag.figures.weight_change import CHANGE_BOXES, CHANGED_FRACTION, UNCHANGED_FRACTION
from gatdiag.quantities import HEALTHY_RANGE
from gatdiag.summary import weight_change
from tests.figures.canvas import drawn, luminance, words

BOTH = pytest.mark.parametrize("figure", [CHANGED_FRACTION, UNCHANGED_FRACTION], ids=lambda figure: figure.name)


def heights(axes):
    return [[bar.get_height() for bar in bars] for bars in axes.containers]


def test_bars_of_larger_changes_are_in_front_of_those_of_smaller_ones(shown):
    values, canvas = shown(CHANGED_FRACTION)
    for axes, (role, part) in zip(canvas.axes, values.groupby("role", sort=False), strict=True):
        assert axes.get_ylabel() == f"share of {role}s"
        at_all, some, much = (np.array(height) for height in heights(axes))
        np.testing.assert_allclose(at_all, 1 - part["unchanged_fraction"])
        np.testing.assert_allclose(some, part["changed_fraction_005"])
        np.testing.assert_allclose(much, part["changed_fraction_050"])
        shades = [luminance(bars[0].get_facecolor()) for bars in axes.containers]
        assert np.diff(shades).max() < -0.1
        assert {bars[0].get_x() for bars in axes.containers} == {axes.containers[0][0].get_x()}


def test_the_legend_has_the_colors_of_the_bars(shown):
    canvas = shown(CHANGED_FRACTION)[1]
    (legend,) = canvas.legends
    swatches = {to_hex(patch.get_facecolor()) for patch in legend.findobj(Rectangle)}
    bars = {to_hex(bar.get_facecolor()) for axes in canvas.axes for bars in axes.containers for bar in bars}
    assert len(bars) == 6  # blue and orange
    assert bars <= swatches


def test_unchanged_weights_of_both_roles_are_beside_each_other(shown):
    values, canvas = shown(UNCHANGED_FRACTION)
    (axes,) = canvas.axes
    expected = [part["unchanged_fraction"].tolist() for _, part in values.groupby("role", sort=False)]
    assert heights(axes) == expected
    assert [bars[0].get_hatch() for bars in axes.containers] == ["", "////"]
    first, second = (bars[0] for bars in axes.containers)
    assert first.get_x() + first.get_width() == pytest.approx(second.get_x())
    shown_below = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert shown_below == [HEALTHY_RANGE, *(f"{role}s" for role in values["role"].unique())]


def test_a_layer_without_weights_of_a_role_has_its_place(shown):
    values = shown(UNCHANGED_FRACTION)[0]
    (axes,) = drawn(UNCHANGED_FRACTION, values[values["layer"] != "convs.2"].reset_index(drop=True)).axes
    assert [round(bar.get_x() + bar.get_width()) for bar in axes.containers[0]] == [0, 1, 3, 4, 5]


@BOTH
def test_many_layers_are_outlines(figure, shown):
    axes = shown(figure, "512 layers", "single")[1].axes[0]
    assert not axes.containers
    assert len(axes.get_lines()) == (3 if figure is CHANGED_FRACTION else 2)
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

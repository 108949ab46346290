import numpy as np
import pytest

from gatdiag.figures import smoothing_by_layer, smoothing_over_training, table
from gatdiag.figures.look import SMOOTHING
from tests.figures.canvas import drawn, lines, words


def test_by_layer_at_five_steps(runs):
    run = runs["ordinary"]
    values = table(smoothing_by_layer.FIGURE, run)
    assert sorted(set(values["step"])) == [0, 50, 100, 149, 199]
    for column in SMOOTHING:
        for step in (0, 100):
            shown = values[(values["quantity"] == column) & (values["step"] == step)]
            assert shown["value"].tolist() == run.layers[run.layers["step"] == step][column].tolist()


def test_steps_may_be_chosen_and_the_nearest_are_taken(runs):
    values = table(smoothing_by_layer.FIGURE, runs["ordinary"], steps=[3, 10_000])
    assert sorted(set(values["step"])) == [3, 199]


def test_by_layer_has_a_line_a_step_over_all_layers(runs):
    canvas = drawn(smoothing_by_layer.FIGURE, table(smoothing_by_layer.FIGURE, runs["512 layers"]))
    panels = canvas.axes[:6]
    assert [len(lines(axes)) for axes in panels] == [4] * 6
    assert len(lines(panels[0])[0].get_xdata()) == 512
    assert [axes.get_ylabel() for axes in panels] == list(SMOOTHING.values())


def test_over_training_at_five_layers(runs):
    run = runs["stuck"]
    values = table(smoothing_over_training.FIGURE, run)
    assert set(values["layer"]) == {"convs.0", "convs.2", "convs.4", "convs.7", "convs.9"}
    for column in SMOOTHING:
        shown = values[(values["quantity"] == column) & (values["layer"] == "convs.4")]
        assert shown["value"].tolist() == run.layers[run.layers["layer"] == "convs.4"][column].tolist()
    canvas = drawn(smoothing_over_training.FIGURE, values)
    assert [len(lines(axes)) for axes in canvas.axes[:6]] == [5] * 6


@pytest.mark.parametrize("figure", [smoothing_by_layer.FIGURE, smoothing_over_training.FIGURE], ids=["layer", "step"])
def test_panels_that_were_not_recorded_are_named(figure, runs):
    canvas = drawn(figure, table(figure, runs["hostile"]))
    text = words(canvas).replace("\n", " ")
    assert "not recorded: output_norm, relative_gradient_mu, output_gradient_norm; record it with" in text
    assert sum(axes.axison for axes in canvas.axes[:6]) == 3


@pytest.mark.parametrize("figure", [smoothing_by_layer.FIGURE, smoothing_over_training.FIGURE], ids=["layer", "step"])
def test_relative_mu_is_seen_against_its_whole_range(figure, runs):
    low, high = drawn(figure, table(figure, runs["ordinary"])).axes[4].get_ylim()
    assert low <= 0
    assert high >= 1
    assert np.isfinite([low, high]).all()

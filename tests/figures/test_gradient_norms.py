import pytest

from gatdiag.figures import table
from gatdiag.figures.gradients import GRADIENT_NORMS as FIGURE
from tests.figures.canvas import drawn, lines


def test_the_recorded_values_of_each_layer_and_role(runs):
    run = runs["stuck"]
    values = table(FIGURE, run)
    for role in ("feature weight", "attention vector"):
        for layer in run.layer_names:
            rows = run.parameters[(run.parameters["role"] == role) & (run.parameters["layer"] == layer)]
            shown = values[(values["quantity"] == role) & (values["layer"] == layer)]
            assert shown["value"].tolist() == rows["relative_gradient_norm"].tolist()
    assert values[values["quantity"] == "loss"]["value"].tolist() == run.steps["loss"].tolist()


def test_a_long_run_is_thinned_to_medians_that_keep_spikes_in_their_band(runs):
    run = runs["ordinary"]
    values = table(FIGURE, run)
    rows = run.parameters[(run.parameters["role"] == "feature weight") & (run.parameters["layer"] == "convs.0")]
    shown = values[(values["quantity"] == "feature weight") & (values["layer"] == "convs.0")]
    assert len(shown) == 150
    assert shown["high"].max() == rows["relative_gradient_norm"].max()
    assert shown["low"].min() == rows["relative_gradient_norm"].min()


@pytest.mark.parametrize(("name", "layers"), [("ordinary", 6), ("512 layers", 10), ("one layer", 1)])
def test_a_line_a_layer_but_never_more_than_ten(runs, name, layers):
    canvas = drawn(FIGURE, table(FIGURE, runs[name]))
    assert [len(lines(axes)) for axes in canvas.axes[:3]] == [1, layers, layers]
    assert canvas.axes[1].get_yscale() == "log"


def test_lines_run_from_dark_to_light_with_depth(runs):
    canvas = drawn(FIGURE, table(FIGURE, runs["ordinary"]))
    brightness = [sum(line.get_color()[:3]) for line in lines(canvas.axes[1])]
    assert brightness == sorted(brightness)
    bar = next(axes for axes in canvas.axes if axes.get_label() == "<colorbar>")
    assert [text.get_text() for text in bar.get_yticklabels()] == list("012345")

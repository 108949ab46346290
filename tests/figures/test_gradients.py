import pytest

from gatdiag.figures import table
from gatdiag.figures.gradients import CHOSEN_LAYERS, GRADIENT_NORMS
from tests.figures.canvas import drawn, lines


def test_the_recorded_values_of_each_layer_and_role(runs):
    run = runs["stuck"]
    values = table(GRADIENT_NORMS, run)
    for role in ("feature weight", "attention vector"):
        for layer in run.layer_names:
            rows = run.parameters[(run.parameters["role"] == role) & (run.parameters["layer"] == layer)]
            shown = values[(values["quantity"] == role) & (values["layer"] == layer)]
            assert shown["value"].tolist() == rows["relative_gradient_norm"].tolist()
    assert values[values["quantity"] == "loss"]["value"].tolist() == run.steps["loss"].tolist()


def test_a_long_run_is_thinned_to_medians_that_keep_spikes_in_their_band(runs):
    run = runs["ordinary"]
    values = table(GRADIENT_NORMS, run)
    rows = run.parameters[(run.parameters["role"] == "feature weight") & (run.parameters["layer"] == "convs.0")]
    shown = values[(values["quantity"] == "feature weight") & (values["layer"] == "convs.0")]
    assert len(shown) == 150
    assert shown["high"].max() == rows["relative_gradient_norm"].max()
    assert shown["low"].min() == rows["relative_gradient_norm"].min()


@pytest.mark.parametrize(("name", "layers"), [("ordinary", 6), ("512 layers", 10), ("one layer", 1)])
def test_a_line_a_layer_but_never_more_than_ten(runs, name, layers):
    canvas = drawn(GRADIENT_NORMS, table(GRADIENT_NORMS, runs[name]))
    assert [len(lines(axes)) for axes in canvas.axes[:3]] == [1, layers, layers]
    assert canvas.axes[1].get_yscale() == "log"


def test_lines_run_from_dark_to_light_with_depth(runs):
    canvas = drawn(GRADIENT_NORMS, table(GRADIENT_NORMS, runs["ordinary"]))
    brightness = [sum(line.get_color()[:3]) for line in lines(canvas.axes[1])]
    assert brightness == sorted(brightness)
    bar = next(axes for axes in canvas.axes if axes.get_label() == "<colorbar>")
    assert [text.get_text() for text in bar.get_yticklabels()] == list("012345")


def test_first_middle_and_last(runs):
    values = table(CHOSEN_LAYERS, runs["ordinary"])
    assert list(dict.fromkeys(values["layer"])) == ["convs.0", "convs.2", "convs.5"]
    assert table(CHOSEN_LAYERS, runs["one layer"])["layer"].unique().tolist() == ["convs.0"]


def test_the_recorded_values(runs):
    run = runs["stuck"]
    values = table(CHOSEN_LAYERS, run, layers=["convs.3"])
    for role in ("feature weight", "attention vector"):
        rows = run.parameters[(run.parameters["role"] == role) & (run.parameters["layer"] == "convs.3")]
        assert values[values["role"] == role]["value"].tolist() == rows["relative_gradient_norm"].tolist()


def test_features_are_solid_on_the_left_and_attention_dashed_on_the_right(runs):
    canvas = drawn(CHOSEN_LAYERS, table(CHOSEN_LAYERS, runs["ordinary"]))
    left, right = canvas.axes[:3], canvas.axes[3:]
    left, right = [a for a in canvas.axes if a.get_title("left")], [a for a in canvas.axes if not a.get_title("left")]
    assert [line.get_linestyle() for axes in left for line in lines(axes)] == ["-"] * 3
    assert [line.get_linestyle() for axes in right for line in lines(axes)] == ["--"] * 3
    assert [axes.get_title("left") for axes in left] == ["layer convs.0", "layer convs.2", "layer convs.5"]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["feature weights", "attention vectors"]

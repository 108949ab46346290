import numpy as np
import pytest

from gatdiag.figures import table
from gatdiag.figures.gradients import CHOSEN_LAYERS, GRADIENT_EVOLUTION, GRADIENT_NORMS
from gatdiag.run import load
from tests.figures.canvas import drawn, lines, luminance, words
from tests.run.synthetic import synthetic_run

ROLES = ("feature weight", "attention vector")


def recorded(run, role, layer):
    rows = run.parameters[(run.parameters["role"] == role) & (run.parameters["layer"] == layer)]
    return rows["relative_gradient_norm"]


def test_the_recorded_values_of_each_layer_and_role(runs, shown):
    run, values = runs["stuck"], shown(GRADIENT_NORMS, "stuck", "single")[0]
    for role in ROLES:
        for layer in run.layer_names:
            part = values[(values["quantity"] == role) & (values["layer"] == layer)]
            assert part["value"].tolist() == recorded(run, role, layer).tolist()
    assert values[values["quantity"] == "loss"]["value"].tolist() == run.steps["loss"].tolist()
    chosen = table(CHOSEN_LAYERS, run, layers=["convs.3"])
    for role in ROLES:
        assert chosen[chosen["role"] == role]["value"].tolist() == recorded(run, role, "convs.3").tolist()


def test_a_long_run_is_thinned_to_medians_that_keep_spikes_in_their_band(runs, shown):
    values = shown(GRADIENT_NORMS)[0]
    rows = recorded(runs["ordinary"], "feature weight", "convs.0")
    part = values[(values["quantity"] == "feature weight") & (values["layer"] == "convs.0")]
    assert len(part) == 80
    assert (part["low"].min(), part["high"].max()) == (rows.min(), rows.max())


@pytest.mark.parametrize(
    ("name", "width", "layers"), [("ordinary", "double", 6), ("512 layers", "single", 10), ("one layer", "single", 1)]
)
def test_a_line_a_layer_but_never_more_than_ten(shown, name, width, layers):
    canvas = shown(GRADIENT_NORMS, name, width)[1]
    assert [len(lines(axes)) for axes in canvas.axes[:3]] == [1, layers, layers]
    assert canvas.axes[1].get_yscale() == "log"


def test_lines_run_from_dark_to_light_with_depth(shown):
    canvas = shown(GRADIENT_NORMS)[1]
    shades = [luminance(line.get_color()) for line in lines(canvas.axes[1])]
    assert shades == sorted(shades)
    bar = next(axes for axes in canvas.axes if axes.get_label() == "<colorbar>")
    assert [text.get_text() for text in bar.get_yticklabels()] == list("012345")


def test_attention_and_features_of_first_middle_and_last_layer_are_on_one_scale(shown):
    values, canvas = shown(CHOSEN_LAYERS, "stuck", "single")
    assert list(dict.fromkeys(values["layer"])) == ["convs.0", "convs.4", "convs.9"]
    assert shown(CHOSEN_LAYERS, "one layer", "single")[0]["layer"].unique().tolist() == ["convs.0"]
    assert [[line.get_linestyle() for line in lines(axes)] for axes in canvas.axes] == [["-", "--"]] * 3
    assert len({axes.get_ylim() for axes in canvas.axes}) == 1
    low, high = canvas.axes[0].get_ylim()
    assert low < values["value"].min() < values["value"].max() < high
    titles = [axes.get_title("left") for axes in canvas.axes]
    assert titles == ["(a) layer convs.0", "(b) layer convs.4", "(c) layer convs.9"]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["feature weights", "attention vectors"]


def test_one_scale_of_colors_for_all_runs(grown):
    values = table(GRADIENT_EVOLUTION, grown[2:6:2])
    rows = grown[2].parameters
    expected = rows[rows["role"] == "feature weight"]["gradient_norm"]
    assert values[values["run"] == 0]["value"].tolist() == expected.tolist()
    canvas = drawn(GRADIENT_EVOLUTION, values)
    assert [axes.get_title("left") for axes in canvas.axes[:2]] == [f"(a) {grown[2].name}", f"(b) {grown[4].name}"]
    assert len([axes for axes in canvas.axes if axes.get_label() == "<colorbar>"]) == 1


def test_runs_many_orders_apart_have_colors_of_their_own(grown):
    values = table(GRADIENT_EVOLUTION, grown[:2])
    values.loc[values["run"] == 1, "value"] *= 1e12
    canvas = drawn(GRADIENT_EVOLUTION, values)
    bars = [axes for axes in canvas.axes if axes.get_label() == "<colorbar>"]
    (low, high), (low_of_other, _) = (axes.get_ylim() for axes in bars)
    assert low < high < low_of_other


def test_of_many_runs_eight_are_drawn_from_the_lowest_to_the_highest_last_loss(tmp_path):
    runs = [synthetic_run(tmp_path / str(place), steps=5, layers=2, neurons=2, seed=place) for place in range(10)]
    runs = [load(run) for run in runs]
    shown = table(GRADIENT_EVOLUTION, runs)["run"].unique()
    last = [run.steps["loss"].iloc[-1] for run in runs]
    assert len(shown) == 8
    assert {int(np.argmin(last)), int(np.argmax(last))} <= {*shown}


def test_a_run_without_gradients_beside_one_with(shown):
    canvas = shown(GRADIENT_EVOLUTION, ("ordinary", "nothing"), "single")[1]
    assert "not recorded: gradient_norm" in words(canvas).replace("\n", " ")


def test_runs_whose_records_end_at_different_steps_are_drawn_over_the_same_steps(grown):
    values = table(GRADIENT_EVOLUTION, grown[:2])
    whole, half = drawn(GRADIENT_EVOLUTION, values[(values["run"] == 0) | (values["step"] < 10)]).axes[:2]
    assert whole.get_xlim() == half.get_xlim()

import numpy as np
import pytest

from gatdiag.figures import table
from gatdiag.figures.smoothing import COLUMNS, SMOOTHING_BY_LAYER, SMOOTHING_OVER_TRAINING
from gatdiag.quantities import quantity
from tests.figures.canvas import drawn, lines, words
from tests.page.builder import build

BOTH = pytest.mark.parametrize("figure", [SMOOTHING_BY_LAYER, SMOOTHING_OVER_TRAINING], ids=["layer", "step"])


def test_by_layer_at_five_steps(runs, shown):
    run, values = runs["ordinary"], shown(SMOOTHING_BY_LAYER)[0]
    assert sorted(set(values["step"])) == [0, 50, 100, 149, 199]
    for column in COLUMNS:
        for step in (0, 100):
            part = values[(values["quantity"] == column) & (values["step"] == step)]
            assert part["value"].tolist() == run.layers[run.layers["step"] == step][column].tolist()


def test_steps_may_be_chosen_and_the_nearest_are_taken(runs):
    values = table(SMOOTHING_BY_LAYER, runs["ordinary"], steps=[3, 10_000])
    assert sorted(set(values["step"])) == [3, 199]


def test_by_layer_has_a_line_a_step_over_all_layers(shown):
    panels = shown(SMOOTHING_BY_LAYER, "512 layers", "single")[1].axes[:6]
    assert [len(lines(axes)) for axes in panels] == [4] * 6
    assert len(lines(panels[0])[0].get_xdata()) == 512
    wide = shown(SMOOTHING_BY_LAYER)[1].axes[:6]
    assert [axes.get_ylabel() for axes in wide] == [quantity("layers", column).symbol for column in COLUMNS]


def test_over_training_at_five_layers(runs, shown):
    run, (values, canvas) = runs["stuck"], shown(SMOOTHING_OVER_TRAINING, "stuck", "single")
    assert set(values["layer"]) == {"convs.0", "convs.2", "convs.4", "convs.7", "convs.9"}
    for column in COLUMNS:
        part = values[(values["quantity"] == column) & (values["layer"] == "convs.4")]
        assert part["value"].tolist() == run.layers[run.layers["layer"] == "convs.4"][column].tolist()
    assert [len(lines(axes)) for axes in canvas.axes[:6]] == [5] * 6


@BOTH
def test_panels_that_were_not_recorded_are_named(figure, shown):
    canvas = shown(figure, "hostile", "single")[1]
    text = words(canvas).replace("\n", " ")
    assert "not recorded: output_norm, relative_gradient_mu, output_gradient_norm; record it with" in text
    assert sum(axes.axison for axes in canvas.axes[:6]) == 3


@BOTH
def test_relative_mu_is_seen_against_its_whole_range(figure, shown):
    low, high = shown(figure)[1].axes[4].get_ylim()
    assert low <= 0
    assert high >= 1
    assert np.isfinite([low, high]).all()


@pytest.fixture(scope="module")
def zero_gradients(tmp_path_factory):
    """Gradients that are exactly 0 from step 200 on in layer 0, and NaN at one step in layer 1."""
    norm = np.ones((400, 2))
    norm[200:, 0] = 0.0
    norm[150, 1] = np.nan
    with np.errstate(invalid="ignore"):
        relative = 0.5 * norm / norm
    folder = tmp_path_factory.mktemp("zero") / "run"
    return build(folder, layers={"output_gradient_norm": norm, "relative_gradient_mu": relative})


def test_a_gradient_that_is_zero_is_not_called_broken(zero_gradients):
    values = table(SMOOTHING_BY_LAYER, zero_gradients, steps=[0, 150, 300])
    undefined = values[values["value"].isna()].set_index(["quantity", "step", "layer"])["undefined"].to_dict()
    assert undefined == {
        ("relative_gradient_mu", 150, "convs.1"): "",
        ("output_gradient_norm", 150, "convs.1"): "",
        ("relative_gradient_mu", 300, "convs.0"): "gradient is zero",
    }
    marks = {line.get_label() for axes in drawn(SMOOTHING_BY_LAYER, values).axes for line in axes.get_lines()}
    assert {"_broken", "_zero", "_gradient is zero"} <= marks


def test_thinning_keeps_zero_and_broken_apart(zero_gradients):
    values = table(SMOOTHING_OVER_TRAINING, zero_gradients)
    relative = values[(values["quantity"] == "relative_gradient_mu") & values["value"].isna()]
    first, second = (relative[relative["layer"] == f"convs.{layer}"] for layer in (0, 1))
    assert set(first["undefined"]) == {"gradient is zero"}
    assert first["step"].min() <= 202
    assert second["undefined"].tolist() == [""]
    legend = words(drawn(SMOOTHING_OVER_TRAINING, values))
    assert "gradient is zero" in legend
    assert "NaN or infinite" in legend

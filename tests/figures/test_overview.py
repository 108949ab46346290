import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from gatdiag.figures import table
from gatdiag.figures.overview import OVERVIEW as FIGURE
from tests.figures.canvas import drawn, words


def test_short_runs_are_shown_whole(runs):
    run = runs["ordinary"]
    values = table(FIGURE, run)
    assert values[values["quantity"] == "loss"]["value"].tolist() == run.steps["loss"].tolist()
    features = run.parameters[run.parameters["role"] == "feature weight"]
    gradients = values[values["quantity"] == "relative gradient norm"]
    assert gradients["value"].tolist() == features["relative_gradient_norm"].tolist()
    assert values[values["quantity"] == "difference between nodes"]["value"].tolist() == run.layers["mu"].tolist()
    imbalance = values[values["quantity"] == "imbalance"]
    one = run.neurons[(run.neurons["step"] == 7) & (run.neurons["layer"] == "convs.2")]["c"]
    found = imbalance[(imbalance["step"] == 7) & (imbalance["layer"] == "convs.2")]["value"].item()
    assert found == max(one, key=abs)


def test_a_loss_above_three_maps(runs):
    canvas = drawn(FIGURE, table(FIGURE, runs["ordinary"]))
    panels = [axes for axes in canvas.axes if axes.get_label() != "<colorbar>"]
    assert [len(axes.get_lines()) for axes in panels] == [1, 0, 0, 0]
    maps = [axes.findobj(QuadMesh)[0].get_array() for axes in panels[1:]]
    assert [cells.shape for cells in maps] == [(6, 200)] * 3
    assert maps[2].mask[5].all()  # the last layer has no law
    assert "no value" in words(canvas)


def test_first_layer_on_top(runs):
    canvas = drawn(FIGURE, table(FIGURE, runs["ordinary"]))
    low, high = canvas.axes[1].get_ylim()
    assert low > high
    labels = [text.get_text() for text in canvas.axes[1].get_yticklabels()]
    assert labels[0] == "0"
    assert canvas.axes[1].get_ylabel() == "layer (convs.*)"


def test_what_is_broken_is_marked_and_said(runs):
    canvas = drawn(FIGURE, table(FIGURE, runs["broken"]))
    text = words(canvas)
    assert "NaN or infinite" in text
    assert "exactly 0" in text
    hatched = [patch for patch in canvas.axes[1].patches if patch.get_hatch()]
    boxes = sorted((p.get_x(), p.get_width(), p.get_y(), p.get_height()) for p in hatched)
    assert boxes == [(11.5, 1.0, 1.5, 1.0), (14.5, 25.0, -0.5, 6.0)]


@pytest.mark.parametrize("name", ["one step", "512 layers"])
def test_extreme_shapes(runs, name):
    run = runs[name]
    canvas = drawn(FIGURE, table(FIGURE, run))
    cells = canvas.axes[1].findobj(QuadMesh)[0].get_array()
    assert cells.shape == (len(run.layer_names), len(run.steps))
    assert len(canvas.axes[1].get_yticks()) <= 8
    assert np.isfinite(canvas.axes[1].get_xlim()).all()


def maps_of(run, **options):
    """The limits of the colors of each map, as drawn."""
    panels = [axes for axes in drawn(FIGURE, table(FIGURE, run, **options)).axes if axes.get_label() != "<colorbar>"]
    return [(axes.findobj(QuadMesh)[0].norm.vmin, axes.findobj(QuadMesh)[0].norm.vmax) for axes in panels[1:]]


def test_maps_of_several_runs_have_the_same_colors(runs):
    both = [runs["ordinary"], runs["stuck"]]
    options = FIGURE.shared(both)
    first, second = (maps_of(run, **options) for run in both)
    assert first == second
    alone = [maps_of(run) for run in both]
    assert alone[0] != alone[1]
    low, high = first[0]
    gradients = np.concatenate(
        [run.parameters.query("role == 'feature weight'")["relative_gradient_norm"] for run in both]
    )
    assert (low, high) == pytest.approx(tuple(np.percentile(gradients, [1, 99])))


def test_imbalance_that_is_small_beside_the_weights_is_pale(runs):
    run = runs["ordinary"]
    low, high = maps_of(run)[2]
    norms = run.parameters.query("role == 'feature weight' and step == 0")["norm"]
    assert high == pytest.approx(np.median(norms**2 / 4)) == -low
    assert high > run.neurons["c"].abs().max()

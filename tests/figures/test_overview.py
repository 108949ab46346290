import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.patches import PathPatch

from gatdiag.figures import table
from gatdiag.figures.overview import OVERVIEW as FIGURE
from gatdiag.quantities import HEALTHY, HEALTHY_RANGE
from tests.figures.canvas import boxes, drawn, step_edges, words
from tests.figures.odd_runs import PAUSED
from tests.page.builder import build


def test_short_runs_are_shown_whole(runs, shown):
    run, values = runs["ordinary"], shown(FIGURE)[0]
    assert values[values["quantity"] == "loss"]["value"].tolist() == run.steps["loss"].tolist()
    features = run.parameters[run.parameters["role"] == "feature weight"]
    gradients = values[values["quantity"] == "relative gradient norm"]
    assert gradients["value"].tolist() == features["relative_gradient_norm"].tolist()
    assert (
        values[values["quantity"] == "difference between nodes"]["value"].tolist() == run.layers["relative_mu"].tolist()
    )
    attention = run.parameters[run.parameters["role"] == "attention vector"]
    stuck = values[values["quantity"] == "relative gradient norm of attention"]
    assert stuck["value"].tolist() == attention["relative_gradient_norm"].tolist()
    imbalance = values[values["quantity"] == "imbalance"]
    one = run.neurons[(run.neurons["step"] == 7) & (run.neurons["layer"] == "convs.2")]["c"]
    norm = features[(features["step"] == 7) & (features["layer"] == "convs.2")]["norm"].item()
    found = imbalance[(imbalance["step"] == 7) & (imbalance["layer"] == "convs.2")]["value"].item()
    assert found == pytest.approx(max(one, key=abs) / (norm**2 / 4))


def panels(canvas):
    return [axes for axes in canvas.axes if axes.get_label() != "<colorbar>"]


def cells(axes):
    """The values of a map that are drawn, layers x steps."""
    (mesh,) = axes.findobj(QuadMesh)
    return np.ma.masked_array(mesh.get_array(), np.ma.getmaskarray(mesh.get_array()))


def test_a_loss_above_the_maps_with_the_first_layer_on_top(shown):
    canvas = shown(FIGURE)[1]
    loss, *maps = panels(canvas)
    assert [len(axes.get_lines()) for axes in (loss, *maps)] == [1, 0, 0, 0, 0]
    assert [cells(axes).shape for axes in maps] == [(6, 200)] * 4
    assert cells(maps[3]).mask[5].all()  # the last layer has no law
    assert [len(axes.findobj(PathPatch)) for axes in maps] == [0, 0, 0, 1]  # and is hatched
    assert "no value" in words(canvas)
    low, high = maps[0].get_ylim()
    assert low > high
    assert maps[0].get_yticklabels()[0].get_text() == "0"
    assert maps[0].get_ylabel() == "layer (convs.*)"
    assert len({axes.get_xlim() for axes in (loss, *maps)}) == 1


def test_what_is_broken_is_marked_and_said(shown):
    canvas = shown(FIGURE, "broken")[1]
    assert {"NaN or infinite", "exactly 0"} <= set(words(canvas).split("\n"))
    zeros, broken = (boxes(each) for each in panels(canvas)[1].findobj(PathPatch))
    assert zeros == [[-0.5, 0.5, 14.5, 1.5]]
    assert broken == [[14.5, -0.5, 39.5, 1.5], [11.5, 1.5, 12.5, 2.5], [14.5, 1.5, 39.5, 2.5], [14.5, 2.5, 39.5, 5.5]]


def test_maps_and_lines_connect_recorded_steps_and_mark_them(shown):
    loss, *maps = panels(shown(FIGURE, "paused")[1])
    assert "recorded step" in words(shown(FIGURE, "paused")[1])
    for axes in maps:
        assert step_edges(axes) == [*PAUSED, 6020]
        assert not cells(axes).mask[:3].any()
    (line,) = loss.get_lines()
    assert line.get_xdata().tolist() == [*PAUSED]
    assert np.isfinite(line.get_ydata()).all()


@pytest.mark.parametrize(("name", "width"), [("one step", "double"), ("512 layers", "single")])
def test_extreme_shapes(runs, shown, name, width):
    axes = shown(FIGURE, name, width)[1].axes[1]
    assert cells(axes).shape == (len(runs[name].layer_names), len(runs[name].steps))
    assert len(axes.get_yticks()) <= 8
    assert np.isfinite(axes.get_xlim()).all()


def limits_of(run, **options):
    """The limits of the colors of each map."""
    maps = table(FIGURE, run, **options).dropna(subset=["color_low"]).groupby("quantity", sort=False)
    return maps[["color_low", "color_high"]].first().to_numpy()


def test_maps_of_several_runs_have_the_same_colors(runs):
    both = [runs["ordinary"], runs["stuck"]]
    first, second = (limits_of(run, **FIGURE.shared_options(both)) for run in both)
    assert (first == second).all()
    assert (limits_of(both[0]) != limits_of(both[1])).any()
    assert tuple(first[0]) == tuple(first[1])  # features and attention are compared by color
    low, high = HEALTHY["parameters.relative_gradient_norm"]
    assert first[0][0] < low < high <= first[0][1]


def test_the_same_imbalance_has_the_same_color_in_every_run(runs):
    assert limits_of(runs["ordinary"])[-1].tolist() == limits_of(runs["stuck"])[-1].tolist() == [-2.0, 2.0]


def test_the_range_of_healthy_trainings_is_marked_where_there_is_one(shown):
    canvas = shown(FIGURE)[1]
    bars = [axes for axes in canvas.axes if axes.get_label() == "<colorbar>"]
    marks = [[line.get_ydata().tolist() for line in bar.lines if line.get_label() == "_healthy"] for bar in bars]
    ranges = [[[*HEALTHY["parameters.relative_gradient_norm"]]]] * 2 + [[[*HEALTHY["layers.relative_mu"]]]]
    assert marks == [*ranges, []]  # an imbalance has none
    assert HEALTHY_RANGE in words(canvas)


def test_a_map_without_a_finite_value_has_no_color_bar_and_says_so(tmp_path):
    broken = [[np.nan] * 2] * 3
    run = build(
        tmp_path / "run",
        layers={"relative_mu": [[0.5, 0.25]] * 3},
        weights={"relative_gradient_norm": broken, "norm": broken},
        logged={"loss": [1.0, 2.0, np.nan]},
    )
    canvas = drawn(FIGURE, table(FIGURE, run))
    titles = {axes.get_title("left"): axes for axes in panels(canvas)}
    assert "(b) ‖∇W‖ / ‖W‖: nothing finite" in titles
    assert len([axes for axes in canvas.axes if axes.get_label() == "<colorbar>"]) == 1
    (cross,) = [line for line in canvas.axes[0].get_lines() if line.get_label() == "_broken"]
    assert cross.get_xdata().tolist() == [2]


def test_outputs_of_zero_are_not_called_broken(tmp_path):
    norm = np.array([[1.0, 1.0], [1.0, 0.0]])
    run = build(tmp_path / "run", layers={"output_norm": norm, "relative_mu": np.where(norm, 0.5, np.nan)})
    text = words(drawn(FIGURE, table(FIGURE, run)))
    assert "output is zero" in text
    assert "NaN or infinite" not in text


def test_the_caption_speaks_of_what_the_run_has(runs, tmp_path):
    graph = FIGURE.described(table(FIGURE, runs["ordinary"]))
    assert "attention" in graph.caption
    assert "nodes" in graph.caption + graph.interpretation
    plain = build(tmp_path / "run", layers={"relative_mu": [[0.5, 0.25]] * 3}, logged={"loss": [1.0] * 3})
    for layer in plain.meta["structure"]["layers"]:
        layer["kind"] = "Linear"
    described = FIGURE.described(table(FIGURE, plain))
    for word in ("ttention", "node", "neuron", "ticks"):
        assert word not in described.caption + described.interpretation, word

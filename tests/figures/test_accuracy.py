"""The figures that draw several runs."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from gatdiag.figures import table
from gatdiag.figures.accuracy import (
    ACCURACY_BY_DEPTH,
    ACCURACY_BY_NORMALIZATION,
    ACCURACY_BY_TREE_DEPTH,
    ACCURACY_BY_WIDTH,
    draw_by_size,
    size_table,
)
from gatdiag.figures.curves import COMPARED_CURVES
from gatdiag.figures.gradients import GRADIENT_EVOLUTION
from gatdiag.run import load
from tests.figures.canvas import drawn, lines, words
from tests.run.synthetic import synthetic_run


def test_the_curves_of_each_run(grown):
    values = table(COMPARED_CURVES, grown)
    for place, run in enumerate(grown):
        part = values[values["run"] == place]
        for quantity, column in (("loss", "loss"), ("validation accuracy", "val_accuracy")):
            assert part[part["quantity"] == quantity]["value"].tolist() == run.steps[column].tolist()
        assert set(part["label"]) == {run.name}
    canvas = drawn(COMPARED_CURVES, values)
    assert [len(lines(axes)) for axes in canvas.axes] == [8, 8]
    styles = {(line.get_color(), line.get_linestyle()) for line in lines(canvas.axes[0])}
    assert len(styles) == 8
    assert len(canvas.legends[0].get_texts()) == 8


def test_chosen_scalars_and_labels(grown):
    values = table(COMPARED_CURVES, grown[:2], names=["test_accuracy"], variants={grown[0].name: "A"})
    assert set(values["quantity"]) == {"test_accuracy"}
    assert set(values["label"]) == {"A", grown[1].name}


def test_one_scale_of_colors_for_all_runs(grown):
    values = table(GRADIENT_EVOLUTION, grown[2:6:2])
    rows = grown[2].parameters
    expected = rows[rows["role"] == "feature weight"]["gradient_norm"]
    assert values[values["run"] == 0]["value"].tolist() == expected.tolist()
    canvas = drawn(GRADIENT_EVOLUTION, values)
    norms = [axes.collections[0].norm for axes in canvas.axes[:2]]
    assert (norms[0].vmin, norms[0].vmax) == (norms[1].vmin, norms[1].vmax)
    assert [axes.get_title("left") for axes in canvas.axes[:2]] == [grown[2].name, grown[4].name]


def test_a_run_without_gradients_beside_one_with(grown, runs):
    canvas = drawn(GRADIENT_EVOLUTION, table(GRADIENT_EVOLUTION, [runs["nothing"], grown[0]]))
    assert "not recorded: gradient_norm" in words(canvas).replace("\n", " ")


def expected_means(runs, value, sizes):
    found = {}
    for run, size in zip(runs, sizes, strict=True):
        found.setdefault((run.name.split("-")[0], size), []).append(value(run))
    return {key: np.mean(values) for key, values in found.items()}


def test_accuracy_and_epochs_against_depth(grown):
    values = table(ACCURACY_BY_DEPTH, grown)
    depths = [3, 3, 5, 5] * 2
    best = expected_means(grown, lambda run: run.steps["val_accuracy"].idxmax() + 1, depths)
    test = expected_means(grown, lambda run: run.steps["test_accuracy"][run.steps["val_accuracy"].idxmax()], depths)
    for panel, expected in (("accuracy", test), ("epochs to best", best)):
        part = values[values["panel"] == panel]
        found = (
            {(row.variant, row.size): row.mean for row in part.itertuples(name="Row")}
            if False
            else {(v, s): m for v, s, m in zip(part["variant"], part["size"], part["mean"], strict=True)}
        )
        assert found == pytest.approx(expected)
    canvas = drawn(ACCURACY_BY_DEPTH, values)
    assert [axes.get_ylabel() for axes in canvas.axes] == ["test accuracy", "epochs to best"]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["stuck", "trained"]
    curves = [line.get_ydata() for line in canvas.axes[0].get_lines() if len(line.get_xdata()) == 2]
    shown = values[values["panel"] == "accuracy"]
    for curve, variant in zip(curves[:2], ("stuck", "trained"), strict=True):
        assert list(curve) == pytest.approx(shown[shown["variant"] == variant]["mean"].tolist())


def test_accuracy_against_width(grown, runs):
    values = table(ACCURACY_BY_WIDTH, [*grown, runs["ordinary"]])
    assert sorted(set(values["size"])) == [3, 4]
    assert ACCURACY_BY_WIDTH.applies([*grown, runs["ordinary"]])
    assert not ACCURACY_BY_WIDTH.applies(grown)


def test_last_accuracy_by_normalization(grown):
    variants = {run.name: "PairNorm" if "stuck" in run.name else "none" for run in grown}
    values = table(ACCURACY_BY_NORMALIZATION, grown, variants=variants)
    expected = np.mean([run.steps["test_accuracy"].iloc[-1] for run in grown[:2]])
    row = values[(values["variant"] == "PairNorm") & (values["size"] == 3)]
    assert row["mean"].item() == pytest.approx(expected)
    of_one = table(ACCURACY_BY_NORMALIZATION, grown[:4])
    assert set(of_one["variant"]) == {"none"}
    assert set(table(ACCURACY_BY_NORMALIZATION, grown)["variant"]) == {"none, stuck", "none, trained"}


def test_networks_of_different_width_are_not_averaged(tmp_path):
    made = [(3, 4), (5, 4), (3, 6), (5, 6)]
    paths = [
        synthetic_run(tmp_path / f"gat-L{layers}-W{width}", steps=5, layers=layers, neurons=width)
        for layers, width in made
    ]
    runs = [load(path) for path in paths]
    expected = {"gat, width 4": [3, 5], "gat, width 6": [3, 5]}
    shown = table(ACCURACY_BY_DEPTH, runs).query("panel == 'accuracy'")
    assert {variant: part["size"].tolist() for variant, part in shown.groupby("variant")} == expected
    assert set(table(ACCURACY_BY_WIDTH, runs)["variant"]) == {"gat, depth 3", "gat, depth 5"}
    normalized = table(ACCURACY_BY_NORMALIZATION, runs)
    assert set(normalized["variant"]) == {"none, width 4", "none, width 6"}
    told = table(ACCURACY_BY_DEPTH, runs, variants=dict.fromkeys((run.name for run in runs), "all"))
    assert set(told["variant"]) == {"all"}


def drawn_by_size(values):
    """Accuracies of runs of one variant and depth, and of a second depth with the first of them alone."""
    frame = pd.DataFrame({"variant": "a", "depth": [2] * len(values) + [4], "accuracy_test": [*values, values[0]]})
    made = size_table(frame, "depth", {"accuracy": ("accuracy_test",)})
    axes = Figure().subplots()
    draw_by_size(axes, made, ["a"], size="layers", value="test accuracy")
    return axes


def test_intervals_end_where_accuracies_end():
    axes = drawn_by_size([0.0, 0.9, 1.0])
    (bar,) = axes.collections[0].get_segments()
    assert bar[:, 1].tolist() == [0.0, 1.0]


def test_there_is_room_above_the_highest_accuracy():
    assert drawn_by_size([1.0, 1.0, 1.0]).get_ylim()[1] > 1.08


def test_of_two_runs_both_are_drawn_and_no_interval():
    axes = drawn_by_size([0.2, 0.9])
    assert not axes.collections
    assert [line.get_ydata().tolist() for line in axes.get_lines() if line.get_label() == "_run"] == [[0.2], [0.9]]


def test_training_accuracy_by_tree_depth(grown):
    values = table(ACCURACY_BY_TREE_DEPTH, grown)
    assert sorted(set(values["size"])) == [2, 4]
    expected = np.mean([run.steps["train_accuracy"].max() for run in grown[:2]])
    assert values[(values["variant"] == "stuck") & (values["size"] == 2)]["mean"].item() == pytest.approx(expected)
    told = table(ACCURACY_BY_TREE_DEPTH, grown, tree_depths={run.name: 8 for run in grown})
    assert set(told["size"]) == {8}

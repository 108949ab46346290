"""Accuracy against depth, width, normalization and tree depth."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from gatdiag.figures import table
from gatdiag.figures.accuracy import (
    ACCURACY_BY_DEPTH,
    ACCURACY_BY_NORMALIZATION,
    ACCURACY_BY_WIDTH,
    draw_by_size,
    size_table,
)
from gatdiag.figures.style import category
from gatdiag.run import load
from tests.figures.canvas import drawn, lines
from tests.run.synthetic import synthetic_run


def expected_means(runs, value, sizes):
    found = {}
    for run, size in zip(runs, sizes, strict=True):
        found.setdefault((run.name.split("-")[0], size), []).append(value(run))
    return {key: np.mean(values) for key, values in found.items()}


def test_accuracy_and_epochs_against_depth(grown, shown):
    values, canvas = shown(ACCURACY_BY_DEPTH)
    depths = [3, 3, 5, 5] * 2
    best = expected_means(grown, lambda run: run.steps["val_accuracy"].idxmax() + 1, depths)
    test = expected_means(grown, lambda run: run.steps["test_accuracy"][run.steps["val_accuracy"].idxmax()], depths)
    for panel, expected in (("accuracy", test), ("epochs to best", best)):
        part = values[values["panel"] == panel]
        found = dict(zip(zip(part["variant"], part["size"], strict=True), part["mean"], strict=True))
        assert found == pytest.approx(expected)
    assert [axes.get_ylabel() for axes in canvas.axes] == ["test accuracy", "epochs to best"]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["stuck", "trained"]
    part = values[values["panel"] == "accuracy"]
    curves = {line.get_label(): list(line.get_ydata()) for line in lines(canvas.axes[0])}
    for variant in ("stuck", "trained"):
        assert curves[variant] == pytest.approx(part[part["variant"] == variant]["mean"].tolist())


def test_accuracy_against_width(grown, runs):
    values = table(ACCURACY_BY_WIDTH, [*grown, runs["ordinary"]])
    assert sorted(set(values["size"])) == [3, 4]
    assert not ACCURACY_BY_WIDTH.applies_to(grown)


def test_figures_over_size_are_drawn_only_of_sweeps(tmp_path, grown):
    def made(*runs):
        return [
            load(synthetic_run(tmp_path / name, steps=3, layers=layers, neurons=width)) for name, layers, width in runs
        ]

    strangers = made(("gcn-cora", 3, 4), ("gat10", 5, 4), ("mlp", 4, 6))
    both = made(("net-1", 3, 4), ("net-2", 5, 6))
    for runs in (strangers, both):
        assert not ACCURACY_BY_DEPTH.applies_to(runs)
        assert not ACCURACY_BY_WIDTH.applies_to(runs)
    assert ACCURACY_BY_DEPTH.applies_to([*strangers, *grown])
    assert ACCURACY_BY_WIDTH.applies_to(made(("gat-W4", 3, 4), ("gat-W6", 3, 6)))
    assert not ACCURACY_BY_NORMALIZATION.applies_to(grown)  # one normalization


def test_a_run_has_its_own_name_and_line_and_a_variant_those_of_its_first_run(tmp_path, grown):
    alone = load(synthetic_run(tmp_path / "gcn-32", steps=3, layers=4, neurons=3))
    values = table(ACCURACY_BY_DEPTH, [grown[0], alone, *grown[1:]])
    assert values.groupby("variant")["line"].agg(set).to_dict() == {"stuck": {0}, "gcn-32": {1}, "trained": {5}}
    axes = drawn(ACCURACY_BY_DEPTH, values).axes[0]
    assert {line.get_label(): line.get_color() for line in lines(axes)} == {
        "stuck": category(0)["color"], "gcn-32": category(1)["color"], "trained": category(5)["color"],
    }  # fmt: skip


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
    draw_by_size(axes, made, size="layers", value="test accuracy")
    return axes


def test_intervals_end_where_accuracies_end_with_room_above():
    axes = drawn_by_size([0.0, 0.9, 1.0])
    (bar,) = axes.collections[0].get_segments()
    assert bar[:, 1].tolist() == [0.0, 1.0]
    assert drawn_by_size([1.0, 1.0, 1.0]).get_ylim()[1] > 1.08


def test_of_two_runs_both_are_drawn_and_no_interval():
    axes = drawn_by_size([0.2, 0.9])
    assert not axes.collections
    assert [line.get_ydata().tolist() for line in axes.get_lines() if line.get_label() == "_run"] == [[0.2], [0.9]]

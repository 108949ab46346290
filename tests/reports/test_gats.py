import json
import math
import statistics

import pandas as pd
import pytest

from gatdiag.experiments.experiment import run_experiment
from gatdiag.experiments.settings import Experiment
from gatdiag.run import load
from reports.papers.beyond_features import STUDY as BEYOND_FEATURES
from reports.papers.gats import (
    FIGURE_2,
    by_depth,
    by_width,
    judge_gradients,
    relative_gradients,
    weight_changes,
)

WEIGHTS = [f"convs.{layer}.lin_l.weight" for layer in range(3)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "gat"
    data = "csbm:nodes=200,features=16"
    run_experiment(Experiment(data=data, layers=3, width=8, learning_rate=1.0, epochs=40), folder=folder, every=1)
    return load(folder)


def test_changes_are_those_of_the_snapshots_weight_by_weight(run):
    best = json.loads((run.folder / "meta.json").read_text())["best"]["step"]
    initial, trained = run.snapshot("initial"), run.snapshot("final" if best < 2 else "best")
    parts = []
    for name in WEIGHTS:
        pairs = list(zip(initial[name].ravel().tolist(), trained[name].ravel().tolist(), strict=True))
        relative = [abs((after - before) / after) for before, after in pairs if abs(after) >= 1e-4]
        parts.append(
            {
                "changed_by_005": sum(change > 0.05 for change in relative) / len(relative),
                "changed_by_050": sum(change > 0.5 for change in relative) / len(relative),
                "never_changed": sum(before == after for before, after in pairs) / len(pairs),
                "median_change": statistics.median(relative),
            }
        )
    expected = {name: statistics.mean(part[name] for part in parts) for name in parts[0]}
    assert weight_changes(run) == pytest.approx(expected, rel=1e-5)


def test_gradients_are_medians_of_what_was_recorded(run):
    table = run.parameters
    medians = []
    for name in WEIGHTS:
        rows = table[table["parameter"] == name]
        ratios = [grad / norm for grad, norm in zip(rows["gradient_norm"], rows["norm"], strict=True)]
        medians.append(statistics.median(ratio for ratio in ratios if math.isfinite(ratio)))
    expected = {"least_relative_gradient": min(medians), "largest_relative_gradient": max(medians)}
    assert relative_gradients(run) == pytest.approx(expected, rel=1e-5)


def test_figure_2_measures_delta_and_the_change_of_c(run):
    rows = [row for row in run.neurons.to_dict("records") if math.isfinite(row["c"])]
    first, last = min(row["step"] for row in rows), max(row["step"] for row in rows)
    c = {(row["step"], row["law"]): row["c"] for row in rows}
    moved = [abs(c[last, law] - c[first, law]) for step, law in c if step == first]
    assert FIGURE_2.measure(run) == pytest.approx(
        {
            "largest_delta": max(abs(row["delta"]) for row in rows),
            "largest_c_at_first": max(abs(value) for (step, _), value in c.items() if step == first),
            "largest_change_of_c": max(moved),
            "mean_change_of_c": statistics.mean(moved),
        }
    )


def test_features_are_judged_by_the_distance_of_their_means_to_the_paper():
    rows = [
        {"layers": 2, "initialization": "balanced_orthogonal", "transform": transform, "test_accuracy": accuracy}
        for transform, accuracy in (("usual", 0.75), ("usual", 0.76), ("none", 0.79), ("none", 0.80))
    ]
    results = pd.DataFrame([{**row, "epochs_to_best": 100 + 10 * number} for number, row in enumerate(rows)])
    assert BEYOND_FEATURES.judge(results) == [
        "Closer to the 1 published numbers that are known: features divided by their sums 0, as stored 1.",
        "2 layers, balanced_orthogonal: published 79.5%; divided by their sums 75.5%, best after 105 epochs; as stored "
        "79.5%, best after 125 epochs.",
    ]
    assert BEYOND_FEATURES.judge(results.iloc[:2]) == []


def test_tables_of_figures_are_means_by_size_and_initialization():
    results = pd.DataFrame(
        {
            "layers": [2, 2, 2, 5],
            "width": [8, 8, 8, 8],
            "initialization": ["xavier", "xavier", "balanced_xavier", "xavier"],
            "test_accuracy": [0.4, 0.6, 0.7, 0.3],
            "epochs_to_best": [10, 20, 30, 40],
        }
    )
    table = by_depth(results)
    found = {(row["panel"], row["variant"], row["size"]): row["mean"] for row in table.to_dict("records")}
    assert found == pytest.approx(
        {
            ("accuracy", "xavier", 2): 0.5,
            ("accuracy", "xavier", 5): 0.3,
            ("accuracy", "balanced_xavier", 2): 0.7,
            ("epochs to best", "xavier", 2): 15,
            ("epochs to best", "xavier", 5): 40,
            ("epochs to best", "balanced_xavier", 2): 30,
        }
    )
    assert {*by_width(results)["size"]} == {8}


def test_relative_gradients_under_adam_are_judged_at_each_depth():
    results = pd.DataFrame(
        [
            {"layers": 5, "initialization": "xavier", "test_accuracy": 0.716, "largest_relative_gradient": 0.02},
            {"layers": 5, "initialization": "balanced_xavier", "test_accuracy": 0.9, "largest_relative_gradient": 9.0},
            {
                "layers": 5,
                "initialization": "balanced_orthogonal",
                "test_accuracy": 0.8,
                "largest_relative_gradient": 0.01,
            },
            {"layers": 10, "initialization": "xavier", "test_accuracy": 0.6, "largest_relative_gradient": 0.02},
        ]
    )
    assert judge_gradients(results) == [
        "Reproduced: 5 layers, test accuracy: 71.6% with xavier, 80.0% with balanced_orthogonal.",
        "NOT reproduced: 5 layers, largest relative gradient: 0.02 with xavier, 0.01 with balanced_orthogonal.",
    ]

import math

import numpy as np
import pandas as pd
import pytest

from gatdiag.run import load
from gatdiag.summary import compare, default_variant, depth, mean_by, normalization, width
from tests.figures.odd_runs import bare_run, recorded_run
from tests.run.synthetic import synthetic_meta, synthetic_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = [("gat-xavier-L3-seed0", 3, 4), ("gat-xavier-L3-seed1", 3, 4), ("gat-lsuv-L5-seed0", 5, 6)]
    return [
        load(synthetic_run(folder / name, steps=30, layers=layers, neurons=neurons, seed=seed))
        for seed, (name, layers, neurons) in enumerate(made)
    ]


def test_one_row_a_run(runs):
    table = compare(runs)
    assert table["variant"].tolist() == ["gat-xavier", "gat-xavier", "gat-lsuv"]
    assert table["depth"].tolist() == [3, 3, 5]
    assert table["width"].tolist() == [4, 4, 6]
    for run, row in zip(runs, table.to_dict("records"), strict=True):
        frame = run.steps
        best = max(range(len(frame)), key=lambda i: (frame["val_accuracy"][i], -i))
        assert row["epochs_to_best"] == best + 1
        assert row["accuracy_test"] == frame["test_accuracy"][best]
        assert row["last_accuracy_train"] == frame["train_accuracy"].iloc[-1]
        assert (row["first_loss"], row["last_loss"]) == (frame["loss"].iloc[0], frame["loss"].iloc[-1])
        assert row["best_loss"] == frame["loss"].min()


def test_variants_may_be_told(runs):
    table = compare(runs, {runs[0].name: "A"})
    assert table["variant"].tolist() == ["A", "gat-xavier", "gat-lsuv"]
    assert table["normalization"].tolist() == ["A", "none", "none"]


def test_facts_of_a_run_with_nothing(tmp_path):
    run = bare_run(tmp_path / "bare", logged=())
    row = compare([run]).iloc[0]
    assert (depth(run), width(run)) == (0, None)
    assert math.isnan(row["epochs_to_best"])
    assert math.isnan(row["accuracy_test"])


def test_width_is_the_most_common_hidden_one_and_norms_are_found(tmp_path):
    meta = synthetic_meta(5, 8)
    layers = meta["structure"]["layers"]
    for layer, out in zip(layers, (2, 8, 8, 2, 2), strict=True):
        layer["parameters"][0]["shape"] = [out, 3]
    layers[2]["kind"] = "BatchNorm"
    layers[2]["parameters"][2]["role"] = "norm scale"
    run = recorded_run(tmp_path / "run", meta, lambda step: {"steps": {"loss": 1.0}}, 1)
    assert width(run) == 2  # 2 and 8 are equally common among the hidden four; the first wins
    assert normalization(run) == "BatchNorm"


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("gat-xavier-L10-seed1", "gat-xavier"),
        ("gcn_64_run3", "gcn-run"),
        ("BalO", "BalO"),
        ("10", "10"),
        ("", ""),
        ("g7", "g"),
    ],
)
def test_default_variants(name, variant):
    assert default_variant(name) == variant


def test_means_and_intervals():
    table = pd.DataFrame({"who": ["a"] * 4 + ["b"], "x": [1.0, 2.0, 4.0, np.nan, 5.0]})
    result = mean_by(table, "x", ["who"]).set_index("who")
    assert result.loc["a", "mean"] == pytest.approx(7 / 3)
    assert result.loc["a", "runs"] == 3
    assert result.loc["a", "half_width"] == pytest.approx(4.30265273 * np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert result.loc["b", "mean"] == 5
    assert math.isnan(result.loc["b", "half_width"])


def test_two_runs_have_ends_and_no_interval():
    row = mean_by(pd.DataFrame({"who": "a", "x": [1.0, 2.0]}), "x", ["who"]).iloc[0]
    assert (row["mean"], row["lowest"], row["highest"], row["runs"]) == (1.5, 1.0, 2.0, 2)
    assert math.isnan(row["half_width"])

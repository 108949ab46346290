import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from gatdiag import metrics
from gatdiag.errors import InputError
from gatdiag.quantities import Quantity, gradient_name, metric_functions
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import load
from gatdiag.summary import (
    check_layers,
    has_zero_norm,
    is_recorded,
    last_values,
    layer_series,
    logged_series,
    neuron_series,
    relative_imbalance,
    role_series,
    select_layers,
    why_undefined,
    with_null_layer,
)
from tests.figures.odd_runs import bare_run, recorded_run
from tests.page.builder import build
from tests.run.synthetic import synthetic_meta, synthetic_run


def cells(run, role):
    """{(step, layer): rows}"""
    found = {}
    for row in run.parameters.to_dict("records"):
        if row["role"] == role:
            found.setdefault((row["step"], row["layer"]), []).append(row)
    return found


def values(table):
    return {(row.step, row.layer): row.value for row in table.itertuples()}


def norm(rows, column):
    return np.linalg.norm([row[column] for row in rows])


@pytest.mark.parametrize("role", [FEATURE, ATTENTION, "bias"])
@pytest.mark.parametrize("column", ["norm", "gradient_norm"])
def test_norms_combine_as_one_norm(shared, column, role):
    expected = {key: norm(rows, column) for key, rows in cells(shared, role).items()}
    assert values(role_series(shared, column, role)) == pytest.approx(expected)


def test_the_relative_gradient_norm_is_a_ratio_of_combined_norms_and_as_recorded_of_a_single_parameter(shared):
    column, several, single = "relative_gradient_norm", cells(shared, FEATURE), cells(shared, ATTENTION)
    ratios = {key: norm(rows, "gradient_norm") / norm(rows, "norm") for key, rows in several.items()}
    assert values(role_series(shared, column, FEATURE)) == pytest.approx(ratios)
    recorded_ratios = {key: rows[0][column] for key, rows in single.items()}
    assert values(role_series(shared, column, ATTENTION)) == pytest.approx(recorded_ratios)


def test_without_norms_the_relative_gradient_norm_is_the_largest_of_the_parameters(tmp_path):
    meta = synthetic_meta(1, 2)
    meta["structure"]["layers"][0]["parameters"][1]["role"] = FEATURE
    ratios = {"parameter": np.arange(3), "relative_gradient_norm": [0.25, 0.5, 1.0]}
    run = recorded_run(tmp_path / "run", meta, lambda _: {"parameters": ratios}, 1)
    assert values(role_series(run, "relative_gradient_norm", FEATURE)) == {(0, "convs.0"): 0.5}


@pytest.mark.parametrize(("how", "expected"), [("largest", 4.0), ("smallest", 1.5)])
@pytest.mark.parametrize("is_broken", [False, True])
def test_other_columns_combine_as_the_catalogue_says(tmp_path, monkeypatch, how, expected, is_broken):
    monkeypatch.setattr("gatdiag.summary.series.quantity", lambda *_: Quantity("spectral_norm", reduction=how))
    meta = synthetic_meta(1, 2)
    meta["structure"]["layers"][0]["parameters"][1]["role"] = FEATURE
    rows = {"parameter": np.arange(3), "spectral_norm": [4.0, math.nan if is_broken else 1.5, 9.0]}
    run = recorded_run(tmp_path / "run", meta, lambda _: {"parameters": rows}, 1)
    expected = {(0, "convs.0"): math.nan if is_broken else expected}
    assert values(role_series(run, "spectral_norm", FEATURE)) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("column", ["unchanged_fraction", "significant_fraction", "changed_fraction_005"])
def test_fractions_are_weighted_by_the_number_of_entries_that_count(shared, column):
    expected = {}
    for key, rows in cells(shared, FEATURE).items():
        sizes = [16 if row["parameter"].endswith("lin_l.weight") else 8 for row in rows]
        if column.startswith("changed"):
            sizes = [size * row["significant_fraction"] for size, row in zip(sizes, rows, strict=True)]
        expected[key] = np.average([row[column] for row in rows], weights=sizes)
    assert values(role_series(shared, column, FEATURE)) == pytest.approx(expected)


def two_feature_weights(folder, **columns):
    """A run of one step and two layers, the first with two feature weights, of 4 and 2 entries."""
    meta = synthetic_meta(2, 2)
    meta["structure"]["layers"][0]["parameters"][1]["role"] = FEATURE
    return recorded_run(folder, meta, lambda _: {"parameters": {"parameter": np.arange(6), **columns}}, 1)


@pytest.mark.parametrize(
    ("significant", "changed", "expected"),
    [
        ([0.0, 1.0], [math.nan, 0.25], 0.25),
        ([0.0, 0.0], [math.nan, math.nan], math.nan),
        ([0.5, 1.0], [1.0, 0.5], 0.75),
        ([math.nan, 1.0], [math.nan, 0.5], math.nan),  # of weights that are not finite
    ],
)
def test_weights_of_which_no_entry_counts_take_no_part(tmp_path, significant, changed, expected):
    run = two_feature_weights(
        tmp_path / "run",
        significant_fraction=[*significant, 1, 1, 1, 1],
        changed_fraction_005=[*changed, 0, 0, 0, 0],
        relative_change_q50=[*changed, 0, 0, 0, 0],
    )
    assert values(role_series(run, "changed_fraction_005", FEATURE)) == pytest.approx(
        {(0, "convs.0"): expected, (0, "convs.1"): 0.0}, nan_ok=True
    )
    largest = max(changed) if 0.0 not in significant else expected
    assert values(role_series(run, "relative_change_q50", FEATURE)) == pytest.approx(
        {(0, "convs.0"): largest, (0, "convs.1"): 0.0}, nan_ok=True
    )


def test_without_the_number_of_entries_that_count_the_fraction_of_several_weights_is_not_guessed(tmp_path):
    run = two_feature_weights(tmp_path / "run", changed_fraction_005=[0.5, 0.25, 0.0, 0.75, 0.0, 0.0])
    assert values(role_series(run, "changed_fraction_005", FEATURE)) == {(0, "convs.1"): 0.75}


def test_tiny_and_huge_norms_neither_vanish_nor_overflow(shared):
    frame = shared.parameters
    kept = frame["norm"].copy()
    try:
        for scale in (1e-200, 1e200):
            frame["norm"] = kept * scale
            expected = {
                key: scale * np.linalg.norm([row["norm"] / scale for row in rows])
                for key, rows in cells(shared, FEATURE).items()
            }
            assert values(role_series(shared, "norm", FEATURE)) == pytest.approx(expected, rel=1e-12)
    finally:
        frame["norm"] = kept


def test_layers_leave_out_steps_that_were_not_measured(shared):
    table = layer_series(shared, "mu")
    assert sorted(set(table["step"])) == [0, 2, 4]
    expected = {(r["step"], r["layer"]): r["mu"] for r in shared.layers.to_dict("records") if r["step"] % 2 == 0}
    assert values(table) == expected
    assert len(layer_series(shared, "mad")) == 0
    assert not is_recorded(shared, "layers", "mad")


def test_what_was_measured_as_nan_is_kept(broken):
    table = layer_series(broken, "mu")
    assert len(table) == len(broken.layers)
    assert table["value"].isna().sum() == 25 * 6
    table = role_series(broken, "relative_gradient_norm", FEATURE)
    assert table["value"].isna().sum() == 25 * 6
    assert np.isinf(table["value"]).sum() == 1
    assert (table["value"] == 0).sum() == 15


def test_layers_that_an_edited_structure_lacks_have_no_values(tmp_path):
    folder = synthetic_run(tmp_path / "run", steps=3, layers=3, neurons=2)
    for kept in (2, 0):
        meta = json.loads((folder / "meta.json").read_text())
        meta["structure"]["layers"] = meta["structure"]["layers"][:kept]
        (folder / "meta.json").write_text(json.dumps(meta))
        run = load(folder)
        for table in (role_series(run, "norm", FEATURE), neuron_series(run, "c"), layer_series(run, "mu")):
            assert set(table["layer"].dropna()) == {f"convs.{place}" for place in range(kept)}


@pytest.mark.parametrize("how", ["extreme", "largest"])
def test_neurons_combine_by_magnitude(shared, how):
    expected = {}
    for row in shared.neurons.to_dict("records"):
        key = row["step"], row["layer"]
        if abs(row["c"]) >= abs(expected.get(key, 0.0)):
            expected[key] = row["c"]
    found = values(neuron_series(shared, "c", how))
    assert found == (expected if how == "extreme" else {key: abs(value) for key, value in expected.items()})


def test_laws_of_a_layer_need_not_stand_together(shared):
    mixed = shared.neurons.sort_values(["step", "neuron"], kind="stable").reset_index(drop=True)
    expected = values(neuron_series(shared, "c"))
    kept = shared._frames["neurons"]
    shared._frames["neurons"] = mixed
    try:
        assert values(neuron_series(shared, "c")) == expected
    finally:
        shared._frames["neurons"] = kept


def test_a_nan_neuron_makes_its_layer_nan(broken):
    table = neuron_series(broken, "c", "largest")
    assert table[table["step"] >= 15]["value"].isna().all()
    assert table[table["step"] < 12]["value"].notna().all()


def test_layers_are_numbered_in_structure_order_and_chosen_evenly_or_by_name(shared):
    table = layer_series(shared, "mu")
    assert tuple(table["layer"].cat.categories) == shared.layer_names
    lost = with_null_layer(shared, table[["step", "value"]])
    assert lost["layer"].isna().all()
    assert lost["layer"].dtype == table["layer"].dtype
    assert check_layers(shared, ["convs.1"]) == ["convs.1"]
    with pytest.raises(InputError, match=r"run\.layer_names, got 'nowhere'"):
        check_layers(shared, ["convs.1", "nowhere"])
    assert select_layers(table, 2)["layer"].unique().tolist() == ["convs.0", "convs.2"]
    assert len(select_layers(table, 5)) == len(table)


def test_a_ratio_to_zero_weights_has_no_row(shared):
    frame = shared.parameters
    kept = frame["norm"].copy()
    try:
        frame.loc[(frame["role"] == ATTENTION) & (frame["step"] == 0), "norm"] = 0.0
        table = role_series(shared, "relative_gradient_norm", ATTENTION)
        assert sorted(set(table["step"])) == [1, 2, 3, 4]
        assert len(role_series(shared, "gradient_norm", ATTENTION)) == 15
    finally:
        frame["norm"] = kept


def test_an_imbalance_is_relative_to_the_weights_of_its_layer_and_step(tmp_path):
    c, norms = np.array([[1.0, -3.0], [-2.0, 6.0], [np.nan, 8.0]]), np.array([[2.0, 1.0], [4.0, 1.0], [4.0, 1.0]])
    run = build(tmp_path / "run", weights={"norm": norms}, neurons={"c": c})
    found = relative_imbalance(run)
    rows = run.meta["structure"]["layers"][0]["parameters"][0]["shape"][0]
    assert found["step"].tolist() == [0, 1, 2]
    assert [*map(str, found["layer"])] == ["convs.0"] * 3  # the last layer has no law
    np.testing.assert_allclose(found["value"], [-3 / (2**2 / rows), 6 / (4**2 / rows), np.nan])
    assert not len(relative_imbalance(bare_run(tmp_path / "bare")))
    assert not len(relative_imbalance(build(tmp_path / "unknown", neurons={"c": c})))


def test_why_a_value_is_no_number(tmp_path):
    run = build(
        tmp_path / "run",
        layers={
            "output_norm": [[1.0, 0.0], [0.0, 2.0]],
            "relative_mu": [[0.5, np.nan], [np.nan, np.inf]],
            "output_gradient_norm": [[3.0, 0.0], [np.nan, 1.0]],
        },
        weights={"relative_gradient_norm": [[np.nan, 1.0], [1.0, 1.0]]},
    )
    assert why_undefined(run, "layers.relative_mu").tolist() == ["", "output is zero", "output is zero", ""]
    assert why_undefined(run, "layers.output_norm").tolist() == ["", "", "output is zero", "output is zero"]
    assert why_undefined(run, "layers.output_gradient_norm").tolist() == ["gradient is zero"] * 2 + ["", ""]
    assert why_undefined(run, "parameters.relative_gradient_norm").tolist() == [""] * 4
    assert not len(why_undefined(run, "layers.effective_rank"))


def test_zero_over_zero_is_told_from_broken_values(tmp_path):
    norm = np.array([[0.0, 1.0], [np.nan, 0.0]])
    run = build(
        tmp_path / "run",
        layers={"output_gradient_norm": norm, "relative_gradient_mu": norm / np.where(norm, norm, np.nan)},
    )
    assert has_zero_norm(run, "relative_gradient_mu").tolist() == [True, False, False, True]
    assert has_zero_norm(run, "output_gradient_norm").tolist() == [False] * 4
    assert has_zero_norm(run, "relative_mu").tolist() == []


def test_every_metric_that_zeros_leave_undefined_is_known_to_be(tmp_path):
    x, edges = torch.zeros(2, 2), torch.tensor([[0, 1], [1, 0]])
    of_zeros: dict = {}
    for metric in metric_functions("layers"):
        if metric.of == "output":
            given = (x, edges) if metric.needs == "edges" else (x,)
            of_zeros |= metric.by_column(getattr(metrics, metric.function)(*given))
    for column, value in of_zeros.items():
        for name, norm in ((column, "output_norm"), (gradient_name(column), "output_gradient_norm")):
            run = build(tmp_path / name, layers={norm: [[0.0]], name: [[np.nan]]})
            assert has_zero_norm(run, name).tolist() == [math.isnan(value)], name


def test_null_is_told_from_nan(shared, broken):
    expected = shared.arrow("layers").column("mu").is_valid().to_pylist()
    assert shared.is_measured("layers", "mu").tolist() == expected
    assert sum(expected) == 9
    assert broken.is_measured("layers", "mu").all()
    assert np.isnan(broken.layers["mu"]).any()


def test_columns_that_are_not_there(shared):
    assert not shared.is_measured("steps", "no such").any()
    assert not is_recorded(shared, "neurons", "predicted_c")
    assert is_recorded(shared, "neurons", "c")


def test_logged_scalars_keep_nan_and_drop_what_was_not_logged(shared, broken):
    assert logged_series(shared, "val_accuracy").to_dict() == {1: 0.1, 3: 0.1 * 3}
    loss = logged_series(broken, "loss")
    assert len(loss) == 40
    assert loss.isna().sum() == 25


def series(values):
    """(steps, layers) -> a series as `gatdiag.summary` gives it, at every third step."""
    steps, layers = np.shape(values)
    names = pd.Categorical([f"l{i}" for i in range(layers)] * steps, [f"l{i}" for i in range(layers)], ordered=True)
    return pd.DataFrame({"step": np.repeat(3 * np.arange(steps), layers), "layer": names, "value": np.ravel(values)})


def test_layers_without_a_number_are_left_out():
    values = [[1, np.nan], [2, np.nan]]
    assert last_values(series(values)) == {"l0": 2.0}
    assert last_values(series([[1, 2], [3, 4], [np.nan, 5]])) == {"l0": 3.0, "l1": 5.0}
    assert last_values(series(np.zeros((0, 2)))) == {}

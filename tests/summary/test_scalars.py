"""The scalars for trackers, each against a computation of its own from the tables, with pandas."""

import math

import numpy as np
import pytest

import gatdiag
from gatdiag.roles import FEATURE
from gatdiag.summary import SCALARS, SEVERITY_SCALAR, run_scalars, scalars_of
from tests.recorder.loops import Gat, train
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of a training with attention and laws, and a synthetic one whose expensive columns are sparse."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "gat", steps=12, make_model=lambda: Gat(dropout=0.3), every=1, metrics="full")
    synthetic_run(folder / "synthetic", steps=60, layers=5, neurons=3)
    return [gatdiag.load(folder / name) for name in ("gat", "synthetic")]


def rows_at(table, step):
    return table[table.step == step]


def of_features(run, step, column):
    values = rows_at(run.parameters, step)
    return values.loc[(values.role == FEATURE).to_numpy(), column].dropna().tolist()


def of_layers(run, step, column):
    """In structure order."""
    known = rows_at(run.layers, step).set_index("layer")[column]
    return [known[layer] for layer in run.layer_names if layer in known.index]


def of_steps(column):
    return lambda run, step: rows_at(run.steps, step)[column].item() if column in run.steps else math.nan


def finite(values):
    return [value for value in values if math.isfinite(value)]


BY_HAND = {
    **{name: of_steps(name) for name in ("gradient_norm", "gradient_norm_before_clipping")},
    **{name: of_steps(name) for name in ("overshoot", "stale_gradient")},
    "relative_gradient/min": lambda run, step: min(of_features(run, step, "relative_gradient_norm"), default=math.nan),
    "relative_gradient/max": lambda run, step: max(of_features(run, step, "relative_gradient_norm"), default=math.nan),
    "update_ratio/min": lambda run, step: min(of_features(run, step, "update_ratio"), default=math.nan),
    "update_ratio/median": lambda run, step: np.quantile(of_features(run, step, "update_ratio"), 0.5),
    "update_ratio/max": lambda run, step: max(of_features(run, step, "update_ratio"), default=math.nan),
    "never_changed/max": lambda run, step: max(of_features(run, step, "unchanged_fraction"), default=math.nan),
    "weight_norm": lambda run, step: math.hypot(*of_features(run, step, "norm")),
    "dead_units/max": lambda run, step: max(of_layers(run, step, "dead_fraction")),
    "relative_mu/last_hidden": lambda run, step: of_layers(run, step, "relative_mu")[-2],
    "output_norm/last_over_first": lambda run, step: (
        of_layers(run, step, "output_norm")[-1] / of_layers(run, step, "output_norm")[0]
    ),
    "attention_entropy/min": lambda run, step: min(
        finite(of_layers(run, step, "relative_attention_entropy")), default=math.nan
    ),
    "non_finite": lambda run, step: sum(of_layers(run, step, "non_finite")),
    "abs_c/mean": lambda run, step: sum(map(abs, rows_at(run.neurons, step).c)) / len(rows_at(run.neurons, step)),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_scalar_is_what_the_tables_say(runs, name):
    seen = 0
    for run in runs:
        found = run_scalars(run)
        assert sorted(found) == run.steps.step.tolist()
        for step in found:
            expected, value = BY_HAND[name](run, step), found[step].get(f"gatdiag/{name}")
            assert (value is None) == math.isnan(expected)
            assert value is None or value == pytest.approx(expected, rel=1e-12)
            seen += value is not None
    assert seen


def test_each_scalar_is_described():
    assert {*SCALARS} == {*BY_HAND, SEVERITY_SCALAR.removeprefix("gatdiag/")}


def test_what_is_not_finite_does_not_count():
    parameters = {"step": [3, 3, 3], "update_ratio": [math.nan, math.inf, 0.5], "is_feature": [True] * 3}
    layers = {"step": [3, 3], "layer": [0, 1], "output_norm": [0.0, 1.0], "dead_fraction": [math.nan, math.nan]}
    found = scalars_of({"parameters": parameters, "layers": layers})
    assert found == {3: {f"gatdiag/update_ratio/{how}": 0.5 for how in ("min", "median", "max")}}


def test_without_feature_weights_all_parameters_count():
    parameters = {"step": [0, 0], "norm": [3.0, 4.0], "is_feature": [False, False]}
    assert scalars_of({"parameters": parameters}) == {0: {"gatdiag/weight_norm": 5.0}}

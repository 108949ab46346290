"""Each failure mode on tables made for it: flagged beyond its threshold and not before it, and what is said."""

import math

import numpy as np
import pandas as pd
import pytest

import gatdiag
from gatdiag.diagnosis import (
    activations,
    conservation_laws,
    dead_units,
    exploding_gradients,
    frozen_parameters,
    loss_not_falling,
    oversmoothing,
    vanishing_gradients,
)
from gatdiag.diagnosis.conservation_laws import imbalance, law_violation, laws_found, relative_c
from gatdiag.diagnosis.non_finite import non_finite
from gatdiag.diagnosis.stored_weights import dead_weights, no_gradient
from tests.report.builder import build, rewrite_meta

FIRST = {"step": 17, "layer": "convs.1", "where": "output gradient", "parameter": None, "kind": "NaN"}


def constant(table, column, values, steps=20):
    return {table: {column: np.tile(values, (steps, 1))}}


# Mode, code, and a run whose measurement is the given factor times the threshold.
CASES = {
    "vanishing gradients": (
        vanishing_gradients.vanishing_gradients,
        lambda f: constant("weights", "relative_gradient_norm", [1.0, vanishing_gradients.THRESHOLD * f, 0.5]),
        "below",
    ),
    "exploding gradients": (
        exploding_gradients.exploding_gradients,
        lambda f: constant("weights", "relative_gradient_norm", [1.0, exploding_gradients.THRESHOLD * f]),
        "above",
    ),
    "vanishing activations": (
        activations.activations,
        lambda f: {"layers": {"output_norm": [[2.0, 9.0, 2.0 / activations.THRESHOLD * f]]}},
        "below",
    ),
    "exploding activations": (
        activations.activations,
        lambda f: {"layers": {"output_norm": [[2.0, 2.0 * activations.THRESHOLD * f]]}},
        "above",
    ),
    "oversmoothing": (
        oversmoothing.oversmoothing,
        lambda f: {"layers": {"relative_mu": [[0.8, 0.5, oversmoothing.THRESHOLD * f, 0.3]]}},
        "below",
    ),
    "dead units": (
        dead_units.dead_units,
        lambda f: {"layers": {"dead_fraction": [[0.0, dead_units.THRESHOLD * f]], "non_finite": [[0.0, 0.0]]}},
        "above",
    ),
    "small steps": (
        frozen_parameters.small_update_ratio,
        lambda f: constant("weights", "update_ratio", [1e-6, frozen_parameters.SMALL_STEP * f]),
        "below",
    ),
    "unchanged weights": (
        frozen_parameters.unchanged_weights,
        lambda f: constant("weights", "unchanged_fraction", [0.0, frozen_parameters.UNCHANGED * f]),
        "above",
    ),
    "still layers": (
        frozen_parameters.still_layers,
        lambda f: constant("weights", "changed_fraction_005", [0.9, frozen_parameters.HARDLY_CHANGED * f]),
        "below",
    ),
    "loss": (
        loss_not_falling.loss_not_falling,
        lambda f: {"logged": {"loss": np.linspace(2, 2 * (1 - loss_not_falling.THRESHOLD * f), 20)}},
        "below",
    ),
    "imbalance": (
        lambda run: imbalance(run, in_trouble=True),
        lambda f: {
            "weights": {"norm": np.full((2, 2), 4.0)},  # 4^2 over 2 neurons
            "neurons": {"c": [[0.1, 0.1], [-conservation_laws.IMBALANCED * 8.0 * f, 0.3]], "delta": np.zeros((2, 2))},
        },
        "above",
    ),
    "laws": (
        law_violation,
        lambda f: {
            "weights": {"norm": np.full((2, 2), 4.0)},
            "neurons": {"c": np.zeros((2, 2)), "predicted_c": [[0.0, 0.0], [0.0, conservation_laws.BROKEN * 8.0 * f]]},
        },
        "above",
    ),
}


@pytest.mark.parametrize("factor", [0.99, 1.01])
@pytest.mark.parametrize("case", CASES)
def test_a_mode_is_flagged_beyond_its_threshold(tmp_path, case, factor):
    mode, tables, side = CASES[case]
    finding = mode(build(tmp_path / "run", **tables(factor)))
    assert (finding is not None and finding.is_problem) == ((factor > 1) == (side == "above"))
    if finding is not None and finding.is_problem:
        assert finding.severity == "warning"
        assert finding.text.endswith(".")
        assert "lagged" in finding.threshold
        assert all(math.isfinite(evidence.value) for evidence in finding.evidence)
        assert finding.figure in {figure.name for figure in gatdiag.figures.FIGURES}
        assert {*finding.layers} <= {f"convs.{number}" for number in range(4)}


def test_what_was_not_recorded_is_not_judged(tmp_path):
    assert gatdiag.diagnosis.examine(build(tmp_path / "run", logged={"loss": [1.0]})) == []
    (still,) = [
        frozen_parameters.unchanged_weights(build(tmp_path / "still", weights={"unchanged_fraction": [[1.0, 1.0]]}))
    ]
    assert still is None  # before the first update no weight can have moved


# --- gradients and steps ---------------------------------------------------------------------------------------------


def of_gradients(folder, values, mode=vanishing_gradients.vanishing_gradients):
    return mode(build(folder, weights={"relative_gradient_norm": np.atleast_2d(values)}))


def test_gradients_are_said_from_layer_to_layer(tmp_path):
    finding = of_gradients(tmp_path / "fine", [0.3, 0.1, 0.2])
    assert "from 0.1 in layer convs.1 to 0.3 in layer convs.0" in finding.text
    finding = of_gradients(tmp_path / "vanishing", [0.3, 1e-9, 0.2])
    assert finding.text.startswith("1 of 3 layers hardly get a gradient: convs.1.")
    assert finding.layers == ("convs.1",)
    assert finding.evidence[0].value == pytest.approx(1e-9 / 0.3)
    assert of_gradients(tmp_path / "zero", [0.0, 0.0]).code == "zero-gradients"
    assert not of_gradients(tmp_path / "single", [1e-9]).is_problem
    explosion = of_gradients(tmp_path / "huge", [1e3, 200.0], exploding_gradients.exploding_gradients)
    assert "layer convs.0 is 1,000 times its weights" in explosion.text


def test_the_end_of_the_run_counts_for_gradients_and_the_beginning_for_steps(tmp_path):
    values = np.tile([0.3, 0.1, 0.2], (100, 1))
    values[:80, 1] = 1e-9
    assert not of_gradients(tmp_path / "early", values).is_problem
    assert vanishing_gradients.weakest_gradient(gatdiag.load(tmp_path / "early")) == 1e-9
    pace = np.full((100, 3), 0.5 * frozen_parameters.SMALL_STEP)
    pace[10:] = 1.0
    finding = frozen_parameters.small_update_ratio(build(tmp_path / "pace", weights={"update_ratio": pace}))
    assert "it takes 20,000 steps" in finding.text


def test_weights_that_never_moved_are_counted_by_their_number(tmp_path):
    run = build(tmp_path / "run", weights={"unchanged_fraction": [[1.0, 0.0]] * 2})
    rewrite_meta(run.folder, lambda meta: meta["structure"]["layers"][0]["parameters"][0].update(shape=[6, 2]))
    finding = frozen_parameters.unchanged_weights(gatdiag.load(run.folder))  # 12 weights against 4
    assert "75 % of all feature weights" in finding.text
    assert "convs.0 (100 %)" in finding.text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.0, 0.0, 0.0], "changed by more than 5 % of their size: 0 % in every layer."),
        ([0.594], "of their size: 59.4 % in layer convs.0."),
        ([0.9, 0.01, 0.9], "1 of 3 layers is nearly as initialized: convs.1."),
    ],
)
def test_layers_that_changed_alike_are_not_a_range(tmp_path, values, words):
    run = build(tmp_path / "run", weights={"changed_fraction_005": np.tile(values, (2, 1))})
    assert words in frozen_parameters.still_layers(run).text


@pytest.mark.parametrize(
    ("losses", "outcome"),
    [
        ([2.0] * 19, "too early"),
        ([2.0] * 20, "stuck"),
        ([2.0] * 19 + [1.0], "trains"),
        ([2.0, 1.0, math.nan], "broken"),
        ([-1.0] + [-2.0] * 20, "trains"),
        ([0.0] * 20, "stuck"),
    ],
)
def test_what_became_of_a_training(tmp_path, losses, outcome):
    assert loss_not_falling.outcome(build(tmp_path / "run", logged={"loss": losses})) == outcome


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_outputs_that_vanish_are_not_called_alike(tmp_path):
    run = build(tmp_path / "run", layers={"output_norm": [[4.0, 0.001]], "relative_mu": [[0.8, 0.2]]})
    assert (activations.activations(run).code, oversmoothing.oversmoothing(run).code) == (
        "vanishing-activations",
        "oversmoothing",
    )
    assert not oversmoothing.oversmoothing(run).is_problem
    assert activations.activations(build(tmp_path / "zero", layers={"output_norm": [[0.0, 0.0]]})).is_problem


def test_layers_are_compared_at_one_step_and_the_step_is_named(tmp_path):
    columns = {
        "output_norm": [[2.0, 1.0], [8.0, np.nan], [np.nan, np.nan]],
        "dead_fraction": [[0.0, 0.25], [0.0, 0.0], [0.0, 0.0]],
        "non_finite": [[0.0, 0.0], [0.0, 4.0], [4.0, 4.0]],
    }
    run = build(tmp_path / "run", layers=columns)
    size, dead = activations.activations(run), dead_units.dead_units(run)
    assert "a factor of 0.5." in size.text
    assert "25 %" in dead.text
    assert size.steps == dead.steps == (0,)
    assert size.threshold.startswith("At step 0;")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"gradient_dead_fraction": [[1.0, 0.0]]}, "no gradient comes back to: at most 100 %, in layer convs.0."),
        ({"gradient_dead_fraction": [[1.0, 1.0]]}, "No dead units: none puts out 0 at every node. An activation that"),
    ],
    ids=["one layer", "every layer: that says nothing of units"],
)
def test_a_unit_that_gets_no_gradient_is_dead_whatever_it_puts_out(tmp_path, columns, words):
    sound = {"dead_fraction": [[0.0, 0.0]], "non_finite": [[0.0, 0.0]], "gradient_non_finite": [[0.0, 0.0]]}
    assert words in dead_units.dead_units(build(tmp_path / "run", layers={**sound, **columns})).text


def test_units_of_a_layer_that_puts_out_nan_are_not_called_alive(tmp_path):
    columns = {"dead_fraction": [[0.0, 0.0]], "non_finite": [[9.0, 9.0]]}
    assert dead_units.dead_units(build(tmp_path / "run", layers=columns)) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"first_non_finite": FIRST}, "The first NaN appeared at step 17, in the output gradient of layer convs.1."),
        (
            {"first_non_finite": {**FIRST, "where": "weight", "kind": "infinity", "parameter": "convs.1.att"}},
            "The first infinity appeared at step 17, in the weight of layer convs.1, parameter convs.1.att.",
        ),
        (
            {"first_non_finite": {**FIRST, "step": 1}, "logged": {"loss": [2.0, math.nan]}},
            "output gradient of layer convs.1. The loss itself was not finite at that step, so its gradients are not",
        ),
        (
            {"layers": {"non_finite": [[0.0, 0.0], [0.0, 3.0], [4.0, 4.0]]}},
            "At step 1, 3 of the outputs are NaN or infinite: convs.1.",
        ),
        (
            {"weights": {"gradient_non_finite": [[1.0, 0.0]]}},
            "At step 0, 1 of the gradients of weights is NaN or infinite: convs.0.lin_l.weight.",
        ),
        ({"logged": {"loss": [1.4, 0.2, math.nan, math.nan]}}, "The loss became NaN at step 2."),
        ({"logged": {"loss": [1.4, math.inf, math.nan]}}, "The loss became infinite at step 1."),
        ({"layers": {"non_finite": np.zeros((2, 2))}}, "No NaN and no infinity"),
    ],
)
def test_the_first_value_that_is_not_finite_is_named(tmp_path, given, words):
    finding = non_finite(build(tmp_path / "run", **given))
    assert words in finding.text
    assert finding.severity == ("info" if "No NaN" in words else "error")


# --- laws and stored weights -----------------------------------------------------------------------------------------


def test_the_imbalance_is_c_over_the_mean_squared_norm_of_a_neuron(tmp_path):
    random = np.random.default_rng(0)
    c, norm = random.normal(size=(3, 3 * 5)), random.uniform(1, 2, size=(3, 4))
    run = build(tmp_path / "run", weights={"norm": norm}, neurons={"c": c, "delta": 0 * c}, width=5)
    for step in range(3):
        wanted = {
            f"convs.{layer}": max(abs(value) for value in c[step, 5 * layer : 5 * layer + 5])
            / (norm[step, layer] ** 2 / 5)
            for layer in range(3)
        }
        assert relative_c(run, step) == pytest.approx(wanted)


def test_imbalance_is_a_problem_only_where_something_else_is_wrong(tmp_path):
    run = build(tmp_path / "run", weights={"norm": [[4.0, 4.0]]}, neurons={"c": [[80.0, 0.0]], "delta": [[0.0, 0.0]]})
    assert [imbalance(run, in_trouble=trouble).severity for trouble in (False, True)] == ["info", "warning"]


def test_why_there_are_no_laws_is_said(tmp_path):
    excluded = [{"what": "convs.0", "reason": "sigmoid"}]
    none = laws_found(build(tmp_path / "none", laws={"found": [], "excluded": excluded, "error": None}))
    assert (none.severity, none.text[-12:]) == ("info", "excluded: 1.")
    reason = "the output of the model is not a tensor, nor a tuple, a list or a dict of tensors"
    error = laws_found(build(tmp_path / "error", laws={"found": [], "excluded": [], "error": reason}))
    assert (error.severity, error.text) == ("note", f"They could not be found: {reason}.")


def test_laws_without_rows_and_values_that_are_no_numbers_say_nothing(tmp_path):
    broken = np.full((2, 2), np.nan)
    columns = {"neurons": {"c": broken, "predicted_c": broken}, "weights": {"norm": np.ones((2, 2))}}
    for run in (build(tmp_path / "rows", logged={"loss": [1.0]}), build(tmp_path / "nan", **columns)):
        assert imbalance(run, in_trouble=True) is law_violation(run) is laws_found(run) is None


def weights(**columns):
    rows = {"layer": "lin", "parameter": "lin.weight", "role": "feature weight", "norm": 1.0}
    rows |= {"dead_rows": 0.0, "dead_columns": 0.0, "second_moment": math.nan}
    return pd.DataFrame([{**rows, **{name: values[row] for name, values in columns.items()}} for row in range(2)])


def test_dead_weights_are_counted_by_layer():
    table = weights(layer=["a", "b"], dead_rows=[3.0, 0.0], dead_columns=[0.0, 2.0])
    first, second = dead_weights(table)
    assert (first.severity, first.text) == ("warning", "Layer a has 3 neurons that nothing leads into.")
    assert (second.severity, second.text) == ("note", "Layer b has 2 inputs that are not read.")
    (zero,) = dead_weights(weights(norm=[0.0, 1.0], dead_rows=[4.0, 0.0]))
    assert zero.text == "Layer lin has a weight matrix that is zero."
    assert list(dead_weights(weights(dead_rows=[math.nan] * 2))) == []


def test_parameters_whose_second_moment_is_zero_never_got_a_gradient():
    (found,) = no_gradient(weights(parameter=["a", "b"], second_moment=[0.0, 1.0]))
    assert (found.parameters, found.layers) == (("a",), ("lin",))
    assert "1 of 2 parameters" in found.text
    assert list(no_gradient(weights())) == []

import numpy as np
import pytest

from gatdiag.report.outputs import ALIKE, DEAD, broken_facts, output_facts
from tests.report.builder import build

BROKEN = {"step": 17, "layer": "convs.1", "where": "output gradient", "parameter": None, "kind": "NaN"}


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_nodes_become_alike_below_the_threshold(tmp_path, factor):
    run = build(tmp_path / "run", layers={"mu": [[4.0, 1.0, 1.0], [2.0, 9.0, 2 * factor * ALIKE]]})
    (fact,) = output_facts(run)
    assert fact.notable == (factor < 1)
    assert "from 2 at layer convs.0" in fact.text


def test_relative_mu_is_told_beside_it(tmp_path):
    columns = {"mu": [[2.0, 1.0]], "relative_mu": [[0.75, 0.125]]}
    (fact,) = output_facts(build(tmp_path / "run", layers=columns))
    assert "from 0.75 to 0.125" in fact.text
    assert "a factor of 0.5." in fact.text


def test_outputs_that_are_all_alike_from_the_first_layer_stand_out(tmp_path):
    (fact,) = output_facts(build(tmp_path / "run", layers={"mu": [[0.0, 0.0]]}))
    assert fact.notable


@pytest.mark.parametrize("share", [0.0, DEAD - 0.01, DEAD])
def test_dead_units_stand_out_from_the_threshold_on(tmp_path, share):
    (fact,) = output_facts(build(tmp_path / "run", layers={"dead_fraction": [[0.0, share, 0.0]]}))
    assert fact.notable == (share >= DEAD)
    assert ("convs.1" in fact.text) == (share > 0)


def test_the_first_broken_value_is_named(tmp_path):
    run = build(tmp_path / "run", layers={"non_finite": [[0.0, 3.0]]}, first_non_finite=BROKEN)
    (fact,) = broken_facts(run)
    assert fact.notable
    assert fact.text == "The first NaN appeared at step 17, in the output gradient of layer convs.1."


def test_a_broken_parameter_is_named(tmp_path):
    first = {**BROKEN, "where": "weight", "kind": "infinity", "parameter": "convs.1.att"}
    (fact,) = broken_facts(build(tmp_path / "run", first_non_finite=first))
    assert "infinity appeared at step 17, in the weight of layer convs.1, parameter convs.1.att" in fact.text


def test_broken_values_are_told_even_if_nobody_noted_the_first(tmp_path):
    (fact,) = broken_facts(build(tmp_path / "run", layers={"non_finite": [[0.0, 3.0], [0.0, 4.0]]}))
    assert fact.notable
    assert "7 recorded entries" in fact.text


def test_clean_runs_are_said_to_be_clean(tmp_path):
    (fact,) = broken_facts(build(tmp_path / "run", layers={"non_finite": np.zeros((2, 2))}))
    assert not fact.notable


def test_what_was_not_recorded_is_not_mentioned(tmp_path):
    run = build(tmp_path / "run", logged={"loss": [1.0]})
    assert list(output_facts(run)) == list(broken_facts(run)) == []


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_outputs_that_grow_stand_out(tmp_path, factor):
    (fact,) = output_facts(build(tmp_path / "run", layers={"mu": [[2.0, 2.0 * factor / ALIKE]]}))
    assert fact.notable == (factor > 1)
    assert ("Exploding" in fact.heading) == (factor > 1)


@pytest.mark.parametrize(
    ("relative", "heading"),
    [([0.835, 0.226], "Vanishing activations"), ([0.8, 0.9 * ALIKE], "Oversmoothing")],
)
def test_outputs_that_vanish_are_not_called_alike(tmp_path, relative, heading):
    (fact,) = output_facts(build(tmp_path / "run", layers={"mu": [[4.0, 0.001]], "relative_mu": [relative]}))
    assert fact.notable
    assert fact.heading == heading


def test_nodes_can_become_alike_while_their_outputs_grow(tmp_path):
    (fact,) = output_facts(build(tmp_path / "run", layers={"mu": [[1.0, 1.0]], "relative_mu": [[0.8, 0.001]]}))
    assert fact.heading == "Oversmoothing"


def test_units_of_a_layer_that_puts_out_nan_are_not_called_alive(tmp_path):
    columns = {"dead_fraction": [[0.0, 0.0]], "non_finite": [[9.0, 9.0]]}
    assert list(output_facts(build(tmp_path / "run", layers=columns))) == []


def test_layers_are_compared_at_one_step_and_the_step_is_named(tmp_path):
    columns = {
        "mu": [[2.0, 1.0], [8.0, np.nan], [np.nan, np.nan]],
        "dead_fraction": [[0.0, 0.25], [0.0, 0.0], [0.0, 0.0]],
        "non_finite": [[0.0, 0.0], [0.0, 4.0], [4.0, 4.0]],
    }
    spread, dead = output_facts(build(tmp_path / "run", layers=columns))
    assert "a factor of 0.5." in spread.text
    assert "25 %" in dead.text
    assert spread.threshold.startswith("Last at step 0;")
    assert dead.threshold.startswith("Last at step 0;")


def test_a_unit_that_gets_no_gradient_is_dead_whatever_it_puts_out(tmp_path):
    columns = {"dead_fraction": [[0.0, 0.0]], "gradient_dead_fraction": [[1.0, 0.0]], "non_finite": [[0.0, 0.0]]}
    columns |= {"gradient_non_finite": [[0.0, 0.0]]}
    (fact,) = output_facts(build(tmp_path / "run", layers=columns))
    assert fact.notable
    assert "no gradient comes back to: at most 100 %, in layer convs.0" in fact.text


def test_where_no_layer_gets_a_gradient_nothing_is_said_of_units(tmp_path):
    columns = {"dead_fraction": [[0.0, 0.0]], "gradient_dead_fraction": [[1.0, 1.0]], "non_finite": [[0.0, 0.0]]}
    columns |= {"gradient_non_finite": [[0.0, 0.0]]}
    (fact,) = output_facts(build(tmp_path / "run", layers=columns))
    assert not fact.notable
    assert fact.text.endswith("An activation that follows a layer is not seen.")


@pytest.mark.parametrize("loss", [1.0, np.nan])
def test_a_loss_that_was_broken_before_its_gradients_is_told_of(tmp_path, loss):
    first = {**BROKEN, "step": 1}
    (fact,) = broken_facts(build(tmp_path / "run", logged={"loss": [2.0, loss]}, first_non_finite=first))
    assert ("The loss itself was not finite at that step" in fact.text) == np.isnan(loss)

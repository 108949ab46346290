import numpy as np
import pytest

import gatdiag
from gatdiag.report.gradients import FAR_BELOW, HARDLY_CHANGED, SLOW, UNTOUCHED, gradient_facts, weakest_gradient
from tests.report.builder import build, rewrite_meta

BALANCED = [0.3, 0.1, 0.2]


def facts(folder, **weights):
    steps = 20
    run = build(folder, weights={name: np.tile(values, (steps, 1)) for name, values in weights.items()})
    return list(gradient_facts(run))


def test_gradients_that_reach_every_layer_do_not_stand_out(tmp_path):
    (fact,) = facts(tmp_path / "run", relative_gradient_norm=BALANCED)
    assert not fact.notable
    assert "from 0.1 in layer convs.1 to 0.3 in layer convs.0" in fact.text


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_layer_is_starved_below_the_threshold_and_not_above(tmp_path, factor):
    (fact,) = facts(tmp_path / "run", relative_gradient_norm=[1.0, factor * FAR_BELOW, 0.5])
    assert fact.notable == (factor < 1)
    assert ("1 of 3 layers" in fact.text) == (factor < 1)


def test_the_end_of_the_run_counts_and_not_its_beginning(tmp_path):
    values = np.tile(BALANCED, (100, 1))
    values[:80, 1] = 1e-9
    run = build(tmp_path / "run", weights={"relative_gradient_norm": values})
    (fact,) = gradient_facts(run)
    assert not fact.notable


def test_gradients_of_zero_are_said_to_be_zero(tmp_path):
    (fact,) = facts(tmp_path / "run", relative_gradient_norm=[0.0, 0.0, 0.0])
    assert fact.notable
    assert "Zero" in fact.heading


def test_huge_gradients_stand_out(tmp_path):
    found = facts(tmp_path / "run", relative_gradient_norm=[1e3, 200.0, 1e3])
    assert [fact.heading for fact in found if fact.notable] == ["Exploding gradients"]
    assert "1,000 times" in found[1].text


def test_weights_that_never_moved_are_counted_by_their_number(tmp_path):
    run = build(tmp_path / "run", weights={"unchanged_fraction": [[0.5, 0.0, UNTOUCHED]] * 2})
    (fact,) = gradient_facts(run)
    assert fact.notable
    assert "20 % of all feature weights" in fact.text
    assert "convs.0 (50 %)" in fact.text
    assert "Layers: convs.0 and convs.2." in fact.text


def test_large_layers_weigh_more(tmp_path):
    run = build(tmp_path / "run", weights={"unchanged_fraction": [[1.0, 0.0]] * 2})
    rewrite_meta(run.folder, lambda meta: meta["structure"]["layers"][0]["parameters"][0].update(shape=[6, 2]))
    (fact,) = gradient_facts(gatdiag.load(run.folder))  # 12 weights against 4
    assert "75 % of all feature weights" in fact.text


@pytest.mark.parametrize("share", [HARDLY_CHANGED - 0.001, HARDLY_CHANGED])
def test_layers_nearly_as_initialized_stand_out(tmp_path, share):
    (fact,) = facts(tmp_path / "run", changed_fraction_005=[0.9, share, 0.9])
    assert fact.notable == (share < HARDLY_CHANGED)
    assert ("nearly as initialized: convs.1." in fact.text) == fact.notable


def test_layers_that_changed_alike_are_not_a_range(tmp_path):
    (fact,) = facts(tmp_path / "run", changed_fraction_005=[0.0, 0.0, 0.0])
    assert fact.text.endswith("changed by more than 5 % of their size: 0 % in every layer.")


def test_what_was_not_recorded_is_not_mentioned(tmp_path):
    assert list(gradient_facts(build(tmp_path / "run", logged={"loss": [1.0]}))) == []


def test_a_single_layer_has_nothing_to_compare_with(tmp_path):
    (fact,) = facts(tmp_path / "run", relative_gradient_norm=[1e-9])
    assert not fact.notable


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_steps_that_are_tiny_from_the_start_stand_out(tmp_path, factor):
    pace = np.full((100, 3), 0.1 * SLOW)
    pace[:10, 1] = factor * SLOW
    pace[10:, 1] = 1.0 if factor < 1 else 0.0  # what comes later does not matter
    found = list(gradient_facts(build(tmp_path / "run", weights={"update_ratio": pace})))
    assert [fact.heading for fact in found] == (["Update ratio too small"] if factor < 1 else [])
    assert all("convs.1: at that pace it takes 20,000 steps" in fact.text for fact in found)


def test_before_the_first_update_no_weight_can_have_moved(tmp_path):
    still = {"unchanged_fraction": [[1.0, 1.0]], "changed_fraction_005": [[0.0, 0.0]]}
    assert list(gradient_facts(build(tmp_path / "run", weights=still))) == []


def test_one_layer_is_no_span(tmp_path):
    (fact,) = facts(tmp_path / "run", changed_fraction_005=[0.594])
    assert "of their size: 59.4 % in layer convs.0." in fact.text


def test_the_weakest_gradient_is_that_of_the_middle_layer(tmp_path):
    run = build(tmp_path / "run", weights={"relative_gradient_norm": np.tile(BALANCED, (20, 1))})
    assert weakest_gradient(run) == 0.1
    assert weakest_gradient(build(tmp_path / "none", logged={"loss": [1.0]})) is None

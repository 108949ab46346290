import numpy as np
import pytest

from gatdiag.report.balance import BROKEN, IMBALANCED, balance_facts, imbalance
from tests.report.builder import build


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
        assert imbalance(run, step) == pytest.approx(wanted)


@pytest.mark.parametrize("factor", [0.99, 1.0])
def test_neurons_out_of_balance_stand_out(tmp_path, factor):
    c = np.array([[0.1, 0.1], [-factor * IMBALANCED * 8.0, 0.3]])  # 4^2 over 2 neurons
    run = build(tmp_path / "run", weights={"norm": np.full((2, 2), 4.0)}, neurons={"c": c, "delta": 0 * c})
    fact = next(balance_facts(run))
    assert fact.notable == (factor >= 1)
    assert "the largest such ratio at the first step is 0.0125" in fact.text
    assert "largest |c|" not in fact.text  # that is an absolute number everywhere on the page


@pytest.mark.parametrize("error", [0.5 * BROKEN, 2 * BROKEN])
def test_laws_hold_as_long_as_c_is_where_it_must_be(tmp_path, error):
    c = np.array([[4.0, -1.0], [4.0, -1.0]])
    columns = {"c": c, "delta": 0 * c, "predicted_c": c + 4 * error}
    (fact,) = balance_facts(build(tmp_path / "run", neurons=columns))
    assert fact.notable == (error > BROKEN)
    assert "2 laws, largest |c| 4" in fact.text


def test_laws_that_were_not_found_are_said_to_be_missing(tmp_path):
    excluded = [{"what": "convs.0", "reason": "sigmoid"}]
    (none,) = balance_facts(build(tmp_path / "none", laws={"found": [], "excluded": excluded, "error": None}))
    assert "excluded: 1." in none.text
    (error,) = balance_facts(build(tmp_path / "error", laws={"found": [], "excluded": [], "error": "no forward"}))
    assert error.notable
    assert "no forward" in error.text


def test_laws_without_rows_and_values_that_are_no_numbers_say_nothing(tmp_path):
    assert list(balance_facts(build(tmp_path / "rows", logged={"loss": [1.0]}))) == []
    broken = np.full((2, 2), np.nan)
    assert list(balance_facts(build(tmp_path / "nan", neurons={"c": broken, "predicted_c": broken}))) == []


def test_a_reason_is_not_cut_inside_a_word(tmp_path):
    reason = "the output of the model is not a tensor, nor a tuple, a list or a dict of tensors"
    (fact,) = balance_facts(
        build(tmp_path / "run", logged={"loss": [1.0]}, laws={"found": [], "excluded": [], "error": reason})
    )
    assert fact.text == f"They could not be found: {reason}."

import numpy as np
import pytest

from gatdiag.errors import InputError
from gatdiag.run.pending import MOST_FURTHER_COLUMNS, Pending
from gatdiag.run.schema import TABLES


@pytest.fixture
def layers():
    return Pending(TABLES["layers"])


def rows(pending):
    further = list(pending.further)
    return pending.batch(pending._table.stream_schema(further)).to_pylist()


def test_numbers_stand_for_all_rows_and_what_is_absent_is_null(layers):
    layers.add({"step": 4, "layer": [1, 0], "mu": [0.5, np.nan], "non_finite": 0, "mad": None}, 2)
    layers.add({"step": np.array([5]), "layer": 1, "mad": np.float32(0.25)}, 2)
    got = rows(layers)
    assert [(r["step"], r["layer"], r["non_finite"], r["mad"]) for r in got] == [
        (4, 1, 0.0, None),
        (4, 0, 0.0, None),
        (5, 1, None, 0.25),
    ]
    assert got[0]["mu"] == 0.5
    assert np.isnan(got[1]["mu"])
    assert got[2]["mu"] is None


def test_masked_entries_are_null(layers):
    layers.add({"step": 0, "layer": [0, 1], "mu": np.ma.array([1.0, 2.0], mask=[True, False])}, 2)
    assert [row["mu"] for row in rows(layers)] == [None, 2.0]


def test_arrays_are_copied(layers):
    mu = np.array([1.0])
    layers.add({"step": 0, "layer": [0], "mu": mu}, 1)
    mu[0] = 2.0
    assert rows(layers)[0]["mu"] == 1.0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"step": 0, "layer": [0, 1], "mu": [1.0]}, r"arrays of one length, got shape \(1,\) for 'mu' beside 2 rows"),
        ({"step": 0, "layer": [0], "mu": [[1.0]]}, "arrays of one length"),
        ({"layer": [0]}, "Every row of layers needs a step"),
        ({"step": 0}, "Every row of layers needs a layer"),
        ({"step": 0, "layer": np.ma.array([0], mask=[True])}, "needs a layer"),
        ({"step": 0, "layer": [2]}, "positions from 0 to 1, got 2 to 2"),
        ({"step": 0, "layer": [0, -1]}, "positions from 0 to 1, got -1 to 0"),
        ({"step": -1, "layer": [0]}, "step should be a whole number from 0, got -1"),
        ({"step": 0, "layer": [0], "nu": 1.0}, "The table layers has no column 'nu'; it has step, layer, output_norm"),
        ({"step": 0, "layer": [0], "mu": "high"}, "'mu' should be numbers"),
        ({"step": 0.5, "layer": [0]}, "'step' should be whole numbers"),
        ({"step": 0, "layer": [0], "mu": 1j}, "'mu' should be numbers"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(layers, columns, message):
    with pytest.raises(InputError, match=message):
        layers.add(columns, 2)
    assert layers.rows == 0


def test_steps_takes_further_columns_up_to_a_limit():
    steps = Pending(TABLES["steps"])
    steps.add({"step": 0, "a b/c.d": 1}, 0)
    assert rows(steps)[0]["a b/c.d"] == 1.0
    for name in ("\udc80", 3):
        with pytest.raises(InputError, match="should be text in valid Unicode"):
            steps.add({"step": 1, name: 1}, 0)
    steps.add({"step": 1} | {f"x{number}": 1 for number in range(MOST_FURTHER_COLUMNS - 1)}, 0)
    with pytest.raises(InputError, match=f"at most {MOST_FURTHER_COLUMNS} logged scalars; 'one' is one more"):
        steps.add({"step": 2, "one": 1}, 0)


def test_rows_are_dropped_up_to_a_mark_and_only_once(layers):
    layers.add({"step": 0, "layer": [0]}, 1)
    last = layers.last
    layers.add({"step": 1, "layer": [0]}, 1)
    layers.drop_through(last)
    layers.drop_through(last)
    assert [row["step"] for row in rows(layers)] == [1]
    layers.drop_through(layers.last)
    assert (layers.rows, layers.size, layers.last) == (0, 0, None)


def test_no_rows_are_no_entry(layers):
    layers.add({"step": 0, "layer": []}, 1)
    assert layers.last is None

import numpy as np
import pandas as pd

from gatdiag.report.latest import early_median, last_values, last_whole, late_median


def series(values):
    """(steps, layers) -> a series as `gatdiag.summary` gives it, at every third step."""
    steps, layers = np.shape(values)
    names = pd.Categorical([f"l{i}" for i in range(layers)] * steps, [f"l{i}" for i in range(layers)], ordered=True)
    return pd.DataFrame({"step": np.repeat(3 * np.arange(steps), layers), "layer": names, "value": np.ravel(values)})


def test_the_last_value_is_that_of_each_layer():
    assert last_values(series([[1, 2], [3, 4], [np.nan, 5]])) == {"l0": 3.0, "l1": 5.0}


def test_the_late_median_is_over_the_last_tenth_of_the_steps():
    random = np.random.default_rng(0)
    values = random.normal(size=(200, 3))
    wanted = {f"l{i}": float(np.median(values[180:, i])) for i in range(3)}
    assert late_median(series(values)) == wanted
    assert early_median(series(values)) == {f"l{i}": float(np.median(values[:20, i])) for i in range(3)}


def test_of_few_steps_it_is_the_last_and_the_first():
    assert late_median(series([[1], [2]])) == {"l0": 2.0}
    assert early_median(series([[1], [2]])) == {"l0": 1.0}


def test_layers_without_a_number_are_left_out():
    values = [[1, np.nan], [2, np.nan]]
    assert last_values(series(values)) == {"l0": 2.0}
    assert late_median(series(values)) == {"l0": 2.0}


def test_nothing_recorded_gives_nothing():
    empty = series(np.zeros((0, 2)))
    assert last_values(empty) == late_median(empty) == early_median(empty) == {}


def test_the_last_whole_step_has_a_number_in_every_layer():
    assert last_whole(series([[1, 2], [3, 4], [5, np.nan], [6, np.inf]])) == (3, {"l0": 3.0, "l1": 4.0})
    assert last_whole(series([[np.nan, np.nan]])) is None

import numpy as np
import pandas as pd

from gatdiag.diagnosis.values import early_median, last_values


def series(values):
    """(steps, layers) -> a series as `gatdiag.summary` gives it, at every third step."""
    steps, layers = np.shape(values)
    names = pd.Categorical([f"l{i}" for i in range(layers)] * steps, [f"l{i}" for i in range(layers)], ordered=True)
    return pd.DataFrame({"step": np.repeat(3 * np.arange(steps), layers), "layer": names, "value": np.ravel(values)})


def test_medians_are_over_the_first_tenth_of_the_steps():
    values = np.random.default_rng(0).normal(size=(200, 3))
    assert early_median(series(values)) == {f"l{i}": float(np.median(values[:20, i])) for i in range(3)}
    assert early_median(series([[1], [2]])) == {"l0": 1.0}


def test_layers_without_a_number_are_left_out():
    values = [[1, np.nan], [2, np.nan]]
    assert last_values(series(values)) == {"l0": 2.0}
    assert last_values(series([[1, 2], [3, 4], [np.nan, 5]])) == {"l0": 3.0, "l1": 5.0}
    empty = series(np.zeros((0, 2)))
    assert last_values(empty) == early_median(empty) == {}

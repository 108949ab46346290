import json

import numpy as np

from gatdiag.page.chart import chart_data
from tests.page.builder import NO_LAYERS, build

GRADIENT = "parameters.relative_gradient_norm"


def test_each_layer_has_its_values_by_step(tmp_path):
    values = [[1.0, 2.0], [0.12345, np.inf], [3.0, 4.0]]
    run = build(tmp_path / "run", weights={"relative_gradient_norm": values}, layers={"relative_mu": [[0.5, 0.25]] * 3})
    first, second = json.loads(chart_data(run, GRADIENT))
    assert first["layers"] == ["convs.0", "convs.1"]
    assert first["steps"] == [0, 1, 2]
    assert first["values"] == [[1.0, 0.123, 3.0], [2.0, None, 4.0]]
    assert first["log"]
    assert second["values"] == [[0.5] * 3, [0.25] * 3]
    assert [*json.loads(chart_data(run, "layers.relative_mu"))] == [second, first]


def test_what_was_not_recorded_has_no_chart(tmp_path):
    assert chart_data(build(tmp_path / "run", logged={"loss": [1.0]}, **NO_LAYERS), GRADIENT) == ""


def test_a_chart_of_a_long_run_stays_small(tmp_path):
    run = build(tmp_path / "run", weights={"relative_gradient_norm": np.full((500, 100), 0.012345)})
    (only,) = json.loads(chart_data(run, GRADIENT))
    assert np.shape(only["values"]) == (80, 15)
    assert (only["steps"][0], only["steps"][-1]) == (0, 499)
    assert (only["layers"][0], only["layers"][-1]) == ("convs.0", "convs.99")

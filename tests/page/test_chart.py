import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from gatdiag.figures.heat import PlacedMap, heat_table
from gatdiag.figures.style import ordered_colors
from gatdiag.page.chart import cells_data, chart_data
from tests.figures.odd_runs import recorded_run
from tests.page.builder import NO_LAYERS, build
from tests.run.synthetic import synthetic_meta

GRADIENT = "parameters.relative_gradient_norm"


def test_each_layer_has_its_values_by_step(tmp_path):
    values = [[1.0, 2.0], [0.12345, np.inf], [3.0, 4.0]]
    run = build(tmp_path / "run", weights={"relative_gradient_norm": values}, layers={"relative_mu": [[0.5, 0.25]] * 3})
    first, second = json.loads(chart_data(run, GRADIENT))
    assert first["layers"] == ["convs.0", "convs.1"]
    assert first["steps"] == [0, 1, 2]
    assert first["values"] == [[1.0, 0.123, 3.0], [2.0, "p", 4.0]]
    assert first["colors"] == [to_hex(color) for color in ordered_colors(2)]  # as in the figures
    assert first["log"]
    assert second["values"] == [[0.5] * 3, [0.25] * 3]
    assert [*json.loads(chart_data(run, "layers.relative_mu"))] == [second, first]


def test_what_is_no_number_says_why_and_the_steps_are_those_of_the_run(tmp_path):
    run = build(
        tmp_path / "run",
        layers={
            "output_norm": [[1.0, 1.0], [1.0, 0.0], [np.nan, 1.0], [np.nan, -np.inf]],
            "relative_mu": [[0.5, 0.5], [0.5, np.nan], [np.nan, np.inf], [np.nan, np.nan]],
        },
    )
    norm, mu = json.loads(chart_data(run, "layers.output_norm"))
    assert norm["steps"] == mu["steps"] == [0, 1, 2, 3]
    assert mu["values"] == [[0.5, 0.5, "n", "n"], [0.5, "o", "p", "n"]]
    assert norm["values"] == [[1.0, 1.0, "n", "n"], [1.0, 0.0, "n", "n"]]


def test_the_steps_reach_as_far_as_the_run(tmp_path):
    def rows(step):
        measured = {"layers": {"layer": [0, 1], "relative_mu": [0.5, 0.25]}} if step < 2 else {}
        return {"steps": {"loss": 1.0}, **measured}

    run = recorded_run(tmp_path / "run", synthetic_meta(2, 2), rows, 6)
    (mu,) = json.loads(chart_data(run, "layers.relative_mu"))
    assert mu["steps"] == [0, 1, 5]
    assert mu["values"] == [[0.5, 0.5, None], [0.25, 0.25, None]]


def test_what_was_not_recorded_has_no_chart(tmp_path):
    assert chart_data(build(tmp_path / "run", logged={"loss": [1.0]}, **NO_LAYERS), GRADIENT) == ""


def test_a_chart_of_a_long_run_stays_small(tmp_path):
    run = build(tmp_path / "run", weights={"relative_gradient_norm": np.full((500, 100), 0.012345)})
    (only,) = json.loads(chart_data(run, GRADIENT))
    assert np.shape(only["values"]) == (80, 15)
    assert only["of"] == [100, 500]
    assert (only["steps"][0], only["steps"][-1]) == (0, 499)
    assert (only["layers"][0], only["layers"][-1]) == ("convs.0", "convs.99")
    (only,) = json.loads(chart_data(run, GRADIENT, layers=["convs.1", "convs.98"]))
    assert {"convs.0", "convs.1", "convs.98", "convs.99"} < {*only["layers"]}
    assert len(only["layers"]) == 80


@pytest.mark.parametrize(("layers", "count"), [(1, 300), (40, 75), (600, 5)])
def test_a_heat_map_has_a_bounded_number_of_values(layers, count):
    steps = np.repeat(np.arange(900), layers)
    names = [f"convs.{place}" for place in range(layers)]
    series = pd.DataFrame({"step": steps, "layer": pd.Categorical(names * 900, names), "value": steps + 0.0})
    drawn = PlacedMap(heat_table(series, 899), names, (0.1, 0.2, 0.9, 0.8), (-0.5, 899.5))
    assert cells_data([]) == cells_data([[]]) == ""
    read = json.loads(cells_data([[drawn], [drawn._replace(box=(0.25, 0.2, 0.9, 0.8))]]))
    assert read["places"] == [[[0.1, 0.2, 0.9, 0.8, -0.5, 899.5]], [[0.25, 0.2, 0.9, 0.8, -0.5, 899.5]]]
    (only,) = read["maps"]
    assert read["layers"][only["layers"]] == names
    assert np.shape(only["values"]) == (layers, count)
    assert (only["steps"][0], only["lasts"][-1], only["end"]) == (0, 899, 900)
    assert only["values"][0] == only["lasts"], "the largest of each cell is the last"
    assert only["some"] == (layers > 1), "of its cells are left out"

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection, QuadMesh
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.figure import Figure

from gatdiag.figures.heat import color_limits, draw_heat_map, heat_legend, heat_table
from gatdiag.figures.style import BROKEN, HEAT, ZERO

NAMES = ["a", "b", "c"]


def series(values, first=0, stride=1):
    """A table from layers x steps."""
    values = np.asarray(values, float)
    rows, columns = np.indices(values.shape)
    names = pd.Categorical.from_codes(rows.T.ravel(), categories=NAMES[: len(values)], ordered=True)
    return pd.DataFrame({"step": first + stride * columns.T.ravel(), "layer": names, "value": values.T.ravel()})


def drawn(table, kind="log", limits=(0.1, 100.0), names=NAMES):
    axes = Figure().subplots()
    return axes, draw_heat_map(axes, heat_table(table), names, kind, limits)


@pytest.mark.parametrize("how", ["max", "extreme", "first"])
def test_long_runs_are_thinned_cell_by_cell(how):
    values = np.random.default_rng(0).normal(size=(2, 700))
    table = heat_table(series(values, first=5, stride=2), how)
    starts = sorted(set(table["step"]))
    assert len(starts) == 300
    assert sorted(set(table["until"])) == [*starts[1:], 1405]
    places = [(start - 5) // 2 for start in starts] + [700]
    for row in (0, 1):
        shown = table[table["layer"] == NAMES[row]].sort_values("step")["value"]
        parts = [values[row, a:b] for a, b in pairwise(places)]
        best = {"max": max, "extreme": lambda part: max(part, key=abs), "first": lambda part: part[0]}[how]
        assert shown.tolist() == [best(part) for part in parts]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("how", ["max", "extreme", "first"])
def test_a_single_broken_value_is_never_thinned_away(how, bad):
    values = np.ones((1, 3001))
    values[0, 1234] = bad
    assert (~np.isfinite(heat_table(series(values), how)["value"])).sum() == 1


def test_each_kind_of_cell_is_told_apart():
    axes, cases = drawn(series([[1.0, 10.0, 0.0], [2.0, np.nan, np.inf]]))
    colors = axes.findobj(QuadMesh)[0].get_array()
    ordinary = HEAT(LogNorm(0.1, 100.0)([1.0, 10.0, 2.0]))
    np.testing.assert_allclose(colors[0], [*ordinary[:2], to_rgba(ZERO)])
    np.testing.assert_allclose(colors[1], [ordinary[2], to_rgba(BROKEN), to_rgba(BROKEN)])
    assert (colors[2, :, 3] == 0).all()  # no row: the ground shows
    assert cases == {"zero", "broken", "unmeasured"}
    assert [patch.get_label() for patch in heat_legend(cases)] == ["exactly 0", "NaN or infinite", "no value"]
    (hatch,) = axes.findobj(FillBetweenPolyCollection)
    assert [path.get_extents().extents.tolist() for path in hatch.get_paths()] == [[0.5, 0.5, 2.5, 1.5]]


@pytest.mark.parametrize(
    ("names", "steps", "label"),
    [
        ("a", [0, 1, 2], "not recorded"),
        ("a", [0, 1], None),
        ("abc", [0, 1, 9], "not recorded, or no value"),
        ("abc", [], "no value"),
    ],
)
def test_what_was_not_recorded_is_told_from_what_a_layer_does_not_have(names, steps, label):
    axes = Figure().subplots()
    cases = draw_heat_map(axes, heat_table(series([[1.0, 2.0]])), [*names], "log", (0.1, 10.0), np.array(steps, int))
    assert axes.get_xlim() == (-0.5, max([1, *steps]) + 0.5)
    assert [patch.get_label() for patch in heat_legend(cases)] == ([label] if label else [])


@pytest.mark.parametrize(
    ("steps", "edges"),
    [
        ([0, 1, 21, 41, 61], [0, 1, 21, 41, 61, 81]),  # rarer from some step on, which is no pause
        ([0, 1, 2, 100, 101], [0, 1, 2, 3, 100, 101, 102]),
        ([0, 10, 20, 500, 2000, 2010], [0, 10, 20, 30, 500, 510, 2000, 2010, 2020]),
        ([7], [7, 8]),
    ],
)
def test_cells_stand_at_their_steps_and_end_where_recording_paused(steps, edges):
    table = series([[1.0] * len(steps)])
    table["step"] = steps
    axes, _ = drawn(table, names=NAMES[:1])
    mesh = axes.findobj(QuadMesh)[0]
    assert (mesh.get_coordinates()[0, :, 0] + 0.5).tolist() == edges
    filled = mesh.get_array()[0, :, 3] > 0
    assert [edge for edge, full in zip(edges, filled, strict=False) if full] == steps


@pytest.mark.parametrize(
    ("values", "kind", "limits"),
    [
        ([1e-9, -1e-10], "signed", (-0.1, 0.1)),
        ([-3.0, 1.0], "signed", (-2.98, 2.98)),
        ([], "log", (0.1, 1.0)),
        ([0.0, np.nan], "log", (0.1, 1.0)),
    ],
)
def test_limits_of_colors(values, kind, limits):
    assert color_limits(np.array(values), kind) == pytest.approx(limits)


def test_logarithmic_colors_span_at_least_a_decade():
    low, high = color_limits(np.array([1.0, 1.1]), "log")
    assert high / low > 10

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from gatdiag.figures.look import heat_map, heat_table, shared_limits

NAMES = ["a", "b", "c"]


def series(values, first=0, stride=1):
    """A table from layers x steps."""
    values = np.asarray(values, float)
    rows, columns = np.indices(values.shape)
    names = pd.Categorical.from_codes(rows.T.ravel(), categories=NAMES[: len(values)], ordered=True)
    return pd.DataFrame({"step": first + stride * columns.T.ravel(), "layer": names, "value": values.T.ravel()})


def drawn(values, kind="log"):
    axes = Figure().subplots()
    cases = heat_map(axes, series(values), NAMES, kind=kind, label="value", bar=False)
    return axes, cases


@pytest.mark.parametrize("how", ["max", "extreme", "first"])
def test_long_runs_are_thinned_cell_by_cell(how):
    values = np.random.default_rng(0).normal(size=(2, 700))
    table = heat_table(series(values, first=5, stride=2), how)
    starts = sorted(set(table["step"]))
    assert len(starts) == 300
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
    values = [[1.0, 10.0, 0.0], [2.0, np.nan, np.inf], [5.0, 5.0, 5.0]]
    axes, cases = drawn(values)
    shown, zero, broken = (mesh.get_array() for mesh in axes.findobj(QuadMesh))
    assert (~shown.mask).tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert (~zero.mask).tolist() == [[False, False, True], [False] * 3, [False] * 3]
    assert (~broken.mask).tolist() == [[False] * 3, [False, True, True], [False] * 3]
    assert cases == {"zero", "broken"}


def test_layers_without_rows_have_no_value():
    axes = Figure().subplots()
    cases = heat_map(axes, series([[1.0, 2.0]]), NAMES, kind="linear", label="", bar=False)
    assert cases == {"unmeasured"}
    assert axes.findobj(QuadMesh)[0].get_array().mask[1:].all()


def test_broken_runs_of_neighboring_layers_share_a_hatch():
    broken = np.nan
    axes, _ = drawn([[1, broken, broken], [1, broken, broken], [broken, 1, broken]])
    boxes = sorted((p.get_x(), p.get_width(), p.get_y(), p.get_height()) for p in axes.patches)
    assert boxes == [(-0.5, 1, 1.5, 1), (0.5, 2, -0.5, 2), (1.5, 1, 1.5, 1)]


def test_cells_stand_at_their_steps_even_when_these_are_not_even():
    table = series([[1.0, 2.0, 3.0]])
    table["step"] = [0, 1, 100]
    axes = Figure().subplots()
    heat_map(axes, table, NAMES[:1], kind="linear", label="", bar=False)
    edges = axes.findobj(QuadMesh)[0].get_coordinates()[0, :, 0]
    assert edges.tolist() == [-0.5, 0.5, 99.5, 149.5]


@pytest.mark.parametrize(
    ("values", "kind", "limits"),
    [
        ([1e-9, -1e-10], "signed", (-0.1, 0.1)),
        ([-3.0, 1.0], "signed", (-2.98, 2.98)),
        ([], "log", (0.1, 1.0)),
        ([0.0, np.nan], "log", (0.1, 1.0)),
        ([2.0, 2.0], "linear", (1.5, 2.5)),
    ],
)
def test_limits_of_colors(values, kind, limits):
    assert shared_limits(np.array(values), kind) == pytest.approx(limits)


def test_logarithmic_colors_span_at_least_a_decade():
    low, high = shared_limits(np.array([1.0, 1.1]), "log")
    assert high / low > 10

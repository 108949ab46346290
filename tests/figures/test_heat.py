from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from gatdiag.figures.axes import MARKS
from gatdiag.figures.heat import color_limits, draw_heat_map, heat_legend, heat_table
from gatdiag.figures.style import HEAT
from tests.figures.canvas import boxes, step_edges
from tests.page.builder import contrast

NAMES = ["a", "b", "c"]


def series(values, first=0, stride=1):
    """A table from layers x steps."""
    values = np.asarray(values, float)
    rows, columns = np.indices(values.shape)
    names = pd.Categorical.from_codes(rows.T.ravel(), categories=NAMES[: len(values)], ordered=True)
    return pd.DataFrame({"step": first + stride * columns.T.ravel(), "layer": names, "value": values.T.ravel()})


def drawn(table, kind="log", limits=(0.1, 100.0), names=NAMES):
    axes = Figure().subplots()
    return axes, draw_heat_map(axes, heat_table(table, table["step"].max()), names, kind, limits)


@pytest.mark.parametrize("how", ["max", "extreme", "first"])
def test_long_runs_are_thinned_cell_by_cell(how):
    values = np.random.default_rng(0).normal(size=(2, 700))
    table = heat_table(series(values, first=5, stride=2), 1405, how)
    starts = sorted(set(table["step"]))
    assert len(starts) == 300
    assert sorted(set(table["until"])) == [*starts[1:], 1405]
    places = [(start - 5) // 2 for start in starts] + [700]
    assert table.drop_duplicates("step")["recorded"].tolist() == np.diff(places).tolist()
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
    assert (~np.isfinite(heat_table(series(values), 3000, how)["value"])).sum() == 1


def test_each_kind_of_cell_is_told_apart():
    axes, cases = drawn(series([[1.0, 10.0, 0.0], [2.0, np.nan, np.inf]]))
    mesh = axes.findobj(QuadMesh)[0]
    shown = mesh.to_rgba(mesh.get_array())
    np.testing.assert_allclose(shown[[0, 0, 1], [0, 1, 0]], HEAT(LogNorm(0.1, 100.0)([1.0, 10.0, 2.0])))
    assert (~mesh.get_array().mask).tolist() == [[True, True, False], [True, False, False], [False] * 3]
    assert cases == {"zero", "broken", "unmeasured"}
    assert [patch.get_label() for patch in heat_legend(cases)] == ["exactly 0", "NaN or infinite", "no value"]
    zero, broken, unmeasured = axes.findobj(PathPatch)
    assert boxes(broken) == [[0.5, 0.5, 2.5, 1.5]]
    assert boxes(unmeasured) == [[-0.5, 1.5, 2.5, 2.5]]
    assert boxes(zero) == [[1.5, -0.5, 2.5, 0.5]]
    assert len({hidden.get_hatch() for hidden in (zero, broken, unmeasured)}) == 3
    assert contrast(zero.get_facecolor(), "white") > 10  # smaller than all others is darker, too


def test_zero_over_zero_is_neither_broken_nor_unmeasured():
    table = series([[1.0, np.nan, np.nan]]).assign(undefined=["", "output is zero", ""])
    axes, cases = drawn(table, names=["a"])
    assert cases == {"output is zero", "broken"}
    zero, broken = axes.findobj(PathPatch)
    assert [boxes(zero), boxes(broken)] == [[[0.5, -0.5, 1.5, 0.5]], [[1.5, -0.5, 2.5, 0.5]]]
    assert to_rgb(zero.get_facecolor()) == to_rgb(MARKS["output is zero"][1])  # as in figures of lines
    assert [patch.get_label() for patch in heat_legend(cases)] == ["output is zero", "NaN or infinite"]


@pytest.mark.parametrize("how", ["max", "extreme"])
def test_zero_over_zero_does_not_hide_other_values(how):
    values = np.full(3001, 2.0)
    values[0::2] = np.nan
    table = series([values]).assign(undefined=np.where(np.isnan(values), "output is zero", ""))
    cells = heat_table(table, 3000, how)
    assert {*cells["value"]} == {2.0}


def test_layers_that_are_alike_are_hatched_as_one():
    axes, _ = drawn(series([[np.nan, 1.0, np.inf]] * 2 + [[np.nan, 1.0, 2.0]]))
    (broken,) = axes.findobj(PathPatch)
    assert boxes(broken) == [[-0.5, -0.5, 0.5, 1.5], [1.5, -0.5, 2.5, 1.5], [-0.5, 1.5, 0.5, 2.5]]


def test_a_map_without_a_number_is_hatched():
    assert drawn(series([[np.nan, np.inf], [np.nan, np.nan]]), names=NAMES[:2])[1] == {"broken"}


def test_values_are_written_in_few_cells_and_can_be_read_on_their_color():
    axes, _ = drawn(series([[1e-9, 2.0, np.nan], [0.5, 1.0, 0.0], [20.0, 3e-4, 50.0]]), limits=(1e-3, 10.0))
    mesh = axes.findobj(QuadMesh)[0]
    cells = mesh.to_rgba(mesh.get_array())[~mesh.get_array().mask]
    assert [text.get_text() for text in axes.texts] == ["1e-09", "2", "0.5", "1", "20", "0.0003", "50"]
    assert min(contrast(text.get_color(), cell) for text, cell in zip(axes.texts, cells, strict=True)) > 4.5
    places = [
        axes.transData.inverted().transform(text.get_transform().transform(text.get_position())) for text in axes.texts
    ]
    np.testing.assert_allclose(places[2:], [[0, 1], [1, 1], [0, 2], [1, 2], [2, 2]], atol=1e-9)
    assert not drawn(series(np.ones((3, 7))))[0].texts


def test_a_layer_without_a_row_at_a_step_is_hatched_there():
    table = series([[1.0] * 4, [2.0] * 4])
    axes, cases = drawn(table[~((table["layer"] == "b") & table["step"].isin([1, 2]))], names=NAMES[:2])
    (hatch,) = axes.findobj(PathPatch)
    assert boxes(hatch) == [[0.5, 0.5, 2.5, 1.5]]
    assert cases == {"unmeasured"}


def test_what_follows_the_end_of_a_run_stays_empty():
    """The axis is as long as that of another run."""
    axes = Figure().subplots()
    table = heat_table(series([[1.0, 2.0]]), 1)
    assert draw_heat_map(axes, table, ["a"], "log", (0.1, 10.0), np.array([0, 9])) == set()
    assert axes.get_xlim() == (-0.5, 9.5)
    assert step_edges(axes) == [0, 1, 2]


@pytest.mark.parametrize(
    ("steps", "last", "end", "bars"),
    [
        ([0, 1, 2, 3], 3, 4, []),
        ([0, 1, 21, 41, 61], 99, 81, [0, 1, 21, 41, 61]),  # the last cell is as wide as the one before
        ([0, 1, 21, 41, 61], 70, 71, [0, 1, 21, 41, 61]),  # but ends with the run
        ([0, 1, 2, 100, 101], 101, 102, [0, 1, 2, 100, 101]),
        ([0, 10, 20, 500, 2000], 2000, 2001, [0, 10, 20, 500, 2000]),
        ([7], 7, 8, []),
        ([7], 9, 8, []),
    ],
)
def test_a_cell_lasts_until_the_next_recorded_step_which_a_tick_marks(steps, last, end, bars):
    table = series([[1.0] * len(steps)])
    table["step"] = steps
    axes = Figure().subplots()
    cases = draw_heat_map(axes, heat_table(table, last), NAMES[:1], "log", (0.1, 10.0))
    assert step_edges(axes) == [*steps, end]
    assert not axes.findobj(QuadMesh)[0].get_array().mask.any()
    assert not axes.findobj(PathPatch)
    assert ticks(axes) == [(step - 0.5, step + 0.5) for step in bars]
    assert [handle.get_label() for handle in heat_legend(cases)] == (["recorded step"] if bars else [])


def ticks(axes):
    """From where to where each of the marks of recorded steps goes."""
    marks = [each for each in axes.collections if each.get_label() == "_recorded"]
    return [tuple(path.get_extents().intervalx) for each in marks for path in each.get_paths()]


def test_ticks_of_a_thinned_run_are_as_wide_as_what_was_recorded():
    steps = np.array([*range(600), *range(600, 6000, 100)])
    table = series([np.ones(len(steps))])
    table["step"] = steps
    axes, _ = drawn(table, names=NAMES[:1])
    spans = ticks(axes)
    assert sum(after - before for before, after in spans) == len(steps)
    assert [span for span in spans if span[0] > 600] == [(step - 0.5, step + 0.5) for step in steps[601:]]


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([], (0.1, 1.0)),
        ([0.0, np.nan], (0.1, 1.0)),
        (np.geomspace(1, 1e6, 601), (10**0.06, 10**5.94)),
    ],
)
def test_limits_of_colors(values, limits):
    assert color_limits(np.array(values)) == pytest.approx(limits)


def test_logarithmic_colors_span_at_least_a_decade():
    low, high = color_limits(np.array([1.0, 1.1]))
    assert high / low > 10

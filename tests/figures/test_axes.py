import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from gatdiag.figures.axes import draw_lines, layer_axis, not_recorded, note, scale_axis, step_axis


@pytest.fixture
def axes():
    return Figure().subplots()


def test_wide_spans_are_logarithmic_and_signed_ones_never(axes):
    scale_axis(axes, [1e-3, 1.0])
    assert axes.get_yscale() == "log"
    other = Figure().subplots()
    scale_axis(other, [-1e-3, 1e3])
    assert other.get_yscale() == "linear"


def test_limits_hold_what_is_ordinary(axes):
    values = np.linspace(1, 2, 100)
    scale_axis(axes, values)
    low, high = axes.get_ylim()
    assert 0.8 < low < 1
    assert 2 < high < 2.2


@pytest.mark.parametrize("log", [True, False])
def test_a_spike_does_not_press_the_rest_flat(axes, log):
    values = np.append(np.linspace(1, 2, 1000), 1e30)
    scale_axis(axes, values, log=log)
    low, high = axes.get_ylim()
    assert high < 1e4
    shown = np.log10([1, 2]) if log else np.array([1, 2])
    whole = np.log10([low, high]) if log else np.array([low, high])
    assert np.ptp(shown) > 0.1 * np.ptp(whole)


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf, -np.inf], [0.0], [5.0, 5.0], [1e-320], [1e308, 1e-308]])
@pytest.mark.parametrize("log", [True, False, None])
def test_degenerate_values_leave_a_usable_axis(axes, values, log):
    scale_axis(axes, values, log=log)
    low, high = axes.get_ylim()
    assert np.isfinite([low, high]).all()
    assert low < high


def test_noise_does_not_fill_a_logarithmic_axis(axes):
    scale_axis(axes, np.linspace(1.0, 1.2, 50), log=True)
    low, high = axes.get_ylim()
    assert high / low > 50


def curve(values, **columns):
    return pd.DataFrame({"step": np.arange(len(values)), "value": values, **columns})


def test_what_cannot_be_seen_is_marked(axes):
    y = np.array([1.0, 0.0, np.nan, 3.0, np.inf, 2.0, *np.linspace(1, 3, 500), 1e30])
    handles = draw_lines(axes, [(curve(y), {"label": "a"})], log=True)
    marks = {line.get_label(): line.get_xdata().tolist() for line in axes.get_lines()[1:]}
    assert marks == {"_broken": [2, 4], "_zero": [1], "_above": [506]}
    assert [handle.get_label() for handle in handles] == ["a", "NaN or infinite", "exactly 0", "outside the axis range"]


def test_marks_below_a_linear_axis(axes):
    draw_lines(axes, [(curve(np.append(np.linspace(1, 2, 500), -1e9)), {})], log=False)
    assert [line.get_label() for line in axes.get_lines()[1:]] == ["_below"]


def test_a_line_connects_points_at_any_distance_and_a_point_alone_has_a_dot(axes):
    values = np.array([0.0, 1.0, np.nan, 2.0, np.nan, 3.0, 4.0])
    table = curve(values, step=[0, 1, 2, 3, 4, 500, 9000], low=values - 1, high=values + 1)
    draw_lines(axes, [(table, {})])
    line = axes.get_lines()[0]
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4, 500, 9000]
    assert (line.get_marker(), line.get_markevery()) == ("o", [3])
    spans = [path.get_extents() for path in axes.collections[0].get_paths()]
    assert [(span.x0, span.x1) for span in spans] == [(0, 1), (3, 3), (500, 9000)]


@pytest.mark.parametrize("count", [*range(30), 512])
@pytest.mark.parametrize("limit", [5, 8, 12])
def test_layers_are_labeled_at_an_even_stride(axes, count, limit):
    layer_axis(axes, [f"convs.{i}" for i in range(count)], axis="y", limit=limit)
    ticks = axes.get_yticks()
    assert limit / 2 <= len(ticks) <= limit or len(ticks) == count
    assert len(set(np.diff(ticks))) <= 1
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert count == 1 or labels == [str(int(tick)) for tick in ticks]


@pytest.mark.parametrize("steps", [[0], [7], [0, 1]])
def test_ticks_of_few_steps_are_steps(axes, steps):
    step_axis(axes, steps)
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == steps


@pytest.mark.parametrize(("losses", "log"), [((1.946, 1.91), False), ((2.0, 0.001), True), ((0.5, 3.0), False)])
def test_the_axis_is_scaled_to_the_data(axes, losses, log):
    values = np.linspace(*losses, 200) if not log else np.geomspace(*losses, 200)
    scale_axis(axes, values)
    low, high = axes.get_ylim()
    assert axes.get_yscale() == ("log" if log else "linear")
    if not log:
        assert np.ptp(values) > 0.8 * (high - low)


def test_rounding_around_a_constant_looks_level(axes):
    scale_axis(axes, 1.386 + 1e-7 * np.arange(50))
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(0.005 * 1.386, rel=1e-3)
    assert axes.yaxis.get_major_formatter().get_useOffset() is False


def test_powers_of_ten_are_plain_characters(axes):
    scale_axis(axes, np.geomspace(1e-7, 1e2, 50))
    axes.figure.draw_without_rendering()
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert "10⁻⁶" in labels
    assert "$" not in "".join(labels)


def test_what_to_do_depends_on_what_is_missing():
    assert not_recorded("steps.loss") == "not recorded: loss; log it with recorder.log"
    assert not_recorded("layers.mu", "layers.mad") == 'not recorded: mu, mad; record it with metrics=["mu", "mad"]'
    assert "conservation law" in not_recorded("neurons.c")
    assert not_recorded("steps.loss", "layers.mu").split("; ")[1::2] == [
        "log it with recorder.log",
        'record it with metrics=["mu"]',
    ]


def test_a_note_takes_the_place_of_an_axis():
    figure = Figure()
    axes = figure.subplots()
    note(axes, "words " * 20)
    assert not axes.axison
    (text,) = axes.texts
    assert text.get_text().split() == ["words"] * 20
    assert "\n" in text.get_text()

"""One quantity by layer, with the range in which healthy trainings have it."""

import numpy as np
import pytest

from gatdiag.figures import table
from gatdiag.figures.by_layer import BY_LAYER
from gatdiag.quantities import DERIVED, HEALTHY, HEALTHY_RANGE, columns
from tests.figures.canvas import drawn, words
from tests.page.builder import build

LOW, HIGH = HEALTHY["parameters.relative_gradient_norm"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    values = [[1e-2, 1e-3, 1e-9], [2e-2, 3e-3, 1e-8], [4e-2, 2e-3, np.nan]]
    return build(tmp_path_factory.mktemp("runs") / "run", weights={"relative_gradient_norm": values})


def test_a_curve_for_the_first_and_the_last_step_and_the_median(run):
    made = table(BY_LAYER, [run]).pivot_table(index="curve", columns="layer", values="value", sort=False, observed=True)
    assert made.loc["at step 0"].tolist() == [1e-2, 1e-3, 1e-9]
    assert made.loc["at step 2"].tolist()[:2] == [4e-2, 2e-3]
    assert made.loc["median over training"].tolist() == pytest.approx([2e-2, 2e-3, 5.5e-9])


def test_the_steps_of_a_finding_come_last_and_are_no_second_curve(run):
    made = table(BY_LAYER, [run], steps=(0,))
    assert [*dict.fromkeys(made["curve"])] == ["at step 2", "at step 0"]
    made = table(BY_LAYER, [run], steps=(0, 1)).query("curve == 'largest of steps 0 to 1'")
    assert made["value"].tolist() == [2e-2, 3e-3, 1e-8]


def test_the_range_of_healthy_trainings_is_drawn_where_it_is(run):
    axes = drawn(BY_LAYER, table(BY_LAYER, [run])).axes[0]
    (band,) = [patch for patch in axes.patches if patch.get_label() == "nine in ten layers of healthy trainings"]
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((LOW, HIGH))
    low, high = axes.get_ylim()
    assert low <= 1e-9
    assert high >= HIGH
    assert axes.get_yscale() == "log"


def test_gradients_of_zero_are_below_the_range_of_healthy_trainings(tmp_path):
    still = build(tmp_path / "still", weights={"relative_gradient_norm": np.zeros((3, 2))})
    canvas = drawn(BY_LAYER, table(BY_LAYER, [still]))
    assert canvas.axes[0].get_yscale() == "log"
    assert "exactly 0" in words(canvas)


def test_layers_of_a_finding_are_marked(run):
    canvas = drawn(BY_LAYER, table(BY_LAYER, [run], concerned=("convs.2",)))
    assert "layers of the finding" in words(canvas)
    (ring,) = [line for line in canvas.axes[0].get_lines() if line.get_label() == "layers of the finding"]
    assert [*ring.get_xdata()] == [2]
    assert "layers of the finding" not in words(drawn(BY_LAYER, table(BY_LAYER, [run])))


@pytest.mark.parametrize("column", HEALTHY)
def test_every_quantity_with_a_range_is_a_recorded_one(column):
    group, _, name = column.partition(".")
    assert name in {quantity.name for quantity in (*columns(group), *DERIVED)}
    assert HEALTHY[column][0] < HEALTHY[column][1]


def legend(canvas):
    return [text.get_text() for legend in canvas.legends for text in legend.get_texts()]


def test_a_curve_that_lies_under_the_median_is_named_with_it(tmp_path):
    still = build(tmp_path / "run", weights={"relative_gradient_norm": [[1e-2, 1e-4], [2e-3, 2e-4], [2e-3, 2e-4]]})
    canvas = drawn(BY_LAYER, table(BY_LAYER, [still]))
    assert legend(canvas)[:2] == ["at step 0", "median over training, at step 2"]
    caption = BY_LAYER.described(table(BY_LAYER, [still])).caption
    assert caption.startswith("By layer, at step 0 and median over training, at step 2 (black).")


def test_a_curve_without_a_finite_value_is_known_by_its_marks(tmp_path):
    broken = build(tmp_path / "run", weights={"relative_gradient_norm": [[1e-2, 1e-4], [np.nan, np.nan]]})
    values = table(BY_LAYER, [broken])
    assert legend(drawn(BY_LAYER, values))[-3:] == ["at step 1: only marks", HEALTHY_RANGE, "NaN or infinite"]
    assert "at step 1" not in BY_LAYER.described(values).caption


def test_a_curve_is_not_named_with_another_where_it_is_zero_and_that_is_not(tmp_path):
    gone = build(tmp_path / "run", weights={"relative_gradient_norm": [[1e-2, 1e-4], [1e-2, 0.0]]})
    values = table(BY_LAYER, [gone], steps=(0,))
    assert legend(drawn(BY_LAYER, values)) == ["at step 0", "at step 1: only marks", HEALTHY_RANGE, "exactly 0"]


def test_a_gradient_of_zero_is_not_called_broken(tmp_path):
    gone = build(tmp_path / "run", layers={"output_gradient_norm": [[1.0, 2.0], [0.0, 0.0]]})
    found = legend(drawn(BY_LAYER, table(BY_LAYER, [gone], column="layers.output_gradient_norm")))
    assert "gradient is zero" in found
    assert "NaN or infinite" not in found


def test_no_layer_of_zero_is_left_unmarked(tmp_path):
    values = np.zeros((2, 60))
    values[:, 0] = 1e-2
    canvas = drawn(BY_LAYER, table(BY_LAYER, [build(tmp_path / "run", weights={"relative_gradient_norm": values})]))
    (marks,) = [line for line in canvas.axes[0].get_lines() if line.get_label() == "_zero"]
    assert marks.get_xdata().tolist() == list(range(1, 60))  # once, although it is zero at each step


def test_rings_are_whole_and_around_layers_of_zero_too(tmp_path):
    zero = build(tmp_path / "run", weights={"relative_gradient_norm": [[1e-2, 0.0, 1e-3]] * 2})
    axes = drawn(BY_LAYER, table(BY_LAYER, [zero], concerned=("convs.1",))).axes[0]
    (ring,) = [line for line in axes.get_lines() if line.get_label() == "layers of the finding"]
    assert ring.get_ydata().tolist() == [axes.get_ylim()[0]]
    assert not ring.get_clip_on()

import numpy as np

from gatdiag.figures import table
from gatdiag.figures.curves import COMPARED_CURVES
from gatdiag.figures.curves import TRAINING_CURVES as FIGURE
from gatdiag.figures.style import category
from tests.figures.canvas import drawn, lines
from tests.figures.odd_runs import bare_run
from tests.page.builder import build


def texts_of(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_the_logged_values(runs, shown):
    run, values = runs["stuck"], shown(FIGURE, "stuck", "single")[0]
    accuracies = ("train_accuracy", "val_accuracy", "test_accuracy")
    assert [*dict.fromkeys(zip(values["panel"], values["name"], strict=True))] == [
        ("loss", "loss"),
        *(("accuracy", name) for name in accuracies),
        ("gradient norm", "gradient_norm"),
    ]
    for name, part in values.groupby("name"):
        assert part["value"].tolist() == run.steps[name].tolist()
    assert set(values["best_step"]) == {run.steps["val_accuracy"].idxmax()}


def test_a_stuck_loss_is_seen_to_move_and_accuracy_against_its_whole_range(runs, shown):
    canvas = shown(FIGURE, "stuck", "single")[1]
    assert [len(lines(axes)) for axes in canvas.axes] == [1, 3, 1]
    loss, (low, high) = runs["stuck"].steps["loss"], canvas.axes[0].get_ylim()
    assert loss.max() - loss.min() > 0.8 * (high - low) or high - low < 0.006 * high
    assert canvas.axes[1].get_ylim()[0] <= 0
    assert canvas.axes[1].get_ylim()[1] >= 1


def test_a_loss_that_turns_nan_is_marked(shown):
    axes = shown(FIGURE, "broken")[1].axes[0]
    (marks,) = [line for line in axes.get_lines() if line.get_label() == "_broken"]
    assert marks.get_xdata().tolist() == list(range(15, 40))
    assert "NaN or infinite" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_an_early_spike_does_not_hide_the_rest_and_percentages_are_scaled_to_the_data(shown):
    values = shown(FIGURE)[0].copy()
    values.loc[(values["name"] == "loss") & (values["step"] == 0), ["value", "high", "low"]] = 1e12
    values.loc[values["panel"] == "accuracy", ["value", "low", "high"]] *= 100
    loss, accuracy = drawn(FIGURE, values).axes[:2]
    assert loss.get_ylim()[1] < 1e4
    assert [line.get_xdata().tolist() for line in loss.get_lines() if line.get_label() == "_above"] == [[0]]
    assert accuracy.get_ylim()[1] > 2


def test_a_constant_is_inside_its_axis(shown):
    values = shown(FIGURE)[0].copy()
    values[["value", "low", "high"]] = 1.386
    low, high = drawn(FIGURE, values).axes[0].get_ylim()
    assert 1.38 < low < 1.386 < high < 1.39


def test_scores_are_drawn_in_panels_of_their_kind(tmp_path):
    run = bare_run(tmp_path / "run", logged=("loss", "val_auc", "test_auc", "test_f1"))
    canvas = drawn(FIGURE, table(FIGURE, run))
    panels = [axes for axes in canvas.axes if axes.axison and axes.get_visible()]
    assert [axes.get_ylabel() for axes in panels] == ["loss", "AUC", "F1"]
    assert [text.get_text() for text in panels[1].get_legend().get_texts()] == ["validation", "test"]


def test_the_curves_of_each_run(grown, shown):
    values, canvas = shown(COMPARED_CURVES)
    for place, run in enumerate(grown):
        part = values[values["run"] == place]
        for quantity, column in (("loss", "loss"), ("validation accuracy", "val_accuracy")):
            assert part[part["quantity"] == quantity]["value"].tolist() == run.steps[column].tolist()
        assert set(part["label"]) == {run.name}
    assert [len(lines(axes)) for axes in canvas.axes] == [8, 8]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines(canvas.axes[0])}) == 8
    assert len(canvas.legends[0].get_texts()) == 8


def test_what_cannot_be_drawn_is_marked_in_the_color_of_its_run(tmp_path):
    losses = {"fine": [2.0, 1.0, 0.5], "nan": [np.nan] * 3, "breaks": [2.0, np.inf, np.nan]}
    runs = [build(tmp_path / name, name=name, logged={"loss": loss}) for name, loss in losses.items()]
    canvas = drawn(COMPARED_CURVES, table(COMPARED_CURVES, runs))
    marks = [line for line in canvas.axes[0].get_lines() if line.get_label() == "_broken"]
    assert [line.get_color() for line in marks] == [category(1)["color"], category(2)["color"]]
    assert len({line.get_ydata()[0] for line in marks}) == 2  # none covers the other
    entries = dict(zip(texts_of(canvas.legends[0]), canvas.legends[0].legend_handles, strict=True))
    assert [entries[name].get_linestyle() for name in losses] == ["-", "None", "-."]  # no line that is never drawn


def test_of_many_runs_a_dozen_are_named_and_the_legend_is_below_the_panels(tmp_path):
    runs = [
        build(tmp_path / f"a-rather-long-name-{place}", logged={"loss": [3.0, 1.0 + place], "val_accuracy": [0.1, 0.2]})
        for place in range(30)
    ]
    values = table(COMPARED_CURVES, runs)
    lines = values.groupby("run")["line"].first()
    assert sorted(set(lines)) == [-1, *range(12)]
    assert {0, 29} <= {*lines[lines >= 0].index}  # the best and the worst
    for width in ("single", "double"):
        canvas = drawn(COMPARED_CURVES, values, width)
        legend = canvas.legends[0]
        assert len(legend.get_texts()) == 13
        assert [*texts_of(legend)][-1] == "other runs"
        canvas.draw_without_rendering()  # a warning would be an error
        top = legend.get_window_extent().y1
        assert all(axes.get_tightbbox().y0 >= top for axes in canvas.axes)


def test_the_spread_of_a_group_is_from_the_lowest_to_the_highest_of_its_runs(tmp_path):
    losses = np.array([[4.0, 3.0, 2.0], [6.0, 1.0, np.nan], [5.0, 9.0, 1.0], [8.0, 7.0, np.nan], [2.0, 5.0, np.nan]])
    runs = [build(tmp_path / f"seed-{place}", logged={"loss": loss}) for place, loss in enumerate(losses)]
    values = table("spread_curves", runs, groups=["before"] * 3 + ["after"] * 2)
    assert [*values["label"]] == ["before"] * 3 + ["after"] * 3
    expected = [(4, 5, 6), (1, 3, 9), (1, 2, np.nan), (2, 5, 8), (5, 6, 7), (np.nan, np.nan, np.nan)]
    np.testing.assert_array_equal(values[["low", "value", "high"]], expected)
    assert [*table("spread_curves", runs)["label"].unique()] == ["seed"]


def test_a_legend_names_no_curve_that_cannot_be_seen_and_covers_no_mark(tmp_path):
    run = build(tmp_path / "run", logged={"loss": [np.nan] * 30, "val_accuracy": np.linspace(0, 1, 30)})
    canvas = drawn(FIGURE, table(FIGURE, run), "single")
    canvas.draw_without_rendering()
    axes = canvas.axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["NaN or infinite"]
    (marks,) = [line for line in axes.get_lines() if line.get_label() == "_broken"]
    heights = marks.get_transform().transform(marks.get_xydata())[:, 1]
    assert (axes.get_legend().get_window_extent().y1 < heights - 1).all()


def test_runs_of_which_only_marks_are_seen_are_named_beside_their_mark(tmp_path):
    runs = [
        build(tmp_path / "broken", logged={"loss": [np.nan] * 3}, name="broken"),
        build(tmp_path / "fine", logged={"loss": [3.0, 2.0, 1.0]}, name="fine"),
    ]
    (legend,) = drawn(COMPARED_CURVES, table(COMPARED_CURVES, runs)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["broken", "fine", "NaN or infinite"]
    assert [line.get_marker() for line in legend.get_lines()] == ["x", "None", "x"]


def test_a_caption_names_what_is_drawn(runs, tmp_path):
    whole = FIGURE.described(table(FIGURE, runs["stuck"])).caption
    assert whole.startswith("The logged loss, accuracy and the norm of the gradient of all parameters together; the ")
    run = bare_run(tmp_path / "run", logged=("loss", "val_loss"))
    assert FIGURE.described(table(FIGURE, run, gradients=False)).caption == "The logged losses."
    assert COMPARED_CURVES.described(table(COMPARED_CURVES, [run, run])).caption == "The loss of each run."

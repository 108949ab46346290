from gatdiag.figures import table
from gatdiag.figures.curves import TRAINING_CURVES as FIGURE
from tests.figures.canvas import drawn, lines
from tests.figures.odd_runs import bare_run


def test_the_logged_values(runs):
    run = runs["stuck"]
    values = table(FIGURE, run)
    assert dict.fromkeys(zip(values["panel"], values["name"], strict=True)) == dict.fromkeys(
        [
            ("loss", "loss"),
            ("accuracy", "train_accuracy"),
            ("accuracy", "val_accuracy"),
            ("accuracy", "test_accuracy"),
            ("gradient norm", "gradient_norm"),
        ]
    )
    for name, part in values.groupby("name"):
        assert part["value"].tolist() == run.steps[name].tolist()
    assert set(values["best_step"]) == {run.steps["val_accuracy"].idxmax()}


def test_a_stuck_loss_is_seen_to_move_and_accuracy_against_its_whole_range(runs):
    canvas = drawn(FIGURE, table(FIGURE, runs["stuck"]))
    assert [len(lines(axes)) for axes in canvas.axes] == [1, 3, 1]
    loss, (low, high) = runs["stuck"].steps["loss"], canvas.axes[0].get_ylim()
    assert loss.max() - loss.min() > 0.8 * (high - low) or high - low < 0.006 * high
    assert canvas.axes[1].get_ylim()[0] <= 0
    assert canvas.axes[1].get_ylim()[1] >= 1


def test_a_loss_that_turns_nan_is_marked(runs):
    canvas = drawn(FIGURE, table(FIGURE, runs["broken"]))
    (marks,) = [line for line in canvas.axes[0].get_lines() if line.get_label() == "_broken"]
    assert marks.get_xdata().tolist() == list(range(15, 40))
    assert "NaN or infinite" in [text.get_text() for text in canvas.axes[0].get_legend().get_texts()]


def test_an_early_spike_does_not_hide_the_rest(runs):
    values = table(FIGURE, runs["ordinary"])
    values.loc[(values["name"] == "loss") & (values["step"] == 0), ["value", "high", "low"]] = 1e12
    axes = drawn(FIGURE, values).axes[0]
    assert axes.get_ylim()[1] < 1e4
    assert [line.get_xdata().tolist() for line in axes.get_lines() if line.get_label() == "_above"] == [[0]]


def test_a_constant_is_inside_its_axis(runs):
    values = table(FIGURE, runs["ordinary"])
    values[["value", "low", "high"]] = 1.386
    low, high = drawn(FIGURE, values).axes[0].get_ylim()
    assert 1.38 < low < 1.386 < high < 1.39


def test_scores_are_drawn_in_panels_of_their_kind(tmp_path):
    run = bare_run(tmp_path / "run", logged=("loss", "val_auc", "test_auc", "test_f1"))
    canvas = drawn(FIGURE, table(FIGURE, run))
    shown = [axes for axes in canvas.axes if axes.axison and axes.get_visible()]
    assert [axes.get_ylabel() for axes in shown] == ["loss", "AUC", "F1"]
    assert [text.get_text() for text in shown[1].get_legend().get_texts()] == ["val_auc", "test_auc"]


def test_percentages_are_scaled_to_the_data(runs):
    values = table(FIGURE, runs["ordinary"])
    values.loc[values["panel"] == "accuracy", ["value", "low", "high"]] *= 100
    assert drawn(FIGURE, values).axes[1].get_ylim()[1] > 2

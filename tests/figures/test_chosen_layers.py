from gatdiag.figures import table
from gatdiag.figures.gradients import CHOSEN_LAYERS as FIGURE
from tests.figures.canvas import drawn, lines


def test_first_middle_and_last(runs):
    values = table(FIGURE, runs["ordinary"])
    assert list(dict.fromkeys(values["layer"])) == ["convs.0", "convs.2", "convs.5"]
    assert table(FIGURE, runs["one layer"])["layer"].unique().tolist() == ["convs.0"]


def test_the_recorded_values(runs):
    run = runs["stuck"]
    values = table(FIGURE, run, layers=["convs.3"])
    for role in ("feature weight", "attention vector"):
        rows = run.parameters[(run.parameters["role"] == role) & (run.parameters["layer"] == "convs.3")]
        assert values[values["role"] == role]["value"].tolist() == rows["relative_gradient_norm"].tolist()


def test_features_are_solid_on_the_left_and_attention_dashed_on_the_right(runs):
    canvas = drawn(FIGURE, table(FIGURE, runs["ordinary"]))
    left, right = canvas.axes[:3], canvas.axes[3:]
    left, right = [a for a in canvas.axes if a.get_title("left")], [a for a in canvas.axes if not a.get_title("left")]
    assert [line.get_linestyle() for axes in left for line in lines(axes)] == ["-"] * 3
    assert [line.get_linestyle() for axes in right for line in lines(axes)] == ["--"] * 3
    assert [axes.get_title("left") for axes in left] == ["layer convs.0", "layer convs.2", "layer convs.5"]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["feature weights", "attention vectors"]

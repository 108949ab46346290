from matplotlib.figure import Figure

from gatdiag.figures.look import legend_height, not_recorded, note


def test_what_to_do_depends_on_what_is_missing():
    assert not_recorded("steps.loss") == "not recorded: loss; give it to recorder.log"
    assert not_recorded("layers.mu", "layers.mad") == 'not recorded: mu, mad; record it with metrics=["mu", "mad"]'
    assert "conservation law" in not_recorded("neurons.c")


def test_a_note_takes_the_place_of_an_axis():
    figure = Figure()
    axes = figure.subplots()
    note(axes, "words " * 20)
    assert not axes.axison
    (text,) = axes.texts
    assert text.get_text().split() == ["words"] * 20
    assert "\n" in text.get_text()


def test_long_legends_take_more_rows():
    assert legend_height([], 3.25) == 0
    assert legend_height(["a"] * 4, 6.75) == legend_height(["a"], 6.75)
    assert legend_height(["a" * 28] * 8, 3.25) > 2 * legend_height(["a" * 28] * 8, 6.75)

import base64
import io
from dataclasses import replace

import pandas as pd
import pytest

import gatdiag
from gatdiag.figures import figures_for
from gatdiag.report import plates
from gatdiag.report.plates import TITLES, plate, plate_groups
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return gatdiag.load(synthetic_run(tmp_path_factory.mktemp("runs") / "run", steps=30, layers=3, neurons=2))


@pytest.fixture(scope="module")
def figure(run):
    return next(one for one in figures_for([run]) if one.name == "unchanged_fraction")


def test_a_plate_carries_the_facts_of_its_figure(run, figure):
    made = plate(figure, [run], "here")
    assert (made.title, made.shows, made.reading) == (figure.title, figure.shows, figure.reading)
    assert made.anchor == "here-figure-unchanged_fraction"
    assert made.narrow == ""
    assert str(made.drawing).startswith("<svg")
    assert 'id="here-figure-unchanged_fraction-single-' in made.drawing


def test_the_data_behind_it_are_those_of_the_figure(run, figure):
    made = plate(figure, [run], "here")
    content = base64.b64decode(made.download.partition(",")[2])
    wanted = gatdiag.figures.table(figure, [run]).reset_index(drop=True)
    read = pd.read_csv(io.BytesIO(content))
    assert list(read.columns) == list(wanted.columns)
    pd.testing.assert_frame_equal(read, wanted, check_dtype=False, check_categorical=False, rtol=1e-5)


def test_large_data_are_not_in_the_page(run, figure, monkeypatch):
    monkeypatch.setattr(plates, "LARGE_DATA", 10)
    made = plate(figure, [run], "here")
    assert made.download == ""
    assert made.elsewhere == 'gatdiag.figures.table("unchanged_fraction", run)'


def test_a_large_drawing_becomes_a_picture_if_that_is_smaller(run, figure, monkeypatch):
    monkeypatch.setattr(plates, "LARGE_SVG", 0)
    monkeypatch.setattr(
        plates, "render", lambda *_, format, **__: b"<svg>" + b" " * 9000 + b"</svg>"[:6] if format == "svg" else b"png"
    )
    made = plate(replace(figure, title='"quoted"'), [run], "here")
    assert made.drawing.startswith('<img class="plot single" alt="&#34;quoted&#34;" src="data:image/png;base64,')


def test_two_widths_have_identifiers_of_their_own(run, figure):
    made = plate(figure, [run], "here", ("double", "single"))
    assert 'id="here-figure-unchanged_fraction-double-' in made.drawing
    assert 'id="here-figure-unchanged_fraction-single-' in made.narrow


def test_groups_follow_the_order_of_the_figures(run):
    figures = figures_for([run])
    groups = plate_groups(figures, [run], "run-1")
    assert [group.title for group in groups] == list(dict.fromkeys(TITLES[figure.group] for figure in figures))
    assert [made.title for group in groups for made in group.plates] == [figure.title for figure in figures]
    anchors = [made.anchor for group in groups for made in group.plates] + [group.anchor for group in groups]
    assert len({*anchors}) == len(anchors)


def test_a_figure_that_fails_says_so_in_its_place(run, figure, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("<b>")

    monkeypatch.setattr(plates, "render", fail)
    with pytest.warns(UserWarning, match="unchanged_fraction"):
        made = plate(figure, [run], "here")
    assert made.drawing == "<p>This figure could not be drawn: ZeroDivisionError(&#39;&lt;b&gt;&#39;)</p>"

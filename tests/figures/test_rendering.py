import re
import subprocess
import sys
from io import BytesIO
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.figure
import numpy as np
import pytest
from matplotlib import _pylab_helpers, mathtext
from matplotlib.backends.backend_pdf import PdfPages
from PIL import Image

from gatdiag.errors import InputError
from gatdiag.figures import FIGURES, draw, figures_for, plot, render, render_document, save_figures, table
from gatdiag.figures.rendering import _draw_figure
from tests.figures.odd_runs import recorded_run
from tests.page.builder import build
from tests.run.synthetic import synthetic_meta

_QUICK = ("compared_curves", "training_curves", "unchanged_fraction")


def names(figures):
    return [figure.name for figure in figures]


def test_the_figures_of_one_run_and_of_several(runs, grown):
    one = names(figures_for(runs["ordinary"]))
    assert one == [figure.name for figure in FIGURES if not figure.is_comparison]
    assert one[0] == "overview"
    assert names(figures_for([runs["nothing"]])) == [name for name in one if name != "chosen_layers"]
    assert names(figures_for(grown[::4])) == ["compared_curves", "gradient_evolution"]
    assert names(figures_for(grown)) == ["compared_curves", "gradient_evolution", "accuracy_by_depth"]


@pytest.fixture
def drawings(monkeypatch):
    """Figures that matplotlib has drawn."""
    draw, drawn = matplotlib.figure.Figure.draw, []
    monkeypatch.setattr(matplotlib.figure.Figure, "draw", lambda self, *given: (drawn.append(self), draw(self, *given)))
    return drawn


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_an_svg_is_drawn_once_parses_no_label_and_names_no_font_that_a_browser_lacks(
    figure, runs, grown, drawings, monkeypatch
):
    """Mathtext, or a second drawing, would take most of the time."""
    parsed = []
    monkeypatch.setattr(mathtext.MathTextParser, "parse", lambda self, text, *given, **more: parsed.append(text))
    content = render(figure, runs["ordinary"] if not figure.is_comparison else grown, width="single").decode()
    assert (len(drawings), parsed) == (1, [])
    fonts = re.findall(r"font(?:-family)?: ([^;\"]*)", content)
    assert fonts
    assert not [font for font in fonts if "STIX" in font or "cm" in font.split("'")]


@pytest.mark.parametrize(("width", "inches"), [("single", 3.3), ("double", 6.75)])
def test_png_is_drawn_once_and_has_the_size_of_a_column_at_300_dpi(runs, drawings, width, inches):
    image = Image.open(BytesIO(render("unchanged_fraction", runs["ordinary"], format="png", width=width)))
    assert len(drawings) == 1
    assert image.width == pytest.approx(inches * 300, abs=1)
    assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)


def test_all_figures_over_steps_are_as_long_as_the_run(tmp_path):
    def rows(step):
        measured = {"layers": {"layer": [0, 1], "mu": [1.0, 1.0]}, "parameters": {"parameter": [0], "norm": [1.0]}}
        return {"steps": {"loss": 1.0}} | (measured if step < 4 else {})

    run = recorded_run(tmp_path / "run", synthetic_meta(2, 2), rows, 101)
    shown = {}
    for figure in figures_for(run):
        drawn = _draw_figure(figure, [run], table(figure, run), 6.75, 100)
        shown |= {(figure.name, at): axes for at, axes in enumerate(drawn.axes) if axes.get_xlabel() == "step"}
    assert {name for name, _ in shown} >= {"overview", "training_curves", "smoothing_over_training"}
    assert {axes.get_xlim() for axes in shown.values()} <= {(-1.0, 101.0), (-0.5, 100.5)}


def test_svg_keeps_text_as_text_and_is_the_same_each_time(runs):
    first = render("balance", runs["hostile"])
    ElementTree.fromstring(first)
    assert b"<text" in first
    assert b"<script" not in first
    assert "$x_1^2$" in first.decode()
    assert first == render("balance", runs["hostile"])
    assert not re.search(rb"<dc:date>", first)


def test_heat_maps_are_pictures_inside_an_svg(runs):
    assert len(render("overview", runs["512 layers"])) < 400_000


def test_pdf_is_drawn_once_embeds_its_fonts_and_is_the_same_each_time(runs, drawings):
    first = render("unchanged_fraction", runs["ordinary"], format="pdf")
    assert len(drawings) == 1
    assert first.startswith(b"%PDF")
    assert b"/FontFile2" in first
    assert b"/Type3" not in first
    assert first == render("unchanged_fraction", runs["ordinary"], format="pdf")


def test_settings_of_the_user_neither_matter_nor_change(runs):
    plain = render("training_curves", runs["ordinary"])
    with mpl.rc_context():
        mpl.rcParams.update({"text.usetex": True, "lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path"})
        before = dict(mpl.rcParams)
        assert render("training_curves", runs["ordinary"]) == plain
        assert dict(mpl.rcParams) == before


def test_a_figure_of_one_panel_is_drawn_on_ones_own_axes(runs):
    axes = matplotlib.figure.Figure().subplots(1, 2)
    assert draw("by_layer", runs["ordinary"], axes[1]) is axes[1]
    assert axes[1].get_ylabel() == "‖∇W‖ / ‖W‖"
    assert axes[1].get_legend()
    assert not axes[1].get_title("left")
    assert not axes[0].has_data()


@pytest.mark.parametrize("figure", [figure for figure in FIGURES if not figure.is_comparison], ids=lambda of: of.name)
def test_the_panels_of_a_figure_are_drawn_on_ones_own_axes(figure, runs):
    panels = np.ravel(draw(figure, runs["ordinary"]))
    whole = matplotlib.figure.Figure(figsize=(9, 6), layout="constrained")
    given = np.ravel(whole.subplots(2, 4)).tolist()
    drawn = np.ravel(draw(figure, runs["ordinary"], given[: len(panels)]))
    assert drawn.tolist() == given[: len(panels)]
    assert [axes.get_ylabel() for axes in drawn] == [axes.get_ylabel() for axes in panels]
    assert [axes.get_title("left") for axes in drawn] == [axes.get_title("left") for axes in panels]
    whole.draw_without_rendering()


def test_a_legend_on_ones_own_axes_covers_neither_curves_nor_labels(runs):
    whole = matplotlib.figure.Figure(figsize=(10, 4), layout="constrained")
    for axes in whole.subplots(1, 3):
        draw("by_layer", runs["ordinary"], axes)
    whole.draw_without_rendering()
    for axes in whole.axes:
        legend = axes.get_legend().get_window_extent()
        for other in (axes.bbox, axes.xaxis.label.get_window_extent(), axes.yaxis.label.get_window_extent()):
            assert not legend.overlaps(other)
        assert legend.y0 >= 0


def test_a_wrong_number_of_axes_is_an_error(runs):
    with pytest.raises(InputError, match=r"expects 3 axes, one for each panel, in reading order.*got 1"):
        draw("chosen_layers", runs["ordinary"], matplotlib.figure.Figure().subplots())


@pytest.mark.parametrize(
    ("figure", "options", "message"),
    [
        (
            "accuracy_by_depth",
            {},
            r"expects .*\.val_accuracy or .*got 'run'; not recorded: .*recorder\.log",
        ),
        (
            "by_layer",
            {"column": "layers.effective_rank"},
            r'\.effective_rank, got .*metrics=\["effective_rank"\]',
        ),
    ],
)
def test_nothing_to_draw_is_an_error_and_leaves_ones_axes_alone(tmp_path, figure, options, message):
    run = build(tmp_path / "run", logged={"loss": [1.0, 0.5]}, name="run")
    axes = matplotlib.figure.Figure().subplots()
    with pytest.raises(InputError, match=message):
        draw(figure, run, axes, **options)
    assert axes.axison
    assert not axes.texts


def test_what_is_no_run_and_no_axes_is_an_error(runs):
    with pytest.raises(InputError, match=r"expected runs, as gatdiag\.load\(folder\) opens them, got 'runs/gat10'"):
        draw("overview", "runs/gat10")
    with pytest.raises(InputError, match="ax= expects axes, a figure or a subfigure of matplotlib, got str"):
        draw("chosen_layers", runs["ordinary"], "x")


def test_panels_of_a_figure_have_letters_and_a_figure_that_is_drawn_can_be_saved(runs):
    panels = draw("training_curves", runs["ordinary"], width="single", context="talk")
    assert [axes.get_title("left") for axes in panels] == ["(a)", "(b)", "(c)"]
    page = panels[0].get_figure()
    assert page.get_figwidth() == pytest.approx(3.3 * 1.875)
    assert panels[0].xaxis.label.get_size() == pytest.approx(7 * 1.875)
    page.savefig(BytesIO())


def test_a_talk_has_the_figure_of_a_paper_with_larger_text(runs):
    paper, talk = (
        Image.open(BytesIO(render("conservation", runs["ordinary"], format="png", dpi=dpi, context=context)))
        for dpi, context in ((188, "paper"), (100, "talk"))
    )
    assert np.subtract(paper.size, talk.size) == pytest.approx([0, 0], abs=6)


def test_text_can_be_paths(runs):
    assert b"<text" not in render("unchanged_fraction", runs["ordinary"], as_paths=True)


def test_drawing_leaves_nothing_behind(runs):
    before, backend = dict(mpl.rcParams), mpl.rcParams._get_backend_or_none()
    for name in ("overview", "by_layer"):
        draw(name, runs["ordinary"])
        draw(name, runs["ordinary"], matplotlib.figure.Figure())
    assert _pylab_helpers.Gcf.get_num_fig_managers() == 0  # figures that pyplot has open
    assert dict(mpl.rcParams) == before
    assert mpl.rcParams._get_backend_or_none() == backend


def test_neither_torch_nor_seaborn_nor_a_backend_is_loaded():
    code = (
        "import sys, matplotlib, gatdiag.figures; "
        "bad = [name for name in ('torch', 'tkinter', 'seaborn') if name in sys.modules]; "
        "assert not bad, bad; "
        "assert matplotlib.rcParams._get_backend_or_none() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": "", "HOME": "/tmp"})


def test_options_reach_the_data(runs):
    chosen = table("chosen_layers", runs["ordinary"], layers=["convs.1"])
    assert set(chosen["layer"]) == {"convs.1"}
    for name in ("chosen_layers", "balance", "smoothing_over_training"):
        with pytest.raises(InputError, match=r"run\.layer_names, got 'nowhere'"):
            render(name, runs["ordinary"], layers=["nowhere"])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("pie", 1), {}, "there is no figure 'pie'; there are overview"),
        (("overview", 2), {}, "draws one run, got 2"),
        (("compared_curves", 0), {}, "at least one run"),
        (("overview", 1), {"format": "gif"}, "format must be svg, png or pdf, got 'gif'"),
        (("overview", 1), {"width": "triple"}, "width must be single or double"),
    ],
)
def test_errors_say_what_to_do(grown, arguments, options, message):
    name, count = arguments
    with pytest.raises(InputError, match=message):
        render(name, grown[:count], **options)


def test_everything_is_saved(tmp_path, runs):
    both = [runs["loss only"], runs["nothing"]]
    files = save_figures(both, tmp_path, formats=["svg"], width="single")
    assert all(file.stat().st_size > 500 for file in files)
    assert [file.stem for file in files if file.parent == tmp_path] == names(figures_for(both))
    assert [file.stem for file in files if file.parent.name == "2-nothing"] == names(figures_for(both[1]))
    assert {file.parent.name for file in files} == {tmp_path.name, "1-bare", "2-nothing"}


def test_colors_mean_the_same_in_all_folders(tmp_path, runs, monkeypatch):
    both = [runs["ordinary"], runs["one step"]]
    overview = next(figure for figure in FIGURES if figure.name == "overview")
    monkeypatch.setattr("gatdiag.figures.rendering.FIGURES", [overview])
    limits = overview.shared_options(both)
    files = save_figures(both, tmp_path, formats=["svg"], width="single")
    saved = next(file.read_bytes() for file in files if file.stem == "overview" and file.parent != tmp_path)
    assert saved == render(overview, both[0], width="single", **limits)
    assert saved != render(overview, both[0], width="single")


def test_a_hostile_name_is_no_path(tmp_path, runs, monkeypatch):
    monkeypatch.setattr("gatdiag.figures.rendering.FIGURES", [f for f in FIGURES if f.name in _QUICK])
    runs["nothing"].meta["name"], kept = "../../$up", runs["nothing"].name
    try:
        files = save_figures([runs["nothing"]] * 2, tmp_path / "in", formats=["svg"], width="single")
    finally:
        runs["nothing"].meta["name"] = kept
    assert {file.parent.name for file in files} == {"in", "1-up", "2-up"}
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


@pytest.mark.filterwarnings("error")
def test_a_figure_draws_on_a_part_of_ones_own_figure(runs):
    whole = matplotlib.figure.Figure(figsize=(8, 3))
    left, right = whole.subfigures(1, 2)
    for part, name in ((left, "gradient_norms"), (right, "unchanged_fraction")):
        figure = next(figure for figure in FIGURES if figure.name == name)
        figure.draw(table(figure, runs["ordinary"]), part)
    whole.draw_without_rendering()
    assert left.axes
    assert right.axes


def test_a_document_has_a_page_for_each_figure_with_its_title_and_run(runs, grown, monkeypatch):
    monkeypatch.setattr("gatdiag.figures.rendering.FIGURES", [f for f in FIGURES if f.name in _QUICK])
    said, save = [], PdfPages.savefig
    monkeypatch.setattr(
        PdfPages, "savefig", lambda self, figure: (said.append(figure.get_suptitle()), save(self, figure))
    )
    content = render_document(grown[:2])
    assert content.startswith(b"%PDF")
    assert content.count(b"/Type /Page ") == len(said) == 5
    assert said[0] == "Learning curves of all runs"
    assert said[1] == f"Learning curves: {grown[0].name}"


def test_a_document_is_the_same_each_time(runs, monkeypatch):
    monkeypatch.setattr("gatdiag.figures.rendering.FIGURES", [f for f in FIGURES if f.name == "unchanged_fraction"])
    assert render_document(runs["ordinary"]) == render_document(runs["ordinary"])


def test_a_figure_of_a_run_shows_itself_in_a_notebook(runs):
    shown = plot("training_curves", runs["ordinary"])._repr_png_()
    assert shown.startswith(b"\x89PNG")
    assert len(shown) > 5_000

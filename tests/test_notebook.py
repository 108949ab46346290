"""A notebook that watches, diagnoses and draws, executed by Jupyter; and what objects show in one."""

from html.parser import HTMLParser
from textwrap import dedent

import nbformat
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from nbclient import NotebookClient
from torch import nn

import gatdiag
from gatdiag.card import card
from gatdiag.page.document import default_name
from gatdiag.page.screen import screen
from gatdiag.remedies import initialize_
from gatdiag.treatment.outcome import Metric, Treatment, Trial
from tests.page.builder import build

CELLS = [
    """
    import torch, gatdiag
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(64, 4)
    with gatdiag.watch(model, "runs/stuck", every=1) as recorder:
        for _ in range(30):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
    run = gatdiag.load("runs/stuck")
    run
    """,
    "gatdiag.diagnose(run)",
    "gatdiag.diagnose(run).show()",
    "run.report().name",
    "run.plot('training_curves').savefig('curves.png')",
    "run.plot('training_curves')",
]


def outputs(notebook):
    return [cell["outputs"] for cell in notebook["cells"]]


def test_a_notebook_shows_what_is_wrong(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(dedent(cell)) for cell in CELLS])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    run, diagnosis, shown, name, _, picture = outputs(notebook)
    assert "<strong>Run stuck, finished</strong>" in run[-1]["data"]["text/html"]
    assert run[-1]["data"]["text/plain"] == "Run('runs/stuck', finished)"
    assert "The learning rate is zero" in diagnosis[-1]["data"]["text/html"]
    assert diagnosis[-1]["data"]["text/plain"].startswith("Diagnosis(lr-too-small, error; ")
    assert shown[-1]["text"].startswith("failing: The learning rate is zero: ")
    assert name[-1]["data"]["text/plain"] == "'stuck.html'"
    assert (tmp_path / "stuck.html").stat().st_size > 100_000
    assert (tmp_path / "curves.png").stat().st_size > 5_000
    assert len(picture[-1]["data"]["image/png"]) > 5_000


class Balanced(HTMLParser):
    """Every tag that is opened is closed, and no script is there."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in ("div", "strong", "table", "tr", "td", "pre")
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def hostile(folder):
    """A run whose names are HTML."""
    return build(folder, logged={"loss<b>": [1.0, 2.0]}, weights={"norm": [[1.0, 1.0]] * 2}, model="<script>alert(1)")


def objects(tmp_path):
    run = hostile(tmp_path / "run")
    diagnosis = gatdiag.diagnose(run)
    model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 3))
    laws = gatdiag.find_laws(model, torch.ones(2, 4))
    before = Trial("before", runs=(run,), diagnoses=(diagnosis,), values=(2.0,))
    treatment = Treatment(tmp_path, (0,), Metric("<loss>", is_score=False), before)
    return [run, diagnosis, laws, treatment, initialize_(model, "xavier"), run.laws]


def test_objects_are_a_line_of_text_and_a_short_card(tmp_path):
    for one in objects(tmp_path):
        assert len(repr(one)) < 120 + len(str(tmp_path)), repr(one)
        assert "\n" not in repr(one)
        shown = one._repr_html_()
        assert len(shown) < 6_000
        Balanced(shown)


def test_a_run_shows_numbers_as_its_page_does(tmp_path):
    run = build(tmp_path / "run", logged={"loss": [12491.0, *np.full(29, 1.5)]})
    assert "12,491 \N{RIGHTWARDS ARROW} 1.5" in run._repr_html_()
    assert {tile.label: tile.value for tile in screen(run, gatdiag.diagnose(run)).tiles}["loss"] in run._repr_html_()


def test_parts_are_a_line_of_text(tmp_path):
    _, diagnosis, laws, treatment, *_ = objects(tmp_path)
    for one in (laws[0], treatment.before, diagnosis.verdict):
        assert len(repr(one)) < 100, repr(one)


def test_of_many_rows_the_first_are_shown():
    shown = card("Title", rows=((str(number), number) for number in range(1000)))
    assert shown.count("<tr>") == 12
    assert "and 988 more" in shown


def test_a_run_draws_its_figures_and_refuses_others(tmp_path):
    run = hostile(tmp_path / "run")
    assert isinstance(run.plot(), Figure)
    with pytest.raises(gatdiag.errors.InputError, match="there is no figure 'overwiew'; there are "):
        run.plot("overwiew")


def test_a_page_has_the_name_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "runs" / name for name in ("one", "two", "three")]
    assert [default_name(folders[:count]) for count in (1, 2, 3)] == [
        "one.html",
        "one-vs-two.html",
        "one-and-2-more.html",
    ]
    assert str(hostile(folders[0]).report()) == "one.html"
    assert (tmp_path / "one.html").exists()

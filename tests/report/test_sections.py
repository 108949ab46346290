import numpy as np
import pytest

import gatdiag
from gatdiag.report import sections
from gatdiag.report.sections import comparison, comparison_sheet, run_section
from tests.report.builder import build
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    stuck = synthetic_run(folder / "stuck", steps=30, layers=4, neurons=2, collapse=True)
    return [gatdiag.load(stuck), gatdiag.load(synthetic_run(folder / "fine", steps=30, layers=3, neurons=2))]


def test_a_stuck_network_is_told_from_one_that_trains(runs):
    stuck, fine = (run_section(run, "run-1", in_full=False) for run in runs)
    headings = {fact.heading for fact in stuck.notable}
    assert {"Gradients do not reach every layer", "Weights that never moved", "Nodes become alike"} <= headings
    assert not {"Gradients do not reach every layer", "Nodes become alike"} & {fact.heading for fact in fine.notable}


def test_only_the_overview_is_drawn_where_there_are_many_runs(runs):
    section = run_section(runs[0], "run-1", in_full=False)
    assert section.overview is not None
    assert section.groups == ()
    assert "has all its figures" in section.remarks[0]


def test_runs_are_compared_in_numbers(tmp_path):
    losses = {"a": [3.0, 2.0, 2.5], "b": [3.0, 1.0, 1.0]}
    accuracy = {"a": [0.1, 0.5, 0.5], "b": [0.2, 0.3, 0.9]}
    runs = [
        build(tmp_path / name, name=name, logged={"loss": losses[name], "val_accuracy": accuracy[name]})
        for name in "ab"
    ]
    sheet = comparison_sheet(runs, "here")
    labels = [column.label for column in sheet.columns]
    table = {row[0].text: dict(zip(labels, (cell.text for cell in row), strict=True)) for row in sheet.rows}
    assert table["a"]["first loss"] == "3"
    assert (table["a"]["best loss"], table["a"]["last loss"]) == ("2", "2.5")
    assert (table["a"]["epochs to best"], table["b"]["epochs to best"]) == ("2", "3")
    assert (table["a"]["validation accuracy"], table["b"]["validation accuracy"]) == ("0.5", "0.9")
    assert (table["a"]["depth"], table["a"]["width"]) == ("2", "2")
    assert "test accuracy" not in labels


def test_a_loss_that_is_no_number_is_not_called_unknown(tmp_path):
    runs = [build(tmp_path / "a", logged={"loss": [1.0, np.nan, np.nan]}), build(tmp_path / "b", logged={"x": [1.0]})]
    sheet = comparison_sheet(runs, "here")
    place = [column.label for column in sheet.columns].index("last loss")
    assert [row[place].text for row in sheet.rows] == ["NaN", ""]


def test_a_comparison_begins_with_one_sentence_a_run(runs):
    found = comparison(runs)
    assert [sentence.split(":")[0] for sentence in found.story] == ["stuck", "fine"]
    assert "gradients do not reach every layer" in found.story[0]
    assert [name for name, _ in found.overviews] == ["stuck", "fine"]
    assert found.warnings == ()


def test_a_comparison_names_runs_without_an_end(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "figures_for", lambda runs: [])
    found = comparison([runs[0], build(tmp_path / "open", logged={"loss": [1.0]}, ending=None)])
    assert "open" in found.warnings[0]

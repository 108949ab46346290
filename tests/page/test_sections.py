import re

import numpy as np
import pytest

import gatdiag
from gatdiag.figures import table
from gatdiag.page import plots, sections
from gatdiag.page.sections import comparison, comparison_table, run_sections
from gatdiag.page.tables import cell_text
from gatdiag.summary import lines_of_runs
from tests.page.builder import NO_LAYERS, build
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module", autouse=True)
def _undrawn():
    """Figures are not drawn here, for that takes all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "figure_block", undrawn)
        yield


def undrawn(figure, runs, section, widths=("single",), **options):
    drawn = len(table(figure, runs, **options))
    given = {"widths": widths, **options} if len(widths) > 1 else options
    return plots.FigureBlock(figure, section, repr(given), "") if drawn else None


def compared(runs):
    return comparison(runs, run_sections(runs))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    stuck = synthetic_run(folder / "stuck", steps=30, layers=4, neurons=2, collapse=True)
    return [gatdiag.load(stuck), gatdiag.load(synthetic_run(folder / "fine", steps=30, layers=3, neurons=2))]


@pytest.fixture(scope="module")
def found(runs):
    return compared(runs)


def test_only_the_overview_and_the_evidence_are_drawn_where_there_are_many_runs(runs):
    section = run_sections(runs[:1] * 7)[0]
    assert section.overview is not None
    assert section.evidence is not None
    assert section.figures == []
    assert "to see all its figures" in section.remarks[0]


def test_runs_are_compared_in_numbers(tmp_path):
    losses = {"a": [3.0, 2.0, 2.5], "b": [3.0, 1.0, 1.0]}
    accuracy = {"a": [0.1, 0.5, 0.5], "b": [0.2, 0.3, 0.9]}
    runs = [
        build(tmp_path / name, name=name, logged={"loss": losses[name], "val_accuracy": accuracy[name]})
        for name in "ab"
    ]
    table = comparison_table(runs, "here")
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert (rows["a"]["first loss"], rows["a"]["best loss"], rows["a"]["last loss"]) == (3, 2, 2.5)
    assert (rows["a"]["best step"], rows["b"]["best step"]) == (1, 2)
    assert (rows["a"]["validation accuracy"], rows["b"]["validation accuracy"]) == (0.5, 0.9)
    assert (rows["a"]["depth"], rows["a"]["width"]) == (2, 2)
    assert "test accuracy" not in table.columns


def test_a_loss_that_is_no_number_is_not_called_unknown(tmp_path):
    runs = [build(tmp_path / "a", logged={"loss": [1.0, np.nan, np.nan]}), build(tmp_path / "b", logged={"x": [1.0]})]
    table = comparison_table(runs, "here")
    place = list(table.columns).index("last loss")
    assert [cell_text(row[place]) for row in table.rows] == ["NaN", "\N{EN DASH}"]


def test_a_comparison_begins_with_the_verdict_of_each_run(found):
    rows = [dict(zip(found["table"].columns, row, strict=True)) for row in found["table"].rows]
    assert [row["run"] for row in rows] == ["stuck", "fine"]
    assert rows[0]["state"] == "failing"
    assert rows[0]["verdict"] == "The loss does not fall, and no check says why"
    assert found["warnings"] == []


def test_a_comparison_names_runs_without_an_end(runs, tmp_path):
    found = compared([runs[0], build(tmp_path / "open", logged={"loss": [1.0]}, ending=None)])
    assert "open" in found["warnings"][0]


def test_the_overview_of_a_run_has_its_own_colors_beside_one_that_explodes(runs):
    for section in run_sections(runs):
        assert section.overview.figure.name == "overview"
        assert section.overview.drawing == repr({"widths": ("double", "single")})  # no colors from other runs


def test_of_many_runs_the_worst_have_an_overview_and_the_others_a_verdict(runs, tmp_path):
    stuck, unknown = runs[0], build(tmp_path / "short", logged={"loss": [2.0, 1.0]})
    several = [unknown, *[stuck] * 6, unknown]
    found = compared(several)
    assert [bool(section.overview) for section in found["sections"]] == [False, *[True] * 6, False]
    assert all(section.evidence for section in found["sections"])
    assert [bool(section.tables) for section in found["sections"]] == [False, *[True] * 6, False]
    assert found["left_out"].startswith("Of 8 runs, stuck, stuck")
    assert len(found["table"].rows) == 8
    assert compared(several[:6])["left_out"] == ""


def test_a_run_has_the_same_line_in_the_board_and_in_figures(tmp_path):
    runs = [build(tmp_path / str(place), name=str(place), logged={"loss": [2.0, 1.0 + place]}) for place in range(14)]
    found = compared(runs)
    assert found["lines"] == [plots.line_sample(line) for line in lines_of_runs(runs)]
    dashes = [re.search('dasharray="(.*?)"', plots.line_sample(line))[1] for line in range(4)]
    assert len(set(dashes)) == 4  # solid, dashed, dash-dotted, dotted


def test_accuracies_come_first_and_a_status_that_all_share_not_at_all(tmp_path):
    logged = {"loss": [2.0, 1.0], "val_accuracy": [0.5, 0.6]}
    runs = [build(tmp_path / name, name=name, logged=logged) for name in "ab"]
    assert comparison_table(runs, "here").columns[:2] == ["run", "validation accuracy"]
    runs.append(build(tmp_path / "c", logged=logged, ending=None))
    assert comparison_table(runs, "here").columns[:2] == ["run", "status"]


def test_layers_that_are_not_known_are_not_counted(tmp_path):
    (section,) = run_sections([build(tmp_path / "run", logged={"loss": [2.0, 1.0]}, **NO_LAYERS)])
    assert section.story[0].startswith("GATv2, trained by SGD")
    assert "parameters" not in section.story[0]


def test_a_comparison_calls_scores_what_they_are(tmp_path):
    def labels(*names):
        runs = [build(tmp_path / name, name=name, logged={name: [0.5, 0.6]}) for name in names]
        return comparison_table(runs, "here").columns

    assert "validation AUC" in labels("val_auc")
    assert "validation score" in labels("val_roc_auc", "val_acc")


def test_figures_without_any_of_their_columns_are_named_and_not_drawn(tmp_path):
    (section,) = run_sections([build(tmp_path / "run", logged={"loss": [2.0, 1.0]})])
    drawn = {block.figure.title for block in section.figures}
    assert drawn == {"Relative gradient norms by layer, and the loss"}
    assert section.evidence.figure.title == "Learning curves"
    assert "No figure 'Violation of the conservation law: delta': not recorded: delta; no conservation law" in " ".join(
        section.remarks
    )

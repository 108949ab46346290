import math
import shutil
from dataclasses import replace

import pytest

from reports.papers import gats
from reports.papers.__main__ import STUDIES
from reports.papers.agreement import FIGURE, describe_agreement, describe_other_seeds, draw_agreement, write_summary
from reports.papers.cells import estimated_seconds, missing_cells, train_cells
from reports.papers.comparison import CONSTANT_LOSS, Comparison, compare, is_on_plateau
from reports.papers.published import Published, count_published, published
from reports.papers.runner import REPORTS, TABLE, known_results, train_missing


def row(verdict, mean, *, plateau=False, ci95=1.0, number=80.0, number_ci95=1.0):
    known = Published({}, number, number_ci95)
    return Comparison((), f"{verdict} {mean:g}", "test_accuracy", 5, mean, ci95, known, verdict, plateau)


def test_what_is_not_reproduced_comes_first():
    rows = [row("in the interval", 80.5), row("apart", 60.0), row("intervals overlap", 81.5), row("not run", math.nan)]

    first, listed, share = [*describe_agreement(rows)]

    assert first.startswith("**Not reproduced: 1 of 3 cells**")
    assert listed == "- apart 60: measured 60.0 ± 1.0, published 80.0 ± 1.0\n"
    assert share.startswith("2 of 3 cells have intervals that overlap; in 1 of them the published mean is in")
    assert "Median difference: 1.5 points." in share


def test_agreement_of_all_is_said_and_nothing_of_none():
    first, _ = describe_agreement([row("in the interval", 80.5)])
    assert first == "Of 1 cells, none is apart from the published one.\n"
    assert [*describe_agreement([row("not run", math.nan), row("not known", 3.0)])] == []


def test_numbers_without_an_interval_are_said_to_have_none():
    (_, listed, _) = describe_agreement([row("apart", 60.0, number_ci95=math.nan)])

    assert listed == "- apart 60: measured 60.0 ± 1.0, published 80.0 (without an interval)\n"


def test_intervals_on_a_plateau_are_said_to_mean_little():
    text = "".join(describe_agreement([row("apart", 60.0, plateau=True), row("in the interval", 80.0)]))

    assert "published 80.0 ± 1.0 (on a plateau: see below)" in text
    assert "intervals of five seeds mean little there" in text
    assert text.endswith("Here: apart 60.\n")


def test_a_plateau_is_the_loss_of_a_constant_prediction():
    cells = gats.TABLE_7.full[:2]
    constant = CONSTANT_LOSS["Cora"]

    assert math.log(7) == pytest.approx(constant, abs=1e-3)
    assert is_on_plateau({cell: {"loss": 0.999 * constant} for cell in cells}, cells)
    assert not is_on_plateau({cells[0]: {"loss": constant}, cells[1]: {"loss": 0.5}}, cells)
    assert not is_on_plateau({cells[0]: {"loss": None}}, cells)
    assert not is_on_plateau({}, cells)


def test_other_seeds_are_trained_and_told_but_not_compared(small, trained, tmp_path, monkeypatch):
    results, folder = trained
    cells = tuple(replace(small.full[0], seed=seed) for seed in (100, 101))
    monkeypatch.setitem(CONSTANT_LOSS, small.full[0].data, 0.69)
    shutil.copytree(folder / "small", tmp_path / "small")
    study = replace(small, other_seeds=cells, measure=None, record=False, columns=("test_accuracy",), drawings=())

    more = train_missing(study, tmp_path, full=True)
    text = "".join(describe_other_seeds(more, compare(more)))

    assert [one.mean for one in compare(more)] == pytest.approx([one.mean for one in compare(results)[:4]], rel=1e-5)
    assert "## layers 2, xavier, with other seeds" in text
    assert "| of the comparison: 0, 1, 2 |" in text
    assert "| others: 100, 101 |" in text
    assert "| all: 0, 1, 2, 100, 101 |" in text
    assert [*known_results(study, tmp_path).others] == [*cells]
    assert "".join(describe_other_seeds(results, compare(results))) == ""


def test_the_figure_is_a_picture():
    rows = [row("apart", 60.0, plateau=True), row("in the interval", 80.0, number_ci95=math.nan)]

    assert draw_agreement(rows).startswith(b"\x89PNG")


def test_the_summary_counts_what_the_tables_have(tmp_path):
    for name in ("table-2", "table-7"):
        (tmp_path / name).mkdir()
        shutil.copyfile(REPORTS / name / TABLE, tmp_path / name / TABLE)

    write_summary(STUDIES, tmp_path)

    text = (tmp_path / "README.md").read_text()
    rows = compare(known_results(gats.TABLE_7, tmp_path))
    done = sum(one.done >= 3 for one in rows)
    assert f"| [table-7](table-7/README.md) | 56 | {done} | {sum(one.done >= 5 for one in rows)} |" in text
    assert "**Not reproduced**, [table-7](table-7/README.md): layers 10, Cora, xavier: measured 14.4 ± 3.6" in text
    assert "318 numbers are published" in text
    assert (tmp_path / FIGURE).exists()
    assert not (tmp_path / "table-2" / "README.md").exists()


def test_every_published_number_is_of_a_study_or_said_to_be_of_none():
    tables = {"2": 120, "3": 36, "4": 36, "6": 30, "7": 56, "figure 6": 4}

    assert {table: len(published(table)) for table in tables} == tables
    assert count_published("5") == 6
    assert count_published("missing features", "lipschitz-normalization") == 30


def test_missing_trainings_are_in_the_order_of_their_cost(tmp_path):
    cells = missing_cells(tmp_path)
    groups = {}
    for cell in cells:
        groups.setdefault(replace(cell, seed=0 if cell.seed < 100 else 100), []).append(estimated_seconds(cell))
    costs = [sum(seconds) for seconds in groups.values()]

    assert len(cells) == 600 + 180 + 180 + 280 + 10
    assert costs == sorted(costs)
    assert cells[0].data == "wisconsin.npz" or cells[0].layers == 2
    assert len(missing_cells()) < len(cells)


def test_trainings_resume_where_they_were_ended(small, tmp_path, capsys):
    train_cells(small.quick[:1], tmp_path, tmp_path)
    train_cells(small.quick[:2], tmp_path, tmp_path)

    first, _, again, second, last = capsys.readouterr().out.splitlines()
    assert first.endswith("gcn csbm:nodes=200,features=16 L=2 xavier SGD seed 0: done")
    assert again.endswith("L=2 xavier SGD seed 0: kept")
    assert second.endswith("L=2 balanced_xavier SGD seed 0: done")
    assert last == "2 of 2 trainings are done"

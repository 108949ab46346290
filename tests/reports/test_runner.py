import json
import shutil
import statistics
from dataclasses import replace

import pandas as pd
import pytest
from scipy import stats

from gatdiag.experiments import sweep
from reports.papers import runner
from reports.papers.comparison import compare
from reports.papers.runner import TABLE, TRAININGS, measure_script, train_missing


def test_means_are_those_of_the_files_of_the_sweep(small, trained):
    results, folder = trained
    rows = compare(results)
    assert [(row.done, len(row.cells)) for row in rows] == [(3, 3)] * 8
    for row, cell in zip(rows[:4], small.full[::3], strict=True):
        keys = [sweep.cell_key(replace(cell, seed=seed)) for seed in range(3)]
        files = [folder / TRAININGS / "cells" / f"{key}.json" for key in keys]
        values = [100 * json.loads(file.read_text())["result"]["test_accuracy"] for file in files]
        assert row.mean == pytest.approx(statistics.mean(values), rel=1e-5)  # the file has six digits
        assert row.ci95 == pytest.approx(stats.sem(values) * stats.t.ppf(0.975, 2), rel=1e-4)
        assert row.label == f"layers {cell.layers}, {cell.initialization}"
    assert [row.published and row.published.value for row in rows[:4]] == [1.0, 50.0, None, None]
    assert [row.verdict for row in rows[:4:2]] == ["apart", "not known"]
    assert [row.mean for row in rows[4:]] == [6.0] * 4  # what is measured on the runs


def test_what_has_a_row_is_not_trained_again_even_without_the_sweep(small, trained, tmp_path, monkeypatch):
    results, folder = trained
    (tmp_path / "small").mkdir()
    shutil.copyfile(folder / "small" / TABLE, tmp_path / "small" / TABLE)
    before = (tmp_path / "small" / TABLE).read_bytes()
    monkeypatch.setattr(runner, "sweep", None)
    again = train_missing(small, tmp_path, full=True)
    assert not again.runs
    assert [row.mean for row in compare(again)] == [row.mean for row in compare(results)]
    assert (tmp_path / "small" / TABLE).read_bytes() == before
    assert {*pd.read_csv(tmp_path / "small" / TABLE, dtype=str)["commit"]} == {
        next(iter(results.rows.values()))["commit"]
    }


def test_quick_keeps_the_rows_of_the_protocol_and_is_not_compared_with_it(small, trained, tmp_path):
    (tmp_path / "small").mkdir()
    shutil.copyfile(trained[1] / "small" / TABLE, tmp_path / "small" / TABLE)
    results = train_missing(small, tmp_path)
    assert [row.verdict for row in compare(results)[:2]] == ["other settings"] * 2
    table = pd.read_csv(tmp_path / "small" / TABLE)
    assert table["epochs"].to_list() == [2] * 4 + [6] * 12
    assert len(train_missing(small, tmp_path, full=True, train=False).rows) == 12


def test_names_share_trainings_unless_they_measure_runs(small, trained, tmp_path):
    folder = tmp_path / "reports"
    shutil.copytree(trained[1] / "small", folder / "small")
    other = replace(small, name="other", record=False)
    assert not train_missing(other, folder, full=True, train=False).rows
    sharing = replace(other, measure=None, columns=("test_accuracy",))
    assert len(train_missing(sharing, folder, full=True, train=False).rows) == 12
    assert "steps" not in pd.read_csv(folder / "other" / TABLE)


def test_partly_done_is_said(small, tmp_path):
    one = replace(small, measure=None, record=False, columns=("test_accuracy",))
    sweep.sweep(small.full[:4], tmp_path / TRAININGS)
    rows = compare(train_missing(one, tmp_path, full=True, train=False))
    assert [row.done for row in rows] == [3, 1, 0, 0]
    assert [row.verdict for row in rows[:2]] == ["apart", "too few trainings"]


def test_labels_leave_out_what_follows_from_other_settings(small):
    cells = (*small.full[:3], *(replace(cell, model="gat", layers=3, dropout=0.5) for cell in small.full[:3]))
    results = runner.Results(replace(small, full=cells), True, cells, {})
    assert [results.label(cells[0]) for cells in results.groups] == ["gcn, layers 2", "gat, layers 3"]


def test_a_script_measures_once_and_is_read_afterwards(small, tmp_path):
    measured = pd.DataFrame({"residual": [1e-10, 1e-3]}), {"residuals.png": b"picture"}
    seen = []
    study = replace(small, full=(), quick=(), script=lambda root: seen.append(root) or measured)
    table, pictures = measure_script(study, tmp_path, tmp_path / "data", train=True)
    again, nothing = measure_script(study, tmp_path, tmp_path / "data", train=False)
    assert seen == [tmp_path / "data"]
    assert table["residual"].to_list() == [1e-10, 1e-3]
    assert again.equals(table)
    assert (pictures, nothing) == (measured[1], {})

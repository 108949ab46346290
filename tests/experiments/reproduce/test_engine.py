import json
import statistics
from dataclasses import replace

import pytest
from scipy import stats

from gatdiag.errors import InputError
from gatdiag.experiments.reproduce.engine import (
    TRAININGS,
    compare,
    find_trainings,
    interval,
    judge_mean,
    select,
    train_missing,
)
from gatdiag.experiments.reproduce.reproduction import Options, Published
from gatdiag.experiments.sweep import cell_key, sweep


def test_intervals_are_those_of_scipy():
    values = [79.5, 80.1, 78.2, 80.3, 77.9]
    mean, half = interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=statistics.mean(values), scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-12)
    assert interval([]) == (None, None)
    assert interval([5.0]) == (5.0, None)
    assert interval([5.0, 7.0]) == (6.0, None)
    assert interval([float("nan")] * 3) == (None, None)


@pytest.mark.parametrize(
    ("mean", "ci95", "published", "verdict"),
    [
        (80.0, 1.0, Published({}, 80.9), "in the interval"),
        (80.0, 1.0, Published({}, 81.1), "apart"),
        (80.0, 1.0, Published({}, 82.4, 1.5), "intervals overlap"),
        (80.0, 1.0, Published({}, 82.6, 1.5), "apart"),
        (80.0, None, Published({}, 80.0), "too few trainings"),
        (None, None, Published({}, 80.0), "not run"),
        (80.0, 1.0, None, "not known"),
    ],
)
def test_verdicts(mean, ci95, published, verdict):
    assert judge_mean(mean, ci95, published) == verdict
    if verdict in ("apart", "in the interval"):
        assert judge_mean(mean, ci95, published, is_protocol=False) == "other settings"


def test_means_are_those_of_the_files(small, out):
    rows = compare(find_trainings(small, out, Options(full=True)))
    assert [(row.done, row.planned) for row in rows] == [(3, 3)] * 8
    for row, cell in zip(rows[:4], small.full[::3], strict=True):
        files = [out / TRAININGS / "cells" / f"{cell_key(replace(cell, seed=seed))}.json" for seed in range(3)]
        values = [100 * json.loads(file.read_text())["result"]["test_accuracy"] for file in files]
        assert row.mean == pytest.approx(statistics.mean(values))
        assert row.ci95 == pytest.approx(stats.sem(values) * stats.t.ppf(0.975, 2))
        assert row.settings == {"layers": cell.layers, "initialization": cell.initialization}
    assert [row.published and row.published.value for row in rows[:4]] == [1.0, 50.0, None, None]
    assert [row.verdict for row in rows[:4]] == ["apart", rows[1].verdict, "not known", "not known"]
    assert rows[1].verdict in ("in the interval", "intervals overlap")
    assert rows[1].difference == pytest.approx(rows[1].mean - 50.0)
    assert [row.mean for row in rows[4:]] == [6.0] * 4  # what is measured on the runs


def test_what_is_done_is_not_trained_again_and_names_share_it(small, out):
    files = {path: path.stat().st_mtime_ns for path in (out / TRAININGS / "cells").iterdir()}
    done = []
    other = replace(small, name="other", full=small.full[:4])
    assert len(train_missing(other, out, Options(full=True), lambda: done.append(1)).documents) == 4
    assert len(done) == 4
    assert {path: path.stat().st_mtime_ns for path in (out / TRAININGS / "cells").iterdir()} == files


def test_partly_done_is_said(small, tmp_path):
    sweep(small.full[:4], tmp_path / TRAININGS)
    trainings = train_missing(small, tmp_path, Options(full=True, train=False))
    assert [(row.done, row.planned) for row in compare(trainings)[:4]] == [(3, 3), (1, 3), (0, 3), (0, 3)]
    assert [row.verdict for row in compare(trainings)[:2]] == ["apart", "too few trainings"]
    assert not trainings.runs
    assert [row.done for row in compare(trainings)[4:]] == [0] * 4


def test_a_training_that_was_not_watched_is_trained_again_where_runs_are_needed(small, tmp_path):
    one = replace(small, full=small.full[:1])
    sweep(one.full, tmp_path / TRAININGS)
    before = train_missing(one, tmp_path, Options(full=True, train=False))
    assert (len(before.documents), len(before.runs)) == (1, 0)
    after = train_missing(one, tmp_path, Options(full=True))
    assert len(after.runs) == 1
    assert after.documents == before.documents


def test_quick_is_compared_only_where_it_is_the_protocol(small, tmp_path):
    trainings = train_missing(small, tmp_path, Options())
    assert [row.verdict for row in compare(trainings)[:2]] == ["other settings"] * 2
    same = replace(small, quick=small.full[:3])
    assert [row.verdict for row in compare(train_missing(same, tmp_path, Options()))[:1]] == ["apart"]


def test_a_number_that_is_nowhere_is_refused(small):
    known = {"small": small}
    assert [*select(["all"], known)] == [*select(["small", "small"], known)] == [small]
    with pytest.raises(InputError, match="Expected names to be all or some of small, got 'table-1'"):
        [*select(["table-1"], known)]

import pytest

import gatdiag
from gatdiag.report.labels import told_apart
from tests.report.builder import build


def names(runs):
    return [run.name for run in told_apart(runs)]


def test_names_that_differ_stay(tmp_path):
    assert names([build(tmp_path / name, name=name) for name in "ab"]) == ["a", "b"]


def test_equal_names_get_the_shortest_path_that_tells_them_apart(tmp_path):
    runs = [build(tmp_path / f"x{place}" / "gat", name="gat") for place in range(2)]
    assert names([*runs, build(tmp_path / "other", name="other")]) == ["x0/gat", "x1/gat", "other"]
    runs = [build(tmp_path / folder, name="net") for folder in ("first", "second")]
    assert names(runs) == ["net (first)", "net (second)"]


def test_a_folder_comes_once_and_that_is_said(tmp_path):
    run = build(tmp_path / "run", name="a")
    (tmp_path / "x").mkdir()
    with pytest.warns(UserWarning, match="shown once"):
        assert told_apart([run, gatdiag.load(tmp_path / "x" / ".." / "run")]) == [run]


def test_what_is_recorded_does_not_change(tmp_path):
    runs = [build(tmp_path / str(place), name="n", logged={"loss": [1.0 + place]}) for place in range(2)]
    assert [list(run.steps["loss"]) for run in told_apart(runs)] == [[1.0], [2.0]]

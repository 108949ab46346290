import os
import subprocess
import sys
from pathlib import Path

import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.report import sections, writing
from gatdiag.report.writing import check_target, unique_labels, write_report
from tests.report.builder import build


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    monkeypatch.setattr(sections, "figures_for", lambda runs: [])


@pytest.fixture
def run(tmp_path):
    return build(tmp_path / "run", logged={"loss": [2.0, 1.0]}, name="ten layers")


def test_the_page_is_written_where_it_was_asked_for(run, tmp_path):
    target = tmp_path / "new" / "folder" / "page.html"
    assert write_report(run, str(target), title="Mine & <yours>") == target
    text = target.read_text(encoding="utf-8")
    assert "<title>Mine &amp; &lt;yours&gt;</title>" in text
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


@pytest.mark.parametrize("given", [lambda r: r, lambda r: r.folder, lambda r: str(r.folder), lambda r: [r]])
def test_runs_and_folders_are_taken_alone_and_together(run, tmp_path, given):
    assert "ten layers" in write_report(given(run), tmp_path / "page.html").read_text()


def test_an_earlier_report_is_replaced(run, tmp_path):
    target = write_report(run, tmp_path / "page.html", title="Old title")
    write_report(run, target, title="New title")
    assert "Old title" not in target.read_text()


@pytest.mark.parametrize("content", ["<html>mine</html>", "", '<meta name="generator" content="other">'])
def test_no_other_file_is_replaced_unasked(run, tmp_path, content):
    target = tmp_path / "page.html"
    target.write_text(content)
    with pytest.raises(InputError, match="no report of gatdiag"):
        write_report(run, target)
    assert target.read_text() == content
    write_report(run, target, overwrite=True)
    assert "ten layers" in target.read_text()


def test_a_folder_is_not_taken_for_a_file(run, tmp_path):
    with pytest.raises(InputError, match="got the folder"):
        write_report(run, tmp_path)


def test_a_failure_leaves_the_earlier_page_and_no_litter(run, tmp_path, monkeypatch):
    target = write_report(run, tmp_path / "page.html", title="first")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(run, target, title="second")
    assert "first" in target.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "page.html"}


def test_no_run_at_all_is_refused(tmp_path):
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "page.html")


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_what_is_no_run_is_refused_before_anything_is_written(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        write_report(tmp_path / folder, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_run_can_be_reported_while_it_is_recorded(tmp_path):
    run = build(tmp_path / "run", logged={"loss": [2.0, 1.0]}, ending=None)
    assert "This run has no end" in write_report(run, tmp_path / "page.html").read_text()


def test_letters_that_utf8_cannot_hold_do_not_stop_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "render_page", lambda *_: "\ud800")
    assert write_report(run, tmp_path / "page.html").read_bytes() == b"?"


def test_it_is_a_verb_of_the_package():
    assert gatdiag.write_report is write_report


def test_torch_is_never_imported(run, tmp_path):
    code = "import sys, gatdiag; gatdiag.write_report(sys.argv[1], sys.argv[2]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, run.folder, tmp_path / "page.html"], check=True)
    assert (tmp_path / "page.html").stat().st_size < 5e6


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_keeps_its_place(tmp_path, overwrite):
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="no regular file"):
        check_target(pipe, overwrite=overwrite)
    assert pipe.is_fifo()


def names(runs):
    return [run.name for run in unique_labels(runs)]


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
        assert unique_labels([run, gatdiag.load(tmp_path / "x" / ".." / "run")]) == [run]


def test_what_is_recorded_does_not_change(tmp_path):
    runs = [build(tmp_path / str(place), name="n", logged={"loss": [1.0 + place]}) for place in range(2)]
    assert [list(run.steps["loss"]) for run in unique_labels(runs)] == [[1.0], [2.0]]

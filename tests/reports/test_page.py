import shutil
from dataclasses import replace

import pandas as pd
import pytest

from reports.papers.page import write_script, write_study
from reports.papers.runner import TABLE, train_missing


@pytest.fixture(scope="module")
def written(small, trained):
    results, folder = trained
    partly = replace(results, cells=(*results.cells, replace(small.full[0], layers=4)))
    write_study(partly, folder / "small", "python -m reports.papers small --full")
    return folder / "small"


def test_the_page_says_published_and_measured_and_what_is_missing(written):
    text = (written / "README.md").read_text()
    assert "12 of 13 trainings (the paper's protocol) are done. **Incomplete: 1 trainings are missing.**" in text
    assert "Known numbers of the paper: 2 (NOT reproduced: intervals do not overlap: 1; " in text
    (row,) = [line for line in text.splitlines() if line.startswith("| layers 2, xavier | test accuracy |")]
    assert "| 3 of 3 |" in row
    assert "| 1.0 ± 0.5 (table 1) |" in row
    assert row.endswith("| NOT reproduced: intervals do not overlap |")
    assert "- Not trained: layers 4." in text
    assert "Written by `python -m reports.papers small --full` at commit " in text
    assert "- A note." in text


def test_figures_are_small_pictures_of_the_lowest_seed(written):
    pictures = {path.name: path.read_bytes() for path in written.glob("*.png")}
    assert {*pictures} == {
        "accuracy-by-depth.png",
        "compared-curves.png",
        "measured-against-published.png",
        "gradient-norms-layers-3-xavier.png",
        "gradient-norms-layers-3-balanced-xavier.png",
    }
    assert all(content.startswith(b"\x89PNG") and len(content) < 150_000 for content in pictures.values())
    text = (written / "README.md").read_text()
    assert all(f"![{name}]({name})" in text for name in pictures)
    assert "not drawn anew" not in text


def test_from_results_alone_pictures_of_runs_stay_and_nothing_else_does(small, written, tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(written, folder)
    (folder / "old.html").touch()
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    write_study(train_missing(small, tmp_path, full=True, train=False), folder, "again")
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    assert {name for name in before if before[name] != after[name]} == {
        "accuracy-by-depth.png",
        "measured-against-published.png",
    }
    assert (folder / "README.md").read_text().count("(not drawn anew, as its run is not kept: from commit ") == 3
    assert not (folder / "old.html").exists()


def test_the_page_of_a_script_is_what_it_says_of_its_table(small, tmp_path):
    study = replace(small, name="found", paper="", full=(), quick=(), describe=lambda table: f"{len(table)} rows.")
    table = pd.DataFrame({"residual": [1e-10, 1e-3], "commit": "abc"})
    (tmp_path / TABLE).touch()
    write_script(study, table, {"residuals.png": b"picture"}, tmp_path, "command")
    text = (tmp_path / "README.md").read_text()
    assert "Beyond the papers. The finding: It can be done." in text
    assert "2 rows." in text
    assert "abc (2)" in text
    assert "Published and measured" not in text
    assert (tmp_path / "residuals.png").read_bytes() == b"picture"


def test_nothing_is_drawn_of_what_is_not_there(small, tmp_path):
    write_study(train_missing(small, tmp_path, full=True, train=False), tmp_path / "small", "command")
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["README.md"]
    text = (tmp_path / "small" / "README.md").read_text()
    assert "0 of 12 trainings" in text
    assert "No training is done yet." in text

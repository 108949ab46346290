import shutil
from dataclasses import replace

import pandas as pd
import pytest

from gatdiag.experiments.reproduce.engine import TRAININGS, train_missing
from gatdiag.experiments.reproduce.report import write_reproduction
from gatdiag.experiments.reproduce.reproduction import Evidence, Options
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import run_folder


@pytest.fixture(scope="module")
def written(small, out, tmp_path_factory):
    partly = replace(small, full=(*small.full, *(replace(cell, layers=4) for cell in small.full[:1])))
    return write_reproduction(
        train_missing(partly, out, Options(full=True, train=False)), tmp_path_factory.mktemp("report")
    )


def test_the_page_says_published_and_measured_and_what_is_missing(written):
    text = (written / "README.md").read_text()
    assert "12 of 13 trainings (the paper's protocol) are done. **Incomplete: 1 trainings are missing.**" in text
    assert "Known numbers of the paper: 2 (NOT reproduced: intervals do not overlap: 1; " in text
    (row,) = [line for line in text.splitlines() if line.startswith("| layers 2, xavier | test accuracy |")]
    assert "| 3 of 3 |" in row
    assert "| 1.0 ± 0.5 (table 1) |" in row
    assert row.endswith("| NOT reproduced: intervals do not overlap |")
    assert "- Not trained: layers 4." in text
    assert "no published value known" in text
    assert "`gatdiag reproduce small --full`" in text
    assert "- A note." in text


def test_the_command_for_one_training_is_one(written):
    text = (written / "README.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("    gatdiag train runs/one ")]
    words = line.split()[3:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["--model"] == "gcn"
    assert given["--learning-rate"] == "1.0"
    assert given["--seed"] == "100"
    assert {option.removeprefix("--").replace("-", "_") for option in given} <= {*vars(Experiment())}


def test_results_have_a_row_for_each_training(written):
    table = pd.read_csv(written / "results.csv")
    assert len(table) == 12
    assert set(table["epochs"]) == set(table["epochs_trained"]) == set(table["steps"]) == {6}
    assert table["test_accuracy"].between(0, 1).all()


def test_figures_are_small_pictures_of_the_lowest_seed(written):
    pictures = {path.name: path.read_bytes() for path in written.glob("*.png")}
    assert {*pictures} == {
        "accuracy-by-depth.png",
        "compared-curves.png",
        "gradient-norms-layers-3-xavier.png",
        "gradient-norms-layers-3-balanced-xavier.png",
    }
    assert all(content.startswith(b"\x89PNG") and len(content) < 150_000 for content in pictures.values())
    assert all(f"![{name}]({name})" in (written / "README.md").read_text() for name in pictures)
    assert "layers 2, xavier" in (written / "runs.html").read_text()


def test_the_page_is_the_same_and_loads_nothing(written):
    page = (written / "report.html").read_text()
    assert "<title>small: A small one</title>" in page
    assert "<td>NOT reproduced: intervals do not overlap</td>" in page
    assert page.count('src="data:image/png;base64,') == page.count("<img ") == 4
    assert "http" not in page.replace("http-equiv", "")
    assert page.count('<div class="table-frame" tabindex="0"><table>') == page.count("<table>") > 0  # wide ones scroll
    assert page.count("</table></div>") == page.count("</table>")


def test_numbers_of_runs_are_those_of_the_runs(written):
    table = pd.read_csv(written / "results.csv")
    assert (table["largest_relative_gradient"] >= table["least_relative_gradient"]).all()
    assert table["never_changed"].between(0, 1).all()


def test_what_was_measured_on_a_run_that_is_gone_is_neither_judged_nor_drawn(small, out, tmp_path):
    judged = []
    one = replace(small, drawings=(), judge=lambda rows: judged.append(rows["seed"].to_list()) or ["So it is."])
    shutil.copytree(out / TRAININGS, tmp_path / TRAININGS)
    for cell in small.full:
        if cell.seed:
            shutil.rmtree(run_folder(cell, tmp_path / TRAININGS))
    folder = write_reproduction(train_missing(one, tmp_path, Options(full=True, train=False)), tmp_path)
    assert judged == [[0] * 4]
    text = (folder / "README.md").read_text()
    assert "- Results without a recorded run, which cannot be drawn: 8." in text
    assert "- So it is." in text


def test_evidence_stands_where_trainings_would(small, tmp_path):
    table = pd.DataFrame({"residual": [1e-10, 1e-3]})
    seen = []

    def evidence(root):
        seen.append(root)
        return Evidence(table, "It is so.", {"residuals.png": b"picture"})

    one = replace(small, name="found", paper="", full=(), quick=(), evidence=evidence)
    folder = write_reproduction(train_missing(one, tmp_path, Options()), tmp_path)
    assert seen == [Options().root]
    assert pd.read_csv(folder / "results.csv").equals(table)
    text = (folder / "README.md").read_text()
    assert "Beyond the papers. The finding: It can be done." in text
    assert "It is so." in text
    assert "Published and measured" not in text
    assert (folder / "residuals.png").read_bytes() == b"picture"


def test_nothing_is_drawn_of_what_is_not_there(small, tmp_path):
    folder = write_reproduction(train_missing(small, tmp_path, Options(full=True, train=False)), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "report.html", "results.csv"]
    text = (folder / "README.md").read_text()
    assert "0 of 12 trainings" in text
    assert "No training is done yet." in text


def test_quick_says_which_settings_it_leaves_out(small, tmp_path):
    folder = write_reproduction(train_missing(small, tmp_path, Options(train=False)), tmp_path)
    assert "- --quick leaves out: epochs 6 (here 2); seed 1, 2." in (folder / "README.md").read_text()

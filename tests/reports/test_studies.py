"""The studies, and the folders that are written by them."""

import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import prepared_model
from gatdiag.experiments.training import train
from reports.papers.__main__ import STUDIES, app
from reports.papers.page import study_lines
from reports.papers.runner import REPORTS, TABLE, TRAININGS, read_table, train_missing
from reports.papers.study import matches

OTHERS = {"papers", "diagnosis", "treatment", TRAININGS}


def test_each_folder_is_of_a_study_and_each_study_was_run():
    assert {path.name for path in REPORTS.iterdir() if path.is_dir()} - OTHERS - {"__pycache__"} == {*STUDIES}


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if study.published])
def test_a_published_number_is_of_one_group_of_trainings(name):
    study = STUDIES[name]
    for published in study.published:
        fitting = {replace(cell, seed=0) for cell in study.full if matches(cell, published.where)}
        assert len(fitting) == 1, published
        assert published.column in study.columns


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All results.csv, without anything else."""
    folder = tmp_path_factory.mktemp("reports")
    for file in REPORTS.glob(f"*/{TABLE}"):
        (folder / file.parent.name).mkdir()
        shutil.copyfile(file, folder / file.parent.name / TABLE)
    return folder


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_is_what_the_code_says_of_its_results(name, results):
    study, page = STUDIES[name], (REPORTS / name / "README.md").read_text()
    if study.describe:
        expected = study.describe(read_table(REPORTS / name / TABLE))
    else:
        made = train_missing(study, results, full=f"{name} --full" in page, train=False)
        expected = "\n".join(study_lines(made))
    assert expected in page
    assert f"Written by `python -m reports.papers {name}" in page
    if not study.describe:
        assert (results / name / TABLE).read_text() == (REPORTS / name / TABLE).read_text()


def test_every_kind_of_training_can_be_begun():
    data = "csbm:nodes=100,features=8"
    graph, small = prepared_graph(data), {"width": 4, "seed": 0, "epochs": 1, "data": data}
    kinds = {
        replace(cell, **small, layers=min(cell.layers, 3))
        for study in STUDIES.values()
        for cell in (*study.full, *study.quick)
    }
    for kind in kinds:
        assert len(train(prepared_model(kind, graph), graph, kind).epochs) == 1


def test_names_are_listed_and_unknown_ones_refused(tmp_path):
    listed = CliRunner().invoke(app, [])
    assert [line.partition(":")[0] for line in listed.stdout.splitlines()] == [*STUDIES]
    refused = CliRunner().invoke(app, ["table-1", "--out", str(tmp_path)])
    assert refused.exit_code == 2
    assert not [*tmp_path.iterdir()]


def test_a_folder_is_written_from_its_results(results):
    done = CliRunner().invoke(app, ["beyond-predicted-c", "--no-train", "--out", str(results)])
    assert done.stdout == f"beyond-predicted-c: {results / 'beyond-predicted-c'}\n"
    assert "3 of 3 statements are shown" in (results / "beyond-predicted-c" / "README.md").read_text()

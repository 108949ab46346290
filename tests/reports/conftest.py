import pytest

from gatdiag.experiments.sweep import grid
from reports.papers.gats import by_depth, relative_gradients, weight_changes
from reports.papers.published import Published
from reports.papers.runner import train_missing
from reports.papers.study import Drawing, Study

SMALL = {"data": "csbm:nodes=200,features=16", "model": "gcn", "width": 8, "learning_rate": 1.0, "epochs": 6}


@pytest.fixture(scope="session")
def small():
    """Two depths, two initializations, three seeds; quick has fewer epochs."""
    settings = {**SMALL, "layers": (2, 3), "initialization": ("xavier", "balanced_xavier")}
    return Study(
        name="small",
        title="A small one",
        paper="Nobody, table 1",
        claim="It can be done.",
        full=grid(**settings, seed=range(3)),
        quick=grid(**{**settings, "epochs": 2}),
        published=(
            Published({"layers": 2, "initialization": "xavier"}, 1.0, 0.5, source="table 1"),
            Published({"layers": 2, "initialization": "balanced_xavier"}, 50.0, 200.0),
        ),
        record=True,
        measure=lambda run: {"steps": float(len(run.steps)), **weight_changes(run), **relative_gradients(run)},
        columns=("test_accuracy", "steps"),
        drawings=(
            Drawing("accuracy_by_depth", table=by_depth),
            Drawing("gradient_norms", {"layers": 3}),
            Drawing("compared_curves"),
        ),
        notes=("A note.",),
    )


@pytest.fixture(scope="session")
def trained(small, tmp_path_factory):
    """The results of all its trainings, and the folder of the reports."""
    folder = tmp_path_factory.mktemp("reports")
    return train_missing(small, folder, full=True), folder

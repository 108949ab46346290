import csv
import shutil

import pytest
import torch
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults import cases as bank_of_cases
from gatdiag.experiments.faults.cases import Case
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.training import Training, train


def few():
    for number in (0, 100):
        usual = Recipe(width=8, steps=30, lr=0.05, seed=number)
        broken = Recipe(width=8, steps=30, lr=0.05, seed=number, inputs=("NaN in rows", 1))
        yield Case("input-nonfinite", number, broken, usual)
        yield Case("lr-too-small", number, Recipe(width=8, steps=30, lr=0.04, seed=number), usual)  # does no harm
        yield Case(HEALTHY, number, usual, None)


def call(out, *arguments):
    runner = CliRunner(env={"COLUMNS": "120"})
    return runner.invoke(app, ["faults", "--jobs", "1", "--out", str(out), *arguments])


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A folder, and what is printed where everything is trained."""
    folder = tmp_path_factory.mktemp("judged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bank_of_cases, "cases", few)
        return folder, call(folder, "--preflight")


@pytest.fixture
def faults(monkeypatch, judged, tmp_path):
    """The command, in a folder in which the calibration half is trained."""
    monkeypatch.setattr(bank_of_cases, "cases", few)
    shutil.copytree(judged[0] / "runs", tmp_path / "runs")
    return lambda *arguments: call(tmp_path, *arguments)


def rows_of(path):
    with path.open() as file:
        return [*csv.DictReader(file)]


def test_what_was_planted_is_trained_diagnosed_counted_and_kept(judged, faults, tmp_path):
    folder, done = judged
    assert done.exit_code == 0, done.stderr
    rows = rows_of(folder / "calibration.csv")
    assert [row["case"] for row in rows] == ["input-nonfinite-00", "lr-too-small-00", "healthy-00"]
    assert [row["counts"] for row in rows] == ["True", "False", "True"]
    assert [row["planted_as"] for row in rows] == ['{"inputs": ["NaN in rows", 1]}', '{"lr": 0.04}', "null"]
    page = (folder / "calibration.md").read_text()
    assert "| input-nonfinite | 1 | 1 | 0 |" in page
    assert "Of 1 repaired twins: 0 with an error" in page
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json")}
    again = faults()
    assert again.exit_code == 0, again.stderr
    assert trained == {path: path.stat().st_mtime_ns for path in trained}
    tables = ("calibration.csv", "calibration.md")
    assert all((tmp_path / name).read_bytes() == (folder / name).read_bytes() for name in tables)
    assert "Not counted, since the repaired twin does not train clearly better: lr-too-small-00" in " ".join(
        again.stdout.split()
    )
    assert "input-nonfinite" in again.stdout
    assert not (tmp_path / "held-out.csv").exists()


def test_a_part_and_causes_can_be_chosen(faults, tmp_path):
    assert faults("--part", "held-out", "--only", "input-nonfinite, healthy").exit_code == 0
    tmp_path = tmp_path / "only"  # not where the tables of a whole part are
    assert [row["case"] for row in rows_of(tmp_path / "held-out.csv")] == ["input-nonfinite-100", "healthy-100"]
    assert (tmp_path / "held-out.md").read_text().startswith("# Faults, held-out half")


def test_networks_are_judged_before_their_training_too(judged):
    folder, done = judged
    assert [tuple(row[name] for name in ("network", "planted", "verdict")) for row in
            rows_of(folder / "preflight-calibration.csv")] == [
        ("input-nonfinite-00", "input-nonfinite", "input-nonfinite"),
        ("input-nonfinite-00, repaired", HEALTHY, HEALTHY),
        ("healthy-00", HEALTHY, HEALTHY),
    ]  # fmt: skip
    assert "Of 3 untrained networks, 1 will fail; 1 of these are flagged (100%)" in " ".join(done.stdout.split())
    assert "| input-nonfinite | 1 | 1 | 1 |  |" in (folder / "preflight-calibration.md").read_text()


def test_pairs_can_be_chosen_by_a_cause(faults, tmp_path, monkeypatch):
    usual = {"width": 8, "steps": 2}
    plants = {"lr-too-small": {"lr": 1e-6}, "input-nonfinite": {"inputs": ("NaN in rows", 1)}}
    pairs = ((plants, usual), ({**plants, "dead-units": {}}, usual))
    monkeypatch.setattr(bank_of_cases, "PAIRS", pairs)
    monkeypatch.setattr("gatdiag.experiments.faults.pairs.PAIRS", pairs)
    monkeypatch.setattr("gatdiag.experiments.faults.pairs.evaluate_pair", lambda number, folder: [
        {"planted": str(number), "verdict": "", "once that is repaired": "", "counts": True, "right": False}
    ])  # fmt: skip
    assert faults("--part", "pairs", "--only", "dead-units").exit_code == 0
    assert [row["planted"] for row in rows_of(tmp_path / "only" / "pairs.csv")] == ["1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--part", "half"], "--part: expected one of calibration, held-out, all, pairs, got 'half'"),
        (["--only", "lr"], "--only: expected some of init-unbalanced"),
        (["--only", ","], "got ','"),
        (["--part", "pairs", "--only", "healthy"], "--only: expected some of the causes of pairs, got 'healthy'"),
        (["--part", "pairs", "--treat"], "--part pairs, --preflight and --treat are mutually exclusive"),
        (["--preflight", "--treat"], "--part pairs, --preflight and --treat are mutually exclusive"),
    ],
)
def test_bad_input_is_one_line_and_status_2(faults, arguments, says):
    done = faults(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says in line


def test_faults_are_treated_and_compared_with_their_twins(faults, tmp_path):
    done = faults("--treat")
    assert done.exit_code == 0, done.stderr
    (row,) = rows_of(tmp_path / "treatment" / "calibration.csv")  # harmless faults and controls are not treated
    assert (row["case"], row["verdict"], row["good"]) == ("input-nonfinite-00", "input-nonfinite", "yes")
    assert row["remedy"] == "NaN in x replaced by 0, infinity by a value beyond all finite ones"
    faulty, treated, twin = (float(row[name]) for name in ("faulty", "treated", "twin"))
    assert faulty < twin - 0.3
    assert abs(treated - twin) <= 0.05
    page = (tmp_path / "treatment" / "calibration.md").read_text()
    assert "Cured: 1 of 1 (100%); 0 more need a change in the user's code." in page


def test_unwatched_a_training_is_that_of_its_recipe(tmp_path):
    recipe = Recipe(width=8, steps=12, dropout=0.5, batch=20, seed=3)
    whole = train(recipe, tmp_path / "run")
    training = Training(recipe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = training.make_model()
        losses = [scalars["loss"] for scalars in training.run_steps(model, training.make_optimizer(model))]
        outcome = training.evaluate(model)
    assert losses == gatdiag.load(tmp_path / "run").steps["loss"].tolist()
    assert (outcome.train, outcome.val) == (whole.train, whole.val)

import json
import math

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gatdiag.cli.app import app
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name in ("stuck", "fine"):
        synthetic_run(folder / name, steps=30, layers=10, neurons=2, collapse=name == "stuck")
    synthetic_run(folder / "runs" / "fine", steps=1, layers=2, neurons=1)
    (folder / "runs" / "report.html").touch()
    state = nn.Linear(3, 2).state_dict()
    state["weight"][0, 0] = math.inf
    torch.save(state, folder / "broken.pt")
    return folder


def diagnose(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["diagnose", *map(str, arguments)])


def test_a_healthy_run_has_no_problem(folder):
    done = diagnose(folder / "fine", "--fail-on", "note")
    assert done.exit_code == 0
    assert done.stdout.startswith("No problem found.")
    assert "Not checked: input-nonfinite, " in done.stdout


def test_a_run_without_a_step_is_not_called_healthy(tmp_path):
    synthetic_run(tmp_path / "empty", steps=0)
    done = diagnose(tmp_path / "empty")
    assert done.exit_code == 0
    assert done.stdout.startswith("Nothing was recorded")


def test_the_cause_is_said_with_its_evidence_and_a_line_to_paste(folder):
    done = diagnose(folder / "stuck")
    assert done.exit_code == 1
    assert done.stdout.startswith("error: Neurons are out of balance from the start: ")
    assert "[init-unbalanced]\n  evidence: " in done.stdout
    assert '    gatdiag.remedies.initialize_(model, "balanced_orthogonal")' in done.stdout
    assert "  explains: the loss does not fall, weights that never moved" in done.stdout
    assert "\\x" not in done.stdout
    assert diagnose(folder / "stuck", "--fail-on", "never").exit_code == 0


def test_a_checkpoint_will_do(folder):
    done = diagnose(folder / "broken.pt", "--json")
    assert done.exit_code == 1, done.stderr
    (diagnosis,) = json.loads(done.stdout)["diagnoses"]
    (finding,) = diagnosis["findings"]
    assert diagnosis["verdict"] == finding
    assert (finding["code"], finding["severity"], finding["parameters"]) == ("non-finite", "error", ["weight"])
    assert finding["evidence"][0] == {"what": "NaN or infinite values", "value": 1, "unit": "entries"}


def test_several_are_judged_one_after_the_other(folder):
    done = diagnose(folder / "fine", folder / "stuck", "--json")
    assert done.exit_code == 1
    codes = [one["verdict"]["code"] for one in json.loads(done.stdout)["diagnoses"]]
    assert codes == ["healthy", "init-unbalanced"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nowhere"], "does not exist"), (["fine", "--fail-on", "info"], "--fail-on"), (["runs"], "runs/fine")],
)
def test_what_is_wrong_is_one_line(folder, arguments, says):
    done = diagnose(folder / arguments[0], *arguments[1:])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_two_are_compared_by_what_is_wrong_with_each(folder):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["compare", str(folder / "stuck"), str(folder / "fine")])
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert f"A: {folder / 'stuck'} error: Neurons are out of balance from the start: In these 10 attention" in words
    assert f"[init-unbalanced] B: {folder / 'fine'} No problem found. The network " in words

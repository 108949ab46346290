"""A cause in a package of its own, as a user writes it: one file and an entry point, in `tests/diagnosis/plugin`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gatdiag.diagnosis import CAUSES, Limit, cause
from gatdiag.errors import InputError
from tests.page.builder import build

PACKAGE = Path(__file__).with_name("plugin")
LOSS = np.linspace(2.0, 0.1, 60)


def run(package, *arguments):
    """Run a command with a package beside those that are installed, as pip would leave it."""
    path = os.pathsep.join([str(package), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    command = [sys.executable, "-m", "gatdiag", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def record(folder, labels, width=64):
    """A training that goes well: two layers of `width` squared weights, and so many labels of each of two classes."""
    signals = {"output": {"labels": [labels, labels]}, "dropout": {"convs.0.dropout": 0.1}}
    weights = {"norm": np.full((60, 2), float(width))}
    return build(folder, logged={"loss": LOSS}, weights=weights, width=width, signals=signals).folder


def diagnose(package, folder):
    return json.loads(run(package, "diagnose", folder, "--json", "--fail-on", "never").stdout)["diagnoses"][0]


def test_it_is_one_file_of_a_few_lines():
    assert len((PACKAGE / "few_labels.py").read_text().splitlines()) < 60


def test_it_appears_in_the_terminal_the_page_json_and_the_explanation(tmp_path):
    folder = record(tmp_path / "run", labels=1)
    said = run(PACKAGE, "diagnose", folder, "--fail-on", "warning")
    assert said.returncode == 1, said.stderr
    assert said.stdout.startswith("degraded: Many weights for few labels: The network has 8,192 weights, and the loss ")
    assert "evidence: weights for each label: 4,096. Flagged from 2,000 on." in said.stdout
    assert "    hidden_channels = 16  # a narrower network\n" in said.stdout
    assert "    model.get_submodule('convs.0').dropout = 0.5\n" in said.stdout
    assert "wrong if: With a tenth of the weights" in said.stdout
    verdict = diagnose(PACKAGE, folder)["verdict"]
    assert verdict["code"] == "few-labels"
    assert verdict["actions"] == [{"name": "dropout", "settings": {"attributes": ["convs.0.dropout"], "rate": 0.5}}]
    run(PACKAGE, "report", folder, "--out", tmp_path / "page.html")
    assert "it can learn each of them by heart" in (tmp_path / "page.html").read_text()
    explained = run(PACKAGE, "explain", "few-labels").stdout
    assert "Thousands of weights for each label that the loss sees" in explained
    assert "2,000: weights for each label; a GAT with 8 heads on Cora has 660" in explained
    assert "few-labels" in run(PACKAGE, "explain").stdout


def test_on_the_other_side_of_its_limit_it_says_nothing(tmp_path):
    document = diagnose(PACKAGE, record(tmp_path / "run", labels=20))
    assert document["verdict"]["code"] == "healthy"
    assert "few-labels" not in document["skipped"]


def test_what_it_needs_is_the_reason_why_it_is_skipped(tmp_path):
    folder = build(tmp_path / "run", logged={"loss": LOSS}).folder
    assert diagnose(PACKAGE, folder)["skipped"]["few-labels"] == "no labels were seen"


def test_a_package_that_cannot_be_imported_is_one_warning(tmp_path):
    package = shutil.copytree(PACKAGE, tmp_path / "site")
    (package / "few_labels.py").write_text("import nothing_of_that_name")
    said = run(package, "diagnose", build(tmp_path / "run", logged={"loss": LOSS}).folder)
    assert said.returncode == 0
    assert said.stdout.startswith("healthy: No problem found")
    assert "nothing_of_that_name" in said.stderr


def test_codes_and_limits_are_unique():
    with pytest.raises(InputError, match="already"):
        cause("dead-units", "", rank=1)(lambda facts: None)
    with pytest.raises(InputError, match="already"):
        cause("another", "", rank=1, limits={"dead": Limit(0.1, "")})(lambda facts: None)
    assert "another" not in CAUSES

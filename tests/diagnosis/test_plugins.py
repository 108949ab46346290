"""A cause in a package of its own, as a user writes it: one file and an entry point."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from gatdiag.diagnosis import CAUSES, Limit, cause
from gatdiag.errors import InputError
from tests.report.builder import build

CHECK = '''
"""A learning rate that is the same as everybody's."""

from gatdiag.diagnosis import Evidence, Facts, Finding, Limit, Remedy, cause


def needs_rate(facts: Facts) -> str:
    return "" if len(facts.steps_column("learning_rate")) else "no learning rate was recorded"


@cause(
    "rate-of-everybody",
    "The learning rate is everybody's",
    rank=305,
    why="it says more about habits than about this network",
    figure="training_curves",
    falsified_by="With another learning rate the learning curve is the same.",
    needs=(needs_rate,),
    severity="warning",
    limits={"usual": Limit(3e-4, "the best learning rate for Adam, hands down")},
)
def check_rate(facts: Facts) -> Finding | None:
    """A learning rate of 3e-4 was not chosen for this network. See https://example.org/karpathy."""
    rate = facts.steps_column("learning_rate")[0]
    if rate != 3e-4:
        return None
    return facts.finding(
        "rate-of-everybody",
        "The learning rate is 3e-4, which nobody chose for this network.",
        Evidence("learning rate", float(rate)),
        threshold="Flagged at 3e-4.",
        remedy=Remedy("# try 1e-3 and 1e-4, too"),
    )
'''


@pytest.fixture
def package(tmp_path):
    """A folder as pip installs it."""
    (tmp_path / "site" / "everybody-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "everybody.py").write_text(CHECK)
    info = tmp_path / "site" / "everybody-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: everybody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gatdiag.causes]\neverybody = everybody\n")
    return tmp_path / "site"


def run(package, *arguments):
    path = os.pathsep.join([str(package), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    command = [sys.executable, "-m", "gatdiag", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_it_appears_in_the_terminal_the_page_and_json(package, tmp_path):
    assert len(CHECK.splitlines()) < 60
    logged = {"loss": np.linspace(2.0, 1.6, 60), "learning_rate": np.full(60, 3e-4)}
    folder = build(tmp_path / "run", logged=logged).folder
    said = run(package, "diagnose", folder, "--fail-on", "warning")
    assert said.returncode == 1, said.stderr
    assert said.stdout.startswith("warning: The learning rate is everybody's: The learning rate is 3e-4, which nobody")
    assert "    # try 1e-3 and 1e-4, too" in said.stdout
    document = json.loads(run(package, "diagnose", folder, "--json").stdout)["diagnoses"][0]
    assert document["verdict"]["code"] == "rate-of-everybody"
    run(package, "report", folder, "--out", tmp_path / "page.html")
    assert "which nobody chose for this network" in (tmp_path / "page.html").read_text()
    explained = run(package, "explain", "rate-of-everybody").stdout
    assert "was not chosen for this network" in explained
    assert "0.0003: the best learning rate for Adam" in explained


def test_what_it_needs_is_the_reason_why_it_is_skipped(package, tmp_path):
    folder = build(tmp_path / "run", logged={"loss": np.linspace(2.0, 1.6, 60)}).folder
    document = json.loads(run(package, "diagnose", folder, "--json").stdout)["diagnoses"][0]
    assert document["skipped"]["rate-of-everybody"] == "no learning rate was recorded"


def test_a_package_that_cannot_be_imported_is_one_warning(package, tmp_path):
    (package / "everybody.py").write_text("import nothing_of_that_name")
    folder = build(tmp_path / "run", logged={"loss": np.linspace(2.0, 0.1, 60)}).folder
    said = run(package, "diagnose", folder)
    assert said.returncode == 0
    assert said.stdout.startswith("No problem found")
    assert "nothing_of_that_name" in said.stderr


def test_codes_and_limits_are_unique():
    with pytest.raises(InputError, match="already"):
        cause("dead-units", "", rank=1)(lambda facts: None)
    with pytest.raises(InputError, match="already"):
        cause("another", "", rank=1, limits={"dead": Limit(0.1, "")})(lambda facts: None)
    assert "another" not in CAUSES

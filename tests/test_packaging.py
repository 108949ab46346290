"""What stands in several places agrees: bounds, tested versions, the README's commands."""

import re
import shlex
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from typer.testing import CliRunner

from gatdiag.cli.app import app
from tests.run.synthetic import synthetic_run

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / ".docs" / "pages" / "recipes.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BOUNDED = [Requirement(text) for text in PROJECT["dependencies"]]
OPTIONAL = [Requirement(text) for extra in EXTRAS.values() for text in extra if not text.startswith("gatdiag[")]


def versions(file: str) -> dict[str, Version]:
    """Name -> version of a file whose every line demands exactly one version."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    requirements = [Requirement(line) for line in lines]
    assert all([clause.operator for clause in requirement.specifier] == ["=="] for requirement in requirements)
    return {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in requirements}


@pytest.mark.parametrize("requirement", BOUNDED, ids=str)
def test_a_dependency_has_one_lower_bound_and_no_other(requirement):
    assert [clause.operator for clause in requirement.specifier] == [">="]


def test_the_lowest_versions_are_the_bounds():
    bounds = {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in BOUNDED}
    assert versions("constraints-lowest.txt") == bounds


@pytest.mark.parametrize("requirement", [*BOUNDED, *OPTIONAL], ids=str)
def test_the_tested_versions_hold_every_requirement(requirement):
    assert requirement.specifier.contains(versions("constraints.txt")[canonicalize_name(requirement.name)])


def test_the_tested_versions_are_closed_under_dependencies():
    """Nothing that an installation pulls in is left to chance."""
    tested = versions("constraints.txt")
    installed = {canonicalize_name(d.name): Version(d.version).public for d in metadata.distributions()}
    others = sorted(name for name, version in tested.items() if installed.get(name) != str(version))
    if others:
        pytest.skip(f"not installed as in constraints.txt: {', '.join(others)}")
    open_names = {
        f"{name} needs {dependency.name}"
        for name in tested
        for dependency in map(Requirement, metadata.requires(name) or ())
        if (dependency.marker is None or dependency.marker.evaluate({"extra": ""}))
        and canonicalize_name(dependency.name) not in tested
        and not re.match(r"nvidia-|cuda-|triton$|setuptools$", canonicalize_name(dependency.name))
    }
    assert open_names == set()


@pytest.mark.parametrize(
    ("name", "words"),
    [("test", ['-e ".[test]"', "/pytest"]), ("main", ["install -c constraints.txt .", "gatdiag demo"])],
)
def test_the_readme_has_the_commands_that_ci_runs(name, words):
    blocks = re.findall(rf"^<!-- {name} command -->\n```sh\n(.+)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(blocks) == 1
    assert all(word in blocks[0] for word in ["python3 -m venv .venv", "-c constraints.txt", *words])
    assert f"readme_command {name}" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(("collapses", "statuses"), [(False, [0, 0]), (True, [1, 0])])
def test_the_workflow_of_the_recipes_fails_where_the_training_does(tmp_path, monkeypatch, collapses, statuses):
    (text,) = re.findall(r"^```yaml\n(.+?)^```$", RECIPES.read_text(), re.MULTILINE | re.DOTALL)
    steps = yaml.safe_load(text)["jobs"]["trains"]["steps"]
    lines = [
        shlex.split(step["run"].partition(" >>")[0]) for step in steps if step.get("run", "").startswith("gatdiag")
    ]
    monkeypatch.chdir(tmp_path)
    synthetic_run(tmp_path / "runs" / "ci", steps=120, layers=10, neurons=2, collapse=collapses)
    assert [CliRunner().invoke(app, line[1:]).exit_code for line in lines] == statuses


def follow(readme, names):
    """Run the examples of the README in their order, but commands for a checkout."""
    for kind, text in re.findall(r"^(?<!-->\n)```(python|sh)\n(.+?)^```$", readme, re.MULTILINE | re.DOTALL):
        if kind == "python":
            exec(compile(text, "README.md", "exec"), names)
        for line in text.splitlines() if kind == "sh" else ():
            command, *arguments = shlex.split(line, comments=True)
            done = CliRunner(env={"COLUMNS": "100"}).invoke(app, arguments)
            assert (command, done.exit_code) in {("gatdiag", 0), ("gatdiag", 1)}, f"{line}: {done.stderr}"
            names.setdefault("shown", {}).setdefault(arguments[0], done.stdout)  # the first of each


@pytest.mark.slow
def test_the_readme_runs_from_top_to_bottom_in_an_empty_folder_and_its_loop_once_more(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme, names = (ROOT / "README.md").read_text(), {}
    follow(readme, names)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == re.findall(r"^print\(.+\)  # (.+)$", readme, re.MULTILINE)
    assert names["recorder"].folder == names["run"].folder == tmp_path / "runs/gat10"
    assert names["treatment"].folder == tmp_path / "treatment"
    assert "already holds" not in printed.err
    check_commands(readme, names["shown"])
    (loop,) = re.findall(r"^```python\n(import torch\n.+?)^```$", readme, re.MULTILINE | re.DOTALL)
    exec(compile(loop, "README.md", "exec"), names)
    assert names["recorder"].folder == tmp_path / "runs/gat10-2"  # beside the first
    assert "gatdiag: runs/gat10 already holds a run: writing to runs/gat10-2" in capsys.readouterr().err.splitlines()


def check_commands(readme, shown):
    """Each command is named, and the verdict shown is that which is printed, up to digits."""
    (verdict,) = re.findall(r"^```text\n(.+?)^```$", readme, re.MULTILINE | re.DOTALL)
    digits = r"[\d.⁰¹²³⁴⁵⁶⁷⁸⁹]+"
    printed, said = (re.sub(digits, "#", " ".join(text.split())) for text in (shown["diagnose"], verdict))
    assert printed.startswith(said)
    every = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {*shown} == every - {"demo", "run", "sweep"}
    assert all(f"`gatdiag {name} " in readme or f"gatdiag {name}\n" in readme for name in every - {*shown})

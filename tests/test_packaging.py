"""What stands in several places agrees: bounds, tested versions, the README's commands."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
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
    installed = {canonicalize_name(d.name): Version(d.version).base_version for d in metadata.distributions()}
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


@pytest.mark.slow
def test_the_readme_examples_run_as_they_stand_and_once_more(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.+?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    expected = re.findall(r"^print\(.+\)  # (.+)$", "\n".join(blocks), re.MULTILINE)
    for place in ("", "-2"):  # a second run is written beside the first
        names = {}
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
        printed = capsys.readouterr()
        assert printed.out.splitlines() == expected
        assert names["recorder"].folder == names["run"].folder == tmp_path / f"runs/gat10{place}"
        assert names["treatment"].folder == tmp_path / f"treatment{place}"
        assert [line for line in printed.err.splitlines() if "already holds" in line] == [
            f"gatdiag: {name} already holds a run: writing to {name}-2" for name in ("runs/gat10", "treatment") if place
        ]

"""What importing gatdiag costs, and what its rooms may never load."""

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import gatdiag

DRAWING = {"matplotlib", "seaborn", "rich", "typer"}
PYG = {"torch_geometric"}
HEAVY = {"torch", "torch_geometric", "numpy", "pandas", "pyarrow", "matplotlib", "seaborn"}
FORBIDDEN = {
    "gatdiag": HEAVY | {"rich", "typer"},
    "gatdiag.cli": HEAVY,
    "gatdiag.run": {"torch"},
    "gatdiag.summary": {"torch"},
    "gatdiag.diagnosis": {"torch"},
    "gatdiag.figures": {"torch"},
    "gatdiag.report": {"torch"},
    "gatdiag.structure": DRAWING | PYG,
    "gatdiag.laws": DRAWING | PYG,
    "gatdiag.metrics": DRAWING | PYG,
    "gatdiag.recorder": DRAWING | PYG,
    "gatdiag.remedies": DRAWING | PYG,
    "gatdiag.checkpoint": DRAWING | PYG,
    "gatdiag.cli.inspect": {"matplotlib", "seaborn", "torch_geometric"},  # loading PyG takes as long as loading torch
}
ROOT = Path(__file__).parents[1]
BUILT = [room for room in FORBIDDEN if importlib.util.find_spec(room)]


# Each room is imported in a fork of one process; those that load torch anyway, in forks of one that has done so.
FORKS = """
import os, sys
if sys.argv[1]:
    __import__(sys.argv[1])
for room in sys.argv[2:]:
    if not os.fork():
        __import__(room)
        print(room, *sys.modules, flush=True)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, room
"""


def loaded_by(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


@pytest.fixture(scope="module")
def modules() -> dict[str, set[str]]:
    """What is loaded once a room was imported."""
    found = {}
    for first in ("", "torch"):
        rooms = [room for room in BUILT if ("torch" in FORBIDDEN[room]) is not bool(first)]
        command = [sys.executable, "-c", FORKS, first, *rooms]
        lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
        found |= {room: {*loaded} for room, *loaded in map(str.split, lines)}
    return found


@pytest.mark.parametrize("room", BUILT)
def test_a_room_never_loads_what_it_must_do_without(modules, room):
    assert not modules[room] & FORBIDDEN[room]


@pytest.mark.parametrize("verb", gatdiag.__all__)
def test_a_public_verb_is_that_of_its_room(verb):
    room = importlib.import_module(gatdiag._HOME[verb])
    assert getattr(gatdiag, verb) is getattr(room, verb)
    assert verb in dir(gatdiag)


def test_using_a_verb_loads_its_room_only_then():
    assert "gatdiag.laws" in loaded_by("import gatdiag; gatdiag.find_laws")


def test_every_room_is_an_attribute():
    rooms = {
        path.stem for path in (ROOT / "gatdiag").iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
    }
    rooms -= {"__init__", "__main__"}
    assert {"laws", "structure", "recorder", "cli"} < rooms < set(dir(gatdiag))
    program = f"import gatdiag; assert all(getattr(gatdiag, room).__name__ == f'gatdiag.{{room}}' for room in {rooms})"
    assert "gatdiag.laws" in loaded_by(program)


def test_its_version_is_that_of_the_package():
    assert gatdiag.__version__ == metadata.version("gatdiag")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gatdiag' has no attribute 'find_flaws'"):
        _ = gatdiag.find_flaws

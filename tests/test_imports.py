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
    "gatdiag.figures": {"torch", "seaborn"},  # which loads pyplot and SciPy, and is needed only to draw
    "gatdiag.page": {"torch", "seaborn"},
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


@pytest.fixture(scope="module")
def modules() -> dict[str, set[str]]:
    """What is loaded once a room was imported, or a verb was used.

    One process imports the rooms that do without torch, one after the other, and another those that load it: the former
    may draw and the latter may not.
    """
    program = "import sys\nfor line in sys.argv[1:]: exec(line); print(line.split()[-1], *sys.modules)"
    lines: dict[bool, list[str]] = {True: [], False: ["import gatdiag", "gatdiag.find_laws"]}
    for room in BUILT:
        lines["torch" in FORBIDDEN[room]].append(f"import {room}")
    commands = [[sys.executable, "-c", program, *some] for some in lines.values()]
    printed = [subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout for line in commands]
    return {name: {*loaded} for name, *loaded in map(str.split, "".join(printed).splitlines())}


@pytest.mark.parametrize("room", BUILT)
def test_a_room_never_loads_what_it_must_do_without(modules, room):
    assert not modules[room] & FORBIDDEN[room]


@pytest.mark.parametrize("verb", gatdiag.__all__)
def test_a_public_verb_is_that_of_its_room(verb):
    room = importlib.import_module(gatdiag._HOME[verb])
    assert getattr(gatdiag, verb) is getattr(room, verb)
    assert verb in dir(gatdiag)


def test_using_a_verb_loads_its_room_only_then(modules):
    assert "gatdiag.laws" in modules["gatdiag.find_laws"] - modules["gatdiag"]


def test_every_room_is_an_attribute():
    rooms = {
        path.stem for path in (ROOT / "gatdiag").iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
    }
    rooms -= {"__init__", "__main__"}
    assert {"laws", "structure", "recorder", "cli"} < rooms < set(dir(gatdiag))
    for room in rooms:
        assert gatdiag.__getattr__(room) is importlib.import_module(f"gatdiag.{room}")


def test_its_version_is_that_of_the_package():
    assert gatdiag.__version__ == metadata.version("gatdiag")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gatdiag' has no attribute 'find_flaws'"):
        _ = gatdiag.find_flaws

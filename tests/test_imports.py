"""What importing gatdiag costs, and what its rooms may never load."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import gatdiag

HEAVY = {"torch", "torch_geometric", "numpy", "pandas", "pyarrow", "matplotlib", "seaborn"}
FORBIDDEN = {  # rooms that are loaded one after the other, in one process -> what none of them may load
    ("gatdiag",): HEAVY | {"rich", "typer"},
    ("gatdiag.cli",): HEAVY,
    ("gatdiag.run", "gatdiag.summary", "gatdiag.diagnosis", "gatdiag.figures", "gatdiag.report"): {"torch"},
    (
        "gatdiag.structure",
        "gatdiag.laws",
        "gatdiag.metrics",
        "gatdiag.recorder",
        "gatdiag.remedies",
        "gatdiag.checkpoint",
    ): {"matplotlib", "seaborn", "rich", "typer", "torch_geometric"},
    ("gatdiag.cli.inspect",): {"matplotlib", "seaborn", "torch_geometric"},  # PyG takes as long to load as torch
}
ROOT = Path(__file__).parents[1]


def loaded_by(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("rooms", FORBIDDEN, ids=lambda rooms: " ".join(rooms))
def test_rooms_never_load_what_they_must_do_without(rooms):
    loaded = loaded_by(f"import {', '.join(rooms)}")
    assert loaded >= {*rooms}
    assert not loaded & FORBIDDEN[rooms]


@pytest.mark.parametrize("verb", gatdiag.__all__)
def test_a_public_verb_is_that_of_its_room(verb):
    room = importlib.import_module(gatdiag._HOME[verb])
    assert getattr(gatdiag, verb) is getattr(room, verb)
    assert verb in dir(gatdiag)


def test_every_room_is_an_attribute():
    rooms = {
        path.stem for path in (ROOT / "gatdiag").iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
    }
    rooms -= {"__init__", "__main__"}
    assert {"laws", "structure", "recorder", "cli"} < rooms < set(dir(gatdiag))
    program = f"import gatdiag; assert all(getattr(gatdiag, room).__name__ == f'gatdiag.{{room}}' for room in {rooms})"
    assert "gatdiag.laws" in loaded_by(program)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gatdiag' has no attribute 'find_flaws'"):
        _ = gatdiag.find_flaws

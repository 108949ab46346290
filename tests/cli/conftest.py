import sys
from types import ModuleType

import pytest

from gatdiag.cli import silence
from gatdiag.figures import rendering
from gatdiag.page import sections


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Nothing is said of a slow machine, so that standard error is what the command says."""
    monkeypatch.setattr(silence, "SECONDS", float("inf"))


@pytest.fixture
def shelf(monkeypatch):
    """An importable module, empty, as the user's own."""
    module = ModuleType("shelf")
    monkeypatch.setitem(sys.modules, "shelf", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return module


@pytest.fixture
def few_figures(monkeypatch):
    """One figure, and none on the page: all others have tests of their own."""
    monkeypatch.setattr(sections, "figures_for", lambda runs: [])
    monkeypatch.setattr(rendering, "FIGURES", [one for one in rendering.FIGURES if one.name == "unchanged_fraction"])

"""The map of a package, its docstring, names each of its files."""

import re
from importlib import import_module
from pkgutil import iter_modules, walk_packages

import pytest

import gatdiag

WITHOUT_MAP = {"gatdiag.cli", "gatdiag.laws.rules", "gatdiag.run", "gatdiag.structure"}
PACKAGES = {"gatdiag", *(each.name for each in walk_packages(gatdiag.__path__, "gatdiag.") if each.ispkg)}


@pytest.mark.parametrize("name", sorted(PACKAGES - WITHOUT_MAP))
def test_the_map_names_every_file(name):
    package = import_module(name)
    first_columns = re.findall(r"^    ((?:\w+, )*\w+)(?:  |\n)", package.__doc__, re.MULTILINE)
    named = {*re.findall(r"`(\w+)`", package.__doc__), *", ".join(first_columns).split(", ")}
    assert {each.name for each in iter_modules(package.__path__)} - {"__main__"} <= named

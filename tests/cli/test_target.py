import sys

import pytest

from gatdiag.cli.model_case import load_target
from gatdiag.errors import InputError


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


def test_the_current_directory_is_importable(tmp_path):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "box.py").write_text("class Lid:\n    color = 'red'")
    assert load_target("shelf.box:Lid.color") == "red"


@pytest.mark.parametrize("target", ["", "math", ":pi", "math:", "math.pi"])
def test_another_form_is_refused(target):
    with pytest.raises(InputError, match=r"expected PACKAGE\.MODULE:NAME"):
        load_target(target)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyError", "KeyError"),
    ],
)
def test_a_module_that_fails_is_named_with_its_reason(tmp_path, text, reason):
    (tmp_path / "failing_module.py").write_text(text)
    with pytest.raises(InputError, match=reason) as raised:
        load_target("failing_module:anything")
    assert "'failing_module'" in str(raised.value)


def test_a_missing_attribute_is_named():
    with pytest.raises(InputError, match=r"'math:pi.squared' does not exist: .*'squared'"):
        load_target("math:pi.squared")


@pytest.mark.parametrize(("target", "module"), [("box.py:Lid", "box:Lid"), ("shelf/box.py:Lid", "shelf.box:Lid")])
def test_a_file_is_answered_with_its_module(target, module):
    with pytest.raises(InputError, match=rf"names a file: give its module, {module}$"):
        load_target(target)


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one():
    with pytest.raises(InputError, match=r"Did you mean math:floor\?"):
        load_target("math:flor")

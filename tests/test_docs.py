"""The site can be built without a warning, its examples run and print what they say, and each cause has a page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gatdiag.diagnosis import CAUSES
from tests.test_packaging import follow

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / ".docs" / "pages").glob("*.md")) if "```python" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_examples_run_in_their_order_and_print_what_they_say(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    follow(text, {})
    printed = iter(capsys.readouterr().out.splitlines())
    for line in re.findall(r"^print\(.+\)  # (.+)$", text, re.MULTILINE):
        assert line in printed  # after the one before


def test_the_site_is_built_without_a_warning_and_has_a_page_for_each_cause(tmp_path):
    drawn = {**os.environ, "EXAMPLES": "lr-too-large,dead-weights"}  # of all pictures, one of the bank
    build = ["-m", "mkdocs", "build", "--strict", "--quiet", "-f", ROOT / ".docs" / "mkdocs.yml", "-d", tmp_path]
    done = subprocess.run([sys.executable, *build], capture_output=True, text=True, check=False, cwd=ROOT, env=drawn)
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in (tmp_path / "causes").iterdir()} == {"index", *CAUSES}
    page = (tmp_path / "causes" / "init-unbalanced.html").read_text()
    assert "Of 8 trainings with this fault planted (used for calibration), it is the verdict on 8." in page
    assert "../examples/lr-too-large-healthy.svg" in (tmp_path / "causes" / "lr-too-large.html").read_text()
    assert (tmp_path / "examples" / "lr-too-large-sick.svg").read_bytes().startswith(b"<?xml")
    page = (tmp_path / "causes" / "dead-weights.html").read_text()
    assert "3 neurons whose incoming weights are all zero" in page
    assert "../examples/dead-weights-healthy.svg" in page
    for path in tmp_path.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', path.read_text())
        assert [one for one in loaded if 'rel="canonical"' not in one] == [], path.name

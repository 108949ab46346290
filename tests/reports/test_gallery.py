"""The gallery of figures that the documentation includes."""

import json
import re
from xml.etree import ElementTree

import pytest

from gatdiag.experiments.experiment import FILE
from gatdiag.experiments.settings import Experiment
from gatdiag.figures import FIGURES
from gatdiag.run.files import META
from reports.gallery import train_missing, write_gallery


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_gallery(tmp_path_factory.mktemp("gallery") / "out", layers=3, epochs=2)


def test_every_figure_is_in_the_gallery_with_its_text(page):
    text = page.read_text()
    for figure in FIGURES:
        assert f"## {figure.title}\n\n`{figure.name}`. {figure.caption} {figure.interpretation}\n" in text
    shown = re.findall(r"!\[[^]]*\]\((.+?)\)", text)
    assert {*shown} == {path.name for path in page.parent.glob("*.svg")}
    of_a_run = [figure.name for figure in FIGURES if not figure.is_comparison]
    assert {f"{name}-{kind}.svg" for name in of_a_run for kind in ("balanced", "xavier")} < {*shown}


def test_every_picture_shows_data(page):
    for path in page.parent.glob("*.svg"):
        words = {text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}
        assert not [word for word in words if word and "not recorded" in word], path.name


def test_runs_are_not_trained_again(page):
    files = [*page.parent.glob(f"runs/*/{META}")]
    times = {path: path.stat().st_mtime_ns for path in files}
    settings = [Experiment(**json.loads((path.parent / FILE).read_text())["settings"]) for path in files]
    runs = train_missing(page.parent, settings)
    assert {run.folder for run in runs} <= {path.parent for path in files}
    assert {path: path.stat().st_mtime_ns for path in files} == times

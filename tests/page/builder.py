"""Small runs whose every number is given by the test, and a reader of pages that trusts nothing."""

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb

from tests.figures.odd_runs import recorded_run
from tests.run.synthetic import synthetic_meta

NO_LAYERS = {"structure": {"order": "module", "layers": []}, "laws": {"found": [], "excluded": [], "error": None}}
VOID = {"meta", "link", "img", "source", "br", "hr", "input", "path", "use", "rect", "circle"}


def build(folder, *, layers=None, weights=None, neurons=None, logged=None, width=2, ending="finished", **meta):
    """A run of GATv2 layers whose measurements are given; nothing else is recorded.

    Args:
        folder: New.
        layers: Column of the layers' table -> (steps, layers).
        weights: Column of the parameters' table -> (steps, layers), for the feature weights alone.
        neurons: Column of the neurons' table -> (steps, laws); `width` laws a layer but the last.
        logged: Name -> (steps,).
        width: Neurons of a layer.
        ending: How it ends; None leaves it open.
        **meta: Replace what the meta data say.
    """
    given = [np.asarray(v, float) for table in (layers, weights, neurons, logged) for v in (table or {}).values()]
    steps = len(given[0]) if given else 0
    wide = [np.asarray(v, float).shape[1] for table in (layers, weights) for v in (table or {}).values()]
    depth = wide[0] if wide else 2

    def rows(step):
        tables = {
            "steps": ({"time": 0.5 * step}, logged or {}),
            "layers": ({"layer": np.arange(depth)}, layers),
            "parameters": ({"parameter": 3 * np.arange(depth)}, weights),  # the first of each layer
            "neurons": ({"law": np.arange((depth - 1) * width)}, neurons),
        }
        return {
            table: keys | {name: np.asarray(values, float)[step] for name, values in columns.items()}
            for table, (keys, columns) in tables.items()
            if columns is not None
        }

    return recorded_run(folder, {**synthetic_meta(depth, width), **meta}, rows, steps, ending)


def rewrite_meta(folder, change):
    """Let a function change what meta.json says."""
    path = Path(folder) / "meta.json"
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))


def contrast(*colors):
    """Contrast of two colors of matplotlib (WCAG 2)."""

    def light(color):
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722])) + 0.05

    dark, bright = sorted(map(light, colors))
    return bright / dark


class Reader(HTMLParser):
    """What is in a page: tags, identifiers, references, headings, the text a reader sees."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.open, self.unclosed = Counter(), [], [], []
        self.text, self.headings, self.ids, self.cells = [], [], Counter(), []
        self.feed(page)
        self.close()
        self.unclosed += self.open

    def handle_startendtag(self, tag, attrs):
        self._meet(tag, attrs)

    def handle_starttag(self, tag, attrs):
        self._meet(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.unclosed.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)
        if {"td", "th"} & {*self.open[-2:]}:
            self.cells[-1] += data

    def _meet(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids.update(value for name, value in attrs if name == "id")
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))

    def values(self, name):
        return [value for _, attribute, value in self.attributes if attribute == name]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

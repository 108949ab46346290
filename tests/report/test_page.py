"""The page as text: sound HTML whatever the run, and nothing of the user's ever becomes markup."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from importlib import metadata

import numpy as np
import pytest

import gatdiag
from gatdiag.figures import figures_for
from gatdiag.report import sections
from gatdiag.report.page import render_page
from tests.report.builder import Reader, build, rewrite_meta
from tests.run import synthetic
from tests.run.synthetic import synthetic_run

HOSTILE = (
    "<script>alert(1)</script>",
    "\"' onmouseover='alert(1)' x=\"",
    "]]></style></script><!-- --><b>",
    "\u202eesrever \u05d0\u05d1\u05d2",
    "x" * 300,
    "two\nlines\r\x00\x1b[31m",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{a}{0}$ _^ 100%",
    "../../etc/passwd",
    "&lt;i&gt;&amp;",
)


def checked(page: str) -> Reader:
    """A page that is well formed, refers to nothing outside, and has its parts in order."""
    reader = Reader(page)
    assert reader.unclosed == []
    assert [name for name, times in reader.ids.items() if times > 1] == []
    assert reader.tags["script"] == reader.tags["style"] == reader.tags["title"] == reader.tags["h1"] == 1
    assert not {"iframe", "object", "embed", "form", "base", "audio", "video"} & {*reader.tags}
    assert [name for _, name, _ in reader.attributes if name.startswith("on")] == []
    for name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
        assert all(value.startswith(("data:", "#")) for value in reader.values(name)), name
    local = [value[1:] for value in reader.values("href") if value.startswith("#")] + reader.values("aria-labelledby")
    assert {*local} <= {*reader.ids}
    steps = np.diff([0, *reader.headings])
    assert steps.max() <= 1
    assert all(label.strip() for label in reader.values("aria-label"))
    assert all(width in ("0", "") for width in reader.values("border"))
    return reader


def policy(page):
    content = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    return {part.partition(" ")[0]: part.partition(" ")[2] for part in content.split("; ")}


def hostile_strings() -> Iterator[str]:
    while True:
        yield from HOSTILE


def spoiled(value, words, keep=()):
    """The same structure with every text in it made hostile, but those that mean something."""
    match value:
        case dict():
            return {key: item if key in keep else spoiled(item, words, keep) for key, item in value.items()}
        case list():
            return [spoiled(item, words, keep) for item in value]
        case str():
            return f"{next(words)} {value}"
    return value


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return gatdiag.load(synthetic_run(tmp_path_factory.mktemp("runs") / "run", steps=60, layers=4, neurons=2))


@pytest.fixture(scope="module")
def page(run):
    return render_page([run])


@pytest.fixture
def few_figures(monkeypatch):
    """Two of each kind: drawing all of them is what takes the time."""
    monkeypatch.setattr(sections, "figures_for", lambda runs: figures_for(runs)[:2])


def test_the_page_is_sound_and_says_what_it_is(page, run):
    reader = checked(page)
    assert "GATv2 of 4 GATv2Conv layers" in reader.words
    assert all(name in reader.words for name in run.layer_names)
    order = [
        page.index(f'id="run-1-{part}"')
        for part in ("summary", "findings", "overview", "figures", "tables", "settings")
    ]
    assert order == sorted(order)


def test_the_policy_allows_this_script_and_no_network(page):
    rules = policy(page)
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert {"base-uri", "form-action"} <= {*rules}
    assert not re.search(r"url\((?!#)|@import|https?:(?!//www\.w3\.org)", page)


def test_every_figure_has_its_explanation_and_its_data(page, run):
    reader = checked(page)
    figures = figures_for([run])
    assert reader.tags["figure"] == reader.tags["figcaption"] == len(figures)
    words = reader.words
    for figure in figures:
        assert figure.title in words
        assert " ".join(figure.reading.split()) in words
    assert words.count("Data behind it") == len(figures)
    labels = reader.values("aria-label")
    assert all(figure.title in labels for figure in figures)


def test_tables_have_heads_and_values_to_sort_by(page):
    reader = checked(page)
    assert {"col", "row"} == {*reader.values("scope")}
    assert len(reader.values("data-sortable")) == sum(name == "data-sortable" for _, name, _ in reader.attributes) > 2
    for value in reader.values("data-value"):
        float(value.replace("Infinity", "inf"))


def test_hostile_names_stay_text(tmp_path, monkeypatch):
    words = hostile_strings()
    meta = spoiled(synthetic.synthetic_meta(4, 2), words, keep=("table", "role", "kind"))
    for entry, known in zip(meta["quantities"], synthetic.synthetic_meta(4, 2)["quantities"], strict=True):
        entry["name"] = known["name"]
    for layer in meta["structure"]["layers"]:
        layer["kind"] = next(words)
    renamed = {layer["name"]: layer["name"] for layer in meta["structure"]["layers"]}
    for law, position in zip(meta["laws"]["found"], np.repeat(range(3), 2), strict=True):
        law["layer"] = list(renamed)[position]
    meta["laws"]["excluded"] = [{"what": next(words), "reason": text} for text in HOSTILE]
    meta["versions"] = {text: text for text in HOSTILE}
    meta["optimizers"][0]["groups"][0] |= {text: text for text in HOSTILE}
    meta["first_non_finite"] = {
        "step": 3, "layer": HOSTILE[0], "where": HOSTILE[1], "parameter": HOSTILE[2], "kind": HOSTILE[3],
    }  # fmt: skip
    meta["notes"] = list(HOSTILE)
    monkeypatch.setattr(synthetic, "synthetic_meta", lambda *_: meta)
    logged = ("loss", *(text.replace("\x00", "") for text in HOSTILE), "<b>val_accuracy</b>")
    folder = synthetic_run(tmp_path / "run", steps=12, layers=4, neurons=2, logged=logged, name=HOSTILE[0])
    rewrite_meta(folder, lambda known: known.update(status="failed", error=" ".join(HOSTILE)))
    monkeypatch.setattr(
        sections, "figures_for", lambda runs: [] if [run.name for run in runs] == [HOSTILE[1]] else figures_for(runs)
    )
    other = synthetic_run(tmp_path / "other", steps=12, layers=4, neurons=2, logged=logged, name=HOSTILE[1])
    reader = checked(render_page([gatdiag.load(folder), gatdiag.load(other)], title=HOSTILE[2]))
    assert "alert(1)" in reader.words
    assert "{{ 7 * 7 }}" in reader.words
    assert not {"\u202e", "\x00", "\x1b"} & {*reader.words, *"".join(value for *_, value in reader.attributes)}
    assert {"b", "i"}.isdisjoint(reader.tags)


def test_equal_runs_give_the_same_page_but_for_the_time(run, few_figures):
    first, second = (re.sub(r"on \d{4}-\d\d-\d\d \d\d:\d\d UTC", "", render_page([run])) for _ in range(2))
    assert first == second


def test_several_runs_are_compared_first(run, few_figures, tmp_path):
    other = gatdiag.load(synthetic_run(tmp_path / "other", steps=20, layers=5, neurons=2, collapse=True))
    page = render_page([run, other], title="Two")
    reader = checked(page)
    assert page.index('id="comparison"') < page.index('id="run-1"') < page.index('id="run-2"')
    assert reader.words.count("Runs in numbers") == 1


def test_the_same_run_twice_is_no_trouble(run, few_figures):
    checked(render_page([run, run]))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"logged": {"loss": [1.0]}},
        {"logged": {"note": [np.nan, 1.0]}, "ending": None},
        {"layers": {"mu": [[1.0, 2.0]]}, "laws": {"found": [], "excluded": [], "error": "no forward was seen"}},
        {"layers": {"mu": np.full((3, 2), np.nan), "non_finite": np.full((3, 2), 4.0)}},
        {"weights": {"norm": [[1.0]], "relative_gradient_norm": [[np.inf]]}, "logged": {"loss": [np.inf]}},
        {
            "logged": {"loss": [1.0]},
            "structure": {"order": "module", "layers": []},
            "laws": {"found": [], "excluded": [], "error": None},
        },
        {"logged": {"loss": [1.0]}, "optimizers": [], "versions": {}, "cadence": {}, "notes": [], "quantities": []},
    ],
    ids=["nothing", "one step", "open", "no laws", "NaN", "one layer", "no layers", "no settings"],
)
def test_poor_runs_give_sensible_pages(tmp_path, few_figures, given):
    reader = checked(render_page([build(tmp_path / "run", **given)]))
    assert "Summary" in reader.words


def test_nan_everywhere_is_said(tmp_path, monkeypatch):
    meta = synthetic.synthetic_meta(3, 2)
    meta["first_non_finite"] = {"step": 0, "layer": "convs.2", "where": "output", "parameter": None, "kind": "NaN"}
    monkeypatch.setattr(synthetic, "synthetic_meta", lambda *_: meta)

    class Broken(synthetic._Model):
        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            if name not in ("steps", "layers", "parameters", "neurons"):
                return found
            keys = ("step", "layer", "parameter", "law", "non_finite", "gradient_non_finite", "learning_rate")
            return lambda *given: {
                key: value if key in keys or value is None else np.full(np.shape(value), np.nan)
                for key, value in found(*given).items()
            }

    monkeypatch.setattr(synthetic, "_Model", Broken)
    run = gatdiag.load(synthetic_run(tmp_path / "run", steps=5, layers=3, neurons=2))
    words = checked(render_page([run])).words
    assert "The first NaN appeared at step 0, in the output of layer convs.2." in words
    assert "The loss was never finite." in words


@pytest.mark.slow
def test_512_layers_fit_on_a_page(tmp_path):
    run = gatdiag.load(synthetic_run(tmp_path / "run", steps=4, layers=512, neurons=1, collapse=True))
    page = render_page([run])
    checked(page)
    assert len(page.encode()) < 5e6


def test_the_settings_survive_odd_values(tmp_path):
    group = {"lr": "auto", "betas": [0.9, 0.999], "foreach": None, "nested": {"a": [1]}, "parameters": None}
    run = build(tmp_path / "run", logged={"loss": [1.0]}, optimizers=[{"class": None, "groups": [group]}])
    assert json.dumps([0.9, 0.999]) in checked(render_page([run])).words


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_has_the_contrast_that_accessibility_asks_for(page, theme):
    """At least 4.5 : 1 (WCAG 2, AA) for each ink on each ground it is used on."""
    pairs = re.findall(r"--([a-z-]+): light-dark\(#(\w{6}), #(\w{6})\);", page)
    colors = {name: bytes.fromhex(values[theme]) for name, *values in pairs}

    def luminance(name):
        parts = [byte / 255 for byte in colors[name]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for ink in ("ink", "soft", "accent", "alarm"):
        for ground in ("paper", "raised", "alarm-ground"):
            low, high = sorted((luminance(ink), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


def test_without_an_installed_package_the_version_is_unknown(tmp_path, few_figures, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert "Made by gatdiag unknown on" in render_page([build(tmp_path / "run", logged={"loss": [1.0]})])


def test_units_are_explained_and_what_was_not_measured_is_a_dash(run, few_figures):
    words = checked(render_page([run])).words
    assert "λ the weight decay" in words
    assert "A dash: not measured" in words


def test_a_page_about_nothing_says_why_and_draws_nothing(tmp_path):
    empty = {"structure": {"order": "module", "layers": []}, "laws": {"found": [], "excluded": [], "error": None}}
    empty["notes"] = ["no step of an optimizer was seen"]
    reader = checked(render_page([build(tmp_path / "run", **empty)]))
    assert reader.tags["figure"] == 0
    assert "Why: no step of an optimizer was seen." in reader.words
    assert "What to do: " in reader.words
    assert "threshold" not in reader.words
    other = build(tmp_path / "other", logged={"loss": [2.0, 1.0]})
    words = checked(render_page([build(tmp_path / "third", **empty), other])).words
    assert "third: nothing was recorded." in words

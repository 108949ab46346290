"""The page as text: sound HTML whatever the run, and nothing of the user's ever becomes markup."""

import base64
import hashlib
import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.figures import figures_for
from gatdiag.page import sections
from gatdiag.page.document import check_target, open_runs, render_page, report, unique_labels
from tests.page.builder import NO_LAYERS, Reader, build, contrast, rewrite_meta
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


ODD = {"lr": "auto", "betas": [0.9, 0.999], "foreach": None, "nested": {"a": [1]}, "parameters": None}


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


@pytest.fixture
def few_figures(monkeypatch):
    """One of each kind: drawing all of them is what takes the time."""
    monkeypatch.setattr(sections, "figures_for", lambda runs: figures_for(runs)[:1])


def test_the_page_is_sound_and_says_what_it_is(page, stuck):
    reader = checked(page)
    assert "GATv2 of 12 GATv2Conv layers" in reader.words
    assert all(name in reader.words for name in stuck.layer_names)
    order = [
        page.index(f'id="run-1-{part}"')
        for part in ("verdict", "overview", "training", "figures", "tables", "settings")
    ]
    assert order == sorted(order)
    assert "λ the weight decay" in reader.words
    assert "A dash means not measured" in reader.words
    assert '<th scope="col"></th>' not in page


def test_the_policy_allows_this_script_and_no_network(page):
    rules = policy(page)
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert {"base-uri", "form-action"} <= {*rules}
    assert not re.search(r"url\((?!#|%23)|@import|https?:(?!//www\.w3\.org)", page)


def test_every_figure_has_its_explanation_and_its_data(page, stuck):
    reader = checked(page)
    figures = figures_for([stuck])
    assert reader.tags["figure"] == reader.tags["figcaption"] == len(figures)
    words, labels = reader.words, reader.values("aria-label")
    # on the first screen: short
    (evidence,) = [figure for figure in figures if " ".join(figure.interpretation.split()) not in words]
    assert evidence.name == "by_layer"
    assert re.search(r"By layer, [^.]*at step 0[^.]* \(black\)\. In the green range are nine in ten layers", words)
    assert words.count("Data (CSV)") + words.count("Data: gatdiag.figures.table") == len(figures)
    for figure in figures:
        assert figure.title in labels


def test_tables_have_heads_to_sort_by(page):
    reader = checked(page)
    assert {"col", "row"} == {*reader.values("scope")}
    assert len(reader.values("data-sortable")) == sum(name == "data-sortable" for _, name, _ in reader.attributes) > 2


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


def test_the_verdict_is_there_where_no_check_found_anything(tmp_path, few_figures):
    run = build(tmp_path / "run", logged={"loss": np.geomspace(2.0, 0.01, 60)}, **NO_LAYERS)
    diagnosis = gatdiag.diagnose(run)
    assert (diagnosis.findings, diagnosis.verdict.code) == ((), "healthy")
    (page,) = [render_page([run])]
    assert "No problem found" in page
    assert f"{len(diagnosis.skipped)} checks skipped" in page


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"logged": {"loss": [1.0]}},
        {"logged": {"note": [np.nan, 1.0]}, "ending": None},
        {"layers": {"mu": [[1.0, 2.0]]}, "laws": {"found": [], "excluded": [], "error": "no forward was seen"}},
        {
            "layers": {"mu": np.full((3, 2), np.nan), "non_finite": np.full((3, 2), 4.0)},
            "weights": {"norm": np.full((3, 2), np.nan), "relative_gradient_norm": np.full((3, 2), np.nan)},
            "neurons": {"c": np.full((3, 2), np.nan), "delta": np.full((3, 2), np.nan)},
            "logged": {"loss": [np.nan] * 3},
        },
        {"weights": {"norm": [[1.0]], "relative_gradient_norm": [[np.inf]]}, "logged": {"loss": [np.inf]}},
        {"logged": {"loss": [1.0]}, **NO_LAYERS},
        {"logged": {"loss": [1.0]}, "optimizers": [], "versions": {}, "cadence": {}, "notes": [], "quantities": []},
        {"logged": {"loss": [1.0]}, "optimizers": [{"class": None, "groups": [ODD]}]},
    ],
    ids=["nothing", "one step", "open", "no laws", "NaN", "one layer", "no layers", "no settings", "odd"],
)
def test_poor_runs_give_sensible_pages(tmp_path, few_figures, given):
    reader = checked(render_page([build(tmp_path / "run", **given)]))
    assert "Verdict" in reader.words


@pytest.mark.slow
def test_512_layers_fit_on_a_page(tmp_path):
    run = gatdiag.load(synthetic_run(tmp_path / "run", steps=4, layers=512, neurons=1, collapse=True))
    page = render_page([run])
    checked(page)
    assert len(page.encode()) < 5e6


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_has_the_contrast_that_accessibility_asks_for(page, theme):
    """At least 4.5 : 1 (WCAG 2, AA) for each ink on each ground it is used on."""
    pairs = re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\);", page)
    colors = {name: values[theme] for name, *values in pairs}
    for ink in ("ink", "soft", "accent", "alarm", "mild", "good"):
        for ground in ("paper", "raised", "alarm-ground", "mild-ground", "good-ground"):
            assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)


def test_a_page_about_nothing_says_why_and_draws_nothing(tmp_path):
    empty = {**NO_LAYERS, "notes": ["no step of an optimizer was seen"]}
    reader = checked(render_page([build(tmp_path / "run", **empty)]))
    assert reader.tags["figure"] == 0
    assert "Why: no step of an optimizer was seen." in reader.words
    assert "What to do: " in reader.words
    assert "threshold" not in reader.words
    other = build(tmp_path / "other", logged={"loss": [2.0, 1.0]})
    cells = checked(render_page([build(tmp_path / "third", **empty), other])).cells
    assert cells[cells.index("third") :][:3] == ["third", "cannot tell", "nothing was recorded"]


# --- the page on disk -------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A run whose page has no figures."""
    monkeypatch.setattr(sections, "figures_for", lambda runs: [])
    return build(tmp_path / "run", logged={"loss": [2.0, 1.0]}, name="ten layers")


def test_the_page_is_written_where_it_was_asked_for(small, tmp_path):
    target = tmp_path / "new" / "folder" / "page.html"
    assert report(small, str(target), title="Mine & <yours>") == target
    text = target.read_text(encoding="utf-8")
    assert "<title>Mine &amp; &lt;yours&gt;</title>" in text
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


def test_runs_and_folders_are_taken_alone_and_together(small):
    for given in (small, small.folder, str(small.folder), [small]):
        assert [run.name for run in open_runs(given)] == ["ten layers"]


def test_equal_runs_give_the_same_page_but_for_the_time(small):
    first, second = (re.sub(r"on \d{4}-\d\d-\d\d \d\d:\d\d UTC", "", render_page([small])) for _ in range(2))
    assert first == second


def test_an_earlier_report_is_replaced(small, tmp_path):
    target = report(small, tmp_path / "page.html", title="Old title")
    report(small, target, title="New title")
    assert "Old title" not in target.read_text()


@pytest.mark.parametrize("content", ["<html>mine</html>", "", '<meta name="generator" content="other">'])
def test_no_other_file_is_replaced_unasked(small, tmp_path, content):
    target = tmp_path / "page.html"
    target.write_text(content)
    with pytest.raises(InputError, match="not a gatdiag report"):
        report(small, target)
    assert target.read_text() == content
    report(small, target, overwrite=True)
    assert "ten layers" in target.read_text()


def test_a_failure_leaves_the_earlier_page_and_no_litter(small, tmp_path, monkeypatch):
    target = report(small, tmp_path / "page.html", title="first")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report(small, target, title="second")
    assert "first" in target.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "page.html"}


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_what_is_no_run_is_refused_before_anything_is_written(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        report(tmp_path / folder, tmp_path / "page.html")
    with pytest.raises(InputError, match="at least one run"):
        report([], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_pipe_keeps_its_place_and_so_does_a_folder(tmp_path):
    with pytest.raises(InputError, match="got the folder"):
        check_target(tmp_path, overwrite=True)
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="not a regular file"):
        check_target(pipe, overwrite=True)


def names(runs):
    return [run.name for run in unique_labels(runs)]


def test_equal_names_get_the_shortest_path_that_tells_them_apart(tmp_path):
    runs = [build(tmp_path / f"x{place}" / "gat", name="gat") for place in range(2)]
    assert names([*runs, build(tmp_path / "other", name="other")]) == ["x0/gat", "x1/gat", "other"]
    runs = [build(tmp_path / folder, name="net") for folder in ("first", "second")]
    assert names(runs) == ["net (first)", "net (second)"]
    runs = [build(tmp_path / folder, name="net") for folder in ("net-1", "net-2")]
    assert names(runs) == ["net-1", "net-2"]  # not net (net-1)


def test_a_folder_comes_once_and_that_is_said(tmp_path):
    run = build(tmp_path / "run", name="a")
    (tmp_path / "x").mkdir()
    with pytest.warns(UserWarning, match="^gatdiag: .* shown once"):
        assert unique_labels([run, gatdiag.load(tmp_path / "x" / ".." / "run")]) == [run]


def test_the_equations_of_figures_and_quantities_are_on_the_page(stuck, page):
    text = html.unescape(page)
    drawn = [figure.equation for figure in figures_for(stuck) if figure.equation]
    assert drawn
    assert not [equation for equation in drawn if f"<p>{equation}</p>" not in text]
    assert not [each["name"] for each in stuck.meta["quantities"] if f">{each['equation']}</td>" not in text]

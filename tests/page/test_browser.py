"""The page in a real browser, where one is installed: no console message, nothing fetched, every script working."""

import json
import os
import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest

import gatdiag
from gatdiag.diagnosis.wording import TIMES, number
from gatdiag.page import chart, sections
from tests.diagnosis.test_wording import back
from tests.page.builder import build
from tests.run.synthetic import synthetic_run

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine"),
    pytest.mark.slow,
]
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
)
# What a reader does, at the end of the page: sort a table twice, look at what came of it.
PROBE = """
const heads = (table) => [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
const table = [...document.querySelectorAll("table[data-sortable]")].find((one) => heads(one).includes("mu"));
const buttons = [...table.tHead.querySelectorAll("button")];
const column = heads(table).indexOf("mu");
const values = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
const state = () => table.tHead.rows[0].cells[column].getAttribute("aria-sort");
const found = { title: document.title, before: [values(), state()] };
buttons[column].click(); found.up = [values(), state()];
buttons[column].click(); found.down = [values(), state()];
const cells = document.querySelectorAll(".strip .cell");
(async () => {
const link = document.querySelector(".board li:last-child a");
if (link) {
  const run = document.querySelector(link.getAttribute("href"));
  found.unfolded = [run.checkVisibility()];
  link.click();
  await new Promise((done) => setTimeout(done));
  found.unfolded.push(run.checkVisibility());
}
if (cells.length) {
  const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const strip = cells[0].parentElement;
  found.stops = [...cells].filter((one) => one.tabIndex === 0).map((one) => one.dataset.layer);
  cells[0].focus();
  for (const key of ["ArrowRight", "ArrowRight"]) press(key);
  found.focused = [document.activeElement.dataset.layer, document.activeElement.getAttribute("role"),
                   strip.nextElementSibling.textContent === document.activeElement.getAttribute("aria-label")];
  if (cells[0].checkVisibility()) press("Enter"); else cells[2].click();  // what is folded takes no focus
  await null;  // uPlot draws when this script has ended
  const fold = cells[2].closest("section").querySelector("details[data-chart]");
  const [quantity, layer, log] = fold.querySelectorAll("select, input");
  const over = fold.querySelector(".u-over");
  const box = over.getBoundingClientRect();
  const point = { clientX: box.left + box.width / 2, clientY: box.top + 20, bubbles: true };
  for (const kind of ["mouseenter", "mousemove"]) over.dispatchEvent(new MouseEvent(kind, point));
  found.chart = { open: fold.open, layer: layer.selectedOptions[0].text, wanted: cells[2].dataset.layer,
                  told: fold.querySelector("output").textContent, log: log.checked };
  log.click();
  quantity.selectedIndex = quantity.options.length - 1;
  quantity.dispatchEvent(new Event("change"));
  await null;
  found.chart.kept = layer.selectedOptions[0].text;
  found.chart.drawn = fold.querySelectorAll("canvas").length;
}
scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
found.contents = document.querySelector("header nav").getBoundingClientRect().top >= 0;
found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
found.loaded = performance.getEntriesByType("resource").map((one) => one.name).filter((name) => !/^data:/.test(name));
found.focusable = [...document.querySelectorAll("a, button, [tabindex='0']")].every((one) => one.tabIndex >= 0);
found.scrolled = {};
for (const frame of document.querySelectorAll(".table-frame")) {
  const end = frame.getBoundingClientRect().left + frame.clientLeft + frame.clientWidth;
  const cells = [...frame.querySelector("tr").cells].filter((one) => one.getBoundingClientRect().right > end + 1);
  const title = document.getElementById(frame.getAttribute("aria-labelledby")).textContent;
  if (frame.scrollWidth > frame.clientWidth) found.scrolled[title] = cells.map((one) => one.textContent);
}
found.cut = [...document.querySelectorAll("pre")].filter((one) => one.scrollWidth > one.clientWidth).length;
found.empty = [...document.querySelectorAll("img.plot")].filter((one) => one.getBoundingClientRect().height < 40 &&
  one.checkVisibility()).length;
document.body.innerHTML = "<pre id='found'></pre>";
document.getElementById("found").textContent = JSON.stringify(found);
})();
"""

# All that is written on the chart, what is written below it, and what is said of two steps of the first layer.
CHART = """
const drawn = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  drawn.push(text);
  write.call(this, text, ...place);
};
(async () => {
const fold = document.querySelector("details[data-chart]");
const [shown] = JSON.parse(fold.dataset.chart);
const part = Object.fromEntries(["layers", "colors", "values"].map((name) => [name, shown[name].slice(0, 1)]));
fold.dataset.chart = JSON.stringify([shown, { ...shown, ...part, label: "of the first layer alone" }]);
fold.open = true;
fold.dispatchEvent(new Event("toggle"));
await null;
const written = [...drawn];
const [quantity, layer] = fold.querySelectorAll("select");
layer.selectedIndex = 1;
layer.dispatchEvent(new Event("change"));
await null;
const over = fold.querySelector(".u-over");
const box = over.getBoundingClientRect();
const told = [3, 12].map((step) => {
  const point = { clientX: box.left + box.width * step / 23, clientY: box.top + 20, bubbles: true };
  for (const kind of ["mouseenter", "mousemove"]) over.dispatchEvent(new MouseEvent(kind, point));
  return fold.querySelector("output").textContent;
});
const found = { drawn: written, key: fold.lastChild.textContent, told };
quantity.selectedIndex = 1;
quantity.dispatchEvent(new Event("change"));
document.querySelectorAll(".strip .cell")[1].click();
found.clicked = [quantity.selectedIndex, layer.selectedOptions[0].text];
document.body.innerHTML = "<pre id='found'></pre>";
document.getElementById("found").textContent = JSON.stringify(found);
})();
"""

# What is said of many places of the overview, and of its pixels in the color of NaN.
MAPS = """
(async () => {
const image = document.querySelector("[data-cells] img");
const told = document.querySelector("[data-cells] output");
await image.decode();
image.scrollIntoView();
const box = image.getBoundingClientRect();
const [width, height] = [box.width, box.height].map(Math.floor);
const ask = (x, y, kind) => {
  image.dispatchEvent(new PointerEvent(kind, { clientX: box.left + x + 0.5, clientY: box.top + y + 0.5 }));
  return told.textContent;
};
const canvas = document.createElement("canvas");
Object.assign(canvas, { width, height });
const paint = canvas.getContext("2d");
paint.drawImage(image, 0, 0, box.width, box.height);
const pixels = paint.getImageData(0, 0, width, height).data;
const found = { said: new Set(), broken: {}, width };
for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
  if (x % 4 === 0 && y % 8 === 0) found.said.add(ask(x, y, "pointermove"));
  const at = 4 * (y * width + x);
  if ([0xd8, 0x1b, 0x60].every((one, place) => Math.abs(one - pixels[at + place]) < 6)) {
    const said = ask(x, y, "pointerdown");
    found.broken[said] = (found.broken[said] ?? 0) + 1;
  }
}
found.said = [...found.said];
document.body.innerHTML = "<pre id='found'></pre>";
document.getElementById("found").textContent = JSON.stringify(found);
})();
"""


def browse(page, tmp_path, *flags):
    """Open a page; what the browser printed, and what it wrote to its console."""
    profile = tmp_path / "profile"
    command = [BROWSER, *QUIET, f"--user-data-dir={profile}", *flags, f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=os.environ)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def report(stuck, page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    (folder / "one.html").write_text(page, encoding="utf-8")
    fine = synthetic_run(folder / "fine", steps=60, layers=3, neurons=2, name="x" * 300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "figures_for", lambda runs: gatdiag.figures.figures_for(runs)[:1])
        return folder / "one.html", gatdiag.report([stuck, fine], folder / "two.html")


@pytest.mark.parametrize(("which", "width"), [(0, 360), (0, 1280), (1, 360)])
def test_the_page_works_and_keeps_to_itself(report, tmp_path, which, width):
    page = tmp_path / "probe.html"
    text = report[which].read_text(encoding="utf-8")
    page.write_text(
        re.sub(r"script-src 'sha256-[^']+'", "script-src 'unsafe-inline'", text) + f"<script>{PROBE}</script>"
    )
    printed, console = browse(page, tmp_path, f"--window-size={width},900", "--dump-dom", "--timeout=20000")
    assert console == []
    found = json.loads(unescape(re.search(r"<pre id=.found.>(.*?)</pre>", printed, re.DOTALL)[1]))
    assert len({TIMES in text for text in found["before"][0]}) == 2, "numbers are written in both ways"
    assert found["up"] == [sorted(found["before"][0], key=back), "ascending"]
    assert found["down"] == [sorted(found["before"][0], key=back, reverse=True), "descending"]
    assert found["before"][1] == "none"
    chart = found["chart"]
    assert (chart["open"], chart["layer"], chart["drawn"]) == (True, chart["wanted"], 1)
    assert chart["kept"] == chart["wanted"], "in another quantity"
    assert re.match(re.escape(chart["wanted"]) + r", step \d+: [\d.]+(\xa0\xd7\xa010[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?$", chart["told"])
    assert found["wide"] <= 0
    assert found["contents"] == (width >= 1280), "are in sight at the end of the page, where there is room for them"
    assert len(found["stops"]) == 1 + which, "of the tab key, for each strip"
    assert which == 1 or found["focused"] == [chart["wanted"], "button", True]
    assert found["loaded"] == []
    assert found["focusable"]
    assert (found["empty"], found["cut"]) == (0, 0)
    assert found.get("unfolded") == (None if which == 0 else [False, True])
    assert width < 1280 or found["scrolled"] == {}, "the columns of each table that do not fit on the screen"


def test_the_chart_of_a_training_that_blows_up_can_be_read(tmp_path):
    norms = np.array([[1e-3, 0.2], [1.0, 1e-2], [2e4, 5e6], [7.15e12, 3e11], *[[np.nan, np.nan]] * 20])
    run = build(tmp_path / "run", weights={"relative_gradient_norm": norms}, logged={"loss": [1.0] * 24})
    page = gatdiag.report(run, tmp_path / "page.html")
    text = re.sub(r"script-src 'sha256-[^']+'", "script-src 'unsafe-inline'", page.read_text())
    page.write_text(text + f"<script>{CHART}</script>")
    printed, console = browse(page, tmp_path, "--window-size=1280,900", "--dump-dom", "--timeout=20000")
    assert console == []
    found = json.loads(unescape(re.search(r"<pre id=.found.>(.*?)</pre>", printed, re.DOTALL)[1]))
    powers = [text for text in found["drawn"] if re.match("10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]", text)]
    assert 4 <= len(powers) <= 8
    assert all(len(text) <= 5 for text in powers)
    steps = [text for text in found["drawn"] if re.fullmatch(r"[0-9.,]+", text)]
    assert steps == [str(step) for step in range(0, 24, 2)]
    assert found["drawn"].count("✕") == 20
    assert found["key"].startswith("Green: 1\xa0\xd7\xa010⁻⁵ to 3, as in healthy trainings.")
    assert "✕ NaN or infinite" in found["key"]
    assert found["clicked"] == [0, "convs.1"], "the quantity that has the layer"
    assert found["told"] == ["convs.0, step 3: 7.15\xa0\xd7\xa010¹²", "convs.0, step 12: NaN"]


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A page and what its heat maps show: the words for each cell."""
    folder = tmp_path_factory.mktemp("maps")
    values = np.random.default_rng(3)
    norms, differences = values.uniform(0.01, 1, (16, 5)), values.uniform(0.1, 1, (16, 5))
    norms[4, 1], differences[11, 3] = np.nan, np.inf
    run = build(
        folder / "run",
        weights={"relative_gradient_norm": norms},
        layers={"relative_mu": differences},
        logged={"loss": np.linspace(2.0, 1.0, 16)},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "figures_for", lambda runs: gatdiag.figures.figures_for(runs)[:1])
        page = gatdiag.report(run, folder / "page.html")
        patch.setattr(chart, "_MOST_CELLS", 40)
        gatdiag.report(run, folder / "some.html")
    drawn = gatdiag.figures.table("overview", run)
    drawn = drawn[drawn["quantity"] != "loss"]
    return page, {
        f"{layer}, step {step}: {number(float(f'{value:.3g}'))}"
        for layer, step, value in zip(drawn["layer"], drawn["step"], drawn["value"], strict=True)
    }


def point_everywhere(page, width, tmp_path):
    text = re.sub(r"script-src 'sha256-[^']+'", "script-src 'unsafe-inline'", page.read_text(encoding="utf-8"))
    (tmp_path / "maps.html").write_text(text + f"<script>{MAPS}</script>")
    flags = (f"--window-size={width},900", "--dump-dom", "--timeout=20000")
    printed, console = browse(tmp_path / "maps.html", tmp_path, *flags)
    assert console == []
    return json.loads(unescape(re.search(r"<pre id=.found.>(.*?)</pre>", printed, re.DOTALL)[1]))


@pytest.mark.parametrize("width", [400, 1280])
def test_a_heat_map_says_what_is_under_the_pointer(mapped, tmp_path, width):
    page, cells = mapped
    found = point_everywhere(page, width, tmp_path)
    assert found["width"] > 0.6 * min(width, 900)
    assert {*found["said"]} == cells | {"Point at a cell to read its layer, step and value."}
    said = found["broken"]
    said.pop("Point at a cell to read its layer, step and value.")  # of the legend
    assert {*said} == {"convs.1, step 4: NaN", "convs.3, step 11: ∞"}
    assert min(said.values()) > 20


def test_a_heat_map_of_many_cells_says_that_a_step_is_near(mapped, tmp_path):
    page, cells = mapped
    said = {*point_everywhere(page.with_name("some.html"), 1280, tmp_path)["said"]}
    said.remove("Point at a cell to read its layer, step and value.")
    assert len(said) == len(cells) / 2
    assert all(", near step " in each for each in said)
    assert {each.replace("near ", "") for each in said} < cells


def test_its_own_policy_lets_its_script_run_and_no_other(report, tmp_path):
    page = tmp_path / "stranger.html"
    page.write_text(report[0].read_text(encoding="utf-8") + "<script>document.title = 'stranger'</script>")
    printed, console = browse(page, tmp_path, "--dump-dom")
    assert '<th scope="col" aria-sort="none"><button type="button">' in printed
    assert "<title>stranger" not in printed
    assert [line for line in console if "Content Security Policy" not in line] == []
    assert console


def test_without_script_everything_is_there_but_sorting(report, tmp_path):
    text = report[0].read_text(encoding="utf-8")
    page = tmp_path / "silent.html"
    page.write_text(re.sub(r"script-src 'sha256-[^']+'", "script-src 'none'", text))
    printed, _ = browse(page, tmp_path, "--dump-dom")
    assert '<th scope="col">layer</th>' in printed
    assert "<button" not in printed
    assert printed.count("<figure") == text.count("<figure")

import json
import math
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.text import Text
from torch import nn
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.cli.diagnose import print_diagnosis
from gatdiag.diagnosis import Diagnosis, Evidence, Finding
from tests.page.builder import build, rewrite_meta
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name in ("stuck", "fine"):
        synthetic_run(
            folder / name, steps=30 if name == "stuck" else 120, layers=10, neurons=2, collapse=name == "stuck"
        )
    for name in ("fine", "other"):
        synthetic_run(folder / "runs" / name, steps=1, layers=2, neurons=1)
    (folder / "runs" / "report.html").touch()
    state = nn.Linear(3, 2).state_dict()
    state["weight"][0, 0] = math.inf
    torch.save(state, folder / "broken.pt")
    return folder


def diagnose(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["diagnose", *map(str, arguments)])


def test_a_healthy_run_has_no_problem(folder):
    done = diagnose(folder / "fine", "--fail-on", "note")
    assert done.exit_code == 0
    assert done.stdout.startswith("healthy: No problem found.")
    assert "causes; gatdiag diagnose --json says why not the others" in done.stdout


def test_a_run_without_a_step_is_not_called_healthy(tmp_path):
    synthetic_run(tmp_path / "empty", steps=0)
    done = diagnose(tmp_path / "empty")
    assert done.exit_code == 3
    assert "Nothing was recorded" in done.stdout
    assert "No problem" not in done.stdout
    assert diagnose(tmp_path / "empty", "--fail-on", "never").exit_code == 0


def test_the_cause_is_said_with_its_evidence_and_a_line_to_paste(folder):
    done = diagnose(folder / "stuck")
    assert done.exit_code == 1
    assert done.stdout.startswith("failing: Neurons are out of balance from the start: ")
    line = 'gatdiag.remedies.initialize_(model, "balanced_orthogonal")'
    assert f"[init-unbalanced]\n  to paste, after `import gatdiag`:\n    {line}" in done.stdout
    assert "\n  evidence: " in done.stdout
    assert "\\x" not in done.stdout
    assert diagnose(folder / "stuck", "--fail-on", "never").exit_code == 0


@pytest.mark.parametrize(("losses", "is_said"), [([2.0] * 30, True), ([2.0] * 3 + [0.01] * 27, False)])
def test_what_could_not_be_looked_at_without_laws_is_said_by_the_verdict(tmp_path, losses, is_said):
    error = "the search was stopped after 20 s"
    weights = {"norm": np.full((30, 3), math.sqrt(8))}
    run = build(tmp_path / "run", weights=weights, logged={"loss": losses}, width=8)
    rewrite_meta(run.folder, lambda meta: meta["laws"].update(found=[], error=error))
    lines = diagnose(run.folder).stdout.splitlines()
    unseen = [line for line in lines if line.startswith("  not looked at: neurons are out of balance")]
    assert bool(unseen) == is_said
    assert not unseen or "(no conservation laws were recorded: the search was stopped" in unseen[0]


def test_a_checkpoint_will_do(folder):
    done = diagnose(folder / "broken.pt", "--json")
    assert done.exit_code == 1, done.stderr
    (diagnosis,) = json.loads(done.stdout)["diagnoses"]
    (finding,) = diagnosis["findings"]
    assert diagnosis["verdict"] == finding
    assert (finding["code"], finding["severity"], finding["parameters"]) == ("non-finite", "error", ["weight"])
    assert finding["evidence"][0] == {"what": "NaN or infinite values", "value": 1, "unit": "entries"}


def test_several_are_judged_one_after_the_other(folder):
    done = diagnose(folder / "fine", folder / "stuck", "--json")
    assert done.exit_code == 1
    codes = [one["verdict"]["code"] for one in json.loads(done.stdout)["diagnoses"]]
    assert codes == ["healthy", "init-unbalanced"]


def newer(folder):
    synthetic_run(folder, steps=1)
    rewrite_meta(folder, lambda meta: meta.update(schema=99))


ODD = {  # how the run is made, the exit status, and what is said
    "killed after 3 steps": (lambda f: synthetic_run(f, steps=3, seal=False), 3, "Only 3 steps were recorded"),
    "one layer": (lambda f: synthetic_run(f, steps=60, layers=1), 0, "No problem found"),
    "no losses": (lambda f: synthetic_run(f, steps=30, logged=()), 3, "No loss was logged"),
    "no laws": (
        lambda f: build(f, weights={"norm": np.ones((30, 4))}, logged={"loss": [1.0] * 30}), 0, "no check says why",
    ),
    "NaN everywhere": (
        lambda f: build(
            f, weights={"norm": np.full((30, 4), math.nan)}, layers={"output_norm": np.full((30, 4), math.nan)},
            neurons={"c": np.full((30, 6), math.nan)}, logged={"loss": [math.nan] * 30},
        ),
        1,
        "became NaN",
    ),
    "newer schema": (newer, 2, "99"),
    "512 layers": (lambda f: synthetic_run(f, steps=2, layers=512, neurons=2), 3, "Only 2 steps were recorded"),
}  # fmt: skip


def test_a_failing_run_without_a_cause_fails_at_warning(tmp_path):
    run = build(tmp_path / "run", logged={"loss": np.linspace(2.0, 1.6, 60)})
    statuses = [diagnose(run.folder, "--fail-on", level).exit_code for level in ("note", "warning", "error", "never")]
    assert statuses == [1, 1, 0, 0]


@pytest.mark.parametrize("case", ODD)
def test_odd_runs_get_a_diagnosis_or_one_line(tmp_path, case):
    make, status, says = ODD[case]
    make(tmp_path / "run")
    done = diagnose(tmp_path / "run")
    assert done.exit_code == status, done.output
    assert says in " ".join(done.output.split())
    assert "Traceback" not in done.output
    assert len(done.stderr.splitlines()) == (status == 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nowhere"], "does not exist"), (["fine", "--fail-on", "info"], "--fail-on"), (["runs"], "runs/fine")],
)
def test_what_is_wrong_is_one_line(folder, arguments, says):
    done = diagnose(folder / arguments[0], *arguments[1:])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_two_are_compared_by_what_is_wrong_with_each(folder):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["compare", str(folder / "stuck"), str(folder / "fine")])
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert f"A: {folder / 'stuck'} failing: Neurons are out of balance from the start: In these 10 attention" in words
    assert f"[init-unbalanced] B: {folder / 'fine'} healthy: No problem found. The network " in words


def shown(monkeypatch, diagnosis, width, *, is_terminal=True):
    """What is printed, as a terminal shows it: with lines that are longer than it is wide broken."""
    colors = "standard" if is_terminal else None
    console = Console(file=StringIO(), width=width, force_terminal=is_terminal, color_system=colors)
    monkeypatch.setattr("gatdiag.cli.diagnose.plain_console", lambda: console)
    print_diagnosis(diagnosis, "gatdiag diagnose --json")
    return console.file.getvalue()


def rows_of(text, width):
    lines = [Text.from_ansi(line).plain for line in text.splitlines()]
    return [line[at : at + width] for line in lines for at in range(0, len(line), width)]


def test_on_a_terminal_a_finding_takes_twelve_lines_in_color(folder, monkeypatch):
    diagnosis = gatdiag.diagnose(gatdiag.load(folder / "stuck"))
    words = {word.strip(".;") for line in diagnosis.lines("gatdiag diagnose --json") for word in line.split()}
    for width in (80, 100, 120):
        text = shown(monkeypatch, diagnosis, width)
        assert len(rows_of(text, width)) <= 12
        assert "\x1b[1;31mfailing: Neurons are out of balance from the start\x1b[0m" in text
        assert "\x1b[36mgatdiag.remedies.initialize_(" in text
        unbroken = [line for line in map(str.rstrip, Text.from_ansi(text).plain.splitlines()) if line]
        assert {word.strip(".;") for line in unbroken for word in line.split()} <= words  # none is broken
        assert unbroken[-1].endswith("causes; gatdiag diagnose --json says why not the others")


def test_long_evidence_gives_way_to_a_long_remedy(monkeypatch):
    remedy = "\n".join(f"model.layer_{number} = torch.nn.Linear(8, 8)  # {'wide ' * 9}" for number in range(4))
    finding = Finding(
        "dead-units", "error", "Dead units", "They stay dead.", (Evidence("share of dead units", 1.0),),
        "Flagged from 0.9 (share of units that are zero at every node; healthy runs 0 to 0.69, faulty runs 1).",
        remedy=remedy,
    )  # fmt: skip
    diagnosis = Diagnosis((finding,), {"rank-collapse": "no loss was logged"}, "failing", "the loss did not fall")
    narrow, wide = (rows_of(shown(monkeypatch, diagnosis, width), width) for width in (80, 200))
    assert len(narrow) == 12
    assert "  evidence: share of dead units: 1. Flagged from 0.9." in narrow
    assert any(line.endswith("healthy runs 0 to 0.69, faulty runs 1).") for line in wide)


def test_of_several_thresholds_a_short_line_has_the_one_that_its_number_is_compared_with(monkeypatch):
    finding = Finding(
        "dead-units", "error", "Dead units", "They stay dead.", (Evidence("growth of the outputs", 7e5),),
        f"Flagged above 30 (growth of the outputs; healthy runs 1); 1000 ({'growth back; ' * 30}); or above 10.",
        remedy="\n".join(["x = y"] * 6),
    )  # fmt: skip
    words = " ".join(shown(monkeypatch, Diagnosis((finding,), {}, "failing", ""), 80).split())
    assert "10⁵. Flagged above 30; --json names other thresholds." in words
    assert "1000" not in words  # of what it is a threshold would be unknown


def test_layers_are_named_and_quantities_called_as_in_figures(tmp_path):
    wide = {
        "layers": [{"name": name, "kind": "GCNConv", "parameters": []} for name in ("a", "名前")],
        "order": "module",
    }
    for name, structure in (("one", {**wide, "layers": wide["layers"][:1]}), ("other", wide)):
        count = len(structure["layers"])
        values = np.full((30, count), 12345.0 if name == "one" else 0.5)
        build(tmp_path / name, structure=structure, laws={"found": [], "excluded": [], "error": None},
              layers={"relative_mu": values}, logged={"loss": [12345.0, *[1.0] * 29]})  # fmt: skip
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["compare", str(tmp_path / "one"), str(tmp_path / "other")])
    assert done.exit_code == 0, done.output
    assert "has the layers 名前" in done.stdout
    assert "relative_mu" not in done.stdout
    assert "relative mu, output" in done.stdout
    assert "12,345" in done.stdout
    assert "e+04" not in done.stdout


def test_piped_a_diagnosis_is_neither_wrapped_nor_in_color(folder, monkeypatch):
    diagnosis = gatdiag.diagnose(gatdiag.load(folder / "stuck"))
    text = shown(monkeypatch, diagnosis, 80, is_terminal=False)
    assert text.splitlines() == [*diagnosis.lines("gatdiag diagnose --json")]


def test_the_ten_quantities_that_differ_most_are_shown_by_size(folder):
    arguments = ["compare", str(folder / "stuck"), str(folder / "fine")]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    table = done.stdout.partition("difference ")[2].splitlines()[2:]
    rows = table[: table.index("")] if "" in table else [line for line in table if line.strip()][:10]
    assert len(rows) == 10
    assert len({" ".join(row.split()[1:-4]) for row in rows}) > 5
    assert all("%" not in row for row in rows)
    assert "Each quantity where it differs most; --most 0 shows the other " in done.stdout
    every = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*arguments, "--most", "0"]).stdout
    assert len(every.splitlines()) > len(done.stdout.splitlines()) + 10

"""The Markdown of a run: what it says, its length, and names that mean something to Markdown."""

import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.page.markdown import markdown
from gatdiag.summary import in_words
from tests.page.builder import build, rewrite_meta
from tests.run.synthetic import synthetic_run


def text_of(folder):
    run = gatdiag.load(folder)
    return markdown(run, gatdiag.diagnose(run))


@pytest.fixture(scope="module")
def stuck(tmp_path_factory):
    return synthetic_run(tmp_path_factory.mktemp("runs") / "stuck", steps=30, layers=40, neurons=2, collapse=True)


def test_it_tells_the_verdict_its_evidence_and_what_to_try(stuck):
    text, verdict = text_of(stuck), gatdiag.diagnose(stuck).verdict
    assert text.startswith(f"# gatdiag: stuck: failing\n\n**{verdict.title}** ({verdict.code}, severity error). ")
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert parts[:3] == ["Evidence", "What to try", "The training"]
    assert parts[-1] == "Ask for more"
    assert text.count(verdict.remedy.splitlines()[0]) == 1
    plain = text.replace("\\", "")
    assert all(f"- {one.what}: " in plain for one in verdict.evidence)
    assert f"Wrong if: {verdict.falsified_by}" in plain


def test_tables_have_the_values_of_the_run(stuck):
    text, run = text_of(stuck), gatdiag.load(stuck)
    (table,) = re.findall(r"^## Logged scalars \(10 of 30\)\n\n(.+?)\n\n", text, re.MULTILINE | re.DOTALL)
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert heads == ["step", *map(in_words, run.logged_names), "gradient norm"]
    assert len(rows) == 10
    for step, *values in rows:
        (row,) = run.steps[run.steps.step == int(step)].to_dict("records")
        assert float(values[0]) == pytest.approx(row[run.logged_names[0]], rel=1e-2)
    assert "relative_mu" not in text.partition("## Ask for more")[0]
    assert re.search(r"^\| `convs\.0` \| 1 \| GATv2Conv \| ", text, re.MULTILINE)


@pytest.mark.parametrize(("steps", "layers"), [(0, 3), (1, 1), (40, 300)])
def test_it_is_short(tmp_path, steps, layers):
    logged = [f"loss_{number}" for number in range(40)]
    folder = synthetic_run(tmp_path / "run", steps=steps, layers=layers, neurons=1, collapse=True, logged=logged)
    assert text_of(folder).count("\n") < 200


def test_names_mean_nothing_to_markdown(tmp_path):
    evil = "[x](http://e) | `b` <script>\n# h"
    run = build(tmp_path / "run", weights={"norm": np.ones((3, 4))}, logged={"loss": [1.0] * 3, evil: [2.0] * 3})
    rewrite_meta(run.folder, lambda meta: meta.update(name=evil, model=evil, error=evil, status="failed", notes=[evil]))
    text = text_of(run.folder)
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", re.sub(r"```.+?```", "", text, flags=re.DOTALL))
    assert not re.search(r"(?<!\\)(<script|\[x|\]\(|`)", outside)
    assert re.findall(r"^# .*", text, re.MULTILINE) == [text.splitlines()[0]]
    (table,) = re.findall(r"^## Logged scalars\n\n(.+?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_code_stays_in_its_block(tmp_path):
    folder = tmp_path / "a```b"
    synthetic_run(folder, steps=2, layers=2)
    assert "\n````python\nimport gatdiag\n" in text_of(folder)


def test_the_command_prints_it_for_each_source(stuck, tmp_path):
    fine = synthetic_run(tmp_path / "fine", steps=120, layers=3, neurons=2)
    done = CliRunner().invoke(app, ["diagnose", str(stuck), str(fine), "--markdown"])
    assert done.exit_code == 1
    assert done.stdout == text_of(stuck) + text_of(fine)
    both = CliRunner().invoke(app, ["diagnose", str(fine), "--markdown", "--json"])
    assert (both.exit_code, both.stdout) == (2, "")
    assert both.stderr == "gatdiag: --json and --markdown: expected one of them, got both\n"


def test_a_checkpoint_names_its_own_command(tmp_path):
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "small.pt")
    done = CliRunner().invoke(app, ["diagnose", str(tmp_path / "small.pt"), "--markdown", "--fail-on", "never"])
    assert done.exit_code == 0, done.stderr
    assert f"gatdiag inspect {tmp_path / 'small.pt'} --json" in done.stdout


def test_a_report_writes_it_beside_the_page_and_replaces_only_its_own(stuck, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def report(*more):
        return CliRunner().invoke(app, ["report", str(stuck), "--format", "md", *more])

    for _ in range(2):
        done = report()
        assert (done.exit_code, done.stdout) == (0, "stuck.md\n"), done.stderr
        assert (tmp_path / "stuck.md").read_text() == text_of(stuck)
    (tmp_path / "stuck.md").write_text("my notes")
    assert report().exit_code == 2
    assert (tmp_path / "stuck.md").read_text() == "my notes"
    assert report("--overwrite").exit_code == 0

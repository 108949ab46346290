"""`gatdiag run` behaves as python does, records, and ends with the verdict."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.cli.run import conclude
from gatdiag.script.launch import SITE, VARIABLE

ROOT = Path(__file__).parents[2]
GATDIAG = [sys.executable, "-m", "gatdiag", "run"]
PLAIN = """
import atexit, multiprocessing, os, pickle, signal, subprocess, sys

def square(x):
    return x * x

if __name__ == "__main__":
    atexit.register(print, "at exit")
    print(sys.argv, sys.path, __file__, __spec__, sorted(vars(sys.modules["__main__"])), input())
    print({*sys.modules} & {"torch", "numpy", "pandas", "typer", "rich"}, pickle.dumps(square))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(square, [1, 2]))
    child = "import os, sys; print(sys.path, os.environ.get('PYTHONPATH'), 'GATDIAG_RUN' in os.environ)"
    print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
    sys.stdout.flush()
    if "wait" in sys.argv:
        os.kill(os.getpid(), getattr(signal, sys.argv[-1]))
    {}["missing"]
"""
TRAINING = """
import os, random, resource, shutil, signal, sys
import torch

if __name__ == "__main__":
    if "fork" in sys.argv and not os.fork():
        sys.argv[1:] = []  # the child trains, and ends as any process
    random.seed(0)
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(25):
        if "full" in sys.argv and epoch == int(sys.argv[-1]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())
    print(random.random(), torch.rand(1).item(), model[0].weight.double().sum().item(), flush=True)
    if "delete" in sys.argv:
        shutil.rmtree("gatdiag-runs/train")
    if "SIG" in sys.argv[-1]:
        os.kill(os.getpid(), getattr(signal, sys.argv[-1]))
    if "fork" in sys.argv:
        os.wait()
    sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with both scripts."""
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # as the plain script has it
    return tmp_path


def run(*line):
    return subprocess.run(line, capture_output=True, text=True, input="typed\n", timeout=120)


@pytest.mark.parametrize("arguments", [["--help", ""], ["wait", "SIGINT"], ["wait", "SIGTERM"]])
def test_a_script_runs_as_by_python(folder, arguments):
    python = run(sys.executable, "plain.py", *arguments)
    done = run(*GATDIAG, "--metrics", "fast", "plain.py", *arguments)
    assert done.stdout == python.stdout
    assert "[1, 4]" in done.stdout
    assert done.returncode == python.returncode == {"SIGINT": -2, "SIGTERM": -15}.get(arguments[-1], 1)
    lines, expected = (re.sub(r"{'/mp-.+?}", "{}", one.stderr).splitlines() for one in (done, python))  # random names
    (own,) = [line for line in lines if line.startswith("gatdiag: ")]
    assert own.startswith("gatdiag: nothing was recorded: no torch.optim.Optimizer was made")
    lines.remove(own)
    assert lines == expected
    assert not (folder / "gatdiag-runs").exists()


def test_of_a_distributed_training_only_the_first_process_speaks(folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert "gatdiag" not in run(*GATDIAG, "plain.py").stderr


def test_a_training_is_the_same_and_ends_with_its_verdict(folder):
    python = run(sys.executable, "-m", "package.train")
    done = run(*GATDIAG, "--every", "1", "-m", "package.train")
    assert (done.returncode, done.stdout) == (python.returncode, python.stdout)
    assert done.returncode == 7
    first, *verdict, page = done.stderr.splitlines()
    assert first == "gatdiag: recording Sequential in gatdiag-runs/train/Sequential"
    assert "The loss went from" in " ".join(verdict)
    assert page == "Page: gatdiag-runs/train/report.html"
    assert "<title>train: Sequential" in Path("gatdiag-runs/train/report.html").read_text()
    assert len(gatdiag.load("gatdiag-runs/train").steps) == 25


@pytest.mark.parametrize(("by", "status"), [("SIGHUP", "interrupted"), ("SIGKILL", "recording")])
def test_a_training_that_is_ended_from_outside_has_its_verdict(folder, by, status):
    done = run(*GATDIAG, "--out", "here", "package/train.py", by)
    assert done.returncode == -getattr(signal, by)
    assert done.stderr.splitlines()[-1] == "Page: here/report.html"
    assert ("the script was killed" in done.stderr) == (by == "SIGKILL")
    assert gatdiag.load("here").status == status


def test_a_disk_that_becomes_full_is_told_of_once_and_is_no_kill(folder):
    done = run(*GATDIAG, "--every", "1", "package/train.py", "full", "20")
    assert done.returncode == 7
    assert "killed" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gatdiag: not all was recorded: ")]
    assert "gatdiag-runs/train/Sequential could not be written to (" in line
    assert "File too large" in line
    assert line.endswith("free space there, or choose another folder with --out")
    assert "gatdiag: no page: gatdiag-runs/train/report.html cannot be written (" in done.stderr


def test_a_disk_that_is_full_is_why_nothing_was_recorded(folder):
    done = run(*GATDIAG, "package/train.py", "full", "0")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gatdiag: nothing was recorded: ")]
    assert "gatdiag-runs/train/Sequential could not be written to (" in line
    assert "File too large" in line


def test_a_folder_that_cannot_be_made_is_one_line_and_changes_nothing(folder):
    Path("gatdiag-runs").touch()
    line = "package/train.py", "20"
    done = run(*GATDIAG, *line)
    assert (done.returncode, done.stdout) == (7, run(sys.executable, *line).stdout)
    (told,) = done.stderr.splitlines()
    assert "not recorded: the model of Adam (The run cannot be written to " in told
    assert told.endswith("use another folder)")


def test_a_forked_child_is_left_alone_and_a_folder_that_is_gone_is_named(folder):
    done = run(*GATDIAG, "package/train.py", "fork", "delete")
    assert done.stdout.count("\n") == 2 * 26
    first, *_, last = done.stderr.splitlines()
    assert first == "gatdiag: recording Sequential in gatdiag-runs/train/Sequential"
    assert done.stderr.count("recording Sequential") == 1
    reason = "gatdiag-runs/train/Sequential was deleted or moved while the script ran"
    assert last == f"gatdiag: nothing was recorded: {reason}"


@pytest.fixture
def started(folder, monkeypatch):
    """What would replace this process: the command line and its environment, once `gatdiag run` was called."""

    def start(*arguments):
        lines = []
        monkeypatch.setattr(os, "execve", lambda path, line, environment: lines.append((line[1:], environment)))
        done = CliRunner().invoke(app, ["run", *arguments])
        assert done.exit_code == 0, done.stderr
        return lines[0]

    return start


@pytest.mark.parametrize(
    ("given", "run"),
    [
        (["plain.py", "--out", "x", "--help", "", "--", "-m"], ["plain.py", "--out", "x", "--help", "", "--", "-m"]),
        (["--out", "x", "-m", "plain", "--every", "3"], ["-m", "plain", "--every", "3"]),
        (["--", "plain.py", "-h"], ["plain.py", "-h"]),
        (["-", "a"], ["-", "a"]),
    ],
)
def test_what_follows_the_script_belongs_to_it(started, given, run):
    line, environment = started(*given)
    assert line == run
    assert environment["PYTHONPATH"] == f"{SITE}{os.pathsep}{ROOT}"
    assert f"{os.getpid()}" in environment[VARIABLE]


def test_another_run_of_a_script_has_another_folder(started, folder):
    (folder / "gatdiag-runs" / "plain" / "Net").mkdir(parents=True)
    (folder / "gatdiag-runs" / "plain" / "Net" / "meta.json").write_text("{}")
    _, environment = started("plain.py")
    assert str(folder / "gatdiag-runs" / "plain-2") in environment[VARIABLE]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch.py"], "cannot run 'nosuch.py': no such file"),
        ([], "Missing argument"),
        (["--every", "x", "plain.py"], "--every: expected"),
        (["--metrics", "x", "plain.py"], "--metrics: expected"),
        (["--out", "plain.py", "plain.py"], "expected a folder, got the file"),
        (["--nope", "plain.py"], "No such option: --nope"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(folder, arguments, message):
    done = CliRunner().invoke(app, ["run", *arguments])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert message in line


def record(folder, model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, folder, metrics="fast"):
        for _ in range(steps):
            model(torch.ones(5, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_several_runs_are_compared_on_one_page(tmp_path, few_figures, capsys):
    for name in ("b", "a"):
        record(tmp_path / name, nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), 22)
    conclude(str(tmp_path))
    printed = capsys.readouterr().out
    places = [str(tmp_path / name) for name in ("b", "a")]  # in the order of training
    assert re.findall("^== (.*)$", printed, re.MULTILINE) == places
    assert printed.splitlines()[-1] == f"Page: {tmp_path / 'report.html'}"


def test_of_many_runs_each_has_a_line_and_the_worst_are_on_the_page(tmp_path, few_figures, capsys):
    for number in range(9):
        record(tmp_path / f"run{number}", nn.Linear(4, 2), 1)
    broken = nn.Linear(4, 2)
    broken.weight.data[0, 0] = torch.nan
    with pytest.warns(UserWarning, match="NaN"):
        record(tmp_path / "run9", broken, 3)
    conclude(str(tmp_path))
    lines = filter(None, capsys.readouterr().out.splitlines())
    names = [line.split("/")[-1].split()[0] for line in lines]
    assert names == [*(f"run{number}" for number in range(10)), "report.html"]
    page = (tmp_path / "report.html").read_text()
    assert "run9" in page
    assert "run8" not in page


def test_a_damaged_run_is_one_line(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.json").write_text("{")
    conclude(str(tmp_path))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gatdiag: no verdict: ")

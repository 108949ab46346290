import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gatdiag.cli.app import app

ROOT = Path(__file__).parents[2]
MODELS = """
import torch
from torch import nn

class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 3), nn.Linear(3, 2)
    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))

class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("[red]name[/]", nn.Linear(4, 2))
    def forward(self, x):
        print("forward was here")
        return self.get_submodule("[red]name[/]")(x)

class Smooth(Perceptron):
    def forward(self, x):
        return self.out(torch.sigmoid(self.hidden(x)))

def failing():
    raise RuntimeError("first line\\nsecond line")

def inputs():
    return [torch.ones(5, 4)]

def misfits():
    return [torch.ones(5, 7)]
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command line in a folder with a module of models."""
    (tmp_path / "shelf.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shelf", raising=False)
    yield lambda *arguments: CliRunner(env={"COLUMNS": "150"}).invoke(app, ["laws", *arguments])
    sys.modules.pop("shelf", None)


def test_a_table_has_a_row_for_each_layer(run):
    done = run("shelf:Perceptron", "--inputs", "shelf:inputs")
    assert done.exit_code == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:3] for row in rows if row[:1] in (["hidden"], ["out"])] == [["hidden", "3", "0"], ["out", "0", "0"]]
    assert "weights are in the laws of hidden" in done.stdout
    assert "3 laws, 0 of them approximate" in done.stdout
    assert "imbalance" in done.stdout
    assert "largest |c|" not in " ".join(done.stdout.split())  # that is c itself, which has a unit


def test_a_built_in_model_runs_on_the_built_in_graph(run):
    done = run("gatdiag.experiments.models:gat")
    assert done.exit_code == 0, done.stderr
    assert "576 laws" in done.stdout


def test_names_are_no_markup_and_the_models_own_output_is_apart(run):
    done = run("shelf:Marked", "--inputs", "shelf:inputs")
    assert done.exit_code == 0, done.stderr
    assert "[red]name[/]" in done.stdout
    assert "forward was here" not in done.stdout
    assert "forward was here" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shelf:failing"], "shelf:failing raised RuntimeError: first line second line"),
        (["shelf:Perceptron", "--inputs", "shelf:misfits"], "hidden"),
        (["shelf:Perceptron", "--inputs", "shelf:failing"], "raised RuntimeError"),
        (["shelf:Perceptron", "--data", "corn"], "no graph is called 'corn'"),
        (["shelf:Perceptron", "--data", "sbm", "--inputs", "shelf:inputs"], "mutually exclusive"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(run, arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("gatdiag: ")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message", "path"),
    [
        (["nosuch"], "No such command 'nosuch'", "gatdiag"),
        (["diagnos"], "No such command 'diagnos'. Did you mean 'diagnose'?", "gatdiag"),
        (["treat", "a:b", "--epoch", "3"], "No such option: --epoch (Possible options: --epochs)", "gatdiag treat"),
        (["--nope"], "No such option: --nope", "gatdiag"),
        (["train", "a", "--learning-rate", "1"], "--learning-rate (Possible options: --lr)", "gatdiag train"),
        (["train", "a", "--hidden-dim", "8"], "(Possible options: --hidden)", "gatdiag train"),
        (["demo", "--num-layers", "8"], "(Possible options: --layers)", "gatdiag demo"),
        (["report", "a", "--output", "b"], "No such option: --output (Possible options: --out)", "gatdiag report"),
        (["explain", "--output", "b"], "No such option: --output", "gatdiag explain"),
        (["report"], "Missing argument 'RUN...'", "gatdiag report"),
        (["report", "--nope", "run"], "No such option: --nope", "gatdiag report"),
        (["export", "run"], "Missing option '--to'", "gatdiag export"),
        (["compare", "a", "b", "--most", "x"], "Invalid value for '--most'", "gatdiag compare"),
        (["compare", "a", "b", "--most", "-1"], "Invalid value for '--most'", "gatdiag compare"),
        (["compare", "a", "b", "c"], "unexpected extra argument", "gatdiag compare"),
        (["demo", "--epochs", "1\x1b[31m"], "Invalid value for '--epochs'", "gatdiag demo"),
    ],
)
def test_wrong_usage_is_one_line_too(arguments, message, path):
    done = CliRunner().invoke(app, arguments, prog_name="gatdiag")
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gatdiag: ")
    assert message in line
    assert line.endswith(f"? See {path} --help" if message.endswith("?") else f": see {path} --help")
    assert "\x1b" not in line


def test_debug_adds_the_traceback(run):
    done = run("shelf:failing", "--debug")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert "shelf.py" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("gatdiag: shelf:failing raised")


def test_a_narrow_terminal_without_color_is_fine(run):
    done = CliRunner(env={"COLUMNS": "30", "NO_COLOR": "1", "FORCE_COLOR": "1"}).invoke(
        app, ["laws", "shelf:Perceptron", "--inputs", "shelf:inputs"]
    )
    assert done.exit_code == 0
    colors = [code for code in re.findall(r"\x1b\[([\d;]+)m", done.stdout) if int(code.split(";")[0]) >= 30]
    assert not colors
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in done.stdout.splitlines()) <= 30


def test_what_has_no_law_is_said_once_whatever_the_width(run):
    wide = run("shelf:Smooth", "--inputs", "shelf:inputs")
    narrow = CliRunner(env={"COLUMNS": "40"}).invoke(app, ["laws", "shelf:Smooth", "--inputs", "shelf:inputs"])
    assert wide.stdout.count("sigmoid") == narrow.stdout.count("sigmoid") == 1


def option_kinds():
    """Option -> the commands that have it, by the words of its help."""
    found = defaultdict(lambda: defaultdict(set))
    for name, command in get_command(app).commands.items():
        for one in command.params:
            for flag in one.opts if one.param_type_name == "option" else ():
                found[flag][one.help].add(name)
    return found


def test_options_are_one_vocabulary():
    options = option_kinds()
    old = {"--learning-rate", "--dataset", "--steps", "--width", "--seeds"}
    assert not old & {*options}
    commands = {flag: set().union(*kinds.values()) for flag, kinds in options.items()}
    assert {"demo", "train", "treat", "preflight"} <= commands["--lr"]
    assert {"demo", "train", "treat", "preflight", "inspect", "rebalance", "laws"} <= commands["--data"]
    assert {"demo", "train", "treat"} <= commands["--epochs"] & commands["--seed"] & commands["--data"]
    assert {"demo", "train"} <= commands["--layers"]
    assert commands["--hidden"] == {"train"}
    assert "sweep" in commands["--jobs"]


def test_an_option_with_a_name_has_one_meaning():
    options = option_kinds()
    for flag in ("--overwrite", "--root", "--json", "--fail-on", "--inputs", "--lr", "--weight-decay", "--backend"):
        kinds = {text: names - {"train"} for text, names in options[flag].items() if names - {"train"}}
        assert len(kinds) == 1, flag


def test_h_is_help():
    runner = CliRunner()
    assert runner.invoke(app, ["-h"]).stdout == runner.invoke(app, ["--help"]).stdout
    for name in COMMANDS:
        short = runner.invoke(app, [name, "-h"])
        assert (short.exit_code, short.stdout) == (0, runner.invoke(app, [name, "--help"]).stdout)


def test_help_lists_each_command_once_in_its_group():
    lines = CliRunner().invoke(app, ["--help"]).stdout.splitlines()
    titles = ["Your training:", "Checkpoints:", "Theory:", "Experiments:"]
    starts = [lines.index(title) for title in titles]
    assert starts == sorted(starts)
    groups = [
        [line.split()[0] for line in lines[start + 1 : end] if line]
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
    assert sorted(name for group in groups for name in group) == sorted(COMMANDS)
    assert groups[0] == ["demo", "run", "live", "diagnose", "report", "compare", "treat", "preflight", "export"]
    assert groups[1] == ["inspect", "rebalance"]
    assert groups[2] == ["laws", "explain"]


def test_the_shell_completes_commands_and_options():
    def completed(words):
        environment = {"_GATDIAG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "gatdiag"]
        done = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, env={**os.environ, **environment}
        )
        assert not done.stderr
        return done.stdout.split()

    assert completed("gatdiag ex") == ["export", "explain"]
    assert completed("gatdiag train --hid") == ["--hidden"]
    text = CliRunner().invoke(app, ["-h"]).stdout
    assert "--install-completion" in text
    assert "--show-completion" in text


def test_a_typo_is_answered_before_anything_heavy_is_loaded():
    script = """
import sys, time
from gatdiag.cli import main
sys.argv[1:] = sys.argv[1].split()
try:
    main()
except SystemExit as error:
    print(error.code, time.process_time() < 1, *({"torch", "pandas", "numpy", "matplotlib"} & {*sys.modules}))
"""
    for words in ("diagnos", "train runs/a --lrr 3", "explain --help"):
        command = [sys.executable, "-c", script, words]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == f"{0 if '--help' in words else 2} True"


COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]


def test_help_loads_nothing_heavy():
    script = """
import sys
from gatdiag.cli import main
for arguments in [], *([name, "--help"] for name in ["", *sys.argv[1:]]):
    sys.argv[1:] = filter(None, arguments)
    try:
        main()
    except SystemExit:
        print("LOADED", *sys.modules)
"""
    command = [sys.executable, "-c", script, *COMMANDS]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    loaded = {*done.stdout.rpartition("LOADED")[2].split()}
    assert "typer" in loaded
    assert not loaded & {"torch", "torch_geometric", "numpy", "pandas", "matplotlib", "gatdiag.laws"}
    assert done.stdout.count("LOADED") == done.stdout.count("Usage: gatdiag") == len(COMMANDS) + 2
    assert all(f"Usage: gatdiag {name} " in done.stdout for name in COMMANDS)


def test_a_reader_that_stops_early_ends_it_quietly():
    command = [sys.executable, "-m", "gatdiag", "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141  # not 1, which --fail-on says of a finding


@pytest.mark.parametrize("arguments", ["explain", "--help", "--version"])
def test_output_that_is_closed_from_the_start_is_an_error(arguments):
    command = ["sh", "-c", f"exec '{sys.executable}' -m gatdiag {arguments} >&-"]
    done = subprocess.run(command, cwd=ROOT, check=False, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]
    assert line.startswith("gatdiag: cannot ")
    assert line.endswith(": Bad file descriptor")


def test_a_termination_ends_it_as_ctrl_c_does():
    script = """
import signal, sys
from gatdiag.cli.app import _with_error_handling, app, main
def terminated():
    signal.raise_signal(signal.SIGTERM)
app.command()(_with_error_handling(terminated))
sys.argv[1:] = ["terminated"]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "gatdiag: interrupted\n")


def test_the_version_is_told(monkeypatch):
    known = CliRunner().invoke(app, ["--version"])
    assert (known.exit_code, known.stdout) == (0, f"gatdiag {metadata.version('gatdiag')}\n")
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    unknown = CliRunner().invoke(app, ["--version"])
    assert (unknown.exit_code, unknown.stdout) == (0, "gatdiag unknown\n")

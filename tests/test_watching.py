"""`watch` without a `with` statement records until `finish` or the exit of the interpreter."""

import gc
import os
import random
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import gatdiag
from gatdiag.errors import InputError, ModelError
from gatdiag.recorder import RecordingWarning
from tests.recorder.loops import Gat, graph, loss_of

ROOT = Path(__file__).parents[1]


class Training:
    """A model and its optimizer."""

    def __init__(self):
        self.model, self.data = Gat(), graph()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def steps(self, count):
        for _ in range(count):
            loss_of(self.model, self.data).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def steps_in(folder):
    return gatdiag.load(folder).steps.step.tolist()


def status(folder):
    return gatdiag.load(folder).status


def test_the_plain_call_records_until_it_is_finished(tmp_path):
    training = Training()
    recorder = gatdiag.watch(training.model, tmp_path / "run", metrics="fast")
    training.steps(2)
    recorder.log(value=1.0)
    assert recorder.start() is recorder
    recorder.finish()
    training.steps(2)
    recorder.log(value=2.0)
    recorder.finish()
    with pytest.raises(InputError, match="records once"):
        recorder.start()
    assert repr(recorder) == f"<Recorder of {tmp_path / 'run'}: 2 steps>"
    assert steps_in(tmp_path / "run") == [0, 1]
    assert gatdiag.load(tmp_path / "run").steps.value.dropna().tolist() == [1.0]
    assert status(tmp_path / "run") == "finished"


def test_a_recorder_that_nobody_keeps_records_on(tmp_path):
    training = Training()
    gatdiag.watch(training.model, tmp_path / "run", metrics="fast")
    gc.collect()
    training.steps(3)
    with pytest.warns(RecordingWarning, match="watched again"):
        gatdiag.watch(training.model, tmp_path / "next", metrics="fast")
    training.steps(1)
    with gatdiag.watch(training.model, tmp_path / "next", metrics="fast", resume=True):
        training.steps(1)
    assert steps_in(tmp_path / "run") == [0, 1, 2]


def test_a_context_over_a_recorder_that_records_ends_it(tmp_path):
    training = Training()
    recorder = gatdiag.watch(training.model, tmp_path / "run", metrics="fast")
    training.steps(1)
    with pytest.raises(ZeroDivisionError), recorder as entered:
        assert entered is recorder
        training.steps(1)
        raise ZeroDivisionError
    training.steps(1)
    assert steps_in(tmp_path / "run") == [0, 1]
    assert status(tmp_path / "run") == "failed"


def test_what_is_wrong_is_said_by_the_call(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    for folder in ("file", "full"):
        with pytest.raises(InputError, match=folder):
            gatdiag.watch(Gat(), tmp_path / folder)
    with pytest.raises(InputError, match="expects the folder of the run"):
        gatdiag.watch(Gat(), None)
    with pytest.raises(InputError, match=r"torch\.nn\.Module, got list"):
        gatdiag.watch([torch.nn.Linear(2, 2)], tmp_path / "none")
    with pytest.raises(ModelError):
        gatdiag.watch(torch.nn.ReLU(), tmp_path / "none")
    with pytest.raises(InputError, match="No layer is left"):
        gatdiag.watch(Gat(), tmp_path / "none", include="nothing")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("same_model", [True, False])
def test_a_folder_that_is_being_recorded(tmp_path, same_model):
    """As when a notebook cell is run again."""
    training, folder = Training(), tmp_path / "run"
    again = training if same_model else Training()
    first = gatdiag.watch(training.model, folder, metrics="fast")
    training.steps(3)
    with pytest.warns(RecordingWarning, match="watched again") if same_model else nullcontext():
        beside = gatdiag.watch(again.model, folder, metrics="fast")
    assert beside.folder == tmp_path / "run-2"
    beside.finish()
    training.steps(1)
    resumed = gatdiag.watch(again.model, folder, metrics="fast", resume=True)
    again.steps(1)
    first.finish()
    again.steps(1)
    overwritten = gatdiag.watch(again.model, folder, metrics="fast", overwrite=True)
    assert not resumed._steps.modules.is_attached
    again.steps(2)
    overwritten.finish()
    assert steps_in(folder) == [0, 1]


def test_a_model_that_is_watched_again_is_recorded_once(tmp_path):
    training, other = Training(), Training()
    aside = gatdiag.watch(other.model, tmp_path / "other", metrics="fast")
    first = gatdiag.watch(training.model, tmp_path / "first", metrics="fast")
    training.steps(2)
    training.steps(1)
    with pytest.warns(RecordingWarning, match=r"first has ended.*watched again, in .*second; call finish\(\)"):
        second = gatdiag.watch(training.model, tmp_path / "second", metrics="fast")
    training.steps(2)
    other.steps(1)
    for recorder in (first, second, aside):
        recorder.finish()
    assert [len(steps_in(tmp_path / name)) for name in ("first", "second", "other")] == [3, 2, 1]


def test_in_contexts_a_model_may_be_watched_twice(tmp_path):
    training = Training()
    with (
        gatdiag.watch(training.model, tmp_path / "a", metrics="fast"),
        gatdiag.watch(training.model, tmp_path / "b", metrics="full"),
    ):
        training.steps(2)
    assert steps_in(tmp_path / "a") == steps_in(tmp_path / "b") == [0, 1]


ENDINGS = {
    "pass": ("finished", None),
    "raise ValueError('mine')": ("failed", "ValueError: mine"),
    "sys.exit(3)": ("finished", None),
    "raise KeyboardInterrupt": ("interrupted", None),
}
PROGRESS = """
assert "rich" not in sys.modules
random.seed(0)
gatdiag.watch(torch.nn.Linear(2, 1), sys.argv[1] + "progress", progress=True, warn=False).finish()
print(random.random())
"""
FORKS = """
import os, random, sys, torch, gatdiag
def train(name):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = gatdiag.watch(model, sys.argv[1] + name, metrics="fast")
    for _ in range(2):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    return recorder
train("first").finish()  # so that no fork has to import what it needs
for number, program in enumerate(sys.argv[2:]):
    if os.fork() == 0:
        exec(program)
        break
    os.wait()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of interpreters that have ended in different ways, and what they have printed."""
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    folder = tmp_path_factory.mktemp("ended")
    programs = [*(f"train(str(number))\n{ending}" for ending in ENDINGS), PROGRESS]
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(folder / "run"), *programs]
    return folder, subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


@pytest.mark.parametrize(("number", "ending"), [*enumerate(ENDINGS)])
def test_the_exit_of_the_interpreter_seals_the_run(ended, number, ending):
    folder, printed = ended[0] / f"run{number}", ended[1]
    assert not re.search("gatdiag[:/]", printed.stderr.replace(str(ROOT), ""))  # no line of ours, no frame of ours
    assert (folder / "steps.parquet").exists()
    run = gatdiag.load(folder)
    assert (len(run.steps), run.status, run.meta["error"]) == (2, *ENDINGS[ending])
    assert run.snapshot("final") is not None


def test_the_progress_line_draws_no_random_number_where_rich_is_not_loaded_yet(ended):
    assert float(ended[1].stdout) == random.Random(0).random()

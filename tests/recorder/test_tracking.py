"""What a tracker is given while a training is recorded."""

import threading

import pytest
import torch

import gatdiag
from gatdiag.diagnosis import SEVERITIES
from gatdiag.errors import InputError
from gatdiag.recorder import RecordingWarning, buffer
from gatdiag.summary import run_scalars
from tests.recorder.loops import Gat, train


def merged(updates):
    """Step -> name -> value; no value is given twice."""
    found = {}
    for update in updates:
        for step, row in update.scalars.items():
            assert not found.get(step, {}).keys() & row.keys()
            found.setdefault(step, {}).update(row)
    return found


@pytest.mark.parametrize("most", [1, 4, 256])
def test_it_is_given_what_the_run_says(tmp_path, monkeypatch, most):
    monkeypatch.setattr(buffer, "_MAX_SAMPLES", most)
    updates, threads = [], set()

    def tracker(update):
        updates.append(update)
        threads.add(threading.current_thread())

    run = train(tmp_path / "run", steps=12, every=1, metrics="full", tracker=tracker).run
    expected, verdict = run_scalars(run), gatdiag.diagnose(run).verdict
    severity = expected[11].setdefault("gatdiag/severity", 2.0 - SEVERITIES.index(verdict.severity))
    assert merged(updates) == expected
    assert updates[-1].scalars == {11: {"gatdiag/severity": severity}}
    assert [update.diagnosis is None for update in updates] == [True] * (len(updates) - 1) + [False]
    assert updates[-1].diagnosis.verdict == verdict
    assert threads == {threading.current_thread()}
    assert len(updates) > 12 or most > 1
    assert len(updates) <= 4 or most < 256


def test_training_is_unchanged(tmp_path):
    left = []
    for folder, options in ((tmp_path / "run", {"tracker": lambda update: None}), (None, {})):
        trained = train(folder, steps=20, make_model=lambda: Gat(dropout=0.5), **options)
        left.append((trained.model.state_dict(), torch.get_rng_state(), trained.losses))
    assert all(torch.equal(value, left[1][0][name]) for name, value in left[0][0].items())
    assert torch.equal(left[0][1], left[1][1])
    assert left[0][2] == left[1][2]


def test_a_tracker_that_fails_is_named_once_and_not_called_again(tmp_path, monkeypatch):
    monkeypatch.setattr(buffer, "_MAX_SAMPLES", 1)
    calls = []

    def tracker(update):
        calls.append(update)
        raise ConnectionError("no route to the tracker")

    with pytest.warns(RecordingWarning, match="the tracker.*no route to the tracker") as warned:
        run = train(tmp_path / "run", steps=12, every=1, tracker=tracker).run
    assert len(calls) == len(warned) == 1
    assert run.status == "finished"


def test_what_cannot_be_called_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="tracker= expects a function"):
        gatdiag.watch(Gat(), tmp_path / "run", tracker="wandb")


def test_without_a_step_there_is_a_diagnosis(tmp_path):
    updates = []
    with pytest.warns(RecordingWarning, match="no step"):
        with gatdiag.watch(Gat(), tmp_path / "run", tracker=updates.append):
            pass
    (update,) = updates
    assert (update.scalars, update.diagnosis.verdict.code) == ({}, "undetermined")

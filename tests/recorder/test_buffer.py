"""Samples measured together have the same values as measured one by one, and none waits for long."""

import gc

import pandas as pd
import pytest
import torch
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks

import gatdiag
from gatdiag.recorder import Recorder, buffer
from gatdiag.recorder.samples import ForwardPass
from tests.recorder.loops import Gat, graph, loss_of, sgd, train, train_step

TABLES = ("steps", "layers", "parameters", "neurons")
ADAM = {"make_optimizer": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)}
MOMENTUM = {"make_optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}
ALONE = {"every": 1, "warn": False}  # checks for training errors measure what waits


@pytest.fixture
def slow_clock(monkeypatch):
    """Stop the clock, so that no sample is measured because of its age."""
    monkeypatch.setattr(buffer.time, "monotonic", lambda: 0.0)


@pytest.fixture
def measured(monkeypatch):
    """Numbers of samples that were measured together."""
    counts = []
    measure = buffer.SampleBuffer.measure

    def counted(self, before):
        counts.append(len(self))
        measure(self, before)

    monkeypatch.setattr(buffer.SampleBuffer, "measure", counted)
    return counts


def test_steps_measured_together_have_the_values_of_steps_measured_alone(tmp_path, monkeypatch, slow_clock, measured):
    runs = []
    for most in (1, 3, 64):
        monkeypatch.setattr(buffer, "_MAX_SAMPLES", most)
        for number, optimizer in enumerate((ADAM, MOMENTUM)):
            runs.append(train(tmp_path / f"{most} {number}", steps=12, metrics="standard", **ALONE, **optimizer).run)
    assert set(measured) >= {1, 3, 12}
    for number in range(2):
        alone, *together = runs[number::2]
        for run in together:
            for table in TABLES:
                expected, found = getattr(alone, table), getattr(run, table)
                if table == "steps":
                    expected, found = expected.drop(columns="time"), found.drop(columns="time")
                pd.testing.assert_frame_equal(found, expected, rtol=1e-12, atol=1e-15)


def test_nothing_waits_longer_than_two_seconds(tmp_path, monkeypatch, measured):
    """Longer only until the end of the step that is being made."""
    now = 0.0
    monkeypatch.setattr(buffer.time, "monotonic", lambda: now)

    def wait(step, model):
        nonlocal now
        now += 0.8

    train(tmp_path / "run", steps=10, before_step=wait, **ALONE)
    assert max(measured) <= 4
    assert sum(measured) == 10


def test_samples_take_little_memory_and_large_ones_are_not_held(tmp_path, monkeypatch, slow_clock, measured):
    size = 3 * 4 * sum(parameter.numel() for parameter in Gat().parameters())
    for most, together in ((4 * size, 4), (size // 2, 1)):
        measured.clear()
        monkeypatch.setattr(buffer, "_MAX_BYTES", most)
        train(tmp_path / str(together), steps=8, metrics=["norm", "update_ratio"], **ALONE)
        assert [count for count in measured if count] == [together] * (8 // together)


def test_a_nan_is_looked_at_at_once_and_after_the_first_one_samples_wait_again(tmp_path, slow_clock, measured):
    def spoil(step, model):
        if step >= 3:
            model.convs[1].att.grad[0, 0, 0] = torch.nan

    run = train(tmp_path / "run", steps=12, before_step=spoil, **ALONE).run
    assert [count for count in measured if count] == [4, 8]
    assert run.meta["first_non_finite"]["step"] == 3


def test_an_observer_hears_of_the_last_step_that_was_measured_and_of_the_end(tmp_path, slow_clock):
    model, data, seen = Gat(), graph(), []
    optimizer = sgd(model)
    with Recorder(model, tmp_path / "run", observer=seen.append) as recorder:
        for _ in range(5):
            recorder.log(loss=train_step(model, data, optimizer))
    assert [status.step for status in seen[:-1]] == [4]
    assert seen[-1] is None


def test_what_is_logged_to_steps_that_are_not_recorded_is_written_in_order(tmp_path, slow_clock):
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=4) as recorder:
        for step in range(10):
            train_step(model, data, optimizer)
            recorder.log(loss=float(step))
    steps = gatdiag.load(tmp_path / "run").steps
    assert steps.loss.tolist() == steps.step.tolist() == list(range(10))
    assert steps[steps.gradient_norm.notna()].step.tolist() == [0, 4, 8]


def test_an_interrupt_while_samples_are_measured_loses_none(tmp_path, monkeypatch, slow_clock):
    monkeypatch.setattr(buffer, "_MAX_SAMPLES", 4)
    measure, calls = buffer.build_columns, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*args)

    monkeypatch.setattr(buffer, "build_columns", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model, data = Gat(), graph()
        optimizer = sgd(model)
        with gatdiag.watch(model, tmp_path / "run", **ALONE):
            for _ in range(20):
                train_step(model, data, optimizer)
    run = gatdiag.load(tmp_path / "run")
    for table in TABLES:
        assert sorted(getattr(run, table).step.unique()) == list(range(8))
    assert len(run.layers) == 8 * 3
    assert run.neurons.predicted_c[run.neurons.step > 0].notna().all()


def test_a_second_interrupt_while_a_recording_ends_leaves_neither_lock_nor_hooks(tmp_path, monkeypatch, slow_clock):
    model, data = Gat(), graph()
    optimizer = sgd(model)

    def interrupted(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), gatdiag.watch(model, tmp_path / "run", **ALONE) as recorder:
        for step in range(5):
            train_step(model, data, optimizer)
            recorder.log(number=step)
        monkeypatch.setattr(buffer.SampleBuffer, "measure", interrupted)
        raise KeyboardInterrupt
    assert not module_hooks._global_forward_hooks
    assert not _global_optimizer_pre_hooks
    run = gatdiag.load(tmp_path / "run")
    assert run.status == "interrupted"
    assert run.steps["number"].tolist() == [0, 1, 2, 3, 4]
    with gatdiag.watch(model, tmp_path / "run", resume=True):
        train_step(model, data, optimizer)
    assert len(gatdiag.load(tmp_path / "run").steps) == 6


def test_passes_without_a_step_do_not_fill_the_memory(tmp_path):
    """As when the optimizer is not seen, or gradients are accumulated over very many passes."""

    def alive():
        gc.collect()
        return sum(type(item) is ForwardPass for item in gc.get_objects())

    model, data, before = Gat(), graph(), alive()
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(20):
            loss_of(model, data).backward()
        assert alive() - before <= 3
        sgd(model).step()
    assert len(gatdiag.load(tmp_path / "run").layers) == 3


def test_layers_have_rows_where_anything_of_them_was_measured(tmp_path):
    run = train(tmp_path / "run", steps=12, every=1, metrics="fast").run
    assert sorted(run.layers.step.unique()) == [0, 10]
    assert run.layers.mu.notna().all()
    assert sorted(run.parameters.step.unique()) == list(range(12))

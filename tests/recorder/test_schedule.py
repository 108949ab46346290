import time
from itertools import pairwise

import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.recorder.schedule import Budget, schedule
from tests.recorder.loops import train


def steps(every, up_to=2000):
    due = schedule(every)
    return [step for step in range(up_to) if due(step)]


def test_a_number():
    assert steps(1, 5) == [0, 1, 2, 3, 4]
    assert steps(7, 30) == [0, 7, 14, 21, 28]


def test_log_is_dense_early_and_sparse_later():
    chosen = steps("log")
    assert chosen[:65] == list(range(65))
    gaps = [after - before for before, after in pairwise(chosen)]
    assert gaps == sorted(gaps)
    for start in (64, 128, 256, 512):
        assert sum(start <= step < 2 * start for step in chosen) == 32


def test_a_function_is_asked_about_each_step():
    assert steps(lambda step: step in (0, 3, 11), 20) == [0, 3, 11]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None, "sometimes"])
def test_anything_else_is_refused(every):
    with pytest.raises(InputError, match="every= expects"):
        schedule(every)


@pytest.mark.parametrize("share", [0, 1, -0.1, 3])
def test_a_share_lies_between_nothing_and_everything(share):
    with pytest.raises(InputError, match="budget= expects"):
        Budget(share)


def test_a_budget_keeps_its_share(monkeypatch):
    """Steps of 10 s, records of 2 s, a share of 4 %: a record costs as much as 5 steps may."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    budget, recorded = Budget(0.04), []
    for step in range(500):
        if budget.allows():
            recorded.append(step)
            now += 2
            budget.spend(2, records=1)
        now += 10
    assert recorded[0] == 0
    spent = 2 * len(recorded)
    assert 0.9 * 0.04 <= spent / (500 * 10) <= 0.04


def test_no_budget_allows_everything():
    budget = Budget(None)
    assert not budget.limited
    assert budget.allows()


def test_a_run_with_a_budget_records_some_steps_and_logs_all(tmp_path):
    run = train(tmp_path / "run", steps=40, budget=0.001).run
    assert run.steps.loss.notna().sum() == 40
    assert 1 <= run.layers.step.nunique() < 40
    assert run.layers.step.min() == 0


def test_recorded_steps_are_those_of_the_schedule(tmp_path):
    run = train(tmp_path / "run", steps=12, every=lambda step: step in (0, 4, 5, 9)).run
    for table in (run.layers, run.parameters, run.neurons):
        assert sorted(set(table.step)) == [0, 4, 5, 9]
    assert run.steps.step.tolist() == list(range(12))
    predicted = run.neurons.groupby("step").predicted_c.apply(lambda column: column.notna().all())
    assert predicted.to_dict() == {0: False, 4: True, 5: True, 9: True}
    assert (run.neurons.c - run.neurons.predicted_c).abs().max() < 1e-6


def test_a_function_is_asked_once_about_each_step(tmp_path):
    asked = []

    def every(step):
        asked.append(step)
        return step % 2 == 0

    train(tmp_path / "run", steps=6, every=every)
    assert asked == list(range(7))


def test_a_run_is_resumed_at_a_step(tmp_path):
    first = train(tmp_path / "run", steps=6, seed=1).run
    initial = first.snapshot("initial")
    again = train(tmp_path / "run", steps=5, seed=1, resume=4).run
    assert again.steps.step.tolist() == list(range(9))
    assert again.parameters.step.drop_duplicates().tolist() == list(range(9))
    assert all((again.snapshot("initial")[name] == initial[name]).all() for name in initial)
    assert again.meta["resumed_at"] == [4]
    assert gatdiag.load(tmp_path / "run").status == "finished"

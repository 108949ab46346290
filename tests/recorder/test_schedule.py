from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.schedule import UNSEEN, UNSEEN_IDLE, Pace, StepCounter, Stopwatch, schedule
from gatdiag.recorder.settings import Settings
from tests.recorder.loops import train


def steps(every, up_to=2000):
    due = schedule(every)
    return [step for step in range(up_to) if due(step)]


def test_a_number():
    assert steps(1, 5) == steps("auto", 5) == [0, 1, 2, 3, 4]
    assert steps(7, 30) == steps(np.int64(7), 30) == [0, 7, 14, 21, 28]


def test_log_is_dense_early_and_sparse_later():
    chosen = steps("log")
    assert chosen[:65] == list(range(65))
    gaps = [after - before for before, after in pairwise(chosen)]
    assert gaps == sorted(gaps)
    for start in (64, 128, 256, 512):
        assert sum(start <= step < 2 * start for step in chosen) == 32


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None, "sometimes"])
def test_anything_else_is_refused(every):
    with pytest.raises(InputError, match="every= expects"):
        schedule(every)


class Time:
    """A simulated clock and training."""

    def __init__(self, share=0.05, every="auto"):
        self.now, self.bare = 0.0, 0.0
        self.watch = Stopwatch(lambda: self.now)
        self.counter = StepCounter(every, Pace(share, self.watch), Guard())
        self.counter.start(0)
        self.recorded, self.steps = [], 0

    def spend(self, seconds, unseen=UNSEEN):
        """Spend time on recording, part of which the stopwatch sees."""
        seen = seconds / unseen
        with self.watch, self.watch:  # nested contexts count once
            self.now += seen
        self.now += seconds - seen

    def train(self, seconds, step, record, idle=0.0, startup=0.0):
        """Train for so long; `step`, `record` and `idle` return seconds, given the number of the step or record."""
        self.spend(startup)
        until = self.bare + seconds
        while self.bare < until:
            is_record = self.counter.record is not None
            self.now += step(self.steps)
            self.bare += step(self.steps)
            if is_record:
                self.spend(record(len(self.recorded)))
                self.recorded.append(self.steps)
            else:
                self.spend(idle, UNSEEN_IDLE)
            self.steps += 1
            self.counter.advance()
        return self

    @property
    def ratio(self):
        return self.now / self.bare

    def gaps(self, start, end):
        """Steps from one record to the next, in this part of the training."""
        chosen = [step for step in self.recorded if start * self.steps <= step < end * self.steps]
        return [after - before for before, after in pairwise(chosen)]


def constant(value):
    return lambda _: value


def with_expensive_groups(cost):
    """As with "standard": every tenth and every hundredth record costs more."""
    return lambda number: cost * (1 + 2.5 * (number % 10 == 0) + 20 * (number % 100 == 0))


TRAININGS = {
    "2-layer GCN": (0.009, 0.0035, 0.00005, 0.1),
    "240 nodes": (0.001, 0.0012, 0.000004, 0.1),
    "10 layers of GATv2": (0.08, 0.012, 0.0001, 2.0),
    "40 layers": (0.35, 0.06, 0.0003, 8.0),
    "512 layers": (1.0, 0.4, 0.002, 60.0),
}


@cache
def simulated(name, minutes):
    step, record, idle, startup = TRAININGS[name]
    return Time().train(60 * minutes, constant(step), with_expensive_groups(record), idle, startup)


@pytest.mark.parametrize("minutes", [2, 20])
@pytest.mark.parametrize("name", TRAININGS)
def test_auto_keeps_its_share_of_any_training_of_two_minutes(name, minutes):
    _, record, _, startup = TRAININGS[name]
    time = simulated(name, minutes)
    most = with_expensive_groups(record)(0)
    beyond = max(0.0, startup + most - 2.5)  # the search for laws has a time limit of its own
    assert time.now - beyond <= 1.05 * time.bare + most
    assert time.recorded[:8] == list(range(8)), "every step at first"
    if minutes == 20:
        assert (time.now - beyond) / time.bare > 1.03, "the share is used"


@pytest.mark.parametrize("name", TRAININGS)
def test_the_steps_of_auto_are_evenly_spread(name):
    time = simulated(name, 20)
    late = time.gaps(0.5, 1.0)
    assert max(late) <= 4 * min(late)
    assert max(time.gaps(0.0, 1.0)) <= 30 * min(late), "nowhere a long gap, though what was spent at first is paid back"


def test_a_training_that_costs_less_than_three_seconds_to_record_is_recorded_whole():
    time = Time().train(3.5, constant(0.01), constant(0.008))
    assert time.recorded == list(range(time.steps))


@pytest.mark.parametrize("slow", ["step", "record"])
def test_one_slow_step_does_not_silence_it(slow):
    """The machine is busy for a minute, in a step of training or in recording one."""
    step, record = (lambda n: 60.0 if slow == "step" and n == 20_000 else 0.01), constant(0.004)
    time = Time().train(300, step, record)
    before = max(time.gaps(0.3, 0.5))
    if slow == "record":
        time.spend(60.0)
    start = time.steps
    time.train(100, step, record)
    late = [after - before for before, after in pairwise(time.recorded) if before >= start]
    assert max(late) <= 12 * before


@pytest.mark.parametrize("together", [1, 8, 64])
def test_records_that_are_measured_together_are_paced_by_what_each_costs(together):
    """Although most of the time is spent in few steps."""
    time = Time()
    pace, waiting = time.counter._pace, []

    def record(number):
        waiting.append(number)
        if len(waiting) < together:
            return 0.0005
        waiting.clear()
        pace.add_measuring(0.003 * together / UNSEEN, together)
        return 0.0005 + 0.003 * together

    time.train(1200, constant(0.01), record)
    assert 1.03 < time.ratio < 1.05
    late = time.gaps(0.5, 1.0)
    assert max(late) <= 2 * min(late)


def test_a_budget_thins_any_schedule_and_without_one_nothing_is_left_out():
    often = Time(None, 2).train(60, constant(0.01), constant(0.1))
    assert often.recorded == list(range(0, often.steps, 2))
    rarely = Time(0.03, 2).train(600, constant(0.01), constant(0.01))
    assert rarely.ratio < 1.0305
    assert not any(step % 2 for step in rarely.recorded)


def test_what_is_known_of_the_next_record():
    """c is predicted only if the next step will be recorded."""
    time = Time()
    foreseen = []
    for number in range(3000):
        if time.counter.next_record is not None:
            foreseen.append(number + 1)
        time.train(0.01, constant(0.01), constant(0.01))
    late = [step for step in time.recorded if step > 1000]
    assert late
    assert set(late) <= set(foreseen)
    assert len([step for step in foreseen if step > 1000]) <= len(late) + 1


def test_checks_of_gradients_take_a_tenth_of_the_budget():
    pace = Pace(0.05, watch := Stopwatch())
    assert pace.check_interval(1e-3) == 1  # nothing is known of the steps
    time = [0.0]
    watch.clock = lambda: time[0]
    for _ in range(3):
        pace.end_steps(recorded=True)
        time[0] += 0.002
    assert [pace.check_interval(seconds) for seconds in (5e-6, 19e-6, 39e-6, 1.0)] == [1, 3, 6, 8]
    assert Pace(None, watch).check_interval(1.0) == 1


def test_the_run_says_how_steps_were_chosen(tmp_path):
    assert train(tmp_path / "auto", steps=2).run.meta["cadence"]["every"] == "auto"
    assert gatdiag.load(tmp_path / "auto").meta["cadence"]["budget"] == 0.05
    assert Settings(every=3).cadence["budget"] is None


def test_steps_that_are_not_recorded_are_logged_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("gatdiag.recorder.schedule._FREE", 0.0)
    monkeypatch.setattr("gatdiag.recorder.schedule._STARTUP", 1e-9)
    run = train(tmp_path / "run", steps=40, budget=0.001).run
    assert run.steps.loss.notna().sum() == 40
    assert 1 <= run.layers.step.nunique() < 40
    assert run.layers.step.min() == 0


def test_recorded_steps_are_those_of_a_function_that_is_asked_once_about_each_step(tmp_path):
    asked = []

    def every(step):
        asked.append(step)
        return step in (0, 4, 5, 9)

    run = train(tmp_path / "run", steps=12, every=every).run
    assert asked == list(range(13))
    for table in (run.layers, run.parameters, run.neurons):
        assert sorted(set(table.step)) == [0, 4, 5, 9]
    assert run.steps.step.tolist() == list(range(12))
    predicted = run.neurons.groupby("step").predicted_c.apply(lambda column: column.notna().all())
    assert predicted.to_dict() == {0: False, 4: True, 5: True, 9: True}
    assert (run.neurons.c - run.neurons.predicted_c).abs().max() < 1e-6


def test_a_run_is_resumed_at_a_step(tmp_path):
    first = train(tmp_path / "run", steps=6, seed=1).run
    initial = first.snapshot("initial")
    again = train(tmp_path / "run", steps=5, seed=1, resume=4).run
    assert again.steps.step.tolist() == list(range(9))
    assert again.parameters.step.drop_duplicates().tolist() == list(range(9))
    assert all((again.snapshot("initial")[name] == initial[name]).all() for name in initial)
    assert again.meta["resumed_at"] == [4]
    assert gatdiag.load(tmp_path / "run").status == "finished"

"""Which steps are recorded, in simulated trainings: `python -m tests.recorder.test_budget` prints a table of them."""

import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.recorder.budget import StepCounter, Stopwatch, schedule
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.settings import Settings
from tests.recorder.loops import train

UNSEEN = 2.0  # times the time that the stopwatch sees: measured 1.5 (40 layers) to 2.6 (two small layers)


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


@pytest.mark.parametrize("share", [0, 1, -0.1, 2.0, "5%", float("nan")])
def test_a_budget_that_is_no_share_is_refused(share):
    with pytest.raises(InputError, match="budget= expects"):
        StepCounter("auto", share, Stopwatch(), Guard())


class Training:
    """A simulated clock and training.

    Attributes:
        bare: Seconds of training alone.
        cost: Seconds that recording took, without the first step.
        recorded: The recorded steps.
    """

    def __init__(self, share=0.05, every="auto"):
        self.now = self.bare = self.cost = 0.0
        self.watch = Stopwatch(lambda: self.now)
        self.counter = StepCounter(every, share, self.watch, Guard())
        self.counter.start(0)
        self.recorded = []

    def run(self, count: int, step: Callable[[int], float], record: Callable[[int], float], idle=0.0) -> "Training":
        """Make steps that take `step(number)` seconds, and `record(number of the record)` or `idle` to record."""
        for number in range(self.counter.steps, self.counter.steps + count):
            seconds = step(number)
            self.now += seconds
            self.bare += seconds
            if self.counter.record is None:
                self.spend(idle)
            else:
                self.spend(record(len(self.recorded)))
                self.recorded.append(number)
            self.counter.advance()
        return self

    def spend(self, seconds):
        """Spend time on recording, part of which the stopwatch sees."""
        with self.watch, self.watch:  # nested contexts count once
            self.now += seconds / UNSEEN
        self.now += seconds * (1 - 1 / UNSEEN)
        self.cost += seconds if self.counter.steps else 0.0

    def tenths(self):
        """How many steps were recorded in each tenth of the training."""
        count = self.counter.steps
        return np.bincount([step * 10 // count for step in self.recorded], minlength=10)

    def gaps(self, start, end):
        """Steps from one record to the next, among these steps."""
        return [after - before for before, after in pairwise(self.recorded) if before >= start and after < end]


def constant(value):
    return lambda _: value


def always(cost):
    return lambda _: cost


def a_tenth_costs_ten_times_as_much(cost):
    return lambda number: cost * (10 if number % 10 == 9 else 1)


def as_with_standard_metrics(cost):
    """Every tenth and every hundredth record costs more."""
    return lambda number: cost * (1 + 2.5 * (number % 10 == 0) + 20 * (number % 100 == 0))


COSTS = (always, a_tenth_costs_ten_times_as_much, as_with_standard_metrics)
TRAININGS = [*product((60, 100, 1000, 20_000), (0.001, 0.01, 0.1), (0.15, 0.3, 1.0), COSTS)]


@cache
def simulated(count, step, share_of_step, costs):
    return Training().run(count, constant(step), costs(share_of_step * step))


def demanded(count):
    """The steps that "auto" records whatever they cost."""
    chosen = [*range(min(30, count))]
    while (following := chosen[-1] + max(1, chosen[-1] // 10)) < count:
        chosen.append(following)
    return chosen


@pytest.mark.parametrize("training", TRAININGS)
def test_auto_records_every_part_of_a_training_within_its_share(training):
    """The first thirty steps, a step in each tenth at least, and at most 3 s or 5% beyond what that costs."""
    count, step, share_of_step, costs = training
    done = simulated(*training)
    assert done.recorded[:30] == list(range(30))
    assert done.tenths().min() >= 1
    assert max(done.gaps(0, count)) <= max(1, count // 10)
    worst = costs(share_of_step * step)
    needed = sum(worst(number) for number in range(1, len(demanded(count))))
    allowed = 0.05 * max(done.bare, 60 + done.bare / 2)
    assert done.cost <= max(allowed, needed) + worst(0)
    if count * step * share_of_step < 1:
        assert done.recorded == list(range(count)) or costs is not always, "what costs little is recorded whole"
    if done.bare > 1000:
        assert done.cost > 0.95 * allowed, "the share is used"
        late = done.gaps(count // 2, count)
        assert max(late) <= 7 * np.median(late), "evenly"


def test_no_tenth_of_a_run_of_any_length_is_empty_on_a_busy_machine():
    """Recording a step takes ten minutes."""
    recorded = Training().run(12_345, constant(0.1), constant(600.0)).recorded
    assert recorded == demanded(12_345)
    for count in (*range(30, 1002), 12_345):
        assert {step * 10 // count for step in recorded if step < count} == set(range(10)), count


@pytest.mark.parametrize("record", [0.015, 0.025])
def test_at_least_40_of_the_first_100_steps_of_ten_layers_are_recorded(record):
    for slow in (1, 16):  # the machine is busy
        done = Training().run(100, constant(slow * 0.1), as_with_standard_metrics(slow * record))
        assert len(done.recorded) >= 40


@pytest.mark.parametrize(("step", "record"), [(0.01, 0.003), (0.1, 0.02), (0.001, 0.001)])
@pytest.mark.parametrize("pause", [300.0, 8 * 3600.0])
@pytest.mark.parametrize("where", ["step", "record"])
def test_a_pause_leaves_no_hole(step, record, pause, where):
    """A validation epoch between steps, or a laptop that sleeps, perhaps while a step is recorded."""
    done = Training().run(10_000, constant(step), constant(record))
    if where == "record":
        done.spend(pause)
    else:
        done.now += pause
    done.run(4000, constant(step), constant(record))
    assert max(done.gaps(9900, 14_000)) <= 300, "3% of the training so far"
    assert done.cost - (pause if where == "record" else 0) < 0.05 * max(60 + done.bare, 120), "nor a long burst"


def test_an_expensive_record_leaves_no_hole():
    done = Training().run(10_000, constant(0.1), constant(0.02))
    usual = max(done.gaps(8000, 10_000))
    done.spend(0.2)
    done.run(1000, constant(0.1), constant(0.02))
    assert max(done.gaps(9900, 11_000)) <= 2 * usual


def test_a_busy_hour_is_recorded_less_and_what_follows_as_before():
    done = Training().run(10_000, constant(0.1), constant(0.02))
    before = len(done.recorded)
    done.run(2000, constant(1.6), constant(0.32)).run(8000, constant(0.1), constant(0.02))
    assert done.cost < 0.05 * done.bare
    assert len(done.recorded) > 1.8 * before
    assert max(done.gaps(0, 20_000)) < 20


@pytest.mark.parametrize("together", [1, 8, 64])
def test_records_that_are_measured_together_cost_what_each_costs(together):
    """Most of the time is spent in few steps, some of which are not recorded."""
    done, measured = Training(), 0
    for number in range(60_000):
        done.run(1, constant(0.01), constant(0.0005))
        if (waiting := len(done.recorded) - measured) >= together and number % 7 == 0:
            done.spend(0.003 * waiting)
            measured += waiting
    assert 0.04 * done.bare < done.cost < 0.0505 * done.bare
    late = done.gaps(30_000, 60_000)
    assert max(late) <= 4 * np.median(late)


def test_steps_that_are_not_recorded_cost_something_too():
    done = Training().run(100_000, constant(0.01), constant(0.004), idle=0.0001)
    assert 0.045 * done.bare < done.cost < 0.0505 * done.bare


def test_a_budget_thins_any_schedule_and_without_one_nothing_is_left_out():
    often = Training(None, 2).run(6000, constant(0.01), constant(0.1))
    assert often.recorded == list(range(0, 6000, 2))
    rarely = Training(0.03, 2).run(60_000, constant(0.01), constant(0.01))
    assert rarely.cost < 0.0305 * rarely.bare
    assert not any(step % 2 for step in rarely.recorded)


def test_the_first_step_does_not_count():
    """It searches for laws."""
    late = Training()
    late.spend(600.0)
    late.run(3000, constant(0.1), constant(0.02))
    assert late.recorded == Training().run(3000, constant(0.1), constant(0.02)).recorded


@pytest.mark.parametrize("every", ["auto", 3, "log", lambda step: step % 5 < 2])
def test_the_next_record_is_known_one_step_ahead(every):
    """c is predicted then."""
    done = Training(0.05, every)
    for number in range(3000):
        foreseen, records = done.counter.next_record, done.counter.records + (done.counter.record is not None)
        done.run(1, constant(0.1), constant(0.03))
        assert done.counter.record == foreseen
        assert foreseen in (None, records)
        assert done.counter.step == number + 1
    assert 100 < len(done.recorded) < 1000


@pytest.mark.parametrize("asks", [True, False])
def test_skipped_numbers_are_not_asked_about_and_decide_nothing(asks):
    counter = StepCounter(10, None, Stopwatch(), Guard())
    counter.start(0)
    recorded = []
    for number in (0, 4, 9, 10, 11, 20, 21):
        if counter.step == number and counter.record is not None:
            recorded.append(number)
        counter.skip_to(number)
        if asks:
            assert (counter.next_record is not None) == (counter.step % 10 == 9)
        counter.advance()
    assert recorded == [0, 10]
    assert (counter.steps, counter.last_step, counter.records) == (7, 21, 2)
    with pytest.raises(InputError, match="an integer from 22"):
        counter.skip_to(3)


def test_the_run_says_how_steps_were_chosen(tmp_path):
    assert train(tmp_path / "auto", steps=2).run.meta["cadence"]["every"] == "auto"
    assert gatdiag.load(tmp_path / "auto").meta["cadence"]["budget"] == 0.05
    assert Settings(every=3).cadence["budget"] is None


def test_steps_that_are_not_recorded_are_logged_all_the_same(tmp_path):
    run = train(tmp_path / "run", steps=40, every=7).run
    assert run.steps.loss.notna().sum() == 40
    assert run.layers.step.unique().tolist() == [0, 7, 14, 21, 28, 35]


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


def table():
    """A line for each of the simulated trainings."""
    yield "steps   a step  a record  records cost      steps recorded, in each tenth    seconds  share  largest gap\n"
    for count, step, share, costs in TRAININGS:
        done = simulated(count, step, share, costs)
        yield (
            f"{count:6,} {step * 1e3:5.0f} ms {share:8.0%}  {costs.__name__.replace('_', ' '):32}"
            f"{len(done.recorded):6,}  {' '.join(map(str, done.tenths())):50} {done.cost:7.2f} "
            f"{done.cost / done.bare:6.1%} {max(done.gaps(0, count)):4}\n"
        )


if __name__ == "__main__":
    sys.stdout.writelines(table())

"""Failures inside the recorder: one warning for each, and training continues."""

import inspect
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from linecache import getline
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

import gatdiag
from gatdiag.errors import InputError
from gatdiag.laws import trace, training_trace
from gatdiag.recorder import RecordingWarning, TrainingWarning, plan
from gatdiag.structure import deadline
from tests.recorder.loops import Gat, graph, sgd, train, train_step

NESTED = "ignore:The PyTorch API of nested tensors:UserWarning"  # which torch says once a process
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def warned(folder, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained = train(folder, **options)
    return trained, [str(item.message) for item in caught if issubclass(item.category, RecordingWarning)]


@contextmanager
def full_disk():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(("since", "until"), [(1, 9), (1, 2), (3, 9), (5, 9), (0, 9), (0, 1)])
def test_a_disk_that_is_full_for_some_steps(tmp_path, since, until):
    with ExitStack() as full, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, data = Gat(), graph()
        optimizer, losses = sgd(model), []
        untouched, same = Gat(), []
        untouched.load_state_dict(model.state_dict())
        other = sgd(untouched)
        with gatdiag.watch(model, tmp_path / "run", best="loss", every=1, warn=False) as recorder:
            for step in range(6):
                if step == since:
                    full.enter_context(full_disk())
                if step == until:
                    full.close()
                losses.append(train_step(model, data, optimizer).item())
                recorder.log(loss=losses[-1])
                same.append(train_step(untouched, data, other).item())
    assert losses == same
    (message,) = [str(item.message) for item in caught]
    assert "File too large" in message
    if since == 0:
        assert "The run cannot be written to" in message
    else:
        run = gatdiag.load(tmp_path / "run")
        assert run.steps.step.tolist() == ([*range(6)] if until == 2 else [])
        assert run.meta["notes"] == ([message.removeprefix("gatdiag: ")] if until == 2 else [])


def test_where_nothing_is_recorded_nothing_that_is_logged_is_read_or_kept(tmp_path):
    reads = []

    class Metric:
        def __init__(self, step):
            self.step = step

        def compute(self):
            reads.append(self.step)
            return 0.5

    model, data = Gat(), graph()
    optimizer = sgd(model)
    with full_disk(), warnings.catch_warnings(), gatdiag.watch(model, tmp_path / "run") as recorder:
        warnings.simplefilter("ignore", RecordingWarning)
        for step in range(3):
            recorder.log(metric=Metric(step))
            train_step(model, data, optimizer)
    assert reads == [0], "the run could not be opened at step 0"


def test_a_folder_in_which_another_run_is_recorded_meanwhile_is_left_alone(tmp_path):
    def replace(step, model):
        if step == 3:
            shutil.rmtree(tmp_path / "run")
            other = train(tmp_path / "other").run
            shutil.copytree(other.folder, tmp_path / "run")

    trained, messages = warned(tmp_path / "run", before_step=replace, best="loss", every=1)
    (message,) = messages
    assert "another run is recorded there now" in message
    assert trained.losses == train().losses
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("run", "other")]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "how", [Path.unlink, partial(os.truncate, length=700), partial(Path.write_bytes, data=b"x" * 99)]
)
def test_rows_whose_files_something_else_has_spoiled_are_missed(tmp_path, how):
    def spoil(step, model):
        if step == 3:
            recorder = gatdiag.recorder.session._active[-1]
            recorder.diagnosis()  # writes what waits
            how(tmp_path / "run" / "layers.arrows")

    trained, messages = warned(tmp_path / "run", before_step=spoil, every=1)
    (message,) = messages
    assert message.endswith("rows of layers are left: something else has changed or deleted their files while training")
    assert trained.run.meta["notes"] == [message.removeprefix("gatdiag: ")]
    assert trained.run.status == "finished"
    assert len(trained.run.layers) < 15
    assert len(trained.run.steps) == 5
    assert len(trained.run.parameters) == 5 * 3 * 6


def test_a_run_that_could_not_be_sealed_can_be_resumed_in_the_same_process(tmp_path, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr("gatdiag.run.tables.write_parquet", mock.Mock(side_effect=OSError(28, "No space left on device")))
        trained, messages = warned(tmp_path / "run", steps=3)
    assert len(messages) == 1
    assert "could not be sealed (OSError: [Errno 28] No space left on device)" in messages[0]
    assert trained.run.steps.step.tolist() == [0, 1, 2]
    trained, messages = warned(tmp_path / "run", steps=3, resume=True)
    assert messages == []
    assert trained.run.steps.step.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("place", "name", "lost", "still_there"),
    [
        ("gatdiag.metrics.smoothing", "output_statistics", "output_norm", ("norm", "c")),
        ("gatdiag.recorder.measure.parameters.ParameterMeasurer", "_changes", "unchanged_fraction", ("norm", "c")),
        ("gatdiag.recorder.measure.laws.LawMeasurer", "measure", "c", ("norm", "mu")),
        ("gatdiag.metrics", "ranks", "effective_rank", ("norm", "mu", "c", "dirichlet_energy")),
        ("gatdiag.metrics", "attention_spread", "attention_entropy", ("norm", "mu", "c")),
        ("gatdiag.recorder.hooks.backward", "versions", "gradient_norm_before_clipping", ("norm", "mu", "c")),
    ],
)
def test_a_metric_that_raises_is_lost_alone(tmp_path, monkeypatch, place, name, lost, still_there):
    def broken(*args, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(f"{place}.{name}", broken)
    trained, messages = warned(tmp_path / "run")
    assert trained.losses == train().losses
    assert [message for message in messages if "out of order" in message]
    assert len(messages) == len(set(messages)) <= 2

    def measured(column):
        run = trained.run
        tables = [table for table in (run.layers, run.parameters, run.neurons, run.steps) if column in table]
        return bool(tables) and bool(tables[0][column].notna().any())

    assert not measured(lost)
    assert all(map(measured, still_there))
    assert any("out of order" in note for note in trained.run.meta["notes"])


def test_a_warning_is_about_the_line_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr("gatdiag.metrics.smoothing.output_statistics", lambda x: 1 / 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(tmp_path / "run")
        with gatdiag.watch(nn.Linear(2, 2), tmp_path / "other") as recorder:
            recorder.log(text="no number")
    lines = [getline(item.filename, item.lineno).strip() for item in caught if item.category is RecordingWarning]
    assert {*lines} - {"recorder.finish()"} == {
        "x = F.dropout(F.relu(conv(x, edge_index)), self.dropout, self.training)",
        'recorder.log(text="no number")',
        'with gatdiag.watch(nn.Linear(2, 2), tmp_path / "other") as recorder:',
    }


def test_where_warnings_are_errors_standard_error_has_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gatdiag.metrics.smoothing.output_statistics", lambda x: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained = train(tmp_path / "run")
    assert trained.losses == train().losses
    assert "division by zero" in capsys.readouterr().err


def test_a_search_for_laws_that_takes_too_long_is_given_up_and_all_else_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plan, "_MAX_SEARCH_SECONDS", 1e-9)
    trained, messages = warned(tmp_path / "run")

    (message,) = messages
    assert "stopped after 1e-09 s" in message
    assert "laws=gatdiag.find_laws" in message
    assert trained.losses == train().losses
    assert len(trained.run.steps) == 5
    assert len(trained.run.layers) == 5 * 3
    assert len(trained.run.parameters) == 5 * 3 * 6
    assert len(trained.run.neurons) == 0
    assert trained.run.meta["laws"]["found"] == []
    assert "stopped after" in trained.run.meta["laws"]["error"]
    assert not capsys.readouterr().err


def test_a_trace_that_takes_too_long_is_given_up_and_all_else_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(training_trace, "MAX_SECONDS", 1e-9)
    trained, messages = warned(tmp_path / "run")

    (message,) = messages
    assert "tracing was stopped after 1e-09 s" in message
    assert trained.losses == train().losses
    assert len(trained.run.parameters) == 5 * 3 * 6
    assert len(trained.run.neurons) == 0


@pytest.mark.filterwarnings(NESTED)
def test_nested_tensors_go_through_as_they_are(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(5, 3)])
    untouched = deepcopy(model)
    with pytest.warns(RecordingWarning, match="nor can nested tensors"):
        with gatdiag.watch(model, tmp_path, every=1):
            of_nested(model, x)
    of_nested(untouched, x)
    assert all(map(torch.equal, model.parameters(), untouched.parameters()))
    run = gatdiag.load(tmp_path)
    assert len(run.steps) == 2
    assert len(run.parameters) == 2 * 4
    assert not any("Error: Internal" in note for note in run.meta["notes"])
    assert "tensors without a shape (nested ones) cannot be followed" in run.meta["laws"]["error"]


def of_nested(model, x):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).to_padded_tensor(0.0).square().mean().backward()
        optimizer.step()


@pytest.mark.filterwarnings(NESTED)
def test_outputs_of_nested_tensors_inside_a_model_are_recorded(tmp_path):
    class Inner(nn.Linear):
        def forward(self, x):
            return super().forward(torch.nested.as_nested_tensor([x[:2], x[2:]])).to_padded_tensor(0.0)

    model = nn.Sequential(Inner(3, 4), nn.Linear(4, 1))
    with gatdiag.watch(model, tmp_path, every=1):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
    assert gatdiag.load(tmp_path).layers.layer.nunique() == 2


@pytest.mark.parametrize("place", ["_first_shape", "_bind_arguments"])
def test_whatever_fails_beside_an_operation_gives_up_the_trace_alone(tmp_path, monkeypatch, place):
    monkeypatch.setattr(trace, place, mock.Mock(side_effect=RuntimeError("nobody expected this")))
    trained, messages = warned(tmp_path / "run")
    assert messages == []
    assert trained.losses == train().losses
    assert "nobody expected this" in gatdiag.load(tmp_path / "run").meta["laws"]["error"]


def test_a_search_for_laws_that_takes_long_is_announced_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(deadline, "_SLOW", 0.0)
    trained, messages = warned(tmp_path / "run")

    assert not messages
    assert len(trained.run.neurons) > 0
    assert capsys.readouterr().err == "gatdiag: searching for conservation laws (0 s so far, limit 20 s)\n"


def test_laws_are_not_looked_for_where_they_are_not_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr("gatdiag.recorder.hooks.modules.ForwardTrace", None)
    trained, messages = warned(tmp_path / "run", laws=False)

    assert not messages
    assert len(trained.run.parameters) == 5 * 3 * 6
    assert len(trained.run.neurons) == 0


def test_laws_that_were_found_before_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("gatdiag.recorder.hooks.modules.ForwardTrace", None)
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer = sgd(model)
    laws = gatdiag.find_laws(model, data.x, data.edge_index)
    with gatdiag.watch(model, tmp_path / "run", laws=laws):
        for _ in range(3):
            train_step(model, data, optimizer)
    run = gatdiag.load(tmp_path / "run")
    assert len(run.neurons) == 3 * len(laws)
    assert run.neurons.delta.abs().max() < 1e-5


def test_a_schedule_that_raises(tmp_path):
    def every(step):
        if step == 2:
            raise ZeroDivisionError("mine")
        return True

    trained, messages = warned(tmp_path / "run", every=every)
    assert trained.losses == train().losses
    assert "the steps that every= selects" in messages[0]
    assert trained.run.steps[trained.run.steps.gradient_norm.notna()].step.tolist() == [0, 1, 3, 4]


def test_names_that_cannot_be_written_cost_no_row(tmp_path):
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with warnings.catch_warnings(), gatdiag.watch(model, tmp_path / "run") as recorder:
        warnings.simplefilter("ignore", RecordingWarning)
        for step in range(3):
            train_step(model, data, optimizer)
            recorder.log(**{"self": step, "\udc80": 1.0, "loss": 1.0})
            recorder.log(**{f"name {step} {number}": 1.0 for number in range(600)})
    steps = gatdiag.load(tmp_path / "run").steps
    assert steps.loss.tolist() == [1.0] * 3
    assert steps["self"].tolist() == [0, 1, 2]


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, "run"):
        for _ in range(3):
            train_step(model, data, optimizer)
            monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(gatdiag.load(tmp_path / "run").steps) == 3


def test_another_model_cannot_go_on_with_a_run(tmp_path):
    train(tmp_path / "run", metrics="fast")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for other, what in (
        (Gat(width=4), "expected convs.0.att of shape"),
        (Gat(layers=2), "the layer convs.2"),
        (nn.Linear(5, 3), "the layer convs.0"),
    ):
        with pytest.raises(InputError, match=f"is of another model.*{what}"):
            gatdiag.watch(other, tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_another_lazy_model_cannot_go_on_with_a_run_either(tmp_path):
    train(tmp_path / "run", metrics="fast")
    trained, messages = warned(
        tmp_path / "run", metrics="fast", resume=True, make_model=lambda: Gat(width=4, inputs=-1)
    )
    assert any("is of another model" in message for message in messages)
    assert trained.run.parameters.step.max() == 4


def test_a_run_of_layers_whose_names_no_file_can_hold_goes_on(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("lin\udc80", nn.Linear(5, 3))

        def forward(self, x, edge_index):
            return self._modules["lin\udc80"](x)

    for seed in (0, 1):
        options = {"resume": bool(seed), "seed": seed, "laws": False, "metrics": "full", "make_model": Odd}
        trained, messages = warned(tmp_path / "run", **options)
        assert messages == []
    changed = trained.run.parameters[trained.run.parameters.parameter == r"lin\udc80.weight"]
    assert changed.step.tolist() == list(range(10))
    assert changed.unchanged_fraction[changed.step == 0].item() == 1
    assert changed.unchanged_fraction[changed.step == 5].item() == 0, "other weights than those that the run began with"


def test_time_goes_on_where_the_run_that_is_resumed_had_ended(tmp_path):
    train(tmp_path / "run", metrics="fast", before_step=lambda step, model: time.sleep(0.02))
    first = gatdiag.load(tmp_path / "run").steps.time
    train(tmp_path / "run", metrics="fast", resume=True)
    train(tmp_path / "run", metrics="fast", resume=3)
    times = gatdiag.load(tmp_path / "run").steps.time
    assert times.is_monotonic_increasing
    assert len(times) == 8
    assert times[3] > first[2] > 0.03
    assert times[:3].tolist() == first[:3].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "positive integer"),
        ({"every": "often"}, "every="),
        ({"budget": 2.0}, "budget="),
        ({"laws": 20}, "laws="),
        ({"metrics": "standrad"}, "standard"),
        ({"metrics": ["mue"]}, "mu"),
        ({"best": ""}, "best="),
        ({"include": [3]}, "include="),
        ({"budget": "5%"}, "budget="),
        ({"metrics": 3}, "metrics="),
        ({"exclude": 3}, "exclude="),
        ({"optimizer": 3}, "optimizer="),
        ({"overwrite": True, "resume": True}, "use only one"),
    ],
)
def test_wrong_arguments_are_refused_before_training(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        gatdiag.watch(Gat(), tmp_path / "run", **options)


def test_the_first_nan_is_pinned_down_at_once(tmp_path):
    for place, where in (("weight", "weight"), ("output", "output"), ("gradient", "output gradient")):

        class Breaks(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return gradient * (float("nan") if broken and place == "gradient" else 1.0)

        class Breaking(Gat):
            def forward(self, x, edge_index):
                x = self.convs[0](x, edge_index).relu()
                if broken and place == "output":
                    x = x * float("inf")
                return self.convs[2](Breaks.apply(self.convs[1](x, edge_index).relu()), edge_index)

        broken = False
        model, data = Breaking(), graph()
        optimizer = sgd(model)
        with gatdiag.watch(model, tmp_path / place):
            for step in range(5):
                broken = step >= 3
                if broken and place == "weight":
                    model.convs[1].att.data[0, 0, 2] = float("nan")
                train_step(model, data, optimizer)
                found = json.loads((tmp_path / place / "meta.json").read_text())["first_non_finite"]
                assert (found is None) == (step < 3), place
        assert (found["step"], found["layer"], found["where"]) == (3, "convs.1", where)
        assert found["kind"] in ("NaN", "infinity")


def test_a_nan_at_a_step_that_is_not_recorded_is_found_as_well(tmp_path):
    def spoil(step, model):
        if step == 3:
            model.convs[1].lin_l.weight.grad[0, 0] = float("inf")

    with pytest.warns(TrainingWarning, match="step 3: "):
        run = train(tmp_path / "run", every=100, steps=6, before_step=spoil).run
    found = run.meta["first_non_finite"]
    assert (found["step"], found["layer"], found["where"], found["kind"]) == (3, "convs.1", "gradient", "infinity")
    assert found["parameter"] == "convs.1.lin_l.weight"


def train_on(folder, tell):
    """Train until something ends this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by shells for background processes
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, folder, every=1) as recorder:
        for step in range(100_000):
            recorder.log(loss=train_step(model, data, optimizer))
            tell.send(step)
            time.sleep(0.02)


@pytest.fixture
def training(tmp_path):
    """A training in another process, and a function that returns the step it has reached."""
    context = multiprocessing.get_context("fork")
    reached, tell = context.Pipe(duplex=False)
    process = context.Process(target=train_on, args=(tmp_path / "run", tell))
    process.start()
    yield process, reached
    process.kill()
    process.join()


@pytest.mark.slow
@needs_fork
def test_a_killed_run_can_be_read_and_resumed(tmp_path, training):
    process, reached = training
    while reached.recv() % 20 or not gatdiag.load(tmp_path / "run").steps.step.max() > 50:
        pass
    assert gatdiag.load(tmp_path / "run").status == "recording"
    process.kill()
    process.join()
    killed = gatdiag.load(tmp_path / "run")
    last = int(killed.steps.step.max())
    assert last > 50
    assert killed.steps.step.tolist() == list(range(last + 1))
    assert (killed.layers.groupby("step").size() == 3).all()
    assert killed.snapshot("initial") is not None
    run = train(tmp_path / "run", steps=3, seed=1, resume=True).run
    assert run.status == "finished"
    for table in (run.steps, run.layers, run.parameters, run.neurons):
        assert table.step.unique().tolist() == [*range(last + 4)]
    first = run.parameters[(run.parameters.step == last + 1) & (run.parameters.role == "feature weight")]
    assert (first.unchanged_fraction == 0).all(), "changes are measured against the weights that the run began with"


@pytest.mark.slow
@needs_fork
def test_an_interrupt_from_outside_leaves_a_finished_file(tmp_path, training):
    process, reached = training
    while reached.recv() < 5:
        pass
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode not in (0, None)
    assert gatdiag.load(tmp_path / "run").status == "interrupted"
    assert (tmp_path / "run" / "steps.parquet").exists()


def interrupt_at(number):
    calls = itertools.count()

    def on_event(frame, event, _):
        is_ours = "gatdiag" in frame.f_globals.get("__name__", "") and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if event == "call" and is_ours and next(calls) == number:
            sys.setprofile(None)
            raise KeyboardInterrupt

    return on_event


@pytest.mark.parametrize("is_context", [False, True])
def test_an_interrupt_at_any_instant_of_the_first_steps_leaves_nothing_entered(tmp_path, is_context):
    def state():
        return torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(), torch.is_grad_enabled()

    torch.manual_seed(0)
    x, before = torch.randn(8, 3), state()
    for number in itertools.count(0, 29):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = sgd(model)
        recorder = gatdiag.watch(model, tmp_path / str(number), every=1, warn=False)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        was_interrupted = False
        try:
            with recorder if is_context else nullcontext():
                sys.setprofile(interrupt_at(number))
                step()
                step()
                sys.setprofile(None)
        except KeyboardInterrupt:
            was_interrupted = True
        if not is_context:
            step()
            assert state() == before, number
            recorder.finish()
        assert state() == before, number
        if not was_interrupted:
            break
    assert number > 100


@needs_fork
def test_a_fork_writes_nothing(tmp_path):
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with warnings.catch_warnings(), gatdiag.watch(model, tmp_path / "run"):
        warnings.simplefilter("ignore", DeprecationWarning)  # from forking a process with threads
        child = os.fork()
        if child == 0:
            nn.Linear(2, 2)(torch.ones(1, 2))
            optimizer.step()
            os._exit(0)
        os.waitpid(child, 0)
        train_step(model, data, optimizer)
    assert len(gatdiag.load(tmp_path / "run").steps) == 1

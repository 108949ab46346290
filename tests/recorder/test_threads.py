"""Several threads train, one of them is watched or all are: every training is what it is without."""

import queue
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from tests.recorder.loops import Gat, Graph, graph, loss_of, sgd, train_step

TRIALS = 5
WITHOUT_SEARCH = {"laws": False}  # the search for laws sets the default type of all threads


@pytest.fixture(autouse=True)
def quick_switches():
    """Threads take turns every 0.1 ms, not every 5 ms."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


def run_in_threads(*functions):
    """Run functions at the same time; return their results, and raise what one of them has raised."""
    results, errors = [None] * len(functions), []
    start = threading.Barrier(len(functions))

    def call(number, function):
        try:
            start.wait()
            results[number] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=item) for item in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def training(seed, folder=None, steps=12, calls=None, **options):
    """A function that trains a model of its own, which does not depend on the global random state."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    x, y = torch.randn(20, 6, generator=generator), torch.randint(0, 3, (20,), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loop():
        losses = []
        for _ in range(steps):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    def watched():
        with gatdiag.watch(model, folder, **options):
            return loop()

    return loop if folder is None else watched


def assert_same(result, expected):
    assert result[0] == expected[0]
    assert all(torch.equal(*pair) for pair in zip(result[1], expected[1], strict=True))


def rows(folder):
    """What was recorded that does not depend on the clock."""
    run = gatdiag.load(folder)
    return {
        **{name: getattr(run, name).to_dict("list") for name in ("layers", "parameters", "neurons")},
        "steps": run.steps.drop(columns="time").to_dict("list"),
    }


def failures(folder):
    notes = gatdiag.load(folder).meta["notes"]
    return [note for note in notes if "conservation" not in note]  # these models have no law


@pytest.mark.parametrize("trial", range(TRIALS))
def test_two_threads_watch_a_model_of_their_own(tmp_path, trial):
    seeds, options = (2 * trial, 2 * trial + 1), {"every": 1, "metrics": "full", **WITHOUT_SEARCH}
    expected = [training(seed)() for seed in seeds]
    found = run_in_threads(*(training(seed, tmp_path / str(seed), **options) for seed in seeds))
    for seed, result, alone in zip(seeds, found, expected, strict=True):
        assert_same(result, alone)
        training(seed, tmp_path / f"{seed} alone", **options)()
        assert str(rows(tmp_path / str(seed))) == str(rows(tmp_path / f"{seed} alone"))
        assert failures(tmp_path / str(seed)) == []


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_training_that_is_not_watched_beside_others_that_come_and_go(tmp_path, trial):
    """Its optimizer steps while hooks are added and removed."""

    def some():
        return [training(seed, tmp_path / str(seed), steps=3, **WITHOUT_SEARCH)() for seed in range(3)]

    found, _ = run_in_threads(training(trial, steps=150), some)
    assert_same(found, training(trial, steps=150)())
    for seed in range(3):
        assert len(gatdiag.load(tmp_path / str(seed)).steps) == 3
        assert failures(tmp_path / str(seed)) == []


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_thread_that_makes_the_next_batches(tmp_path, trial):
    """It computes with layers and gradients of its own, and calls the user's functions on tensors."""

    def loop(folder):
        generator = torch.Generator().manual_seed(trial)
        model = Gat(layers=2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        optimizer, data = sgd(model), graph()
        projection, batches = nn.Linear(5, 5), queue.Queue(maxsize=2)
        with torch.no_grad():
            projection.weight.copy_(torch.randn(5, 5, generator=generator))
            projection.bias.zero_()

        def prefetch():
            for number in range(10):
                x = torch.full((20, 5), 0.1 * number, requires_grad=True)
                projection(x).tanh().sum().backward()
                batches.put((data.x + x.grad).detach())

        thread, losses = threading.Thread(target=prefetch), []
        with gatdiag.watch(model, folder, every=1, enabled=folder.name == "on", **WITHOUT_SEARCH):
            thread.start()
            for _ in range(10):
                batch = Graph(batches.get(timeout=20), data.edge_index, data.y)
                losses.append(train_step(model, batch, optimizer).item())
            thread.join()
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    assert_same(loop(tmp_path / "on"), loop(tmp_path / "off"))
    run = gatdiag.load(tmp_path / "on")
    assert len(run.layers) == 20
    assert run.layers.gradient_mu.notna().all()


def test_calls_of_the_model_in_another_thread_are_not_those_of_the_training(tmp_path):
    """As an evaluation in the background that forgets to switch gradients off."""

    def loop(folder, evaluates):
        torch.manual_seed(0)
        model, data = Gat(layers=2), graph()
        other, optimizer = graph(seed=5), sgd(model)
        with gatdiag.watch(model, folder, every=1, metrics="full"):
            for step in range(4):
                loss = loss_of(model, data)
                if evaluates and step:
                    run_in_threads(lambda: loss_of(model, other))
                loss.backward()
                if evaluates and step:
                    run_in_threads(lambda: torch.autograd.grad(loss_of(model, other), list(model.parameters())))
                optimizer.step()
                optimizer.zero_grad()
                if evaluates:
                    run_in_threads(lambda: loss_of(model, other))

    loop(tmp_path / "with", True)
    loop(tmp_path / "without", False)
    assert str(rows(tmp_path / "with")) == str(rows(tmp_path / "without"))


def test_a_training_that_goes_on_in_another_thread_is_recorded(tmp_path):
    model, data = Gat(layers=2), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(2):
            train_step(model, data, optimizer)
        run_in_threads(lambda: [train_step(model, data, optimizer) for _ in range(3)])
        train_step(model, data, optimizer)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == [*range(6)]
    assert run.layers.groupby("step").size().to_dict() == dict.fromkeys((0, 1, 3, 4), 2)
    assert run.layers.gradient_mu.notna().all()


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_diagnosis_from_another_thread_writes_no_row_twice(tmp_path, trial):
    """As a dashboard that asks all the time."""
    torch.manual_seed(trial)
    model, data = Gat(layers=2), graph()
    optimizer, is_over, diagnoses = sgd(model), threading.Event(), []

    def ask():
        while not is_over.wait(0.01):
            diagnoses.append(recorder.diagnosis())

    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder, warnings.catch_warnings():
        warnings.simplefilter("error")
        train_step(model, data, optimizer)
        thread = threading.Thread(target=ask)
        thread.start()
        for _ in range(15):
            recorder.log(loss=train_step(model, data, optimizer))
        is_over.set()
        thread.join()
    run = gatdiag.load(tmp_path / "run")
    assert len(diagnoses) > 0
    assert run.steps.step.tolist() == [*range(16)]
    for table, items in (("layers", 2), ("parameters", 12), ("neurons", len(run.laws))):
        assert getattr(run, table).groupby("step").size().tolist() == [items] * 16, table
    assert run.steps.loss.notna().all()
    assert not [note for note in run.meta["notes"] if "not recorded" in note]

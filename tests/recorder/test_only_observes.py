"""Whatever a forward pass does, it does as often as without a recorder, and with the same results."""

import itertools
import logging
import os
import queue
import types
import warnings
from collections import UserDict
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag

STEPS = 4
X, Y = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
counting = types.ModuleType("counting")


class Net(nn.Module):
    """Calls a function of the user's between its layers, which may change its activations."""

    def __init__(self, effect):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.effect = effect
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.effect(self.first(x).relu()))


class Registry(dict):
    """Has its own way to look up, as registries of layers do."""

    def __getitem__(self, key):
        return dict.setdefault(self, key, 0) + 1

    def copy(self):
        raise TypeError("a registry is not copied")


class LazyMapping(UserDict):
    """Makes its entries when they are read, as the mappings of Hugging Face do."""

    def __missing__(self, key):
        self.data[key] = len(self.data)
        return self.data[key]


class MeanMetric:
    """Sums up what it is given, as torchmetrics do."""

    def __init__(self):
        self.total, self.count = torch.zeros(()), 0

    def update(self, value):
        self.total += value.detach()
        self.count += 1


def changes_an_array(_):
    array = np.zeros(3)

    def effect(h):
        array[0] += float(h.detach().sum())
        return h * (1 + array[0] * 1e-3)

    return effect, lambda: array.tolist()


def appends_to_a_long_list(_):
    entries = [0.0] * 2000

    def effect(h):
        entries.append(float(h.detach().mean()))
        return h + sum(entries) * 1e-3

    return effect, lambda: entries


def counts_in_another_module(_):
    counting.calls = 0

    def effect(h):
        counting.calls += 1
        return h / counting.calls

    return effect, lambda: counting.calls


def takes_from_a_generator(_):
    numbers = (1 / n for n in itertools.count(1))
    return lambda h: h * next(numbers), lambda: next(numbers)


def takes_from_itertools(_):
    numbers = itertools.count(1)
    return lambda h: h / next(numbers), lambda: next(numbers)


def changes_the_environment(_):
    os.environ["GATDIAG_TEST_CALLS"] = "0"

    def effect(h):
        os.environ["GATDIAG_TEST_CALLS"] = str(int(os.environ["GATDIAG_TEST_CALLS"]) + 1)
        return h / int(os.environ["GATDIAG_TEST_CALLS"])

    return effect, lambda: os.environ.pop("GATDIAG_TEST_CALLS")


def appends_to_a_file(folder):
    file = folder / "passes.txt"
    file.write_text("")

    def effect(h):
        with file.open("a") as opened:
            opened.write("x")
        return h / file.stat().st_size

    return effect, file.read_text


def takes_from_a_queue(_):
    """One entry for each step: another call would wait forever."""
    scales = queue.Queue()
    for number in range(STEPS):
        scales.put(1 + number)
    return lambda h: h * scales.get(timeout=5), scales.qsize


def trains_an_inner_model(_):
    torch.manual_seed(1)
    inner = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)

    def effect(h):
        optimizer.zero_grad()
        (inner(h.detach()) - h.detach()).square().mean().backward()
        optimizer.step()
        return h + inner(h).detach()

    return effect, lambda: inner.weight.tolist()


def changes_a_tensor_of_its_closure(_):
    average = torch.zeros(8)

    def effect(h):
        average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - average

    return effect, average.tolist


def updates_a_metric(_):
    metric = MeanMetric()

    def effect(h):
        metric.update(h.mean())
        return h / metric.count

    return effect, lambda: (metric.total.item(), metric.count)


def reads_a_registry(_):
    registry = Registry(scale=1)
    return lambda h: h * registry["scale"], lambda: dict.copy(registry)


def reads_a_lazy_mapping(_):
    lazy = LazyMapping()
    return lambda h: h * (1 + lazy[len(lazy.data)]), lambda: lazy.data


def draws_random_numbers(_):
    return lambda h: h * torch.rand(()) + float(np.random.rand()), lambda: float(np.random.rand())  # noqa: NPY002


EFFECTS = [
    changes_an_array,
    appends_to_a_long_list,
    counts_in_another_module,
    takes_from_a_generator,
    takes_from_itertools,
    changes_the_environment,
    appends_to_a_file,
    takes_from_a_queue,
    trains_an_inner_model,
    changes_a_tensor_of_its_closure,
    updates_a_metric,
    reads_a_registry,
    reads_a_lazy_mapping,
    draws_random_numbers,
]


def trained(make_effect, folder, run=None, **options):
    """Losses, weights, the state that the effect leaves behind, and the number of calls."""
    folder.mkdir()
    effect, state = make_effect(folder)
    model, losses = Net(effect), []
    np.random.seed(0)  # noqa: NPY002
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    recorder = None if run is None else gatdiag.watch(model, run, **options)
    for _ in range(STEPS):
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if recorder is not None:
        recorder.finish()
    return losses, [p.tolist() for p in model.parameters()], state(), model.calls


@pytest.mark.parametrize("make_effect", EFFECTS)
def test_a_forward_pass_with_side_effects(tmp_path, make_effect):
    bare = trained(make_effect, tmp_path / "bare")
    watched = trained(make_effect, tmp_path / "watched", tmp_path / "run", metrics="full")
    assert watched == bare
    assert watched[-1] == STEPS
    run = gatdiag.load(tmp_path / "run")
    assert run.steps["loss"].tolist() == pytest.approx(bare[0])
    assert len(run.layers) == 2 * STEPS


def test_laws_are_found_beside_such_state(tmp_path):
    for number, make_effect in enumerate((reads_a_registry, reads_a_lazy_mapping, appends_to_a_file)):
        trained(make_effect, tmp_path / f"files {number}", tmp_path / str(number))
        run = gatdiag.load(tmp_path / str(number))
        assert len(run.laws) == 8
        assert run.neurons["delta"].abs().max() < 1e-6


def test_what_a_forward_pass_says_is_said_once_a_step(tmp_path, capsys, caplog):
    def effect(h):
        print("forward")  # noqa: T201
        warnings.warn("forward", stacklevel=1)
        logging.getLogger("forward").warning("forward")
        return h

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(lambda _: (effect, lambda: None), tmp_path / "files", tmp_path / "run")
    assert capsys.readouterr().out == "forward\n" * STEPS
    assert len([item for item in caught if str(item.message) == "forward"]) == STEPS
    assert len([record for record in caplog.records if record.name == "forward"]) == STEPS


def test_a_forward_pass_that_overwrites_its_batch_has_its_laws(tmp_path):
    """The batch is what it is after the pass, so calling the model with it again would give something else."""

    class Overwriting(Net):
        def forward(self, x):
            out = super().forward(x.clone())
            x.zero_()
            return out

    model = Overwriting(lambda h: h)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(STEPS):
            F.cross_entropy(model(X.clone()), Y).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert len(run.laws) == 8
    assert run.neurons["delta"].abs().max() < 1e-6


def noting(base, names, calls):
    """A subclass that notes each call of these methods."""

    def note(name):
        own = getattr(base, name)

        def method(self, *args, **kwargs):
            calls.append(name)
            return own(self, *args, **kwargs)

        return method

    return type(f"Noting{base.__name__}", (base,), {name: note(name) for name in names})


def shouting_training(run=None):
    """What was called of a model, optimizer, learning rate, inputs and outputs that note it, and what was trained."""
    calls = []
    methods = "named_parameters parameters named_modules modules named_children children named_buffers buffers "
    methods += "__getattr__ __hash__ __repr__ state_dict"
    things = noting(types.SimpleNamespace, ["__getattribute__", "__repr__", "__eq__"], calls)
    pair = noting(tuple, ["__len__", "__iter__", "__getitem__"], calls)
    key = noting(object, ["__repr__", "__str__"], calls)()
    rate = noting(float, ["__float__", "__repr__", "__eq__", "__lt__"], calls)

    class Model(noting(nn.Module, methods.split(), calls)):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last, self.thing = nn.Linear(5, 8), nn.Linear(8, 3), things(x=X)

        @property
        def training(self):
            calls.append("training")
            return True

        @training.setter
        def training(self, mode):
            pass

        @property
        def dropout(self):
            calls.append("dropout")
            raise RuntimeError("nobody asked for it")

        def forward(self, x, thing):
            return {"out": self.last(self.first(x).relu()), key: pair((thing, x))}

    model = Model()
    held = [*nn.Module.parameters(model)]
    Adam = noting(torch.optim.Adam, ["__eq__", "__hash__", "state_dict"], calls)
    Adam.__getattr__ = lambda self, name: calls.append(name) or object.__getattribute__(self, name)
    optimizer = Adam([{"params": held, "lr": rate(0.01)}])
    model(X, things(x=X))["out"].sum().backward()  # the first backward pass and step set up torch
    recorder = None if run is None else gatdiag.watch(model, run, every=1, metrics="full")
    calls.clear()
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(X, things(x=X))["out"], Y).backward()
        optimizer.step()
    found = [*calls]
    if recorder is not None:
        recorder.finish()
    assert len(calls) == len(found)
    return sorted(found), [p.tolist() for p in held]


def test_no_method_of_the_users_is_called(tmp_path):
    assert shouting_training(tmp_path) == shouting_training()
    run = gatdiag.load(tmp_path)
    assert run.steps["learning_rate"].tolist() == [0.01] * STEPS
    assert len(run.layers) == 2 * STEPS
    assert not any("not recorded" in note for note in run.meta["notes"])


def test_a_method_that_draws_random_numbers_draws_none(tmp_path):
    class Drawing(nn.Linear):
        def named_parameters(self, *args, **kwargs):
            torch.rand(1)
            return super().named_parameters(*args, **kwargs)

    def weights(folder):
        torch.manual_seed(0)
        model = Drawing(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with gatdiag.watch(model, folder) if folder else nullcontext():
            for _ in range(2):
                F.dropout(model(X)).square().mean().backward()
                optimizer.step()
        return model.weight.tolist()

    assert weights(tmp_path) == weights(None)


def test_a_property_that_raises_ends_no_training(tmp_path):
    class Model(nn.Sequential):
        @property
        def training(self):
            raise RuntimeError("no mode")

        @training.setter
        def training(self, mode):
            pass

    model = Model(nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gatdiag.watch(model, tmp_path, every=1):
        model(X).square().mean().backward()
        optimizer.step()
    assert len(gatdiag.load(tmp_path).layers) == 1


def equal_to_everything(self, other):
    return torch.ones(2)


def equal_to_nothing(self, other):
    raise RuntimeError("not to be compared")


@pytest.mark.parametrize("compare", [equal_to_everything, equal_to_nothing])
def test_optimizers_are_told_apart_without_comparing_them(tmp_path, compare):
    odd = type("Odd", (torch.optim.SGD,), {"__eq__": compare, "__hash__": None})
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    both = [odd(layer.parameters(), 0.1) for layer in model]
    with gatdiag.watch(model, tmp_path, every=1):
        for _ in range(STEPS):
            model(X).square().mean().backward()
            for optimizer in both:
                optimizer.step()
    run = gatdiag.load(tmp_path)
    assert len(run.steps) == STEPS
    assert len(run.meta["optimizers"]) == 1
    assert not any("not recorded" in note for note in run.meta["notes"])

"""What a script trains is found by its optimizers, each model in a run of its own; the training is as without it."""

import os
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as optimizers

import gatdiag
from gatdiag.script.launch import Launch
from gatdiag.script.process import Process
from gatdiag.script.trainings import Together, Trainings, find_model

X, Y = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 30), nn.ReLU(), nn.Dropout(), nn.Linear(30, 3))


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1))


def reset(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


def steps(model, *optimizers, count=4, loss=lambda model: F.cross_entropy(model(X), Y)):
    losses = []
    for _ in range(count):
        losses.append(loss(model))
        losses[-1].backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [one.item() for one in losses]


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    """Those of this process, until the end of the test."""
    monkeypatch.setattr(optimizers.Optimizer, "__init__", optimizers.Optimizer.__init__)  # to have it back
    process = Process(Launch(str(tmp_path), 1, "fast", [], os.getpid()))
    process.on_import(optimizers)
    process.trainings = found = Trainings(tmp_path, every=1, metrics="fast")
    yield found
    found.end()


@pytest.fixture
def runs(trainings, tmp_path):
    """Ends the trainings; returns the number of steps of each run."""

    def end():
        trainings.end()
        return {path.parent.name: len(gatdiag.load(path.parent).steps) for path in tmp_path.glob("*/meta.json")}

    return end


def test_training_is_that_of_the_bare_loop(trainings, runs, tmp_path):
    def train(seed):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        model = Net()
        losses = steps(model, torch.optim.Adam(model.parameters(), lr=0.01), count=12)
        return losses, [p.tolist() for p in model.parameters()], torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002

    recorded = train(3)
    assert runs() == {"Net": 12}
    assert train(3) == recorded
    assert gatdiag.load(tmp_path / "Net").steps.loss.tolist() == pytest.approx(recorded[0])


def test_two_models_have_a_run_each(trainings, runs, capsys):
    net, critic = Net(), Critic()
    first, second = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(critic.parameters())
    for _ in range(3):
        steps(net, first, count=2)
        steps(critic, second, count=1, loss=lambda critic: critic(net(X).detach()).square().mean())
    assert runs() == {"Net": 6, "Critic": 3}
    assert [line.split()[:3] for line in capsys.readouterr().err.splitlines()] == [
        ["gatdiag:", "recording", "Net"],
        ["gatdiag:", "recording", "Critic"],
    ]


def test_optimizers_of_parts_share_the_run_of_the_whole(trainings, runs):
    whole = nn.Sequential(Net(), Critic())
    parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in whole]
    steps(whole, *parts, loss=lambda whole: whole(X).square().mean())
    assert runs() == {"Sequential": 4}


def test_models_of_one_optimizer_are_recorded_together(trainings, runs, tmp_path):
    net, critic, other = Net(), Critic(), Critic()
    optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters(), *other.parameters()], lr=0.1)
    steps(None, optimizer, loss=lambda _: (critic(net(X)) + other(net(X))).square().mean())
    assert runs() == {"Net-Critic": 4}
    layers = set(gatdiag.load(tmp_path / "Net-Critic").layers.layer)
    assert layers == {"Net.0", "Net.3", "Critic.0", "Critic.2", "Critic_2.0", "Critic_2.2"}


def test_models_together_train_as_long_as_one_does():
    models = Net(), Critic()
    together = Together(models)
    models[0].eval()
    assert together.training
    models[1].eval()
    assert not together.training
    assert all(not model.training for model in models)


def test_the_model_is_the_smallest_whole_that_holds_all_parameters():
    net = Net()
    held = [id(parameter) for parameter in net.parameters()]
    assert find_model(held[:1]) is net
    wrapper = nn.ModuleList([net, Critic()])
    assert find_model(held) is wrapper
    assert find_model([id(torch.zeros(1))]) is None


def test_the_next_trial_ends_the_last_one(trainings, runs, tmp_path):
    for trial in range(3):
        model = Net()
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1), count=2 + trial)
    assert runs() == {"Net": 2, "Net-2": 3, "Net-3": 4}
    assert {gatdiag.load(tmp_path / name).status for name in ("Net", "Net-2")} == {"finished"}


def test_weights_that_are_initialized_again_begin_another_run(trainings, runs, tmp_path):
    model = Net()
    for _ in range(2):
        reset(model)
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert runs() == {"Net": 4, "Net-2": 4}
    assert gatdiag.load(tmp_path / "Net").snapshot("final") is None  # those are the weights of the next one
    assert gatdiag.load(tmp_path / "Net-2").snapshot("final") is not None


def test_an_optimizer_made_at_each_step_stays_in_its_run(trainings, runs):
    model = Net()
    for _ in range(4):
        steps(model, torch.optim.Adam(model.parameters(), lr=0.05), count=1)
    assert runs() == {"Net": 4}


def test_an_optimizer_without_steps_leaves_nothing(trainings, runs, tmp_path, recwarn):
    model = Net()
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert runs() == {}
    assert [*tmp_path.iterdir()] == []
    assert "no optimizer of a model has made a step" in trainings.missing
    assert not recwarn.list


def test_tensors_of_no_module_are_named_as_the_reason(trainings, runs):
    image = torch.zeros(3, requires_grad=True)
    steps(image, torch.optim.SGD([image], lr=0.1), loss=lambda image: image.square().sum())
    assert runs() == {}
    assert trainings.missing == "SGD holds parameters of no torch.nn.Module"


def test_a_script_may_record_itself(trainings, runs, tmp_path, recwarn):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "own", metrics="fast"):
        steps(model, optimizer)
    assert "records its training itself" in trainings.missing
    assert runs() == {"own": 4}
    assert not recwarn.list


def test_a_lazy_model_is_recorded(trainings, runs):
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert runs() == {"Sequential": 4}


def test_what_cannot_be_recorded_is_one_line(trainings, runs, tmp_path, capsys):
    (tmp_path / "Net").write_text("in the way")
    model = Net()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gatdiag: not recorded: the model of SGD")
    assert runs() == {}


def test_an_interrupt_is_noted(trainings, tmp_path):
    model = Net()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    trainings.end(KeyboardInterrupt())
    assert gatdiag.load(tmp_path / "Net").status != "finished"


def test_a_model_that_was_trained_with_another_is_found_alone(trainings, runs):
    net, critic = Net(), Critic()
    both = torch.optim.SGD([*net.parameters(), *critic.parameters()], lr=0.1)
    steps(None, both, loss=lambda _: critic(net(X)).square().mean())
    assert find_model([id(parameter) for parameter in net.parameters()]) is net


def test_a_scripted_model_is_found():
    net = torch.jit.script(Net())
    assert find_model([id(parameter) for parameter in net.parameters()]) is net


def test_trials_of_several_sizes_do_not_all_stay_open(trainings, runs):
    for width in range(1, 12):
        model = nn.Sequential(nn.Linear(5, width), nn.Linear(width, 3))
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1), count=1)
    assert len(trainings._running) <= 8
    assert len(runs()) == 11


class Part(nn.Module):
    """Holds the whole that it is a part of."""

    def __init__(self, whole):
        super().__init__()
        self.whole, self.last = whole, nn.Linear(30, 3)

    def forward(self, x):
        return self.last(self.whole.first(x).relu())


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 30)
        self.part = Part(self)

    def forward(self, x):
        return self.part(x)


def test_a_part_that_holds_its_whole_is_recorded_in_the_run_of_the_whole(trainings, runs):
    model = Whole()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert runs() == {"Whole": 4}
    outer = nn.Sequential(model)
    assert find_model([id(parameter) for parameter in model.parameters()]) is outer


class Layer(nn.Module):
    """Holds the model that it is a layer of."""

    def __init__(self, model):
        super().__init__()
        self.linear, self.model = nn.Linear(5, 5), model

    def forward(self, x):
        return self.linear(x).relu()


class Model(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.Sequential()
        for _ in range(depth):
            self.layers.append(Layer(self))

    def forward(self, x):
        return self.layers(x)


class Trainer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        model.trainer = self


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))

    def forward(self, x):
        return self.net(x)


def ring(*parts):
    for part, other in zip(parts, [*parts[1:], parts[0]], strict=True):
        part.other = other
    return parts


def trained(model):
    Trainer(model)
    return model


CIRCLES = {
    "one layer": lambda: Model(1),
    "three layers": lambda: Model(3),
    "trainer": lambda: trained(Coder()),
    "first of two": lambda: ring(Coder(), Coder())[0],
    "second of two": lambda: ring(Coder(), Coder())[1],
    "three": lambda: ring(Coder(), Coder(), Coder())[0],
}


@pytest.mark.parametrize("make", CIRCLES.values(), ids=CIRCLES)
def test_of_modules_that_hold_each_other_the_whole_is_recorded(trainings, runs, tmp_path, capsys, make):
    def train():
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = steps(model, optimizer, loss=lambda model: model(X).square().mean())
        return model, (losses, [parameter.tolist() for parameter in model.parameters()])

    model, recorded = train()
    name = type(model).__name__
    assert runs() == {name: 4}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gatdiag: recording {name} in ")
    written = gatdiag.load(tmp_path / name).parameters.parameter.unique()
    assert sorted(written) == sorted(name for name, _ in model.named_parameters())
    assert train()[1] == recorded
    assert find_model([id(parameter) for parameter in model.parameters()]) is model


@pytest.mark.parametrize("depth", [1, 3])
def test_a_parameter_of_a_layer_that_holds_its_model_leads_to_the_model(depth):
    model = Model(depth)
    assert all(find_model([id(parameter)]) is model for parameter in model.parameters())

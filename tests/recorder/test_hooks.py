import copy

import torch
from torch import nn
from torch.nn import functional as F

from gatdiag.recorder.hooks import Hooks, first_tensor, in_backward_pass


class Listener:
    """Writes every event down."""

    def __init__(self):
        self.events = []

    def on_forward_begins(self):
        self.events.append("begin")

    def on_call(self, layer, module):
        self.events.append(("call", layer))

    def on_output(self, layer, inputs, output):
        self.events.append(("output", layer, len(inputs), output is None))
        assert output is None or not output.requires_grad
        return len(self.events)

    def on_gradient(self, layer, number, gradient):
        assert self.events[number - 1][:2] == ("output", layer)
        self.events.append(("gradient", layer, tuple(gradient.shape), in_backward_pass()))

    def on_forward(self, args, kwargs, output):
        self.events.append(("forward", len(args), sorted(kwargs)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, scale=1.0):
        return self.b(F.relu(self.a(x))) * scale


def listening(model):
    listener = Listener()
    hooks = Hooks(model, listener)
    hooks.listen_to({name: module for name, module in model.named_modules() if name})
    hooks.attach()
    return listener, hooks


def test_events_come_in_order():
    model = Model()
    listener, hooks = listening(model)
    model(torch.ones(5, 3), scale=2.0).sum().backward()
    hooks.remove()
    assert listener.events == [
        "begin",
        ("call", "a"),
        ("output", "a", 1, False),
        ("call", "b"),
        ("output", "b", 1, False),
        ("forward", 1, ["scale"]),
        ("gradient", "b", (5, 2), True),
        ("gradient", "a", (5, 4), True),
    ]
    assert not in_backward_pass()


def test_without_gradients_and_for_copies_there_is_silence():
    model = Model()
    listener, hooks = listening(model)
    with torch.no_grad():
        model(torch.ones(5, 3))
    with torch.inference_mode():
        model(torch.ones(5, 3))
    copy.deepcopy(model)(torch.ones(5, 3)).sum().backward()
    hooks.remove()
    assert listener.events == []


def test_a_layer_that_fails_is_told_of(tmp_path):
    model = Model()
    listener, hooks = listening(model)
    try:
        model(torch.ones(5, 7))
    except RuntimeError:
        listener.events.append("raised")
    hooks.remove()
    assert listener.events == ["begin", ("call", "a"), ("output", "a", 1, True), "raised"]


def test_after_removal_there_is_silence_even_from_a_graph_that_is_alive():
    model = Model()
    listener, hooks = listening(model)
    hooks.attach()
    out = model(torch.ones(5, 3))
    hooks.remove()
    hooks.remove()
    listener.events.clear()
    out.sum().backward()
    model(torch.ones(5, 3)).sum().backward()
    assert listener.events == []
    assert not hooks.attached


def test_the_first_floating_tensor_of_an_output():
    x, integers = torch.ones(2), torch.ones(2, dtype=torch.int64)
    assert first_tensor(x) is x
    assert first_tensor((integers, [None, {"a": x}])) is x
    assert first_tensor(integers) is None
    assert first_tensor("text") is None

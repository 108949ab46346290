"""Laws are those of the forward pass; training that uses parameters in other ways disobeys them, and is told so."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.recorder import RecordingWarning
from tests.recorder.loops import Gat, graph, loss_of

MODEL_HAS = 12


def recorded(folder, loss_of=loss_of, change=lambda model: None, make=Gat, steps=3):
    torch.manual_seed(0)
    model, data = make(), graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, folder):
        for _ in range(steps):
            loss_of(model, data).backward()
            change(model)
            optimizer.step()
            optimizer.zero_grad()
    return gatdiag.load(folder)


def with_a_penalty_on_all(model, data):
    return loss_of(model, data) + 0.01 * sum(p.abs().sum() for p in model.parameters())


def with_a_penalty_on_the_last(model, data):
    return loss_of(model, data) + 0.1 * model.convs[2].lin_l.weight.square().sum()


def with_a_second_use(model, data):
    return loss_of(model, data) + F.linear(data.x, model.convs[0].lin_l.weight).square().mean()


def with_a_reversed_gradient(model, data):
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return -gradient

    handle = model.convs[1].register_forward_hook(lambda module, args, out: Reversed.apply(out))
    try:
        return loss_of(model, data)
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("loss_of", "left"),
    [
        (with_a_penalty_on_all, 0),
        (with_a_penalty_on_the_last, 6),  # those of the first layer
        (with_a_second_use, 6),
        (with_a_reversed_gradient, 6 + 2),  # two units are dead behind it, and their laws hold
    ],
)
def test_laws_that_training_disobeys_are_not_recorded(tmp_path, loss_of, left):
    with pytest.warns(RecordingWarning, match="conservation laws are not recorded: delta is up to .* of its terms"):
        run = recorded(tmp_path / "run", loss_of)
    assert len(run.laws) == left
    assert len(run.neurons) == 3 * left
    assert not left or run.neurons.delta.abs().max() < 1e-6
    dropped = [item["what"] for item in run.meta["laws"]["excluded"] if "of its terms in training" in item["reason"]]
    assert len(dropped) == MODEL_HAS - left


@pytest.mark.parametrize(
    "change",
    [
        lambda model: nn.utils.clip_grad_value_(model.parameters(), 1e-3),
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        lambda model: [p.grad.add_(torch.randn_like(p)) for p in model.parameters()],
    ],
)
def test_gradients_that_are_changed_after_the_backward_pass_say_nothing_about_laws(tmp_path, change):
    run = recorded(tmp_path / "run", change=change)
    assert len(run.laws) == MODEL_HAS
    assert not run.meta["notes"]


def test_parameters_without_a_gradient_say_nothing_either(tmp_path):
    torch.manual_seed(0)
    model, data = Gat(), graph()
    half = list(model.convs[1].parameters())
    optimizer = torch.optim.SGD(half, lr=0.1)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(2):
            loss_of(model, data).backward(inputs=half)
            optimizer.step()
            optimizer.zero_grad()
    assert len(gatdiag.load(tmp_path / "run").laws) == MODEL_HAS


def test_rounding_in_low_precision_disproves_nothing(tmp_path):
    def loss_in_bfloat16(model, data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(model, data)

    run = recorded(tmp_path / "run", loss_in_bfloat16)
    assert len(run.laws) == MODEL_HAS
    assert run.neurons.delta.abs().max() > 1e-6

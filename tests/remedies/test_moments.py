import copy

import pytest
import torch
from torch import optim

from gatdiag.errors import OptimizerError
from gatdiag.remedies.moments import POWERS, rescale_moments_, state_powers

TINY = 1e-60  # epsilons break the symmetry
# What the next step of the rescaled weights is, as a power of s times the step there would have been.
STEPS = {
    "sgd": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3), -1),
    "sgd, nesterov": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), -1),
    "sgd without momentum": (lambda p: optim.SGD(p, lr=0.1), -1),
    "asgd": (lambda p: optim.ASGD(p, lr=0.1, lambd=0.0, t0=2), -1),
    "adam": (lambda p: optim.Adam(p, lr=0.1, eps=TINY), 0),
    "adam, amsgrad": (lambda p: optim.Adam(p, lr=0.1, eps=TINY, amsgrad=True), 0),
    "adam, fused": (lambda p: optim.Adam(p, lr=0.1, eps=TINY, fused=True), 0),
    "adamw": (lambda p: optim.AdamW(p, lr=0.1, eps=TINY, weight_decay=0.0), 0),
    "nadam": (lambda p: optim.NAdam(p, lr=0.1, eps=TINY), 0),
    "radam": (lambda p: optim.RAdam(p, lr=0.1, eps=TINY), 0),
    "adamax": (lambda p: optim.Adamax(p, lr=0.1, eps=TINY), 0),
    "adagrad": (lambda p: optim.Adagrad(p, lr=0.1, eps=TINY), 0),
    "rmsprop": (lambda p: optim.RMSprop(p, lr=0.1, eps=TINY), 0),
    "rmsprop, centered": (lambda p: optim.RMSprop(p, lr=0.1, eps=TINY, momentum=0.9, centered=True), 0),
    "rprop": (lambda p: optim.Rprop(p, lr=0.1), 1),
}
FACTOR = torch.tensor([[0.02], [1.0], [30.0]], dtype=torch.float64)


def warmed_up(make, steps=12, factor=1.0):
    """A weight times a factor, its optimizer after some gradients divided by it, and the next gradient."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 4, generator=generator, dtype=torch.float64) * factor)
    optimizer = make([weight])
    for _ in range(steps):
        weight.grad = torch.randn(3, 4, generator=generator, dtype=torch.float64) / factor
        optimizer.step()
    return weight, optimizer, torch.randn(3, 4, generator=generator, dtype=torch.float64) / factor


def twin_of(weight, optimizer, make):
    """The rescaled weight, with an optimizer that remembers what the other one does."""
    twin = torch.nn.Parameter(weight.detach() * FACTOR)
    follower = make([twin])
    follower.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return twin, follower


def step(weight, optimizer, gradient):
    before = weight.detach().clone()
    weight.grad = gradient
    optimizer.step()
    return weight.detach() - before


@pytest.mark.parametrize("name", STEPS)
def test_the_next_step_is_what_is_promised(name):
    make, power = STEPS[name]
    weight, optimizer, gradient = warmed_up(make)
    twin, follower = twin_of(weight, optimizer, make)
    rescale_moments_(follower.state[twin], FACTOR, state_powers(follower))
    taken, expected = step(twin, follower, gradient / FACTOR), step(weight, optimizer, gradient) * FACTOR**power
    torch.testing.assert_close(taken, expected, rtol=1e-10, atol=0)


def test_adadelta_goes_on_along_the_same_functions():
    def make(weights):
        return optim.Adadelta(weights, eps=1e-12)

    weight, optimizer, gradient = warmed_up(make, steps=40)
    for state in optimizer.state.values():
        state["acc_delta"].add_(1.0)  # epsilon, which starts Adadelta, no longer counts
    twin, follower = twin_of(weight, optimizer, make)
    rescale_moments_(follower.state[twin], FACTOR, state_powers(follower))
    taken, expected = step(twin, follower, gradient / FACTOR), step(weight, optimizer, gradient) * FACTOR
    torch.testing.assert_close(taken, expected, rtol=1e-6, atol=0)


def test_every_tensor_that_a_known_optimizer_keeps_for_each_weight_is_in_the_table():
    made = {
        kind: kind(weights) if kind is not optim.SGD else kind(weights, momentum=0.9)
        for kind in POWERS
        for weights in [[torch.nn.Parameter(torch.ones(3, 2))]]
    }
    for kind, optimizer in made.items():
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = torch.ones(3, 2)
        optimizer.step()
        held = {key for key, value in optimizer.state[weight].items() if getattr(value, "shape", ()) == (3, 2)}
        assert held <= set(POWERS[kind]), kind.__name__
        assert held


class Mine(optim.SGD):
    pass


@pytest.mark.parametrize("kind", [optim.LBFGS, optim.Adafactor, Mine])
def test_other_optimizers_are_refused_with_the_way_out(kind):
    with pytest.raises(OptimizerError, match=rf"got {kind.__name__}.*create a new one"):
        state_powers(kind([torch.nn.Parameter(torch.ones(2))]))

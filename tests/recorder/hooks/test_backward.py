"""The loss that `backward()` is called on: as the loop computes it, or absent."""

import math
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gatdiag
from tests.recorder.loops import sgd

X = torch.randn(4, 12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def error(model, batch=0):
    return F.cross_entropy(model(X[batch]), Y)


def backward(loss, **options):
    loss.backward(**options)
    return loss.item()


def of_two_losses(model):
    out = model(X[0])
    return backward(F.cross_entropy(out, Y), retain_graph=True) + backward(out.square().mean())


def of_a_list(model):
    out = model(X[0])
    losses = [F.cross_entropy(out, Y), out.square().mean()]
    torch.autograd.backward(losses)
    return sum(loss.item() for loss in losses)


def twice(model):
    loss = error(model)
    return backward(loss, retain_graph=True) + backward(loss)


def with_a_gradient_penalty(model):
    x = X[0].clone().requires_grad_()
    out = model(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return backward(F.cross_entropy(out, Y) + gradient.norm())


def by_a_gradient_of_its_own(model):
    error(model).backward(gradient=torch.tensor(0.5))
    return math.nan


def without_backward(model):
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(error(model), [*model.parameters()]), strict=True
    ):
        parameter.grad = gradient
    return math.nan


def penalty(model):
    return 0.01 * sum(parameter.square().sum() for parameter in model.parameters())


def beside_a_penalty(model):
    backward(error(model))
    backward(penalty(model))
    return math.nan  # which goes through no output


def after_a_penalty(model):
    backward(penalty(model))
    backward(error(model))
    return math.nan


def beside_a_gradient_of_its_own(model):
    backward(error(model))
    error(model, 1).backward(gradient=torch.tensor(0.5))
    return math.nan


def with_clipping(model):
    loss = backward(error(model))
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return loss


def in_another_thread(model):
    loss = error(model)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    return loss.item()


def of_batches_that_are_accumulated(model):
    return sum(backward(error(model, batch) / 4) for batch in range(4))


def of_a_try_that_is_cleared(model):
    error(model, 1).backward()
    model.zero_grad()
    return backward(error(model))


def through_checkpoints(layers):
    def evaluate(model):
        x = X[0].clone().requires_grad_()
        for number, layer in enumerate(model):
            x = checkpoint(layer, x, use_reentrant=True) if number in layers else layer(x)
        return backward(F.cross_entropy(x, Y))

    return evaluate


LOSSES = {
    "plain": lambda model: backward(error(model)),
    "two losses": of_two_losses,
    "a list": of_a_list,
    "twice": twice,
    "a gradient penalty": with_a_gradient_penalty,
    "a gradient of its own": by_a_gradient_of_its_own,
    "no backward": without_backward,
    "beside a penalty": beside_a_penalty,
    "after a penalty": after_a_penalty,
    "beside a gradient of its own": beside_a_gradient_of_its_own,
    "clipping": with_clipping,
    "another thread": in_another_thread,
    "accumulated": of_batches_that_are_accumulated,
    "a try": of_a_try_that_is_cleared,
    "two checkpoints at the start": through_checkpoints((0, 1)),
    "two checkpoints at the end": through_checkpoints((1, 2)),
    "only checkpoints": through_checkpoints((0, 1, 2)),
}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_is_what_backward_was_called_on(tmp_path, kind, every):
    model, expected = mlp(), []
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=every, laws=False):
        for _ in range(5):
            optimizer.zero_grad()
            expected.append(LOSSES[kind](model))
            optimizer.step()
    steps = gatdiag.load(tmp_path / "run").steps
    found = steps["loss"][steps.step % every == 0].tolist() if "loss" in steps else [math.nan] * len(expected[::every])
    assert found == pytest.approx(expected[::every], nan_ok=True)


def scale_in_place(gradient):
    return gradient.mul_(0.9)


def scale(gradient):
    return 0.9 * gradient


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("change", [scale_in_place, scale, torch.randn_like])
@pytest.mark.parametrize("kind", ["plain", "accumulated", "clipping", "beside a penalty", "after a penalty"])
def test_the_loss_is_known_though_the_loop_changes_gradients_and_keeps_them(tmp_path, kind, change, every):
    """As momentum by hand does, or noise. A penalty on the weights is a part that was not seen nevertheless."""
    model, expected = mlp(), []
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=every, laws=False, warn=False):
        for _ in range(5):
            expected.append(LOSSES[kind](model))
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = change(parameter.grad)
    steps = gatdiag.load(tmp_path / "run").steps
    found = steps["loss"][steps.step % every == 0].tolist() if "loss" in steps else [math.nan] * len(expected[::every])
    assert found == pytest.approx(expected[::every], nan_ok=True)


def test_two_models_that_are_trained_in_turn_have_losses_of_their_own(tmp_path):
    torch.manual_seed(0)
    makes, judges = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizers, expected = [sgd(makes), sgd(judges)], ([], [])
    with (
        gatdiag.watch(makes, tmp_path / "0", every=1, laws=False, warn=False),
        gatdiag.watch(judges, tmp_path / "1", every=1, laws=False, warn=False),
    ):
        for _ in range(5):
            optimizers[1].zero_grad()
            expected[1].append(backward(judges(X[0]).mean() - judges(makes(X[1]).detach()).mean()))
            optimizers[1].step()
            optimizers[0].zero_grad()
            expected[0].append(backward(judges(makes(X[1])).mean()))
            optimizers[0].step()
    for number, losses in enumerate(expected):
        assert gatdiag.load(tmp_path / str(number)).steps["loss"].tolist() == pytest.approx(losses), number

import pytest
import torch
from torch import nn

from gatdiag.errors import InputError
from gatdiag.remedies.loss_gradients import gradients_of

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def found(model, loss, *args, **kwargs):
    return gradients_of(model, dict(model.named_parameters()), loss, args, kwargs)


def test_gradients_are_those_of_a_backward_pass(model):
    model.eval()
    gradients = found(model, lambda output: output.square().mean(), X)
    assert all(parameter.grad is None for parameter in model.parameters())
    model(X).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_the_mode_counts_and_the_random_state_stays(model):
    state = torch.get_rng_state()
    gradients = found(model, lambda output: (output + torch.rand_like(output)).square().sum() * 0 + output.sum(), X)
    assert torch.equal(torch.get_rng_state(), state)
    model(X).sum().backward()  # the same dropout
    assert model.training
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_without_a_loss_those_that_are_there_are_used(model):
    model(X).sum().backward()
    model[0].bias.grad = None
    gradients = found(model, None, X)
    assert set(gradients) == {"0.weight", "2.weight", "2.bias"}
    assert gradients["2.bias"] is model[2].bias.grad


def test_gradients_are_found_where_recording_is_off(model):
    with torch.no_grad():
        assert found(model, torch.sum, X)["0.weight"].any()


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x), self.idle(x)


def test_what_the_loss_does_not_depend_on_is_left_out():
    assert set(found(Idle(), lambda outputs: outputs[0].sum(), X)) == {"used.weight", "used.bias"}


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (None, r"got a model without.*loss="),
        (lambda output: output, r"got a tensor of shape \[6, 2\]"),
        (lambda output: output.sum().detach(), r"shape \[\] without a gradient"),
        (lambda output: 1.0, r"got float"),
    ],
)
def test_what_is_no_loss_is_refused(model, loss, message):
    with pytest.raises(InputError, match=message):
        found(model, loss, X)

"""Gradients of a random loss, whatever stands in the way of a backward pass, against autograd's own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint

from gatdiag.laws.point import random_loss_gradients
from gatdiag.structure.replica import Replica, replicate


class Segmented(nn.Module):
    """A segment that is checkpointed, with layers on both sides."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.enter, self.within, self.leave = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).tanh()
        if self.kind != "plain":
            h = checkpoint(self.segment, h, use_reentrant=self.kind == "reentrant")
        else:
            h = self.segment(h)
        return self.leave(h)

    def segment(self, h: Tensor) -> Tensor:
        return self.within(h).tanh()


def replica(kind: str) -> Replica:
    torch.manual_seed(0)
    return replicate(Segmented(kind), (torch.randn(5, 3),)).to(torch.float64)


@pytest.mark.parametrize("kind", ["plain", "reentrant", "recomputed"])
def test_gradients_are_those_of_a_linear_loss_whose_coefficients_are_nudged(kind: str) -> None:
    run = replica(kind)
    first, second = random_loss_gradients(run, [0.0, 1e-3])

    plain = replica("plain")
    output = plain.run()
    slopes = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=output.dtype)
    (output * slopes).sum().backward()
    for name, parameter in plain.parameters.items():
        assert parameter.grad is not None
        torch.testing.assert_close(first[name], parameter.grad)
        change = (second[name] - first[name]).norm() / first[name].norm()
        assert 1e-5 < change < 1e-2
    assert all(parameter.grad is None for parameter in run.parameters.values())


@pytest.mark.parametrize("kind", ["plain", "reentrant", "recomputed"])
def test_gradients_of_some_parameters_are_those_among_the_gradients_of_all(kind: str) -> None:
    run = replica(kind)
    names = list(run.parameters)[::2]
    (every,) = random_loss_gradients(run)
    for found in random_loss_gradients(run, [0.0, 0.0], names=names):
        assert list(found) == names
        assert all(torch.equal(found[name], every[name]) for name in names)
    assert all(parameter.grad is None for parameter in run.parameters.values())


@pytest.mark.parametrize("kind", ["plain", "reentrant", "recomputed"])
def test_further_tensors_count_once_however_often_the_pass_is_begun(kind: str) -> None:
    """What the run adds belongs to the loss; what an earlier run left behind, or a recomputation adds, does not."""
    run = replica(kind)
    also: list[Tensor] = [torch.ones(3, dtype=torch.float64, requires_grad=True)]

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if module is run.model:
            also.append(args[0].sum() * run.parameters["enter.bias"].sum())

    handle = register_module_forward_pre_hook(note)
    (found,) = random_loss_gradients(run, extra_outputs=also)
    handle.remove()

    assert len(also) == 1
    plain = replica("plain")
    (alone,) = random_loss_gradients(plain)
    generator = torch.Generator().manual_seed(1)
    torch.randn(plain.run().shape, generator=generator, dtype=torch.float64)
    slope = torch.randn((), generator=generator, dtype=torch.float64)
    expected = alone["enter.bias"] + slope * run.args[0].sum()
    torch.testing.assert_close(found["enter.bias"], expected)

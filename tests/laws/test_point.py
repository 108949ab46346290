"""Gradients of a random loss, whatever stands in the way of a backward pass, against autograd's own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gatdiag.laws import point
from gatdiag.laws.point import flipped, gradients, place, spilled
from gatdiag.structure.replica import Replica, replicate
from tests.laws.models.graph import IN, OUT, Stack, edges, features


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
    first, second = gradients(run, dict(run.parameters), [0.0, 1e-3])

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
def test_further_tensors_count_once_however_often_the_pass_is_begun(kind: str) -> None:
    """What the run adds belongs to the loss; what an earlier run left behind, or a recomputation adds, does not."""
    run = replica(kind)
    also: list[Tensor] = [torch.ones(3, dtype=torch.float64, requires_grad=True)]
    forward = run.model.forward

    def noting(x: Tensor) -> Tensor:
        also.append(x.sum() * run.parameters["enter.bias"].sum())
        return forward(x)  # type: ignore[no-any-return]

    run.model.forward = noting  # type: ignore[method-assign]
    (found,) = gradients(run, dict(run.parameters), also=also)

    assert len(also) == 1
    plain = replica("plain")
    (alone,) = gradients(plain, dict(plain.parameters))
    generator = torch.Generator().manual_seed(1)
    torch.randn(plain.run().shape, generator=generator, dtype=torch.float64)
    slope = torch.randn((), generator=generator, dtype=torch.float64)
    expected = alone["enter.bias"] + slope * run.args[0].sum()
    torch.testing.assert_close(found["enter.bias"], expected)


def test_a_replica_is_moved_and_signs_are_flipped() -> None:
    run = replica("plain")
    before = run.parameters["within.weight"].detach().clone()
    place(run, {"within.weight": flipped(before, torch.Generator().manual_seed(0))})

    after = run.parameters["within.weight"].detach()
    assert torch.equal(after.abs(), before.abs())
    assert 0 < int((after != before).sum()) < before.numel()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.dtype]]:
    """Everything is spilled; the types of what was."""
    monkeypatch.setattr(point, "_IN_MEMORY", 0)
    monkeypatch.setattr(point, "_WORTH_WRITING", 0)
    seen: list[torch.dtype] = []
    write = point._write

    def noted(*arguments: Any) -> object:
        seen.extend(argument.dtype for argument in arguments if isinstance(argument, Tensor))
        return write(*arguments)

    monkeypatch.setattr(point, "_write", noted)
    return seen


def slopes(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(0)
    model(*inputs).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_gradients_are_bitwise_equal(written: list[torch.dtype], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4, dtype=dtype)
    inputs = torch.randn(5, 3, dtype=dtype).mul_(2)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = model

        def forward(self, x: Tensor) -> Tensor:
            out = self.inside(x)
            return (out * out).abs()

    plain = slopes(Twice(), inputs)
    with spilled():
        from_file = slopes(Twice(), inputs)

    assert all(map(torch.equal, plain, from_file))
    assert bool(written) == (dtype is not torch.bfloat16)


def test_a_graph_network_with_dropout_and_indices(written: list[torch.dtype]) -> None:
    torch.manual_seed(0)
    model = Stack(gnn.GATv2Conv(IN, 3, heads=2, dropout=0.5), gnn.GCNConv(6, 4), nn.Linear(4, OUT)).double()
    x = features().double()

    class Run(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = model

        def forward(self, x: Tensor) -> Tensor:
            first, second, third = self.inside.layers
            return third(F.dropout(second(first(x, edges()).relu(), edges()).t().t().amax(0), 0.5))

    plain = slopes(Run(), x)
    with spilled():
        from_file = slopes(Run(), x)

    assert all(map(torch.equal, plain, from_file))
    assert {torch.float64, torch.int64} <= set(written)


def test_a_graph_that_is_kept_can_be_gone_through_twice(written: list[torch.dtype]) -> None:
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    with spilled():
        loss = (weight @ weight).square().sum()
        first = torch.autograd.grad(loss, weight, retain_graph=True)
        second = torch.autograd.grad(loss, weight)

    assert torch.equal(first[0], second[0])
    assert written


def test_what_fits_stays_in_memory(written: list[torch.dtype], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point, "_IN_MEMORY", 2**20)
    gradient = slopes(nn.Linear(3, 4), torch.randn(5, 3))

    assert written == []
    assert gradient


def test_scalars_and_empty_tensors_come_back(written: list[torch.dtype]) -> None:
    for shape in ((), (0, 3), (1,)):
        weight = torch.full(shape, 2.0, dtype=torch.float64).requires_grad_()
        with spilled():
            (weight.exp() * weight).sum().backward()
        expected = (1 + 2.0) * torch.full(shape, 2.0, dtype=torch.float64).exp()
        torch.testing.assert_close(weight.grad, expected)
    assert written


def test_a_conjugate_view_comes_back(written: list[torch.dtype]) -> None:
    weight = torch.randn(3, dtype=torch.complex64, requires_grad=True)

    def gradient() -> Tensor:
        return torch.autograd.grad(((weight * 2).conj() * (weight * 3)).abs().sum(), weight)[0]

    plain = gradient()
    with spilled():
        assert torch.equal(gradient(), plain)
    assert written

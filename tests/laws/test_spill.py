"""Gradients are bit for bit the same when what autograd saves goes to a file."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.laws import spill
from tests.laws.models.graph import IN, OUT, Stack, edges, features


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.dtype]]:
    """Everything is spilled; the types of what was."""
    monkeypatch.setattr(spill, "_IN_MEMORY", 0)
    monkeypatch.setattr(spill, "_WORTH_WRITING", 0)
    seen: list[torch.dtype] = []
    write = spill._write

    def noted(*arguments: Any) -> object:
        seen.extend(argument.dtype for argument in arguments if isinstance(argument, Tensor))
        return write(*arguments)

    monkeypatch.setattr(spill, "_write", noted)
    return seen


def gradients(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
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

    plain = gradients(Twice(), inputs)
    with spill.spilled():
        spilled = gradients(Twice(), inputs)

    assert all(map(torch.equal, plain, spilled))
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

    plain = gradients(Run(), x)
    with spill.spilled():
        spilled = gradients(Run(), x)

    assert all(map(torch.equal, plain, spilled))
    assert {torch.float64, torch.int64} <= set(written)


def test_a_graph_that_is_kept_can_be_gone_through_twice(written: list[torch.dtype]) -> None:
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    with spill.spilled():
        loss = (weight @ weight).square().sum()
        first = torch.autograd.grad(loss, weight, retain_graph=True)
        second = torch.autograd.grad(loss, weight)

    assert torch.equal(first[0], second[0])
    assert written


def test_what_fits_stays_in_memory(written: list[torch.dtype], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_IN_MEMORY", 2**20)
    gradient = gradients(nn.Linear(3, 4), torch.randn(5, 3))

    assert written == []
    assert gradient


def test_scalars_and_empty_tensors_come_back(written: list[torch.dtype]) -> None:
    for shape in ((), (0, 3), (1,)):
        weight = torch.full(shape, 2.0, dtype=torch.float64).requires_grad_()
        with spill.spilled():
            (weight.exp() * weight).sum().backward()
        expected = (1 + 2.0) * torch.full(shape, 2.0, dtype=torch.float64).exp()
        torch.testing.assert_close(weight.grad, expected)
    assert written


def test_a_conjugate_view_comes_back(written: list[torch.dtype]) -> None:
    weight = torch.randn(3, dtype=torch.complex64, requires_grad=True)

    def gradient() -> Tensor:
        return torch.autograd.grad(((weight * 2).conj() * (weight * 3)).abs().sum(), weight)[0]

    plain = gradient()
    with spill.spilled():
        assert torch.equal(gradient(), plain)
    assert written

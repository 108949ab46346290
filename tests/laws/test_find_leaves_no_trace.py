"""Finding laws changes nothing about the model, its inputs or the process, also when the forward pass raises."""

import copy
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.errors import ModelError, TimeLimitError
from gatdiag.laws import find_laws
from gatdiag.structure import deadline
from gatdiag.structure.deadline import time_limit
from tests.laws.models.graph import HID, IN, OUT, edges, features


class Careless(nn.Module):
    """Caches, draws random numbers of every kind, keeps what it saw, writes on its inputs, and may fail."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(IN, HID, cached=True)
        self.norm = nn.BatchNorm1d(HID)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.ones(HID), requires_grad=False)
        self.out = gnn.GATv2Conv(HID, OUT)
        self.fails = fails
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x.mul_(2)
        hidden = self.drop(F.relu(self.norm(self.conv(x, edge_index)))) * self.frozen
        self.seen.append(hidden)
        self.last = hidden
        noise = random.sample([0.5, 1.5], 1)[0] + torch.randn(())
        out = self.out(hidden, edge_index)
        if self.fails:
            random.random()
            np.random.rand()  # noqa: NPY002
            raise RuntimeError("out of luck")
        return out + noise


def process_state() -> dict[str, Any]:
    """What a forward pass or an analysis could change outside the model."""
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1],  # noqa: NPY002
        "python": random.getstate(),
        "default": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "global hooks": [
            len(hooks)
            for name, hooks in vars(nn.modules.module).items()
            if name.startswith("_global") and isinstance(hooks, dict)
        ],
    }


def model_state(model: Careless) -> dict[str, Any]:
    return {
        "tensors": {name: (id(t), t._version, t.clone()) for name, t in _tensors(model)},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "asks": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            name: [dict(value) for key, value in vars(module).items() if "hooks" in key]
            for name, module in model.named_modules()
        },
        "tensor hooks": {name: dict(p._backward_hooks or {}) for name, p in model.named_parameters()},
        "seen": len(model.seen),
        "cached": model.conv._cached_edge_index,
    }


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def is_same(before: Any, after: Any) -> bool:
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(is_same(before[key], after[key]) for key in before)
    if isinstance(before, tuple | list):
        return len(before) == len(after) and all(map(is_same, before, after))
    if isinstance(before, Tensor):
        return torch.equal(before, after)
    if isinstance(before, np.ndarray):
        return bool((before == after).all())
    return bool(before == after)


@pytest.fixture(params=["fresh", "trained", "in eval mode"])
def prepared(request: pytest.FixtureRequest) -> Callable[[bool], nn.Module]:
    """A model as a user may have it: never run, trained (its cache filled), partly in eval mode."""

    def build(fails: bool) -> nn.Module:
        torch.manual_seed(0)
        model = Careless(fails=False)
        if request.param != "fresh":
            output = model(features(), edges())
            if request.param == "trained":
                output.sum().backward()
                model.out.bias.grad = None
        if request.param == "in eval mode":
            model.norm.eval()
        model.conv.register_forward_hook(_nothing)
        model.out.register_full_backward_hook(_nothing)
        model.out.lin_l.weight.register_hook(_nothing)
        model.fails = fails
        return model

    return build


def _nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_the_model_and_the_process_are_as_before(prepared: Callable[[bool], nn.Module], fails: bool) -> None:
    model = prepared(fails)
    x, graph = features(), edges()
    inputs = x.clone(), graph.clone()
    states = process_state(), model_state(model)
    for part in states:
        assert is_same(part, copy.copy(part))

    if fails:
        with pytest.raises(ModelError, match=r"the model itself.*out of luck"):
            find_laws(model, x, graph)
    else:
        assert len(find_laws(model, x, graph)) > 0

    assert is_same(states[0], process_state())
    for key, value in states[1].items():
        assert is_same(value, model_state(model)[key]), key
    assert torch.equal(x, inputs[0])
    assert torch.equal(graph, inputs[1])
    assert x.grad is None
    assert not x.requires_grad


def test_an_input_that_asks_for_its_gradient_keeps_asking_and_gets_none() -> None:
    torch.manual_seed(0)
    model, x = gnn.GCN(IN, HID, 2, OUT), features().requires_grad_()

    assert len(find_laws(model, x, edges())) == HID
    assert x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("fails", [False, True])
def test_training_goes_on_bit_for_bit(fails: bool) -> None:
    """Two runs, one of them analyzed half-way, end at the same weights: no state anywhere was moved."""

    def train(analyzed: bool) -> list[Tensor]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        model = Careless(fails=False)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(features(), edges()).square().sum().backward()
            if analyzed and step == 2:
                _analyze(model, fails)
            optimizer.step()
        return [tensor.clone() for _, tensor in _tensors(model)]

    assert all(map(torch.equal, train(analyzed=True), train(analyzed=False)))


def _analyze(model: Careless, fails: bool) -> None:
    model.fails = fails
    try:
        find_laws(model, torch.ones(9, IN), edges())
    except ModelError:
        assert fails
    model.fails = False


def test_it_works_and_leaves_no_trace_without_gradients_enabled() -> None:
    torch.manual_seed(0)
    model = gnn.GCN(IN, HID, 2, OUT)

    with torch.no_grad():
        assert len(find_laws(model, features(), edges())) == HID
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        x = features()
    assert len(find_laws(model, x, edges())) == HID


def test_the_default_precision_is_put_back() -> None:
    torch.manual_seed(0)
    model, x = gnn.GCN(IN, HID, 2, OUT).bfloat16(), features().bfloat16()
    torch.set_default_dtype(torch.bfloat16)
    try:
        find_laws(model, x, edges())
        assert torch.get_default_dtype() is torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)


PARTS = ["isolation.py", "trace.py", "solver.py"]


@pytest.mark.parametrize("part", PARTS)
def test_a_time_limit_interrupts_every_part_of_the_search(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, graph = Careless(fails=False), features(), edges()
    checks: list[int] = []
    stops_at = sys.maxsize

    def check(_: object) -> None:
        frame = sys._getframe(2)
        if frame.f_code.co_filename.endswith(part):
            checks.append(len(checks))
            if checks[-1] >= stops_at:
                raise TimeLimitError("stopped")

    monkeypatch.setattr(deadline._Deadline, "check", check)
    with time_limit(None):
        find_laws(model, x, graph)
    before, world = model_state(model), process_state()
    stops_at = len(checks) // 2
    checks.clear()
    with pytest.raises(TimeLimitError), time_limit(None):
        find_laws(model, x, graph)

    assert stops_at < len(checks) <= stops_at + 3  # what cleans up may check again
    assert is_same(before, model_state(model))
    assert is_same(world, process_state())

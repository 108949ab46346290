"""State of a model outside its parameters is found, compared and restored."""

import random
from collections import deque
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

from gatdiag.structure.state import ModelState, preserve_state

TIMES = 0
SETTINGS = SimpleNamespace(times=0)


def helper() -> None:
    global TIMES
    TIMES += 1
    SETTINGS.times += 1


class Mode(Enum):
    PLAIN = 1


class Remembering(nn.Module):
    """Keeps state of every kind, and has attributes that cannot be written."""

    hits = 0

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.conv = gnn.GCNConv(3, 3, cached=True)
        self.times, self.last = 0, None
        self.state: dict[str, Any] = {"list": [0], "queue": deque([1], maxlen=2), "set": {1}}
        self.own, self.generator, self.drawn = random.Random(0), np.random.default_rng(0), torch.Generator()
        self.register_buffer("memory", torch.zeros(3))
        self.modes = Mode
        self.register_buffer("adjacency", torch.eye(3).to_sparse())

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        helper()
        Remembering.hits += 1
        assert self.modes.PLAIN is Mode.PLAIN
        self.times += 1
        self.state["list"][0] += 1
        self.state["queue"].append(self.times)
        self.state["set"].add(self.times)
        self.state["new"] = self.own.random() + self.generator.random()
        self.last = self.conv(self.norm(self.lin(x)), edge_index)
        self.memory.data.add_(torch.rand(3, generator=self.drawn))
        return self.last


def call(model: nn.Module) -> None:
    model(torch.ones(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]]))


def seen(model: Remembering) -> list[Any]:
    state = {name: list(value) if isinstance(value, deque) else value for name, value in model.state.items()}
    outside = [TIMES, SETTINGS.times, Remembering.hits, model.own.getstate(), model.generator.bit_generator.state]
    buffers = [buffer.to_dense().tolist() for buffer in model.buffers()]
    return [*outside, model.times, str(state), model.last is None, model.conv._cached_edge_index, buffers,
            model.drawn.get_state().tolist()]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_given_back(fails: bool) -> None:
    model = Remembering()
    before = seen(model)
    buffers = dict(model.named_buffers())
    try:
        with preserve_state(model):
            call(model)
            call(model)
            assert all(one != other for one, other in zip(seen(model), before, strict=True))
            if fails:
                raise KeyError
    except KeyError:
        pass

    assert seen(model) == before
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())


def test_numbers_that_changed_are_named_less_what_layers_of_libraries_keep() -> None:
    model = Remembering()
    memories = []
    with preserve_state(model):
        for _ in range(3):
            call(model)
            memories.append(ModelState(model))
    before, after = memories[1:]
    numbers = after.changed_since(before)

    assert set(numbers) | (after.numbers.keys() - before.numbers.keys()) == {
        *(f"{__name__}.TIMES", f"{__name__}.SETTINGS.times"),
        *("Remembering.hits", "Remembering.times", "Remembering.own"),
        *("Remembering.state['list'][0]", "Remembering.state['queue'][0]", "Remembering.state['queue'][1]"),
        *("Remembering.state['new']", "Remembering.generator"),
    }


def test_closures_of_one_function_are_told_apart() -> None:
    def make() -> Any:
        times = 0

        def between(x: Tensor) -> Tensor:
            nonlocal times
            times += 1
            return x

        return between

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = make(), make()

        def forward(self, x: Tensor) -> Tensor:
            return self.other(x)

    model = Two()
    before = ModelState(model)
    model(torch.ones(1))
    after = ModelState(model)

    assert after.changed_since(before) == ["Two.other.times"]


def test_a_buffer_that_holds_nan_is_not_written_again_before_the_backward_pass() -> None:
    model = nn.BatchNorm1d(2)
    out = model(torch.full((3, 2), torch.nan))  # its running mean is NaN now, and saved for the backward pass
    version = model.running_mean._version  # type: ignore[union-attr]
    with preserve_state(model):
        pass
    assert model.running_mean._version == version  # type: ignore[union-attr]
    out.sum().backward()

"""Tensors in whatever a forward pass may take, keep or return."""

import random
import threading
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch_geometric.data import Data, HeteroData

from gatdiag.errors import ModelError
from gatdiag.laws import find_laws
from gatdiag.structure.tensors import all_tensors, first_tensor, floating_tensors, named_tensors, walk

A, B = torch.ones(2), torch.ones(3, dtype=torch.float64)
COUNT = torch.ones(2, dtype=torch.int64)


class Named(NamedTuple):
    logits: Tensor
    index: Tensor


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    step: int = 0


@dataclass(slots=True)
class Slotted:
    logits: Tensor


class Private:
    __slots__ = ("__logits",)

    def __init__(self, logits: Tensor) -> None:
        self.__logits = logits


class Kind(Enum):
    ONE = 1


def graph() -> HeteroData:
    value = HeteroData()
    value["user"].x, value["item"].x, value["user", "buys", "item"].edge_index = A, B, COUNT
    return value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (A, [A]),
        (COUNT, []),
        (torch.ones(2, dtype=torch.complex64), [torch.ones(2, dtype=torch.complex64)]),
        ((A, [B, {"x": A}]), [A, B, A]),
        (OrderedDict(b=B, a=(COUNT, A)), [B, A]),
        (Named(A, COUNT), [A]),
        (Output(A, (B, A)), [A, B, A]),
        (Slotted(A), [A]),
        (Private(A), [A]),
        (Data(x=A, edge_index=COUNT), [A]),
        (deque([A, {"b": B}]), [A, B]),
        (frozenset([A]), [A]),
        (UserDict(a=A), [A]),
        (graph(), [A, B]),
        (pack_sequence([A, A]), [torch.ones(4)]),
        (distributions.Normal(A, 2 * A), [A, 2 * A]),
        ([np.ones(2), np.float64(2), Kind.ONE, torch.float32, torch.device("cpu"), Path("x"), range(3), 1j], []),
        (None, []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_floating_tensor_is_found_in_order(value: object, found: list[Tensor]) -> None:
    got = list(floating_tensors(value))

    assert len(got) == len(found)
    assert all(map(torch.equal, got, found))


def test_a_container_is_searched_once_wherever_it_is() -> None:
    inner = [A]
    output = {"a": inner, "b": inner}
    output["self"] = [output]

    assert len(list(floating_tensors(output))) == 1


def test_tensors_of_containers_have_names() -> None:
    given = {"x": A, "pair": (B, [COUNT]), "graph": Data(x=A)}

    assert [name for name, _ in named_tensors(given)] == ["x['x']", "x['pair'][0]", "x['pair'][1][0]"]
    assert [name for name, _ in named_tensors(A)] == ["x"]
    assert [name for name, _ in walk(given)] == ["x", "pair[0]", "pair[1][0]", "x"]


@pytest.mark.parametrize(
    ("value", "first"),
    [(A, A), (COUNT, None), ((COUNT, {"a": A}, B), A), ([A.to_sparse(), B], B), (Data(x=A), None), (None, None)],
    ids=str,
)
def test_the_first_plain_tensor(value: object, first: Tensor | None) -> None:
    assert first_tensor(value) is first


class Keeping(nn.Module):
    """Holds tensors in all kinds of places."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.cache = (torch.ones(1), {"deep": torch.ones(2, requires_grad=True) * 2})
        self.hidden, self.again = [nn.Parameter(torch.ones(3))], self.norm.weight
        self.partial, self.method = partial(torch.add, torch.ones(4)), Slots(torch.ones(5)).call


class Slots:
    __slots__ = "x"

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def call(self) -> Tensor:
        return self.x


def test_every_tensor_of_a_model_is_found_once_and_nothing_is_drawn() -> None:
    model = Keeping()
    expected = [*model.parameters(), *model.buffers(), model.cache[0], model.cache[1]["deep"], model.hidden[0],
                model.partial.args[0], model.method.__self__.x]  # fmt: skip
    state = random.getstate()
    found = all_tensors(model)

    assert random.getstate() == state
    assert len(found) == len(expected)
    assert {*map(id, found)} == {*map(id, expected)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensors_of_a_scripted_model_are_found() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))

    assert {x.data_ptr() for x in all_tensors([scripted])} == {
        x.data_ptr() for x in (*scripted.parameters(), *scripted.buffers())
    }


@pytest.mark.parametrize("value", [{"a": [A, threading.Lock()]}, lambda: A, (part for part in [A])])
def test_what_cannot_be_searched_is_refused(value: object) -> None:
    with pytest.raises(ModelError, match="cannot be searched for tensors"):
        list(floating_tensors(value))


class Returning(nn.Module):
    """Returns its hidden units, too, in some container."""

    def __init__(self, pack: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.pack = nn.Linear(3, 4), nn.Linear(4, 2), pack

    def forward(self, x: Tensor) -> Any:
        hidden = F.relu(self.first(x))
        return self.last(hidden), self.pack(hidden)


@pytest.mark.parametrize(
    "pack",
    [
        lambda hidden: [{"a": Slotted(hidden)}],
        lambda hidden: distributions.Independent(distributions.Normal(hidden, 1.0), 1),
    ],
)
def test_hidden_units_that_are_returned_have_no_laws_wherever_they_are(pack: Callable[[Tensor], Any]) -> None:
    assert len(find_laws(Returning(pack), torch.randn(5, 3))) == 0


def test_what_is_returned_without_a_scale_leaves_the_laws() -> None:
    def pack(hidden: Tensor) -> list[Any]:
        return [3, hidden.shape, (hidden > 0).sum(), object(), Kind.ONE, {"a": None}]

    assert len(find_laws(Returning(pack), torch.randn(5, 3))) == 4


def test_a_model_whose_output_cannot_be_searched_is_refused() -> None:
    with pytest.raises(ModelError, match=r"The output contains a lock, which cannot be searched for tensors"):
        find_laws(Returning(lambda hidden: {"lock": threading.Lock()}), torch.randn(5, 3))

"""The floating tensors in whatever a forward pass may return."""

import threading
import weakref
from collections import ChainMap, OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch_geometric.data import Data, HeteroData

from gatdiag.laws import find_laws
from gatdiag.laws.outputs import floating_tensors, read_outputs

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


class Plain:
    def __init__(self) -> None:
        self.logits, self.name = A, "x"


@dataclass(slots=True)
class Slotted:
    logits: Tensor


class Half:
    __slots__ = ("__dict__", "hidden")


class Under(list):  # type: ignore[type-arg]
    __slots__ = ("hidden",)


class Tagged(dict):  # type: ignore[type-arg]
    pass


class Kind(Enum):
    ONE = 1


def tagged() -> Tagged:
    value = Tagged(a=A)
    value.a, value.more = value["a"], B  # type: ignore[attr-defined]
    return value


def cyclic() -> list[Any]:
    value: list[Any] = [A]
    value += [{"again": value}, SimpleNamespace(back=value, more=B)]
    return value


def attributed() -> Tensor:
    value = A.clone()
    value.more = B  # type: ignore[attr-defined]
    value.itself = value  # type: ignore[attr-defined]
    return value


def graph() -> HeteroData:
    value = HeteroData()
    value["user"].x, value["item"].x, value["user", "buys", "item"].edge_index = A, B, COUNT
    return value


def generated() -> Iterator[Any]:
    yield A
    yield (value for value in (B, A))


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
        (Output, []),
        (Plain(), [A]),
        (Data(x=A, edge_index=COUNT), [A]),
        (deque([A, {"b": B}]), [A, B]),
        (frozenset([A]), [A]),
        ({"a": A}.values(), [A]),
        ({A: 1}.keys(), [A]),
        ({"a": B}.items(), [B]),
        ({A: B}, [A, B]),
        (iter([A, B]), [A, B]),
        (map(torch.neg, [A]), [-A]),
        (zip([A], [B], strict=True), [A, B]),
        (generated(), [A, B, A]),
        (MappingProxyType({"a": A}), [A]),
        (UserDict(a=A), [A]),
        (ChainMap({"a": A}, {"b": B}), [A, B]),
        (SimpleNamespace(a=A, b=[B]), [A, B]),
        (tagged(), [A, B]),
        (cyclic(), [A, B]),
        (attributed(), [A, B, A]),
        (weakref.ref(A), [A]),
        (graph(), [A, B]),
        (pack_sequence([A, A]), [torch.ones(4)]),
        (distributions.Normal(A, 2 * A), [A, 2 * A]),
        (torch.nested.nested_tensor([A, torch.ones(3)], layout=torch.jagged), [A, torch.ones(3)]),
        ([np.ones(2), np.float64(2), Kind.ONE, torch.float32, torch.device("cpu"), Path("x"), range(3), len, 1j], []),
        (None, []),
        ("text", []),
        (3.0, []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_floating_tensor_is_found_in_order(value: object, found: list[Tensor]) -> None:
    got = list(floating_tensors(value))

    assert len(got) == len(found)
    assert all(map(torch.equal, got, found))


@pytest.mark.parametrize(
    "value",
    [
        *(threading.Lock(), count(), torch.jit.script(nn.Linear(2, 2)), {"a": [A, threading.Lock()]}),
        *(lambda: A, partial(torch.add, A, other=B), A.tolist, ValueError("text", A), np.array([A, None], object)),
        *(Slotted(A), [Half()], Under()),
    ],
)
def test_what_cannot_be_looked_into_is_said(value: object) -> None:
    assert read_outputs(value).obstacle is not None


class Returning(nn.Module):
    """Returns its hidden units, too, in some container."""

    def __init__(self, pack: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.pack = nn.Linear(3, 4), nn.Linear(4, 2), pack

    def forward(self, x: Tensor) -> Any:
        hidden = F.relu(self.first(x))
        return self.last(hidden), self.pack(hidden)


PACKS: dict[str, Callable[[Tensor], Any]] = {
    "slots": lambda hidden: [{"a": Slotted(hidden)}],
    "frozen set": lambda hidden: frozenset([hidden]),
    "iterator": lambda hidden: iter([hidden]),
    "generator": lambda hidden: (2 * part for part in [hidden]),
    "values": lambda hidden: {"a": hidden}.values(),
    "attribute": lambda hidden: attributing(hidden),
    "distribution": lambda hidden: distributions.Independent(distributions.Normal(hidden, 1.0), 1),
    "packed": lambda hidden: pack_sequence([hidden]),
    "function": lambda hidden: lambda: hidden,
}


def attributing(hidden: Tensor) -> Tensor:
    out = hidden.detach().clone()
    out.more = hidden  # type: ignore[attr-defined]
    return out


@pytest.mark.parametrize("name", PACKS)
def test_hidden_units_that_are_returned_have_no_laws_wherever_they_are(name: str) -> None:
    assert len(find_laws(Returning(PACKS[name]), torch.randn(5, 3))) == 0


def test_what_is_returned_without_a_scale_leaves_the_laws() -> None:
    def pack(hidden: Tensor) -> list[Any]:
        return [3, hidden.shape, (hidden > 0).sum(), object(), Kind.ONE, {"a": None}]

    assert len(find_laws(Returning(pack), torch.randn(5, 3))) == 4


def test_an_output_that_cannot_be_looked_into_has_no_certain_law() -> None:
    laws = find_laws(Returning(lambda hidden: {"lock": threading.Lock()}), torch.randn(5, 3))

    assert len(laws) == 0
    assert [exclusion.what for exclusion in laws.excluded] == ["the forward pass"]
    assert "cannot be searched for tensors (lock)" in laws.excluded[0].reason

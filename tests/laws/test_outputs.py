"""The floating tensors in whatever a forward pass may return."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from gatdiag.laws.outputs import floating_tensors

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

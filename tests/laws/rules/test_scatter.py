"""Rules of operations that send entries to places given by an index, against what the operations do."""

import pytest
import torch
from torch import Tensor

from tests.laws.rules.homogeneity import Case, case, check, signed

aten = torch.ops.aten
torch.manual_seed(4)
X, MESSAGES = signed(2, 3), signed(4, 3)
PLACES = torch.tensor([1, 0, 1, 1])
WIDE = PLACES.unsqueeze(1).expand(4, 3)


def zeros(like: Tensor) -> Tensor:
    return torch.zeros(2, 3, dtype=like.dtype)


CASES: dict[str, Case] = {
    "scatter": case(lambda x: aten.scatter(zeros(x), 0, WIDE[:2], x), X, missed=3),
    "scatter_add": case(lambda m: aten.scatter_add(zeros(m), 0, WIDE, m), MESSAGES, missed=3),
    "scatter_reduce": case(lambda m: aten.scatter_reduce(zeros(m), 0, WIDE, m, "mean"), MESSAGES, missed=3),
    "index_add": case(lambda x, m: aten.index_add(x, 0, PLACES, m), X, MESSAGES, missed=3),
    "index_copy": case(lambda x, m: aten.index_copy(x, 0, PLACES[:2], m), X, X),
    "index_reduce": case(lambda x, m: aten.index_reduce(x, 0, PLACES, m, "amax"), X, MESSAGES, missed=3, points=60),
    "index_fill": case(lambda x: aten.index_fill(x, 0, PLACES[:1], 0.0), X),
    "index_put": case(lambda x, m: aten.index_put(x, [PLACES], m, True), X, MESSAGES, missed=3),
    "_unsafe_index_put": case(lambda x, m: aten._unsafe_index_put(x, [PLACES], m, True), X, MESSAGES, missed=3),
    "segment_reduce": case(
        lambda m: aten.segment_reduce(m, "sum", lengths=torch.tensor([1, 3]), axis=0, unsafe=True), MESSAGES, missed=3
    ),
    "_sparse_coo_tensor_with_dims_and_tensors": case(
        lambda x: torch.sparse_coo_tensor(PLACES[None, :3], x, (2,), check_invariants=True), signed(3), missed=1
    ),
}
FURTHER: dict[str, Case] = {
    **{
        f"scatter of the {reduce} over {fill}": case(
            lambda m, r=reduce, f=fill: aten.scatter_reduce(zeros(m) + f, 0, WIDE, m, r, include_self=False),
            MESSAGES,
            missed=3,
            points=40,
        )
        for reduce, fill in (("sum", 1.0), ("amax", -1e9), ("mean", 7.0))
    },
    "scatter over a scaled target": case(lambda x, m: aten.scatter(x, 0, WIDE[1:2], m), X, MESSAGES[:1]),
    "scatter over some of a constant": case(lambda m: aten.scatter(zeros(m) + 1.0, 1, WIDE[1:2, :1], m), MESSAGES),
    "scatter of some columns": case(lambda m: aten.scatter_add(zeros(m), 0, WIDE[:3, :2], m), MESSAGES, missed=2),
    "scatter of some columns onto others": case(
        lambda x, m: aten.scatter_add(x, 0, WIDE[:3, :2], m), X, MESSAGES, missed=3
    ),
    "index_reduce over sevens": case(
        lambda m: aten.index_reduce(zeros(m) + 7, 0, PLACES, m, "amax", include_self=False),
        MESSAGES,
        missed=3,
        points=60,
    ),
    "scatter of a number": case(lambda x: aten.scatter(x, 0, WIDE[:1], 0.0), X),
    "scatter that multiplies": case(
        lambda x, m: aten.scatter_reduce(x, 0, WIDE, m, "prod"), X, MESSAGES, counted=False
    ),
    "scatter onto a scaled target": case(lambda x, m: aten.scatter_add(x, 0, WIDE, m), X, MESSAGES, missed=3),
    "scatter of the largest": case(
        lambda m: aten.scatter_reduce(zeros(m), 0, WIDE, m, "amax"), MESSAGES, counted=False
    ),
    "index_add into nothing": case(lambda m: aten.index_add(zeros(m), 0, PLACES, m), MESSAGES, missed=3),
    "index_put that replaces": case(lambda x, m: aten.index_put(x, [torch.tensor([1])], m), X, signed(1, 3)),
    "a column that is replaced": case(lambda x, m: _written(x, m), X, signed(2)),
    "index_put by a mask": case(
        lambda x: aten.index_put(x, [torch.tensor([True, False])], torch.zeros(1, 3).double()), X
    ),
}


def _written(x: Tensor, m: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1] = m
    return x


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])

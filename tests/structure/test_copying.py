"""Deep copies: identities, shared memory and non-leaf tensors."""

import copy
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import Sequential

from gatdiag.structure.copying import duplicate, map_tensors


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class Point(NamedTuple):
    x: torch.Tensor


def test_a_non_leaf_is_copied_where_torch_refuses():
    tensor = torch.ones(2, requires_grad=True) * 3
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(tensor)
    copied = duplicate([tensor, tensor])
    assert copied[0] is copied[1]
    assert torch.equal(copied[0], tensor)
    assert copied[0].is_leaf
    assert copied[0] is not tensor


def test_random_numbers_that_copying_draws_are_given_back():
    """PyG's `Sequential` draws one to name its generated code."""
    model, state = Sequential("x", [(nn.Linear(2, 2), "x -> x")]), random.getstate()
    copy.deepcopy(model)
    assert random.getstate() != state
    random.setstate(state)
    duplicate(model)
    assert random.getstate() == state


def test_gradients_are_not_copied():
    tensor = torch.ones(2, requires_grad=True)
    tensor.sum().backward()
    copied = duplicate(tensor)
    assert copied.grad is None
    assert copied.requires_grad


def test_tensors_that_share_memory_still_do():
    base = torch.zeros(4)
    copied_base, copied_view = duplicate((base, base[1:]))
    copied_view += 1
    assert copied_base.tolist() == [0, 1, 1, 1]
    assert base.tolist() == [0, 0, 0, 0]


def test_omitted_mappings_are_empty():
    hooks, other = OrderedDict(a=1), OrderedDict(b=2)
    assert duplicate({"hooks": hooks, "other": other}, omit=[hooks]) == {"hooks": OrderedDict(), "other": other}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_tensors(make):
    sparse = make(torch.eye(2))
    copied = duplicate(sparse)
    copied.values().mul_(2) if sparse.layout is torch.sparse_csr else copied._values().mul_(2)
    assert torch.equal(sparse.to_dense(), torch.eye(2))
    assert torch.equal(copied.to_dense(), 2 * torch.eye(2))


def test_change_reaches_every_container():
    x = torch.ones(2)
    value = {"list": [x], "tuple": (Pair(x, x + 1), Point(x)), "other": "text"}
    result = map_tensors(value, lambda tensor: tensor * 2)
    assert result["list"][0].tolist() == [2, 2]
    assert result["tuple"][0].right.tolist() == [4, 4]
    assert result["tuple"][1].x is result["tuple"][0].left is result["list"][0]
    assert result["other"] == "text"
    assert x.tolist() == [1, 1]


def test_change_reaches_graphs():
    data = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    hetero = HeteroData({"a": {"x": torch.ones(1)}, ("a", "to", "a"): {"edge_index": torch.zeros(2, 1).long()}})
    batch = Batch.from_data_list([data, data])
    new_data, new_hetero, new_batch = map_tensors((data, hetero, batch), lambda tensor: tensor + 1)
    assert new_data.x.tolist() == (data.x + 1).tolist()
    assert new_hetero["a"].x.tolist() == [2]
    assert new_batch.batch.tolist() == [1, 1, 2, 2]
    assert new_batch.num_graphs == 2
    assert data.x.tolist() == torch.ones(2, 3).tolist()


def test_an_edge_index_stays_one():
    edges = EdgeIndex([[0, 1], [1, 0]], sparse_size=(2, 2), sort_order="row")
    for copied in (duplicate(edges), map_tensors(edges, torch.Tensor.clone)):
        assert isinstance(copied, EdgeIndex)
        assert copied.sort_order == edges.sort_order
        assert copied.tolist() == edges.tolist()


def test_a_parameter_among_inputs_is_changed_and_frozen():
    parameter = nn.Parameter(torch.ones(2))
    result = map_tensors((parameter, parameter), lambda tensor: tensor * 2)
    assert result[0] is result[1]
    assert result[0].tolist() == [2, 2]
    assert not result[0].requires_grad
    assert parameter.tolist() == [1, 1]
    assert parameter.requires_grad

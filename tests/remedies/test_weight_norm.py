"""Weight normalization against the formula, in layers as they compute and train."""

import copy

import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GATv2Conv, GCNConv

from gatdiag import find_laws
from gatdiag.errors import InputError, ModelError
from gatdiag.remedies import initialize_, weight_normalize_
from gatdiag.remedies.weight_norm import normalize_frobenius

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def gcn(layers=3):
    torch.manual_seed(0)
    return GCN(4, 8, layers, 3)


def test_it_is_the_formula_and_has_its_gradient():
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(normalize_frobenius(weight, 2.5), 2.5 * weight / weight.square().sum().sqrt())
    assert torch.autograd.gradcheck(normalize_frobenius, (weight, 2.5))
    assert torch.equal(normalize_frobenius(torch.zeros(2, 2), 2.5), torch.zeros(2, 2))


def test_each_weight_behind_a_normalized_one_keeps_its_norm():
    model, x = gcn(), torch.randn(4, 4)
    weight_normalize_(model, 4.0)
    laws = find_laws(model, x, EDGES)
    originals = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    torch.testing.assert_close(laws.c(), torch.stack([weight.square().sum() for weight in originals]).double())
    model(x, EDGES).square().sum().backward()
    assert all(abs((weight * weight.grad).sum()) < 1e-4 * weight.grad.norm() for weight in originals)


def test_layers_compute_with_weights_of_that_norm_while_they_train():
    model, x = gcn(), torch.randn(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # made before: parameters stay the same objects
    with weight_normalize_(model, 4.0) as applied:
        assert len(applied.changes) == 3
        for _ in range(30):
            optimizer.zero_grad()
            model(x, EDGES).square().sum().backward()
            optimizer.step()
        for conv in model.eval().convs:
            assert float(conv.lin.weight.detach().norm()) == pytest.approx(4.0, rel=1e-6)
        twin = copy.deepcopy(model)
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin(x, EDGES), model(x, EDGES))


def test_gradients_of_a_deep_residual_network_expand_no_more_than_the_norm_allows():
    torch.manual_seed(0)
    convs = nn.ModuleList(GCNConv(8, 8) for _ in range(64)).double()
    first = torch.randn(12, 8, dtype=torch.float64, requires_grad=True)
    edges = torch.randint(0, 12, (2, 40), generator=torch.Generator().manual_seed(0))
    edges = torch.cat([edges, edges.flip(0)], 1)  # of a symmetric adjacency matrix, whose norm is 1

    def expansion():
        last = first
        for conv in convs:
            last = last + conv(last, edges).relu()
        down, up = torch.autograd.grad(last.norm(), [first, last])
        return float(down.norm() / up.norm())

    assert expansion() > 1e6
    with weight_normalize_(convs, 0.05):
        assert expansion() < 1.05**64


def test_it_is_undone_bit_for_bit():
    model, x = GAT(4, 8, 2, 3, heads=2), torch.randn(4, 4)
    before, keys = model(x, EDGES), list(model.state_dict())
    parameters = [id(parameter) for parameter in model.parameters()]
    applied = weight_normalize_(model, 0.5)
    assert not torch.equal(model(x, EDGES), before)
    applied.undo()
    assert torch.equal(model(x, EDGES), before)
    assert list(model.state_dict()) == keys
    assert [id(parameter) for parameter in model.parameters()] == parameters


def test_attention_vectors_biases_and_norms_are_left_alone():
    model = nn.ModuleList([GATv2Conv(4, 4, heads=2), nn.LayerNorm(8), nn.Linear(8, 2)])
    changed = [change.where for change in weight_normalize_(model).changes]
    assert changed == ["0.lin_l.weight", "0.lin_r.weight", "2.weight"]


def test_a_tied_weight_is_normalized_wherever_it_is():
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}).eval()
    model["b"].weight = model["a"].weight
    with weight_normalize_(model, 3.0) as applied:
        assert [change.where for change in applied.changes] == ["a.weight", "b.weight"]
        assert torch.equal(model["a"].weight, model["b"].weight)
        assert len(list(model.parameters())) == 3
    assert model["a"].weight is model["b"].weight


def test_names_of_attention_are_not_those_of_a_normalization():
    model = nn.Module()
    model.w_q, model.w_v, model.w_g = (nn.Parameter(torch.randn(4, 4)) for _ in range(3))
    assert len(weight_normalize_(model).changes) == 3


def test_what_does_not_fit_is_refused_and_nothing_is_changed():
    model = gcn()
    applied = weight_normalize_(model)
    with pytest.raises(ModelError, match=r"convs\.0\.lin\.weight is already reparametrized"):
        weight_normalize_(model)
    with pytest.raises(ModelError, match=r"parameters, but convs\.0\.lin\.weight"):
        initialize_(model, "xavier")
    applied.undo()
    nn.utils.parametrizations.weight_norm(model.convs[2].lin)
    kinds = [type(conv.lin) for conv in model.convs]
    with pytest.raises(ModelError, match="is already reparametrized"):
        weight_normalize_(model)
    assert [type(conv.lin) for conv in model.convs] == kinds
    with pytest.raises(ModelError, match="Expected a model with weight matrices, but LayerNorm"):
        weight_normalize_(nn.LayerNorm(3))
    for c in (-1, "4", None, True):
        with pytest.raises(InputError, match=f"c to be a positive number, got {c!r}"):
            weight_normalize_(gcn(), c)
    scripted = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Linear(3, 3)))
    with pytest.raises(ModelError, match=r"1 was compiled by torch\.jit\.script"):
        weight_normalize_(scripted)
    assert type(scripted[0]) is nn.Linear
    with pytest.raises(InputError, match="as the first argument, got list"):
        weight_normalize_(list(model.parameters()))

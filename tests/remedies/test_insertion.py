"""Modules inserted after layers: what they compute, that models keep working, and the way back."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, HeteroConv, LayerNorm, PairNorm, SAGEConv

from gatdiag import find_laws
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.models import Stack
from gatdiag.remedies.insertion import Skip, insert_after_
from gatdiag.structure import discover

EDGES = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Stack([GATConv(6, 3, heads=2), GATConv(6, 3, heads=2), SAGEConv(6, 6), nn.Linear(6, 2)]).double()


X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(model, change):
    x = X
    for conv in model.convs[:3]:
        x = change(conv(x, EDGES), x).relu()
    return model.convs[3](x)


@pytest.mark.parametrize(
    ("module", "change"),
    [
        (PairNorm(), lambda y, x: PairNorm()(y)),
        (LayerNorm(6, mode="node"), lambda y, x: nn.functional.layer_norm(y, (6,))),
        (Skip(), lambda y, x: x + y),
        (Skip(scale=0.25), lambda y, x: x + 0.25 * y),
    ],
)
def test_it_is_the_network_written_by_hand_and_comes_out_again(model, module, change):
    expected, before, keys = by_hand(model, change), model(X, EDGES), list(model.state_dict())
    kinds = [type(conv) for conv in model.convs]
    applied = insert_after_(model, "convs.[0-2]", module)
    assert [layer.where for layer in applied.changes] == ["convs.0", "convs.1", "convs.2"]
    torch.testing.assert_close(model(X, EDGES), expected)
    assert [type(conv).__name__ for conv in model.convs] == ["GATConv", "GATConv", "SAGEConv", "Linear"]
    applied.undo()
    assert torch.equal(model(X, EDGES), before)
    assert [type(conv) for conv in model.convs] == kinds
    assert list(model.state_dict()) == keys


def test_layers_stay_what_they_are_for_everything_that_reads_the_model(model):
    insert_after_(model, "convs.[0-2]", nn.LayerNorm(6))
    structure = discover(model, X, EDGES)
    assert [layer.kind for layer in structure] == ["GATConv", "GATConv", "SAGEConv", "Linear"]
    assert {info.name: info.role for info in structure.parameters}["convs.0.inserted.0.weight"] == "norm scale"
    assert not any(law.residual > 1e-9 for law in find_laws(model, X, EDGES) if law.exact)


def test_further_outputs_and_the_target_of_a_pair_are_kept():
    layer = GATConv((6, 4), 4, add_self_loops=False)
    insert_after_(nn.ModuleDict({"layer": layer}), "layer", Skip())
    target = torch.randn(5, 4)
    output, (edges, alpha) = layer((torch.randn(5, 6), target), EDGES, return_attention_weights=True)
    plain = GATConv.forward(layer, (torch.zeros(5, 6), target), EDGES)
    assert output.shape == plain.shape == (5, 4)
    assert len(alpha) == edges.shape[1]


def test_it_works_in_mixed_precision_and_in_the_mode_of_the_layer(model):
    model.float().eval()
    insert_after_(model, "convs.[0-2]", nn.BatchNorm1d(6))
    assert not model.convs[0].inserted.training
    assert model.convs[0].inserted[0].weight.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(X.float(), EDGES).isfinite().all()


def test_each_type_of_node_goes_through_what_is_inserted():
    relations = {("a", "to", "b"): SAGEConv((6, 6), 6), ("b", "of", "a"): SAGEConv((6, 6), 6)}
    model = nn.ModuleList([HeteroConv(relations)])
    x = {"a": torch.randn(5, 6), "b": torch.randn(4, 6)}
    edges = torch.tensor([[0, 1, 4], [3, 2, 0]])
    given = x, {("a", "to", "b"): edges, ("b", "of", "a"): edges.flip(0)}
    plain = model[0](*given)
    with insert_after_(model, "0", PairNorm()), insert_after_(model, "0", Skip()):
        for kind, out in model[0](*given).items():
            torch.testing.assert_close(out, x[kind] + PairNorm()(plain[kind]))
    assert all(torch.equal(out, plain[kind]) for kind, out in model[0](*given).items())


def test_a_skip_connection_adds_what_is_called_x():
    layer = SAGEConv((6, 6), 6)
    insert_after_(nn.ModuleDict({"layer": layer}), "layer", Skip())
    x = torch.randn(5, 6)
    assert torch.equal(layer(edge_index=EDGES, x=x), layer(x, EDGES))
    with pytest.raises(ModelError, match=r"got NoneType and \(5, 6\)"):
        layer((x, None), EDGES)


def test_what_does_not_fit_is_refused_and_nothing_is_changed(model):
    kinds = [type(conv) for conv in model.convs]
    with pytest.raises(InputError, match="Expected the name of a layer, got 'conv'; the model has convs"):
        insert_after_(model, "conv", Skip())
    with pytest.raises(InputError, match=r"after its layers instead, such as 'convs\.\*' or 'convs\.0'"):
        insert_after_(model, "convs", PairNorm())
    for swapped in (("convs.*", PairNorm), (PairNorm(), "convs.*")):
        with pytest.raises(InputError, match=r"the name of a layer, such as 'convs\.\*', and a torch\.nn\.Module"):
            insert_after_(model, *swapped)
    with pytest.raises(InputError, match=r"Expected a torch\.nn\.Module as the first argument, got str"):
        insert_after_("convs.*", model, PairNorm())
    assert [type(conv) for conv in model.convs] == kinds
    insert_after_(model, "convs.0", PairNorm())
    with pytest.raises(ModelError, match=r"convs\.0 already has a PairNorm inserted after it"):
        insert_after_(model, "convs.?", PairNorm())
    assert [hasattr(conv, "inserted") for conv in model.convs] == [True, False, False, False]
    model.scripted = torch.jit.script(nn.Linear(6, 6))
    with pytest.raises(ModelError, match="forward pass of scripted was generated by torch"):
        insert_after_(model, "scripted", PairNorm())
    with pytest.raises(ModelError, match="input and output have the same shape"):
        Skip()(torch.ones(2, 3), torch.ones(2, 4))

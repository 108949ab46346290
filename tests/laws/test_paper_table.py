"""The laws of "Are GATs Out of Balance?" (NeurIPS 2023) and its variants, written by hand against autograd.

Each test sums w * dLoss/dw over the rows, columns and entries that a law names, neuron by neuron, in float64.  A law
holds when the sum vanishes relative to the sum of the magnitudes of its terms.  Laws that must fail, the published form
of theorem 6.3 among them, are tested to fail.
"""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.convolutions import LearnedSkip
from tests.laws.models.graph import HID, HID2, IN, OUT, Stack, edge_features
from tests.laws.products import (
    FAILS,
    HOLDS,
    Products,
    neurons,
    on_graph,
    residual,
    shared,
    shared_law,
    three,
    unshared,
)


@pytest.fixture(autouse=True)
def _double_precision() -> Iterable[None]:
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_theorem_2_2_holds_for_every_hidden_neuron() -> None:
    p = on_graph(three(shared))

    assert max(shared_law(p, *neuron) for neuron in neurons()) < HOLDS


def test_equation_9_telescopes_over_the_layers() -> None:
    p = on_graph(three(shared))

    left = [p["layers.0.lin_l.weight"], -p["layers.0.att"], -p["layers.1.att"]]

    assert residual(left, [p["layers.2.lin_l.weight"]]) < HOLDS


def test_the_last_layer_has_no_law() -> None:
    p = on_graph(three(shared))

    for i in range(OUT):
        assert residual([p["layers.2.lin_l.weight"][i]], [p["layers.2.att"][0, 0, i]]) > FAILS


@pytest.mark.parametrize("act", [F.elu, F.gelu, torch.tanh])
def test_theorem_2_2_fails_without_a_homogeneous_activation(act: Callable[[Tensor], Tensor]) -> None:
    p = on_graph(three(shared, act=act))

    assert max(shared_law(p, *neuron) for neuron in neurons()) > FAILS


def test_dropout_keeps_the_law_for_each_mask() -> None:
    p = on_graph(three(lambda i, o: gnn.GATv2Conv(i, o, share_weights=True, bias=False, dropout=0.4)))

    assert max(shared_law(p, *neuron) for neuron in neurons()) < HOLDS


def published(p: Products, layer: int, following: int, i: int) -> float:
    """Theorem 6.3 as printed: without the next layer's target weights."""
    ours = [p[f"layers.{layer}.{name}.weight"][i] for name in ("lin_l", "lin_r")]
    return residual([*ours, -p[f"layers.{layer}.att"][0, 0, i]], [p[f"layers.{following}.lin_l.weight"][:, i]])


def corrected(p: Products, layer: int, following: int, i: int) -> float:
    """Theorem 6.3 with the next layer's target weights, which read the same neuron."""
    ours = [p[f"layers.{layer}.{name}.weight"][i] for name in ("lin_l", "lin_r")]
    theirs = [p[f"layers.{following}.{name}.weight"][:, i] for name in ("lin_l", "lin_r")]
    return residual([*ours, -p[f"layers.{layer}.att"][0, 0, i]], theirs)


def test_theorem_6_3_fails_as_published() -> None:
    p = on_graph(three(unshared))

    assert max(published(p, *neuron) for neuron in neurons()) > FAILS


def test_theorem_6_3_holds_when_corrected() -> None:
    p = on_graph(three(unshared))

    assert max(corrected(p, *neuron) for neuron in neurons()) < HOLDS


class Silenced(nn.Module):
    """A stack of three whose second layer has a zero attention vector."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([unshared(IN, HID), unshared(HID, HID2), unshared(HID2, OUT)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.layers[1].att.data.zero_()
        for layer in self.layers[:2]:
            x = F.leaky_relu(layer(x, edge_index))
        return self.layers[2](x, edge_index)


def test_theorem_6_3_as_published_holds_where_the_next_attention_vector_is_zero() -> None:
    p = on_graph(Silenced())

    assert max(published(p, 0, 1, i) for i in range(HID)) < HOLDS


def two_heads(*, concat: bool) -> Products:
    width = 2 * HID2 if concat else HID2
    first = gnn.GATv2Conv(IN, HID2, heads=2, concat=concat, share_weights=True, bias=False)
    return on_graph(
        Stack(first, gnn.GATv2Conv(width, OUT, heads=2, concat=False, share_weights=True, bias=False), act=F.leaky_relu)
    )


def test_concatenated_heads_have_a_law_a_head_and_channel() -> None:
    p = two_heads(concat=True)

    for k in range(2):
        for i in range(HID2):
            row = k * HID2 + i
            left = [p["layers.0.lin_l.weight"][row], -p["layers.0.att"][0, k, i]]
            assert residual(left, [p["layers.1.lin_l.weight"][:, row]]) < HOLDS


def test_averaged_heads_have_a_law_summed_over_heads_only() -> None:
    p = two_heads(concat=False)

    for i in range(HID2):
        left = [[p["layers.0.lin_l.weight"][k * HID2 + i], -p["layers.0.att"][0, k, i]] for k in range(2)]
        assert residual([*left[0], *left[1]], [p["layers.1.lin_l.weight"][:, i]]) < HOLDS
        assert residual(left[0], [p["layers.1.lin_l.weight"][:, i]]) > FAILS


def test_gatv1_subtracts_both_attention_vectors() -> None:
    p = on_graph(three(lambda i, o: gnn.GATConv(i, o, bias=False)))

    for layer, following, i in neurons():
        attention = [-p[f"layers.{layer}.{name}"][0, 0, i] for name in ("att_src", "att_dst")]
        left = [p[f"layers.{layer}.lin.weight"][i], *attention]
        assert residual(left, [p[f"layers.{following}.lin.weight"][:, i]]) < HOLDS


def test_gcn_has_no_attention_term() -> None:
    p = on_graph(three(lambda i, o: gnn.GCNConv(i, o, bias=False)))

    for layer, following, i in neurons():
        left, right = p[f"layers.{layer}.lin.weight"][i], p[f"layers.{following}.lin.weight"][:, i]
        assert residual([left], [right]) < HOLDS


def test_sage_adds_the_root_weight_on_both_sides() -> None:
    p = on_graph(three(lambda i, o: gnn.SAGEConv(i, o, bias=False)))

    for layer, following, i in neurons():
        left = [p[f"layers.{layer}.{name}.weight"][i] for name in ("lin_l", "lin_r")]
        right = [p[f"layers.{following}.{name}.weight"][:, i] for name in ("lin_l", "lin_r")]
        assert residual(left, right) < HOLDS
        assert residual(left[:1], right[:1]) > FAILS


def test_a_learned_skip_adds_its_weight_on_both_sides() -> None:
    p = on_graph(three(LearnedSkip))

    for layer, following, i in neurons():
        names = ("conv.lin.weight", "skip.weight", "conv.bias", "skip.bias")
        left = [p[f"layers.{layer}.{name}"][i] for name in names]
        right = [p[f"layers.{following}.{name}"][:, i] for name in names[:2]]
        assert residual(left, right) < HOLDS


def test_all_three_biases_of_gatv2_go_left() -> None:
    p = on_graph(three(lambda i, o: gnn.GATv2Conv(i, o)))

    for layer, following, i in neurons():
        names = ("lin_l.weight", "lin_r.weight", "lin_l.bias", "lin_r.bias", "bias")
        left = [p[f"layers.{layer}.{name}"][i] for name in names] + [-p[f"layers.{layer}.att"][0, 0, i]]
        right = [p[f"layers.{following}.{name}.weight"][:, i] for name in ("lin_l", "lin_r")]
        assert residual(left, right) < HOLDS
        assert residual([*left[:2], left[5]], right) > FAILS


def test_the_edge_weight_goes_left() -> None:
    p = on_graph(
        three(lambda i, o: gnn.GATv2Conv(i, o, edge_dim=3, share_weights=True, bias=False)), edge_features().double()
    )

    for layer, following, i in neurons():
        left = [p[f"layers.{layer}.lin_l.weight"][i], -p[f"layers.{layer}.att"][0, 0, i]]
        right = [p[f"layers.{following}.lin_l.weight"][:, i]]
        assert residual([*left, p[f"layers.{layer}.lin_edge.weight"][i]], right) < HOLDS
        assert residual(left, right) > FAILS

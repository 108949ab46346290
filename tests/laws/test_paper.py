"""The laws of "Are GATs Out of Balance?" (NeurIPS 2023) and its variants, written by hand against autograd.

Each law sums w * dLoss/dw over the rows, columns and entries that it names, in float64. It holds when the sum vanishes
relative to the sum of the magnitudes of its terms. Laws that must fail, the published form of theorem 6.3 among them,
are tested to fail. Nothing of gatdiag is used.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.attention import LipschitzGAT
from tests.laws.models.convolutions import LearnedSkip
from tests.laws.models.graph import HID, HID2, IN, OUT, Stack, edge_features, edges, features

HOLDS, FAILS = 1e-10, 1e-6
NEURONS = [(0, i) for i in range(HID)] + [(1, i) for i in range(HID2)]
Products = dict[str, Tensor]  # parameter name -> w * dLoss/dw


@pytest.fixture(autouse=True)
def _double_precision() -> Iterable[None]:
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def products(model: nn.Module, *more: Tensor) -> Products:
    """Draw all weights, then w * dLoss/dw of a random linear and quadratic loss of the output."""
    with torch.no_grad():
        for p in model.parameters():
            p.normal_().mul_(0.6)
    output = model(features(), edges(), *more)
    loss = (torch.randn_like(output) * output + torch.randn_like(output) * output.square()).sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {n: (p * g).detach() for n, p, g in zip(names, parameters, found, strict=True) if g is not None}


def residual(left: Iterable[Tensor], right: Iterable[Tensor] = ()) -> float:
    """|sum of the left terms - sum of the right terms| relative to the sum of their magnitudes."""
    terms = [*(float(t.sum()) for t in left), *(-float(t.sum()) for t in right)]
    return abs(sum(terms)) / sum(abs(t) for t in terms)


def three(conv: Callable[..., nn.Module], act: Callable[[Tensor], Tensor] = F.leaky_relu, **more: Any) -> Stack:
    """LeakyReLU is homogeneous too, and leaves no neuron dead."""
    return Stack(conv(IN, HID), conv(HID, HID2), conv(HID2, OUT), act=act, **more)


def shared(i: int, o: int, **more: Any) -> nn.Module:
    return gnn.GATv2Conv(i, o, share_weights=True, bias=False, **more)


def unshared(i: int, o: int) -> nn.Module:
    return gnn.GATv2Conv(i, o, bias=False)


def between(p: Products, layer: int, i: int, adds: str, subtracts: str, reads: str) -> float:
    """The law of neuron i: rows and entries that write it, against the columns of the next layer that read it."""
    left = [p[f"layers.{layer}.{name}"][i] for name in adds.split()]
    left += [-p[f"layers.{layer}.{name}"][..., i] for name in subtracts.split()]
    return residual(left, [p[f"layers.{layer + 1}.{name}"][:, i] for name in reads.split()])


ALL_BIASES = "lin_l.weight lin_r.weight lin_l.bias lin_r.bias bias"
TABLE: dict[str, tuple[Callable[[int, int], nn.Module], str, str, str]] = {
    "theorem 2.2": (shared, "lin_l.weight", "att", "lin_l.weight"),
    "theorem 2.2, dropout": (lambda i, o: shared(i, o, dropout=0.4), "lin_l.weight", "att", "lin_l.weight"),
    "theorem 6.3, corrected": (unshared, "lin_l.weight lin_r.weight", "att", "lin_l.weight lin_r.weight"),
    "all biases": (gnn.GATv2Conv, ALL_BIASES, "att", "lin_l.weight lin_r.weight"),
    "gatv1": (lambda i, o: gnn.GATConv(i, o, bias=False), "lin.weight", "att_src att_dst", "lin.weight"),
    "gcn": (lambda i, o: gnn.GCNConv(i, o, bias=False), "lin.weight", "", "lin.weight"),
    "sage": (
        lambda i, o: gnn.SAGEConv(i, o, bias=False),
        "lin_l.weight lin_r.weight",
        "",
        "lin_l.weight lin_r.weight",
    ),
    "learned skip": (LearnedSkip, "conv.lin.weight skip.weight conv.bias skip.bias", "", "conv.lin.weight skip.weight"),
    "values": (
        lambda i, o: gnn.TransformerConv(i, o, bias=False),
        "lin_value.weight lin_skip.weight",
        "",
        "lin_query.weight lin_key.weight lin_value.weight lin_skip.weight",
    ),
}
FALSE: dict[str, tuple[Callable[[int, int], nn.Module], str, str, str]] = {
    "theorem 6.3, as published": (unshared, "lin_l.weight lin_r.weight", "att", "lin_l.weight"),
    "biases left out": (gnn.GATv2Conv, "lin_l.weight lin_r.weight", "att", "lin_l.weight lin_r.weight"),
    "root weight left out": (lambda i, o: gnn.SAGEConv(i, o, bias=False), "lin_l.weight", "", "lin_l.weight"),
    "Lipschitz-normalized scores": (LipschitzGAT, "lin.weight", "att_s att_t", "lin.weight"),
}


@pytest.mark.parametrize("name", [*TABLE, *FALSE])
def test_a_law_for_every_hidden_neuron(name: str) -> None:
    conv, *law = (TABLE | FALSE)[name]
    p = products(three(conv))
    worst = max(between(p, layer, i, *law) for layer, i in NEURONS)

    assert worst < HOLDS if name in TABLE else worst > FAILS


@pytest.mark.parametrize("act", [F.elu, F.gelu, torch.tanh])
def test_theorem_2_2_fails_without_a_homogeneous_activation(act: Callable[[Tensor], Tensor]) -> None:
    p = products(three(shared, act=act))

    assert max(between(p, layer, i, *TABLE["theorem 2.2"][1:]) for layer, i in NEURONS) > FAILS


def test_equation_9_telescopes_and_the_last_layer_has_no_law() -> None:
    p = products(three(shared))

    left = [p["layers.0.lin_l.weight"], -p["layers.0.att"], -p["layers.1.att"]]
    assert residual(left, [p["layers.2.lin_l.weight"]]) < HOLDS
    assert residual([p["layers.2.lin_l.weight"][0]], [p["layers.2.att"][0, 0, 0]]) > FAILS


def test_the_edge_weight_goes_left() -> None:
    p = products(three(lambda i, o: shared(i, o, edge_dim=3)), edge_features().double())

    law = ("att", "lin_l.weight")
    assert max(between(p, layer, i, "lin_l.weight lin_edge.weight", *law) for layer, i in NEURONS) < HOLDS
    assert max(between(p, layer, i, "lin_l.weight", *law) for layer, i in NEURONS) > FAILS


def test_theorem_6_3_as_published_holds_where_the_next_attention_vector_is_zero() -> None:
    def silence(layer: nn.Module, _: Any) -> None:
        layer.att.data.zero_()

    model = three(unshared)
    model.layers[1].register_forward_pre_hook(silence)
    p = products(model)

    assert max(between(p, 0, i, *FALSE["theorem 6.3, as published"][1:]) for i in range(HID)) < HOLDS


@pytest.mark.parametrize("concat", [True, False])
def test_concatenated_heads_have_a_law_per_head_and_averaged_ones_a_law_summed_over_heads(concat: bool) -> None:
    first = shared(IN, HID2, heads=2, concat=concat)
    last = shared(2 * HID2 if concat else HID2, OUT, heads=2, concat=False)
    p = products(Stack(first, last, act=F.leaky_relu))
    weight, att, reads = p["layers.0.lin_l.weight"], p["layers.0.att"], p["layers.1.lin_l.weight"]

    for i in range(HID2):
        heads = [[weight[k * HID2 + i], -att[0, k, i]] for k in range(2)]
        if concat:
            assert all(residual(heads[k], [reads[:, k * HID2 + i]]) < HOLDS for k in range(2))
        else:
            assert residual([*heads[0], *heads[1]], [reads[:, i]]) < HOLDS
            assert residual(heads[0], [reads[:, i]]) > FAILS


class Streamed(nn.Module):
    """h + phi(GAT(h)) twice, between two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(IN, HID, bias=False), nn.Linear(HID, OUT, bias=False)
        self.layers = nn.ModuleList(shared(HID, HID) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encode(x)
        for layer in self.layers:
            x = x + F.leaky_relu(layer(x, edge_index))
        return self.decode(x)


def test_an_identity_residual_has_a_law_for_the_stream_only() -> None:
    p = products(Streamed())

    weights, atts = ([p[f"layers.{k}.{name}"] for k in range(2)] for name in ("lin_l.weight", "att"))
    for i in range(HID):
        writes = [p["encode.weight"][i], *(weight[i] for weight in weights), *(-att[0, 0, i] for att in atts)]
        assert residual(writes, [*(weight[:, i] for weight in weights), p["decode.weight"][:, i]]) < HOLDS
    assert max(between(p, 0, i, *TABLE["theorem 2.2"][1:]) for i in range(HID)) > FAILS


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm, lambda _, eps: gnn.PairNorm(eps=eps)])
def test_a_norm_splits_the_law_in_two(norm: Callable[..., nn.Module]) -> None:
    """What precedes it has a scale of its own: per channel for batch norm, per layer for the others."""
    p = products(three(shared, norms=(norm(HID, eps=1e-14), norm(HID2, eps=1e-14))))

    for layer in range(2):
        weight, att = p[f"layers.{layer}.lin_l.weight"], p[f"layers.{layer}.att"]
        by_channel = max(residual([weight[i]], [att[0, 0, i]]) for i in range(len(weight)))
        assert residual([weight], [att]) < HOLDS
        assert by_channel < HOLDS if norm is nn.BatchNorm1d else by_channel > FAILS
        if f"norms.{layer}.weight" in p:
            shift = [p[f"norms.{layer}.{name}"] for name in ("weight", "bias")]
            reads = p[f"layers.{layer + 1}.lin_l.weight"]
            assert max(residual([s[i] for s in shift], [reads[:, i]]) for i in range(len(weight))) < HOLDS


def test_dot_product_attention_has_a_matrix_law() -> None:
    model = three(lambda i, o: gnn.TransformerConv(i, o, bias=False, root_weight=False))
    p = products(model)

    for layer, conv in enumerate(model.layers):
        query, key = conv.lin_query.weight.detach(), conv.lin_key.weight.detach()
        left = query @ (p[f"layers.{layer}.lin_query.weight"] / query).t()
        right = (p[f"layers.{layer}.lin_key.weight"] / key) @ key.t()
        assert (left - right).norm() < HOLDS * left.norm()


def test_lipschitz_normalized_scores_couple_the_neurons() -> None:
    p = products(three(LipschitzGAT))

    for layer in range(3):
        assert residual(torch.cat([p[f"layers.{layer}.att_{end}"] for end in ("s", "t")])) < HOLDS
    for layer in range(2):
        assert residual([p[f"layers.{layer}.lin.weight"]], [p[f"layers.{layer + 1}.lin.weight"]]) < HOLDS


class Reparametrized(nn.Module):
    """W = c V / ||V|| in both layers of a GCN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(HID, IN)), nn.Parameter(torch.randn(OUT, HID))
        self.effective: list[Tensor] = []

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.effective = [2 * v / v.norm() for v in (self.first, self.second)]
        for weight in self.effective:
            weight.retain_grad()
        average = gnn.SimpleConv("mean")
        return average(F.leaky_relu(average(x @ self.effective[0].t(), edge_index)) @ self.effective[1].t(), edge_index)


def test_neuron_laws_hold_for_effective_weights_and_raw_ones_are_orthogonal_to_their_gradients() -> None:
    model = Reparametrized()
    output = model(features(), edges())
    (torch.randn_like(output) * output.square()).sum().backward()
    first, second = (weight.detach() * weight.grad for weight in model.effective if weight.grad is not None)
    raw = [v.detach() * v.grad for v in (model.first, model.second) if v.grad is not None]

    assert max(residual([first[i]], [second[:, i]]) for i in range(HID)) < HOLDS
    assert max(residual([raw[0][i]], [raw[1][:, i]]) for i in range(HID)) > FAILS
    assert max(abs(float(product.sum() / product.abs().sum())) for product in raw) < HOLDS

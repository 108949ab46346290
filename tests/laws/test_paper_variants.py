"""What normalization, residual streams, dot products and reparametrized weights leave of the laws, by hand.

The second half of the table of which test_paper_table.py is the first; read there how a law is tested.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.attention import LipschitzGAT
from tests.laws.models.graph import HID, HID2, IN, OUT, edges, features
from tests.laws.products import FAILS, HOLDS, Products, neurons, on_graph, products, residual, shared, shared_law, three


@pytest.fixture(autouse=True)
def _double_precision() -> Iterable[None]:
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


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
    p = on_graph(Streamed())

    writes, reads = [f"layers.{k}" for k in range(2)], [p["layers.0.lin_l.weight"], p["layers.1.lin_l.weight"]]
    for i in range(HID):
        left = [p["encode.weight"][i]]
        left += [part for k in writes for part in (p[f"{k}.lin_l.weight"][i], -p[f"{k}.att"][0, 0, i])]
        assert residual(left, [*(weight[:, i] for weight in reads), p["decode.weight"][:, i]]) < HOLDS
    assert max(shared_law(p, 0, 1, i) for i in range(HID)) > FAILS


def normed(norm: Callable[[int], nn.Module]) -> Products:
    return on_graph(three(shared, norms=(norm(HID), norm(HID2))))


def without_scale(p: Products, layer: int, i: int) -> float:
    """<W^l[i,:], g> - a^l[i] g = 0, the law of a layer whose scale is normalized away."""
    return residual([p[f"layers.{layer}.lin_l.weight"][i]], [p[f"layers.{layer}.att"][0, 0, i]])


def test_batch_norm_splits_the_law_in_two() -> None:
    p = normed(lambda n: nn.BatchNorm1d(n, eps=1e-14))

    for layer, following, i in neurons():
        shift = [p[f"norms.{layer}.weight"][i], p[f"norms.{layer}.bias"][i]]
        assert without_scale(p, layer, i) < HOLDS
        assert residual(shift, [p[f"layers.{following}.lin_l.weight"][:, i]]) < HOLDS


def test_layer_norm_leaves_the_sum_over_the_layer() -> None:
    p = normed(lambda n: nn.LayerNorm(n, eps=1e-14))

    for layer, following, i in neurons():
        shift = [p[f"norms.{layer}.weight"][i], p[f"norms.{layer}.bias"][i]]
        assert residual(shift, [p[f"layers.{following}.lin_l.weight"][:, i]]) < HOLDS
        assert without_scale(p, layer, i) > FAILS
    for layer in range(2):
        assert residual([p[f"layers.{layer}.lin_l.weight"]], [p[f"layers.{layer}.att"]]) < HOLDS


def test_pair_norm_leaves_the_sum_over_the_layer() -> None:
    p = normed(lambda n: gnn.PairNorm(eps=1e-14))

    for layer in range(2):
        assert residual([p[f"layers.{layer}.lin_l.weight"]], [p[f"layers.{layer}.att"]]) < HOLDS
        assert max(without_scale(p, layer, i) for i in range(HID2)) > FAILS


def gradients(model: nn.Module, *inputs: Any) -> dict[str, Tensor]:
    """dLoss/dw alone; `products` has drawn the weights."""
    return {n: v / model.get_parameter(n).detach() for n, v in products(model, *inputs).items()}


def test_dot_product_attention_has_a_matrix_law() -> None:
    model = three(lambda i, o: gnn.TransformerConv(i, o, bias=False, root_weight=False))
    g = gradients(model, features(), edges())

    for layer, conv in enumerate(model.layers):
        query = conv.lin_query.weight.detach() @ g[f"layers.{layer}.lin_query.weight"].t()
        key = g[f"layers.{layer}.lin_key.weight"] @ conv.lin_key.weight.detach().t()
        assert (query - key).norm() < HOLDS * query.norm()


def test_values_balance_everything_that_reads_them() -> None:
    p = on_graph(three(lambda i, o: gnn.TransformerConv(i, o, bias=False)))

    for layer, following, i in neurons():
        left = [p[f"layers.{layer}.{name}.weight"][i] for name in ("lin_value", "lin_skip")]
        right = [p[f"layers.{following}.lin_{name}.weight"][:, i] for name in ("query", "key", "value", "skip")]
        assert residual(left, right) < HOLDS
        assert residual(left, right[2:]) > FAILS


def test_values_and_output_map_have_a_matrix_law() -> None:
    model = nn.MultiheadAttention(3, 1, bias=False, batch_first=True)
    wrapped = SelfAttention(model)
    g = gradients(wrapped, torch.randn(2, 5, 3))

    value, output = model.in_proj_weight.detach()[6:], model.out_proj.weight.detach()
    left, right = value @ g["attend.in_proj_weight"][6:].t(), g["attend.out_proj.weight"].t() @ output

    assert (left - right).norm() < HOLDS * left.norm()


class SelfAttention(nn.Module):
    """The output of one attention layer."""

    def __init__(self, attend: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=False)[0]


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


def test_a_normalized_weight_is_orthogonal_to_its_gradient() -> None:
    model = Reparametrized()
    p = on_graph(model)

    for product in p.values():
        assert abs(product.sum()) < HOLDS * product.abs().sum()


def test_neuron_laws_hold_for_the_effective_weights() -> None:
    model = Reparametrized()
    output = model(features(), edges())
    (torch.randn_like(output) * output.square()).sum().backward()

    incoming, outgoing = (weight.detach() * weight.grad for weight in model.effective if weight.grad is not None)
    for i in range(HID):
        assert residual([incoming[i]], [outgoing[:, i]]) < HOLDS
    raw = [v.detach() * v.grad for v in (model.first, model.second) if v.grad is not None]
    assert max(residual([raw[0][i]], [raw[1][:, i]]) for i in range(HID)) > FAILS


def test_lipschitz_normalized_scores_couple_the_neurons() -> None:
    p = on_graph(three(LipschitzGAT))

    fails = 0.0
    for layer, following, i in neurons():
        attention = [-p[f"layers.{layer}.att_{end}"][i] for end in ("s", "t")]
        left = [p[f"layers.{layer}.lin.weight"][i], *attention]
        fails = max(fails, residual(left, [p[f"layers.{following}.lin.weight"][:, i]]))
    assert fails > FAILS
    for layer in range(3):
        attention = torch.cat([p[f"layers.{layer}.att_{end}"] for end in ("s", "t")])
        assert abs(attention.sum()) < HOLDS * attention.abs().sum()
    for layer in range(2):
        assert residual([p[f"layers.{layer}.lin.weight"]], [p[f"layers.{layer + 1}.lin.weight"]]) < HOLDS

"""The law table: formulas derived by hand, their sums by plain autograd, and the rows that are committed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch_geometric.nn.conv
from torch import Tensor

from gatdiag.laws import find_laws
from reports.papers.laws import STUDY, build, group_laws, measure_layer
from reports.papers.layers import LAYERS, Layer
from reports.papers.runner import REPORTS, TABLE, read_table

Sums = Callable[[Any], Tensor]


def rows(weight: Tensor) -> Tensor:
    """<w[i, :], dL/dw[i, :]> for each i."""
    return (weight.detach() * weight.grad).sum(1)


def columns(weight: Tensor) -> Tensor:
    return (weight.detach() * weight.grad).sum(0)


def entries(weight: Tensor) -> Tensor:
    return (weight.detach() * weight.grad).flatten()


# (layer, options) -> name of a law -> its formula, and its sums over the layer's own weights, derived by hand
BY_HAND: dict[tuple[str, str], dict[str, tuple[str, Sums]]] = {
    ("GCNConv", ""): {
        "in": ("in[i] − lin.weight[:, i]", lambda conv: -columns(conv.lin.weight)),
        "out": (
            "lin.weight[i, :] + bias[i] − out[i]",
            lambda conv: rows(conv.lin.weight) + entries(conv.bias),
        ),
    },
    ("SAGEConv", ""): {
        "in": (
            "in[i] − lin_l.weight[:, i] − lin_r.weight[:, i]",
            lambda conv: -columns(conv.lin_l.weight) - columns(conv.lin_r.weight),
        ),
        "out": (
            "lin_l.weight[i, :] + lin_r.weight[i, :] + lin_l.bias[i] − out[i]",
            lambda conv: rows(conv.lin_l.weight) + rows(conv.lin_r.weight) + entries(conv.lin_l.bias),
        ),
    },
    ("GATConv", ""): {
        "in": ("in[i] − lin.weight[:, i]", lambda conv: -columns(conv.lin.weight)),
        "out": (
            "lin.weight[i, :] + bias[i] − att_src[0, 0, i] − att_dst[0, 0, i] − out[i]",
            lambda conv: rows(conv.lin.weight) + entries(conv.bias) - entries(conv.att_src) - entries(conv.att_dst),
        ),
    },
    ("GATConv", "2 heads, mean"): {  # theorem 6.4 of "Are GATs Out of Balance?": only the sum over heads
        "out": (
            "lin.weight[i::6, :] + bias[i] − att_src[:, :, i] − att_dst[:, :, i] − out[i]",
            lambda conv: (
                (rows(conv.lin.weight) - entries(conv.att_src) - entries(conv.att_dst)).view(2, 6).sum(0)
                + entries(conv.bias)
            ),
        ),
    },
    ("GATv2Conv", "share_weights, no bias"): {  # theorem 2.2
        "in": ("in[i] − lin_l.weight[:, i]", lambda conv: -columns(conv.lin_l.weight)),
        "out": (
            "lin_l.weight[i, :] − att[0, 0, i] − out[i]",
            lambda conv: rows(conv.lin_l.weight) - entries(conv.att),
        ),
    },
    ("GATv2Conv", ""): {  # theorem 6.3, with the columns of lin_r that its printed form leaves out, and three biases
        "in": (
            "in[i] − lin_l.weight[:, i] − lin_r.weight[:, i]",
            lambda conv: -columns(conv.lin_l.weight) - columns(conv.lin_r.weight),
        ),
        "out": (
            "lin_l.weight[i, :] + lin_r.weight[i, :] + bias[i] + lin_l.bias[i] + lin_r.bias[i] − att[0, 0, i] − out[i]",
            lambda conv: (
                rows(conv.lin_l.weight)
                + rows(conv.lin_r.weight)
                + sum(map(entries, (conv.bias, conv.lin_l.bias, conv.lin_r.bias)))
                - entries(conv.att)
            ),
        ),
    },
    ("TransformerConv", ""): {  # the diagonal of Q g_Q^T = g_K K^T, biases as a further column
        "own": (
            "lin_key.weight[i, :] + lin_key.bias[i] − lin_query.weight[i, :] − lin_query.bias[i]",
            lambda conv: (
                rows(conv.lin_key.weight)
                + entries(conv.lin_key.bias)
                - rows(conv.lin_query.weight)
                - entries(conv.lin_query.bias)
            ),
        ),
    },
    ("GINConv", "train_eps"): {
        "own": (
            "nn.0.weight[i, :] + nn.0.bias[i] − nn.2.weight[:, i]",
            lambda conv: rows(conv.nn[0].weight) + entries(conv.nn[0].bias) - columns(conv.nn[2].weight),
        ),
    },
    ("GCN2Conv", "alpha=0.1, theta=0.5; x_0 is its input"): {  # a channel is kept, so W is read and written alike
        "through": (
            "in[i] + weight1[:, i] − weight1[i, :] − out[i]",
            lambda conv: columns(conv.weight1) - rows(conv.weight1),
        ),
    },
}


def layer_of(name: str, options: str) -> Layer:
    return next(layer for layer in LAYERS if (layer.name, layer.options) == (name, options))


@pytest.mark.parametrize(("name", "options"), BY_HAND)
def test_formulas_are_those_derived_by_hand(name: str, options: str) -> None:
    model, inputs = build(layer_of(name, options))

    found = {group.side: group.formula for group in group_laws([*find_laws(model, *inputs)])}

    for side, (formula, _) in BY_HAND[name, options].items():
        assert found[side] == formula


@pytest.mark.parametrize(("name", "options"), BY_HAND)
def test_sums_of_laws_derived_by_hand_are_zero(name: str, options: str) -> None:
    model, inputs = build(layer_of(name, options))
    model.double()
    x, *rest = inputs
    model(x.double(), *rest).square().sum().backward()
    written = rows(model.before.weight) + entries(model.before.bias)
    read = columns(model.after.weight)

    for side, (_, own) in BY_HAND[name, options].items():
        sums = own(model.layer) + (written if side in ("in", "through") else 0)
        sums = sums - (read if side in ("out", "through") else 0)
        assert sums.abs().max() < 1e-12 * (written.abs().max() + read.abs().max())


def test_printed_form_of_theorem_6_3_is_no_law() -> None:
    model, inputs = build(layer_of("GATv2Conv", ""))
    model(*inputs).square().sum().backward()

    left_out = columns(model.layer.lin_r.weight)

    assert left_out.abs().max() > 1e-3 * columns(model.layer.lin_l.weight).abs().max()


def test_every_convolution_of_pyg_is_listed() -> None:
    assert {layer.name for layer in LAYERS} == {*torch_geometric.nn.conv.__all__} - {"MessagePassing"}


@pytest.mark.parametrize(("name", "options"), [("GATv2Conv", "2 heads, concatenated"), ("CGConv", "dim=3")])
def test_committed_rows_are_measured_again(name: str, options: str) -> None:
    committed = read_table(REPORTS / "laws" / TABLE)
    kept = committed[(committed["layer"] == name) & (committed["options"] == options)]

    for found, row in zip(measure_layer(layer_of(name, options)), kept.to_dict("records"), strict=True):
        for column in ("laws", "null_space", "exact_laws", "null_space_exact", "laws_elu", "laws_skip"):
            assert found[column] == row[column]
        assert found.get("formula") == (row["formula"] if row["laws"] else None)


def test_committed_table_agrees_with_the_null_space() -> None:
    committed = read_table(REPORTS / "laws" / TABLE)
    run = committed[committed["laws"].notna()]

    assert (run["laws"] == run["null_space"]).all()
    assert STUDY.describe is not None
    assert "71 of 71 rows, 56 of PyG's 66 convolutions" in STUDY.describe(committed)


def test_layers_that_cannot_run_say_why() -> None:
    (row,) = measure_layer(layer_of("WLConv", ""))

    assert row["reasons"] == "not run: it has no parameters: it colors nodes with hashes of integers"


def test_positions_are_written_in_terms_of_the_channel() -> None:
    model, inputs = build(layer_of("GATConv", "2 heads, concatenated"))

    formulas = [group.formula for group in group_laws([*find_laws(model, *inputs)])]

    assert "lin.weight[i, :] + bias[i] − att_src[0, i // 3, i % 3] − att_dst[0, i // 3, i % 3] − out[i]" in formulas


def test_terms_that_cancel_are_left_out() -> None:
    model, inputs = build(layer_of("AntiSymmetricConv", "act=relu"))

    assert [group.formula for group in group_laws([*find_laws(model, *inputs)])] == ["in[:] + bias[:] − out[:]"]

"""The laws of whole models: which they are, what they are called, what has none and why."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.laws import Law, Laws, find_laws
from tests.laws.models import calls
from tests.laws.models.graph import HID, HID2, IN, OUT, Stack, edges, features
from tests.laws.stacks import assert_laws_hold, gcn, mlp, shared


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


WIDTHS = (IN, HID, HID2, 6, OUT)


def describe(law: Law) -> str:
    return " ".join(map(str, law.terms))


def plain(kind: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    pairs = list(pairwise(WIDTHS))
    if kind == "mlp":
        return mlp(*WIDTHS), (torch.randn(7, IN),)
    layer = {"gcn": gnn.GCNConv, "sage": gnn.SAGEConv, "gat": gnn.GATConv, "gatv2": gnn.GATv2Conv, "shared": shared}
    return Stack(*(layer[kind](i, o) for i, o in pairs)), (features(), edges())


@pytest.mark.parametrize("kind", ["mlp", "gcn", "sage", "gat", "gatv2", "shared"])
def test_a_plain_stack_has_one_law_a_hidden_neuron_named_in_order(kind: str) -> None:
    model, inputs = plain(kind)
    laws = find_laws(model, *inputs)

    paths = ["0", "2", "4"] if kind == "mlp" else ["layers.0", "layers.1", "layers.2"]
    expected = [(path, i) for path, width in zip(paths, WIDTHS[1:-1], strict=True) for i in range(width)]
    assert [(law.layer, law.neuron) for law in laws] == expected
    assert [law.name for law in laws] == [f"layer {paths.index(path) + 1} ({path}), neuron {i}" for path, i in expected]
    assert all(law.kind == "neuron" and law.exact and not law.residual > 1e-10 for law in laws)
    assert laws.excluded == ()
    starts = [sum(WIDTHS[1 : layer + 1]) for layer in range(len(paths))]
    assert laws.by_layer() == {
        path: list(range(start, start + width)) for path, start, width in zip(paths, starts, WIDTHS[1:-1], strict=True)
    }


def test_theorem_2_2_term_by_term() -> None:
    model = Stack(shared(IN, HID), shared(HID, HID2), shared(HID2, OUT))

    for law in find_laws(model, features(), edges()):
        here, i = law.layer, law.neuron
        following = f"layers.{int(here[-1]) + 1}"
        assert (
            describe(law) == f"+ {here}.lin_l.weight[{i}, :] - {here}.att[0, 0, {i}] - {following}.lin_l.weight[:, {i}]"
        )


def test_theorem_6_3_has_the_term_that_the_published_form_lacks() -> None:
    model = Stack(*(gnn.GATv2Conv(i, o, bias=False) for i, o in ((IN, HID), (HID, HID2), (HID2, OUT))))
    laws = find_laws(model, features(), edges())

    for law in laws:
        here, i = law.layer, law.neuron
        following = f"layers.{int(here[-1]) + 1}"
        assert describe(law) == (
            f"+ {here}.lin_l.weight[{i}, :] + {here}.lin_r.weight[{i}, :] - {here}.att[0, 0, {i}] "
            f"- {following}.lin_l.weight[:, {i}] - {following}.lin_r.weight[:, {i}]"
        )
    assert_laws_hold(laws, model, features(), edges())


def test_theorem_6_4_concatenated_heads_have_a_law_a_head_and_channel() -> None:
    model = Stack(shared(IN, 3, heads=2), shared(6, OUT, heads=2, concat=False))
    laws = find_laws(model, features(), edges())

    assert [describe(law) for law in laws] == [
        f"+ layers.0.lin_l.weight[{3 * k + i}, :] - layers.0.att[0, {k}, {i}] - layers.1.lin_l.weight[:, {3 * k + i}]"
        for k in range(2)
        for i in range(3)
    ]


def test_theorem_6_4_averaged_heads_have_laws_summed_over_heads_only() -> None:
    model = Stack(shared(IN, 3, heads=2, concat=False), shared(3, OUT))
    laws = find_laws(model, features(), edges())

    assert [describe(law) for law in laws] == [
        f"+ layers.0.lin_l.weight[{i}, :], layers.0.lin_l.weight[{3 + i}, :] "
        f"- layers.0.att[:, :, {i}] - layers.1.lin_l.weight[:, {i}]"
        for i in range(3)
    ]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_of_a_layer_without_inputs_only_the_bias_is_in_laws() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.static, self.last = nn.Linear(3, 2), nn.Linear(0, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((self.first(x) + self.static(x[:, :0])).relu())

    assert list(map(str, find_laws(Model(), torch.randn(5, 3)))) == [
        f"residual stream, channel {i}: first.weight[{i}, :] + first.bias[{i}] + static.bias[{i}] - last.weight[:, {i}]"
        for i in range(2)
    ]


def test_a_residual_stream_has_one_law_a_channel_that_all_layers_share() -> None:
    model = Stack(
        gnn.GCNConv(IN, HID), gnn.GCNConv(HID, HID), gnn.GCNConv(HID, HID), gnn.GCNConv(HID, OUT), residual=True
    )
    laws = find_laws(model, features(), edges())

    assert [law.name for law in laws] == [f"residual stream, channel {i}" for i in range(HID)]
    assert {law.kind for law in laws} == {"stream"}
    for i, law in enumerate(laws):
        writes = [f"+ layers.{k}.{part}" for k in range(3) for part in (f"lin.weight[{i}, :]", f"bias[{i}]")]
        reads = [f"- layers.{k}.lin.weight[:, {i}]" for k in (1, 2, 3)]
        assert sorted(map(str, law.terms)) == sorted([*writes, *reads])
    assert_laws_hold(laws, model, features(), edges())


def test_attention_by_dot_products_pairs_query_with_key() -> None:
    model = Stack(gnn.TransformerConv(IN, 3, bias=False), gnn.TransformerConv(3, OUT, bias=False))
    laws = find_laws(model, features(), edges())
    products = [law for law in laws if law.kind == "product"]

    assert [law.name for law in products] == [
        f"layer {k + 1} (layers.{k}), query/key channel {i}" for k, width in enumerate((3, OUT)) for i in range(width)
    ]
    assert {frozenset(term.parameter.split(".")[2] for term in law.terms) for law in products} == {
        frozenset(("lin_query", "lin_key"))
    }


def reasons(laws: Laws) -> dict[str, str]:
    return {exclusion.what: exclusion.reason for exclusion in laws.excluded}


def test_elu_is_named_with_the_layer_it_holds() -> None:
    laws = find_laws(gcn(F.elu), features(), edges())

    assert len(laws) == 0
    assert reasons(laws) == {
        f"{HID} channels of layers.0": "elu in the model does not commute with scaling",
        f"{HID2} channels of layers.1": "elu in the model does not commute with scaling",
    }


def test_channels_that_are_tied_to_what_is_held_are_accounted_for() -> None:
    """The score of an edge ties the channels of a layer together, and its sigmoid holds their common scale."""
    model = Stack(*(gnn.SuperGATConv(i, o, attention_type="MX") for i, o in ((IN, HID), (HID, HID2), (HID2, OUT))))
    laws = find_laws(model, features(), edges())

    counted = {f"layers.{number}": 0 for number in range(3)}
    for exclusion in laws.excluded:
        count, _, layer = exclusion.what.partition(" channels of ")
        counted[layer] += int(count)
    assert len(laws) == 0
    assert counted == {"layers.0": HID, "layers.1": HID2, "layers.2": 1}
    assert {reason.partition(" in ")[2].partition(" ")[2] for reason in reasons(laws).values()} <= {
        "does not commute with scaling",
        "ties them to a fixed scale",
    }


class Unlisted(nn.Module):
    """A Bessel function is no operation of neural networks, and there is no rule for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.third(torch.special.i0e(x))


def test_an_operation_without_a_rule_is_named_and_what_it_touches_is_held() -> None:
    laws = find_laws(Unlisted(), torch.randn(5, 3))

    (what,) = [key for key in reasons(laws) if key.startswith("operation")]
    assert what == "operation special_i0e in the model"
    assert reasons(laws)[what] == "no rule for this operation, so its arguments must keep their scale (calls: 1)"
    assert [law.layer for law in laws] == ["first"] * 4


class Taught(nn.Module):
    """Another layer, which gets no gradient, is added to, decides about or is computed beside the hidden units."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            other = self.other(x)
        return self.last(self.use(self.first(x).relu(), other))


def throw_away(hidden: Tensor, other: Tensor) -> Tensor:
    hidden + other
    return hidden


@pytest.mark.parametrize(
    ("use", "count"), [(torch.add, 0), (torch.mul, 4), (lambda h, other: h * (h > other), 0), (throw_away, 4)]
)
def test_what_gets_no_gradient_keeps_its_scale_if_the_output_depends_on_it(
    use: Callable[[Tensor, Tensor], Tensor], count: int
) -> None:
    laws = find_laws(Taught(use), torch.randn(6, 3))

    assert len(laws) == count
    assert all(term.parameter.split(".")[0] != "other" for law in laws for term in law.terms)
    assert {"other.weight", "other.bias"} <= set(reasons(laws))
    assert not [reason for reason in reasons(laws).values() if "residual" in reason]


class Parts(nn.Module):
    """Two halves that are a complex number for a moment, and part again without having met."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        halves = torch.complex(*self.first(x).chunk(2, -1))
        return self.last(torch.cat([halves.real, halves.imag], -1).relu())


def test_a_rule_that_demands_more_than_its_operation_is_named() -> None:
    laws = find_laws(Parts(), torch.randn(5, 3))

    assert [law.layer for law in laws] == ["first"] * 4
    reason = "its rule requires entries to scale alike that need not, so laws may be missed"
    assert reasons(laws) == {"operation complex in the model": reason}


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Parameter(torch.randn(4, 4, dtype=torch.complex64)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(x.to(self.first.dtype) @ self.first @ self.last)


def test_complex_weights_have_laws() -> None:
    model = Complex()
    x = torch.randn(5, 4)
    laws = find_laws(model, x)
    (model(x) ** 3).sum().backward()

    assert len(laws) == 4
    assert all(law.residual < 1e-10 for law in laws)
    assert float(laws.normalized_delta().max()) < 1e-5
    first, last = (weight.detach().to(torch.complex128).abs().square() for weight in (model.first, model.last))
    torch.testing.assert_close(laws.c(), first.sum(0) - last.sum(1))


def test_a_frozen_layer_leaves_the_laws_that_do_not_need_it() -> None:
    model = mlp(3, 4, 5, 2)
    model[2].weight.requires_grad_(False)
    (law,) = find_laws(model, torch.randn(6, 3))
    assert describe(law) == "+ 0.weight[:, :] + 0.bias[:] + 2.bias[:] - 4.weight[:, :]"

    model[2].weight.requires_grad_(True)
    model[0].weight.requires_grad_(False)
    laws = find_laws(model, torch.randn(6, 3))
    assert [law.layer for law in laws] == ["2"] * 5
    assert not any(term.parameter.startswith("0.") for law in laws for term in law.terms)


def test_a_parameter_that_never_reaches_the_output_is_reported() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = mlp(3, 4, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    laws = find_laws(Spare(), torch.randn(5, 3))

    assert len(laws) == 4
    assert {what for what, reason in reasons(laws).items() if "never reaches the output" in reason} == {
        "spare.weight",
        "spare.bias",
    }


def test_an_activation_that_layers_share_is_named_where_it_runs() -> None:
    """PyG's default argument is one module for all layers."""
    model = Stack(gnn.ResGatedGraphConv(IN, HID), gnn.ResGatedGraphConv(HID, OUT))
    assert model.layers[0].act is model.layers[1].act

    reasons = [(exclusion.what, exclusion.reason) for exclusion in find_laws(model, features(), edges()).excluded]

    assert reasons == [
        (f"{2 * HID} channels of layers.0", "sigmoid in layers.0.act does not commute with scaling"),
        (f"{2 * OUT} channels of layers.1", "sigmoid in layers.1.act does not commute with scaling"),
    ]


@pytest.mark.parametrize("name", calls.CHANGING)
def test_no_law_is_claimed_of_calls_that_run_different_operations(name: str) -> None:
    model, args, _ = calls.CHANGING[name]()
    laws = find_laws(model, *args)

    assert len(laws) == 0
    assert reasons(laws).keys() == {"the forward pass"}
    assert "two calls ran different operations" in reasons(laws)["the forward pass"]


def test_calls_may_differ_in_a_mode_that_the_model_is_not_in() -> None:
    model, args, _ = calls.CHANGING["hidden state"]()
    between = model.between
    model.between = lambda self, hidden, graph: between(self, hidden, graph) if self.training else self.step(hidden)

    assert len(find_laws(model, *args)) == 0
    assert len(find_laws(model.eval(), *args)) == 10

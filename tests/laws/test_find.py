"""The laws of whole models: which they are, what they are called, and that they hold."""

import math
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

from gatdiag.errors import ModelError
from gatdiag.laws import Law, Laws, find_laws
from tests.laws.loops import each, exponents, gradients, rescale, weights
from tests.laws.models.graph import HID, HID2, IN, NODES, OUT, Stack, edges, features, undirected

WIDTHS = (IN, HID, HID2, 6, OUT)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def described(law: Law) -> str:
    return " ".join(map(str, law.terms))


def mlp(*widths: int, bias: bool = True, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(i, o, bias), act()]
    return nn.Sequential(*layers[:-1])


def shared(i: int, o: int, **more: Any) -> nn.Module:
    return gnn.GATv2Conv(i, o, share_weights=True, bias=False, **more)


def gcn(act: Any = F.relu) -> Stack:
    return Stack(gnn.GCNConv(IN, HID), gnn.GCNConv(HID, HID2), gnn.GCNConv(HID2, OUT), act=act)


def assert_laws_hold(laws: Laws, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """delta, added up entry by entry from autograd's gradients, is rounding; the terms it cancels are not."""
    output = model(*args, **kwargs)
    (torch.randn_like(output) * output + output.square()).sum().backward()
    delta = each(laws, weights(model), gradients(model))
    scale = each(laws, weights(model), gradients(model), absolute=True)
    rounding = torch.finfo(output.dtype).eps
    assert (delta.abs() <= 200 * rounding * scale.clamp(min=scale.max() * 1e-3)).all()
    assert scale.max() > 0


# the laws of plain stacks


def plain(kind: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    pairs = list(zip(WIDTHS, WIDTHS[1:], strict=False))
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
    assert [law.name for law in laws] == [
        f"layer {paths.index(path) + 1} ({path}), neuron {i}" for path, i in expected
    ]
    assert all(law.kind == "neuron" and law.exact and not law.residual > 1e-10 for law in laws)
    assert laws.excluded == ()
    starts = [sum(WIDTHS[1 : layer + 1]) for layer in range(len(paths))]
    assert laws.by_layer() == {
        path: list(range(start, start + width))
        for path, start, width in zip(paths, starts, WIDTHS[1:-1], strict=True)
    }


def test_one_layer_has_no_law() -> None:
    assert len(find_laws(nn.Linear(3, 2), torch.randn(4, 3))) == 0


def test_theorem_2_2_term_by_term() -> None:
    model = Stack(shared(IN, HID), shared(HID, HID2), shared(HID2, OUT))

    for law in find_laws(model, features(), edges()):
        here, i = law.layer, law.neuron
        following = f"layers.{int(here[-1]) + 1}"
        assert described(law) == f"+ {here}.lin_l.weight[{i}, :] - {here}.att[0, 0, {i}] - {following}.lin_l.weight[:, {i}]"


def test_theorem_6_3_has_the_term_that_the_published_form_lacks() -> None:
    model = Stack(*(gnn.GATv2Conv(i, o, bias=False) for i, o in ((IN, HID), (HID, HID2), (HID2, OUT))))
    laws = find_laws(model, features(), edges())

    for law in laws:
        here, i = law.layer, law.neuron
        following = f"layers.{int(here[-1]) + 1}"
        assert described(law) == (
            f"+ {here}.lin_l.weight[{i}, :] + {here}.lin_r.weight[{i}, :] - {here}.att[0, 0, {i}] "
            f"- {following}.lin_l.weight[:, {i}] - {following}.lin_r.weight[:, {i}]"
        )
    assert_laws_hold(laws, model, features(), edges())


def test_theorem_6_4_concatenated_heads_have_a_law_a_head_and_channel() -> None:
    model = Stack(shared(IN, 3, heads=2), shared(6, OUT, heads=2, concat=False))
    laws = find_laws(model, features(), edges())

    assert [described(law) for law in laws] == [
        f"+ layers.0.lin_l.weight[{3 * k + i}, :] - layers.0.att[0, {k}, {i}] - layers.1.lin_l.weight[:, {3 * k + i}]"
        for k in range(2)
        for i in range(3)
    ]


def test_theorem_6_4_averaged_heads_have_laws_summed_over_heads_only() -> None:
    model = Stack(shared(IN, 3, heads=2, concat=False), shared(3, OUT))
    laws = find_laws(model, features(), edges())

    assert [described(law) for law in laws] == [
        f"+ layers.0.lin_l.weight[{i}, :], layers.0.lin_l.weight[{3 + i}, :] "
        f"- layers.0.att[:, :, {i}] - layers.1.lin_l.weight[:, {i}]"
        for i in range(3)
    ]


def test_every_bias_goes_left() -> None:
    law = find_laws(Stack(gnn.GATv2Conv(IN, 2), gnn.GATv2Conv(2, OUT)), features(), edges())[0]

    assert {term.parameter: term.exponent for term in law.terms} == {
        **dict.fromkeys([f"layers.0.{name}" for name in ("lin_l.weight", "lin_l.bias", "lin_r.weight", "lin_r.bias")], 1),
        "layers.0.bias": 1,
        "layers.0.att": -1,
        "layers.1.lin_l.weight": -1,
        "layers.1.lin_r.weight": -1,
    }


def test_a_residual_stream_has_one_law_a_channel_that_all_layers_share() -> None:
    model = Stack(gnn.GCNConv(IN, HID), gnn.GCNConv(HID, HID), gnn.GCNConv(HID, HID), gnn.GCNConv(HID, OUT), residual=True)
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


# the values of the laws


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_delta_c_and_their_normalised_forms_are_what_loops_give(dtype: torch.dtype) -> None:
    model, x = Stack(gnn.GATv2Conv(IN, 3, heads=2), gnn.GATv2Conv(6, OUT)).to(dtype), features().to(dtype)
    laws = find_laws(model, x, edges())
    model(x, edges()).square().sum().backward()
    w, g = weights(model), gradients(model)
    g["layers.0.att"] = g["layers.0.att"] + 10  # so that delta is not rounding

    torch.testing.assert_close(laws.delta(g), each(laws, w, g))
    torch.testing.assert_close(laws.c(), each(laws, w, w))
    torch.testing.assert_close(laws.normalised_c(), each(laws, w, w) / each(laws, w, w, absolute=True))
    torch.testing.assert_close(laws.residual(g), each(laws, w, g).abs() / each(laws, w, g, absolute=True))
    assert laws.delta(g).abs().min() > 1e-3


def test_normalised_c_is_within_one_and_says_which_side_is_heavier() -> None:
    model = mlp(3, 4, 2, bias=False)
    laws = find_laws(model, torch.randn(5, 3))

    with torch.no_grad():
        model[2].weight.zero_()
    assert laws.normalised_c().tolist() == [1.0] * 4
    with torch.no_grad():
        model[2].weight.fill_(1.0)
        model[0].weight.zero_()
    assert laws.normalised_c().tolist() == [-1.0] * 4
    with torch.no_grad():
        model[0].weight.fill_(math.sqrt(2 / 3))
    assert laws.normalised_c().abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_precision_of_the_model_will_do(dtype: torch.dtype) -> None:
    model, x = gcn().to(dtype), features().to(dtype)
    laws = find_laws(model, x, edges())

    assert len(laws) == HID + HID2
    assert max(law.residual for law in laws) < 1e-10  # checked in float64 whatever the model has
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert (laws.c().dtype, laws.c().shape) == (torch.float64, (HID + HID2,))
    model(x, edges()).float().square().sum().backward()
    assert laws.normalised_delta().max() < 100 * torch.finfo(dtype).eps


def test_two_calls_find_the_same() -> None:
    model = Stack(gnn.GATv2Conv(IN, 3, heads=2, dropout=0.5), gnn.BatchNorm(6), act=lambda x: x)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.out = model.layers, gnn.GCNConv(6, OUT)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.out(F.relu(self.inside[1](self.inside[0](x, edge_index))), edge_index)

    both = Both()
    x = features()
    first, second = (find_laws(both, x, edges()) for _ in range(2))

    assert list(first) == list(second)
    assert first.excluded == second.excluded
    assert len(first) > 0


# symmetry


@st.composite
def stacks(draw: st.DrawFn) -> nn.Module:
    """A random GNN of one to three hidden layers."""
    kind = draw(st.sampled_from(["gcn", "gatv2", "sage"]))
    hidden = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    bias, residual, heads = draw(st.booleans()), draw(st.booleans()), draw(st.integers(1, 2))
    torch.manual_seed(draw(st.integers(0, 1000)))
    layers: list[nn.Module] = []
    before = IN
    for width in hidden:
        if kind == "gatv2":
            concat = draw(st.booleans())
            layers.append(gnn.GATv2Conv(before, width, heads=heads, concat=concat, bias=bias))
            before = width * heads if concat else width
        else:
            layers.append({"gcn": gnn.GCNConv, "sage": gnn.SAGEConv}[kind](before, width, bias=bias))
            before = width
    return Stack(*layers, gnn.GCNConv(before, OUT, bias=bias), residual=residual).double()


@given(stacks(), st.floats(-1, 1), st.data())
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_a_law_is_a_rescaling_that_leaves_the_outputs_alone(model: nn.Module, power: float, data: st.DataObject) -> None:
    x = torch.randn(NODES, IN, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    laws = find_laws(model, x, edges())
    before = model(x, edges()).detach()

    law = laws[data.draw(st.integers(0, len(laws) - 1))] if len(laws) else None
    if law is not None:
        old = weights(model)[law.terms[0].parameter].clone()
        rescale(model, law, math.exp(power))
        assert abs(power) < 1e-3 or not torch.equal(old, weights(model)[law.terms[0].parameter])

    torch.testing.assert_close(model(x, edges()).detach(), before, rtol=1e-9, atol=1e-11)


# what is left out, and why


def reasons(laws: Laws) -> dict[str, str]:
    return {exclusion.what: exclusion.reason for exclusion in laws.excluded}


def test_elu_is_named_with_the_layer_it_holds() -> None:
    laws = find_laws(gcn(F.elu), features(), edges())

    assert len(laws) == 0
    assert reasons(laws) == {
        f"{HID} channels of layers.0": "elu in the model does not commute with scaling",
        f"{HID2} channels of layers.1": "elu in the model does not commute with scaling",
    }


def test_an_activation_that_is_a_module_is_named_by_its_path() -> None:
    laws = find_laws(mlp(3, 4, 2, act=nn.Tanh), torch.randn(5, 3))

    assert reasons(laws) == {"4 channels of 0": "tanh in 1 does not commute with scaling"}


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
    assert reasons(laws)[what] == "no rule for it, so what it touches keeps its scale (1 times)"
    assert [law.layer for law in laws] == ["first"] * 4


def test_a_frozen_layer_leaves_the_laws_that_do_not_need_it() -> None:
    model = mlp(3, 4, 5, 2)
    model[2].weight.requires_grad_(False)
    (law,) = find_laws(model, torch.randn(6, 3))
    assert described(law) == "+ 0.weight[:, :] + 0.bias[:] + 2.bias[:] - 4.weight[:, :]"

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


# every way a model can be given


def test_a_compiled_model_has_the_laws_of_the_model_inside() -> None:
    model = gcn()
    compiled = torch.compile(model, backend="eager")
    x = features()

    assert list(find_laws(compiled, x, edges())) == list(find_laws(model, x, edges()))


def test_wrappers_of_data_parallelism_do_not_show_in_the_names() -> None:
    model = gcn()
    x = features()

    assert list(find_laws(nn.DataParallel(model), x, edges())) == list(find_laws(model, x, edges()))


def test_the_mode_of_the_model_counts() -> None:
    """Batch norm takes the scale of a batch out; its running statistics do not."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(8, 3)

    assert sorted(law.kind for law in find_laws(model, x)) == ["neuron"] * 4 + ["scale"] * 4
    assert [law.kind for law in find_laws(model.eval(), x)] == ["neuron"] * 4
    assert not any(module.training for module in model.modules())


def test_dropout_keeps_every_law() -> None:
    model = Stack(*(gnn.GATv2Conv(i, o, dropout=0.5) for i, o in ((IN, HID), (HID, OUT))), act=lambda x: F.dropout(x.relu()))

    assert len(find_laws(model, features(), edges())) == HID


class OnData(nn.Module):
    """Takes a graph, returns a dictionary with a nested tuple, and wants a keyword."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.inside, self.whole = gcn(), whole

    def forward(self, data: Data, *, scale: float = 1.0) -> dict[str, Any]:
        out = scale * self.inside(data.x, data.edge_index)
        return {"logits": out, "more": (out.sum(), [3])} if not self.whole else {"logits": out}


def test_a_graph_as_input_keywords_and_nested_outputs() -> None:
    data = Data(x=features(), edge_index=edges())

    for law, other in zip(
        find_laws(OnData(), data, scale=2.0), find_laws(gcn(), features(), edges()), strict=True
    ):
        assert law.name == other.name.replace("(layers", "(inside.layers")


class Deep(nn.Module):
    """Returns hidden features beside its output, so these may not be rescaled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.first(x))
        return self.third(F.relu(self.second(hidden))), hidden


def test_everything_a_forward_pass_returns_keeps_its_scale() -> None:
    assert [law.layer for law in find_laws(Deep(), torch.randn(6, 3))] == ["second"] * 5


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:Converting sparse:UserWarning")
@pytest.mark.parametrize("form", ["coo", "csr", "edge index"])
def test_every_form_of_adjacency_gives_the_same_laws(form: str) -> None:
    both = undirected()
    values = torch.ones(both.shape[1])
    adjacency = torch.sparse_coo_tensor(both, values, (NODES, NODES)).coalesce()
    if form == "csr":
        adjacency = adjacency.to_sparse_csr()
    given = EdgeIndex(both.contiguous(), sparse_size=(NODES, NODES)) if form == "edge index" else adjacency
    model = Stack(*(gnn.SAGEConv(i, o) for i, o in ((IN, HID), (HID, HID2), (HID2, OUT))))
    x = features()

    laws = find_laws(model, x, given)

    assert list(map(str, laws)) == list(map(str, find_laws(model, x, both)))
    assert_laws_hold(laws, model.double(), x.double(), both)


def test_the_laws_hold_on_every_sub_graph() -> None:
    model, x = gcn().double(), features().double()
    subset, inside, mapping, _ = k_hop_subgraph([0, 4], 1, edges(), relabel_nodes=True, num_nodes=NODES)
    laws = find_laws(model, x[subset], inside)

    assert len(laws) == HID + HID2
    assert len(subset) < NODES
    assert_laws_hold(laws, model, x[subset], inside)
    model.zero_grad()
    assert_laws_hold(laws, model, x, edges())


# what cannot be analysed


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match="Expected a model with parameters"):
        find_laws(nn.ReLU(), torch.randn(3))


def test_a_model_all_of_whose_parameters_are_frozen_is_refused() -> None:
    with pytest.raises(ModelError, match="requires_grad=True"):
        find_laws(mlp(3, 4, 2).requires_grad_(False), torch.randn(5, 3))


def test_a_detached_output_is_refused() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x).detach()

    with pytest.raises(ModelError, match="output depends on a trainable parameter.*not detached"):
        find_laws(Cut(), torch.randn(5, 3))


def test_a_lazy_layer_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"layer 'layers.0.lin' .*is lazy.*run it once"):
        find_laws(Stack(gnn.GCNConv(-1, HID), gnn.GCNConv(HID, OUT)), features(), edges())


def test_a_forward_pass_that_fails_is_refused_with_the_layer_and_the_reason() -> None:
    with pytest.raises(ModelError, match=r"failed in layer 'layers.1.lin' .*mat1 and mat2 shapes cannot be multiplied"):
        find_laws(Stack(gnn.GCNConv(IN, HID), gnn.GCNConv(HID + 1, OUT)), features(), edges())


def test_weights_that_are_not_finite_are_refused() -> None:
    model = mlp(3, 4, 2)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan

    with pytest.raises(ModelError, match="not finite"):
        find_laws(model, torch.randn(5, 3))


def test_exponents_of_a_law_are_those_of_its_terms() -> None:
    """The slow loops read the same law that a person does."""
    law = find_laws(mlp(2, 2, 1), torch.randn(5, 2))[1]

    table = exponents(law)
    assert table["0.weight"].tolist() == [[0, 0], [1, 1]]
    assert table["0.bias"].tolist() == [0, 1]
    assert table["2.weight"].tolist() == [[0, -1]]

"""Every way a model can be given, and models that cannot be analyzed."""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

from gatdiag.errors import ModelError
from gatdiag.laws import find_laws
from tests.laws.models.graph import HID, HID2, IN, NODES, OUT, Stack, edges, features
from tests.laws.stacks import assert_laws_hold, gcn, mlp
from tests.laws.zoo import build


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend="eager"), nn.DataParallel])
def test_a_wrapped_model_has_the_laws_of_the_model_inside(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, x = gcn(), features()

    assert list(find_laws(wrap(model), x, edges())) == list(find_laws(model, x, edges()))


class CompiledMethod(nn.Sequential):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.run = torch.compile(self.run, backend="eager")

    def run(self, x: Tensor) -> Tensor:
        return super().forward(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def test_a_model_with_a_compiled_method_has_the_laws_of_the_method() -> None:
    layers = list(mlp(3, 4, 2))
    assert list(find_laws(CompiledMethod(*layers), *ON_ROWS)) == list(find_laws(nn.Sequential(*layers), *ON_ROWS))


class Jumping(nn.Module):
    """An LSTM over the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([gnn.GCNConv(IN, 4), gnn.GCNConv(4, 4)])
        self.jump, self.read = gnn.JumpingKnowledge("lstm", 4, 2), nn.Linear(4, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = [x := layer(x, edge_index).relu() for layer in self.layers]
        return self.read(self.jump(xs))


@pytest.mark.parametrize("nodes", [300, 2000])
def test_a_recurrent_layer_has_the_same_laws_on_graphs_that_are_sampled(nodes: int) -> None:
    ring = torch.arange(nodes)
    edge_index = torch.stack([ring.repeat(2), torch.cat([ring.roll(-1), ring.roll(-7)])])
    assert len(find_laws(Jumping(), features(nodes=nodes), edge_index)) == 4


def test_the_mode_of_the_model_counts() -> None:
    """Batch norm takes the scale of a batch out; its running statistics do not."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(8, 3)

    assert sorted(law.kind for law in find_laws(model, x)) == ["neuron"] * 4 + ["scale"] * 4
    assert [law.kind for law in find_laws(model.eval(), x)] == ["neuron"] * 4
    assert not any(module.training for module in model.modules())


def scatter(model: nn.Module, strength: float, *, signs: bool = False) -> None:
    """Multiply each weight by a random factor, of either sign if wanted."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= (strength * torch.randn_like(parameter)).exp()
            if signs:
                parameter *= torch.randn_like(parameter).sign()


@pytest.mark.parametrize(
    ("name", "strength", "seed"),
    [
        ("library: GAT lstm", 0.3, 0),
        ("attention: gatv2 heads mixed", 1.0, 1),
        ("pooling: set transformer aggregation", 0.3, 0),
        ("library: PNA", 1.0, 0),
    ],
)
def test_laws_found_at_one_point_hold_at_others(name: str, strength: float, seed: int) -> None:
    """At these weights whole layers are dead, and what reads them seems to be without effect."""
    model, args, kwargs = build(name)
    torch.manual_seed(seed)
    scatter(model, strength)
    laws = find_laws(model, *args, **kwargs)
    assert laws

    model.double()
    own = deepcopy(model.state_dict())
    for _ in range(5):
        model.load_state_dict(own)
        scatter(model, 0.5, signs=True)
        model.zero_grad()
        assert_laws_hold(laws, model, *(a.double() if a.is_floating_point() else a for a in args), **kwargs)


def test_attention_over_rows_that_depth_has_made_alike_is_part_of_its_law() -> None:
    """After 30 layers the rows are equal to rounding, and so is what each attention vector seems to do."""
    laws = find_laws(gnn.GAT(8, 8, 32, out_channels=8, v2=True), features(8), edges())

    assert [law.kind for law in laws] == ["neuron"] * 31 * 8
    assert all(f"- {law.layer}.att[0, 0, {law.neuron}] " in str(law) for law in laws)


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_laws_hold_on_both_sides_of_the_constant_below_which_pna_takes_deviations_for_zero(size: float) -> None:
    model, args, kwargs = build("library: PNA")
    laws = find_laws(model, *args, **kwargs)
    assert all(law.exact for law in laws)

    model.double()
    inputs = [a.double() if a.is_floating_point() else a for a in args]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= size
    for aggregation in [module for module in model.modules() if isinstance(module, gnn.StdAggregation)]:
        aggregation.register_forward_hook(lambda *call: zeros.append(float((call[-1] == 0).double().mean())))
    zeros: list[float] = []
    assert_laws_hold(laws, model, *inputs, **kwargs)

    assert (min(zeros) == 1) == (size < 1)


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

    for law, other in zip(find_laws(OnData(), data, scale=2.0), find_laws(gcn(), features(), edges()), strict=True):
        assert law.name == other.name.replace("(layers", "(inside.layers")


def test_the_laws_hold_on_every_sub_graph() -> None:
    model, x = gcn().double(), features().double()
    subset, inside, _, _ = k_hop_subgraph([0, 4], 1, edges(), relabel_nodes=True, num_nodes=NODES)
    laws = find_laws(model, x[subset], inside)

    assert len(laws) == HID + HID2
    assert len(subset) < NODES
    assert_laws_hold(laws, model, x[subset], inside)
    model.zero_grad()
    assert_laws_hold(laws, model, x, edges())


class Cut(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Undefined(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * math.nan


def of_nan() -> nn.Module:
    return nn.Sequential(mlp(3, 4, 2), Undefined())


def test_weights_that_are_not_finite_have_the_laws_of_others() -> None:
    model = mlp(3, 4, 2)
    laws = find_laws(model, *ON_ROWS)
    model[0].weight.data[0, 0], model[2].weight.data[1, 2] = math.nan, math.inf
    found = find_laws(model, *ON_ROWS)
    assert [law.terms for law in found] == [law.terms for law in laws]
    assert found.c().isfinite().tolist() == [False, True, False, True]  # the neurons of those weights


def test_two_parameters_over_one_memory_have_no_law_for_a_step_moves_it_twice() -> None:
    model = mlp(3, 3, 3, 2)
    model[2].weight.data = model[0].weight.data.t()
    laws = find_laws(model, *ON_ROWS)
    assert not len(laws)
    assert [exclusion.what for exclusion in laws.excluded] == ["0.weight and 2.weight"]


ON_GRAPH, ON_ROWS = (features(), edges()), (torch.randn(5, 3),)
REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "Expected a model with parameters": (nn.ReLU, ON_ROWS),
    "requires_grad=True": (lambda: mlp(3, 4, 2).requires_grad_(False), ON_ROWS),
    "depend on a trainable parameter.*not detached": (lambda: Cut(3, 2), ON_ROWS),
    "not finite": (of_nan, ON_ROWS),
    "layer 'layers.0.lin' .*is lazy.*run it once": (
        lambda: Stack(gnn.GCNConv(-1, HID), gnn.GCNConv(HID, OUT)),
        ON_GRAPH,
    ),
    "failed in layer 'layers.1.lin' .*mat1 and mat2 shapes cannot be multiplied": (
        lambda: Stack(gnn.GCNConv(IN, HID), gnn.GCNConv(HID + 1, OUT)),
        ON_GRAPH,
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_analyzed_is_refused_with_the_reason(message: str) -> None:
    make, inputs = REFUSED[message]
    with pytest.raises(ModelError, match=message):
        find_laws(make(), *inputs)


class Branching(nn.Module):
    """Another activation, or another power, or a failure, where a number that is read is large."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        size = hidden.norm().item()
        if self.kind == "activation":
            return self.last(hidden.relu() if size < 100 else hidden.tanh())
        if self.kind == "power":
            return self.last(hidden.abs() ** (1 if size < 100 else 2))
        if self.kind == "clip":
            return self.last(hidden.relu() if size < 100 else 100 * hidden.relu() / hidden.norm())
        assert size < 100
        return self.last(hidden.relu() / size)


@pytest.mark.parametrize("kind", ["activation", "power", "clip", "failure"])
def test_what_a_number_is_read_from_keeps_its_scale_for_it_may_decide_a_branch(kind: str) -> None:
    laws = find_laws(Branching(kind), torch.randn(6, 3))

    assert len(laws) == 0
    assert any("item in the model does not commute" in exclusion.reason for exclusion in laws.excluded)


@pytest.mark.parametrize(
    "gate",
    [
        lambda h: h.mean() > 0,
        lambda h: h.norm() < 1e-3,
        lambda h: h.sum(1, keepdim=True).sign(),
        lambda h: torch.signbit(h.mean()),
    ],
    ids=["branch", "tiny bound", "sign", "sign bit"],
)
def test_neurons_whose_sum_decides_by_its_sign_scale_together(gate: Callable[[Tensor], Tensor]) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            return self.last(gate(hidden) * hidden.relu() + hidden)

    assert len(find_laws(Gated(), torch.randn(6, 3))) == 1

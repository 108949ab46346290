"""The values of the laws against loops, and the symmetry that each law is."""

import math

import pytest
import torch
import torch_geometric.nn as gnn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gatdiag.laws import find_laws
from gatdiag.laws.sums import Sums
from tests.laws.loops import each, gradients, rescale, weights
from tests.laws.models.graph import HID, HID2, IN, NODES, OUT, Stack, edges, features
from tests.laws.stacks import gcn, mlp


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_delta_c_and_their_normalized_forms_are_what_loops_give(dtype: torch.dtype) -> None:
    model, x = Stack(gnn.GATv2Conv(IN, 3, heads=2), gnn.GATv2Conv(6, OUT)).to(dtype), features().to(dtype)
    laws = find_laws(model, x, edges())
    model(x, edges()).square().sum().backward()
    w, g = weights(model), gradients(model)
    g["layers.0.att"] = g["layers.0.att"] + 10  # so that delta is not rounding

    torch.testing.assert_close(laws.delta(g), each(laws, w, g))
    torch.testing.assert_close(laws.c(), each(laws, w, w))
    torch.testing.assert_close(laws.normalized_c(), each(laws, w, w) / each(laws, w, w, absolute=True))
    torch.testing.assert_close(laws.residual(g), each(laws, w, g).abs() / each(laws, w, g, absolute=True))
    assert laws.delta(g).abs().min() > 1e-3


def test_normalized_c_is_within_one_and_says_which_side_is_heavier() -> None:
    model = mlp(3, 4, 2, bias=False)
    laws = find_laws(model, torch.randn(5, 3))

    with torch.no_grad():
        model[2].weight.zero_()
    assert laws.normalized_c().tolist() == [1.0] * 4
    with torch.no_grad():
        model[2].weight.fill_(1.0)
        model[0].weight.zero_()
    assert laws.normalized_c().tolist() == [-1.0] * 4
    with torch.no_grad():
        model[0].weight.fill_(math.sqrt(2 / 3))
    assert laws.normalized_c().abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_precision_of_the_model_will_do(dtype: torch.dtype) -> None:
    model, x = gcn().to(dtype), features().to(dtype)
    laws = find_laws(model, x, edges())

    assert len(laws) == HID + HID2
    assert max(law.residual for law in laws) < 1e-10  # checked in float64 whatever the model has
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert (laws.c().dtype, laws.c().shape) == (torch.float64, (HID + HID2,))
    model(x, edges()).float().square().sum().backward()
    assert laws.normalized_delta().max() < 100 * torch.finfo(dtype).eps


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
@settings(max_examples=8, deadline=None, derandomize=True, database=None)
def test_a_law_is_a_rescaling_that_leaves_the_outputs_alone(
    model: nn.Module, power: float, data: st.DataObject
) -> None:
    x = torch.randn(NODES, IN, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    laws = find_laws(model, x, edges())
    before = model(x, edges()).detach()

    law = laws[data.draw(st.integers(0, len(laws) - 1))] if len(laws) else None
    if law is not None:
        old = weights(model)[law.terms[0].parameter].clone()
        rescale(model, law, math.exp(power))
        assert abs(power) < 1e-3 or not torch.equal(old, weights(model)[law.terms[0].parameter])

    torch.testing.assert_close(model(x, edges()).detach(), before, rtol=1e-9, atol=1e-11)


def test_without_laws_every_value_is_empty() -> None:
    model = nn.Linear(3, 2)
    laws = find_laws(model, torch.randn(4, 3))
    model(torch.randn(4, 3)).sum().backward()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = [
        laws.delta(),
        laws.c(),
        laws.normalized_c(),
        laws.normalized_delta(),
        laws.predict(laws.c(), None, optimizer),
    ]
    assert [value.shape for value in values] == [(0,)] * 5
    assert laws.by_layer() == {}


def test_zero_gradients_and_zero_weights_give_zeros_and_no_nan() -> None:
    model = mlp(3, 4, 2)
    laws = find_laws(model, torch.randn(5, 3))

    assert laws.delta().tolist() == [0.0] * 4  # no gradient yet
    assert laws.normalized_delta().tolist() == [0.0] * 4
    assert laws.residual().isnan().all()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert laws.normalized_c().tolist() == [0.0] * 4


def test_values_follow_the_weights_and_can_be_asked_of_others() -> None:
    model = mlp(3, 4, 2)
    laws = find_laws(model, torch.randn(5, 3))
    before, saved = laws.c(), {name: weight.clone() for name, weight in weights(model).items()}

    with torch.no_grad():
        model[0].weight.mul_(2)

    torch.testing.assert_close(laws.c() - before, 3 * saved["0.weight"].double().square().sum(1))
    torch.testing.assert_close(laws.c(saved), before, rtol=0, atol=0)
    assert not laws.c().requires_grad


def test_the_number_of_kernels_does_not_grow_with_width_or_depth() -> None:
    def kernels(*widths: int) -> int:
        model = mlp(*widths)
        laws = find_laws(model, torch.randn(5, widths[0]))
        model(torch.randn(5, widths[0])).sum().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            laws.delta()
            laws.c()
        return sum(event.count for event in profile.key_averages())

    assert kernels(4, 4, 4, 4) == kernels(16, 16, 16, 16)
    assert kernels(4, 4, 4, 4, 4, 4, 4, 4) < 2 * kernels(4, 4, 4, 4)


def multiply(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[float]:
    """Row sums of products, of all parameters one after the other."""
    (vector,) = Sums([(name, (0,)) for name in left], left).products([left, right], [[0, 1]])
    return vector.tolist()


def test_what_is_missing_counts_as_zeros() -> None:
    weights = {"a": torch.ones(2, 2), "b": torch.ones(2, 2)}

    assert multiply(weights, {"b": torch.ones(2, 2)}) == [0, 0, 2, 2]


def test_sparse_gradients_are_summed_too() -> None:
    weight = torch.ones(3, 2)
    gradient = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (3, 2), check_invariants=True
    )

    assert multiply({"w": weight}, {"w": gradient}) == [3, 0, 7]


def test_half_precision_is_summed_in_double() -> None:
    weight = {"w": torch.full((1, 4096), 1.0 + 2**-7, dtype=torch.bfloat16)}

    assert multiply(weight, weight) == [4096 * (1 + 2**-7) ** 2]


def test_a_complex_entry_counts_as_two_real_ones() -> None:
    w, g = torch.randn(2, 3, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64)

    assert multiply({"w": w}, {"w": g}) == pytest.approx((w.conj() * g).real.sum(1).tolist())
    assert multiply({"w": w}, {"w": w}) == pytest.approx(w.abs().square().sum(1).tolist())

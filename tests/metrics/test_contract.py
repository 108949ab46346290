"""What every metric of X promises alike: invariances, precision, and a value for every odd input."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag import metrics
from gatdiag.quantities import GROUPS, columns, metric_functions, values_by_column


@dataclass(frozen=True)
class Case:
    name: str
    of: Any  # (x, edge_index) -> value
    degree: float  # of(s x) = s^degree of(x)
    waits: bool  # for the device
    # What the metric's own test says if it is None:
    shift: bool | None = None  # adding one row vector to all rows changes nothing
    of_empty: float | None = None
    of_zero: float | None = None
    of_constant: float | None = None


NAN = float("nan")
KNOWN = {
    "mu": {"shift": True, "of_empty": 0, "of_zero": 0, "of_constant": 0},
    "relative_mu": {"shift": False, "of_empty": NAN, "of_zero": NAN, "of_constant": 0},
    "dead_fraction": {"of_empty": NAN, "of_zero": 1, "of_constant": 0},
    "dirichlet_energy": {"shift": True, "of_empty": 0, "of_zero": 0, "of_constant": 0},
    "rayleigh_quotient": {"shift": False, "of_empty": NAN, "of_zero": NAN},
    "mad": {"shift": False, "of_empty": NAN, "of_zero": 0, "of_constant": 0},
    "effective_rank": {"shift": False, "of_empty": 0, "of_zero": 0, "of_constant": 1},
    "numerical_rank": {"shift": False, "of_empty": 0, "of_zero": 0, "of_constant": 1},
}


def case(quantity):
    def of(x, edges):
        if not quantity.takes:
            measured = dict(zip(GROUPS["outputs"].columns, metrics.measure(x), strict=False))
            return torch.as_tensor(measured[quantity.name], dtype=torch.float64, device=x.device)
        found = metric_functions("layers")[quantity.metric, quantity.takes, False]
        given = (x, edges) if quantity.takes == "x, edges" else (x,)
        return values_by_column(found, getattr(metrics, quantity.metric)(*given))[quantity.name]

    degree = {"": 0, "X": 1, "X^2": 2}[quantity.unit]
    return Case(quantity.name, of, degree, quantity.group == "ranks", **KNOWN.get(quantity.name, {}))


CASES = [case(each) for each in columns("layers") if not each.is_of_gradient and (each.takes or each.name in KNOWN)]
NAMES = [case.name for case in CASES]
every = pytest.mark.parametrize("case", CASES, ids=NAMES)


def drawn(num_nodes=9, channels=4, seed=0, dtype=torch.float64):
    return torch.randn(num_nodes, channels, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(value, expected, rtol=1e-10):
    torch.testing.assert_close(
        value,
        torch.as_tensor(expected, dtype=torch.float64, device=value.device),
        rtol=rtol,
        atol=1e-12,
        equal_nan=True,
    )


@every
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(2, 12))
def test_order_of_nodes_and_edges_does_not_matter(case, random_graph, seed, num_nodes):
    x, edges = drawn(num_nodes, seed=seed), random_graph(num_nodes, seed)
    permutation = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    moved_edges = torch.argsort(permutation)[edges].flip(1)
    close(case.of(x[permutation], moved_edges), case.of(x, edges))


@every
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-6, 1e6), negative=st.booleans())
def test_scaling(case, random_graph, seed, scale, negative):
    x, edges = drawn(seed=seed), random_graph(9, seed)
    close(case.of((-scale if negative else scale) * x, edges), scale**case.degree * case.of(x, edges))


@every
def test_shift(case, random_graph):
    x, edges = drawn(), random_graph(9)
    before, after = case.of(x, edges), case.of(x + torch.tensor([3.0, -1.0, 0.5, 2.0]), edges)
    if case.shift:
        close(after, before)
    elif case.shift is not None:
        assert abs(after - before) > 1e-3


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_inputs_are_computed_as_exactly_as_they_are(case, random_graph, device, dtype):
    x, edges = (100 * drawn(40)).to(device, dtype), random_graph(40).to(device)  # squares sum beyond float16's range
    value = case.of(x, edges)
    assert value.dtype == torch.float64
    assert value.device.type == device.type
    in_float32 = case.name in ("mu", "relative_mu") and dtype == torch.float32 and device.type == "cpu"
    close(value, case.of(x.double(), edges), rtol=1e-6 if in_float32 else 1e-14)


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_shows(case, random_graph, device, bad):
    x, edges = drawn().to(device), random_graph(9).to(device)
    x[edges[0, 0], 1] = bad
    value = case.of(x, edges)
    assert value == 0 if case.name == "dead_fraction" and abs(bad) == torch.inf else value.isnan()


@every
@pytest.mark.parametrize("shape", [(0, 4), (0, 0), (3, 0)])
def test_empty(case, device, shape):
    edges = torch.zeros(2, 0, dtype=torch.long, device=device)
    value = case.of(torch.zeros(shape, device=device), edges)
    if case.of_empty is not None:
        close(value, case.of_empty)


@every
def test_zero(case, random_graph, device):
    value = case.of(torch.zeros(9, 4, device=device), random_graph(9).to(device))
    if case.of_zero is not None:
        close(value, case.of_zero)


@every
def test_equal_rows(case, random_graph, device):
    x = torch.tensor([0.1, 0.7, -3.3, 1e-3], device=device).expand(9, 4)
    if case.of_constant is not None:
        value = case.of(x, random_graph(9).to(device))
        close(value, case.of_constant)
        assert value == 0 or case.of_constant != 0  # exactly, where it is 0


@every
def test_single_node(case, device):
    x, edges = torch.tensor([[1.0, 2.0]], device=device), torch.zeros(2, 0, dtype=torch.long, device=device)
    assert not case.of(x, edges).isinf()


@every
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device(case, random_graph):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if case.waits:
        pytest.skip("the decomposition waits")
    x, edges = drawn().cuda(), random_graph(9).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.of(x, edges)
    finally:
        torch.cuda.set_sync_debug_mode("default")

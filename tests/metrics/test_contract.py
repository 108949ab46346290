"""What every metric of X promises alike: invariances, precision, and a value for every odd input."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag import metrics
from gatdiag.quantities import columns, metric_functions, quantity


@dataclass(frozen=True)
class Case:
    """What is true of a metric; the values are those of X (9, 4) unless they say otherwise."""

    shift: bool  # adding one row vector to all rows changes nothing
    of_empty: float  # no rows, or no columns
    of_zero: float
    of_constant: Any  # of equal rows; or a function of the edges
    of_single: float  # of one row, (1, 2)
    of_nan: float = math.nan
    of_infinity: float = math.nan


NAN = math.nan
ROW = torch.tensor([0.1, 0.7, -3.3, 1e-3])


def quotient_of_equal_rows(edges):
    """1/2 sum_ij (1 / sqrt(d_i) - 1 / sqrt(d_j))^2 / N, with a self loop at each node."""
    degree = [1 + (edges[1] == node).sum().item() for node in range(9)]
    return sum((degree[i] ** -0.5 - degree[j] ** -0.5) ** 2 for i, j in edges.T.tolist()) / 2 / 9


CASES = {
    "output_norm": Case(False, 0, 0, 3 * math.dist(ROW.tolist(), [0] * 4), 5**0.5, of_infinity=math.inf),
    "mu": Case(True, 0, 0, 0, 0),
    "relative_mu": Case(False, NAN, NAN, 0, 0),
    "dead_fraction": Case(False, NAN, 1, 0, 0, of_infinity=0.25),
    "non_finite": Case(True, 0, 0, 0, 0, of_nan=1, of_infinity=1),
    "dirichlet_energy": Case(True, 0, 0, 0, 0),
    "rayleigh_quotient": Case(False, NAN, NAN, quotient_of_equal_rows, 0),
    "mad": Case(False, NAN, 0, 0, NAN),
    "effective_rank": Case(False, 0, 0, 1, 1),
    "numerical_rank": Case(False, 0, 0, 1, 1),
}
IN_FLOAT32 = ("output_norm", "mu", "relative_mu")
WAITS = ("effective_rank", "numerical_rank")  # for the device


def test_every_metric_of_outputs_has_a_case():
    names = {each.name for each in columns("layers") if each.of == "output"}
    assert names == CASES.keys(), "add a line to CASES, with a value for each kind of input"


def measure(name, x, edges):
    (metric,) = (each for each in metric_functions("layers") if name in [of.name for of in each.quantities])
    given = (x, edges) if metric.needs == "edges" else (x,)
    value = metric.by_column(getattr(metrics, metric.function)(*given))[name]
    return torch.as_tensor(value, dtype=torch.float64, device=x.device)


every = pytest.mark.parametrize("name", CASES)


def drawn(num_nodes=9, channels=4, seed=0, dtype=torch.float64):
    """With one column of zeros."""
    x = torch.randn(num_nodes, channels, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    x[:, 2] = 0
    return x


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
def test_order_of_nodes_and_edges_does_not_matter(name, random_graph, seed, num_nodes):
    x, edges = drawn(num_nodes, seed=seed), random_graph(num_nodes, seed)
    permutation = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    moved_edges = torch.argsort(permutation)[edges].flip(1)
    close(measure(name, x[permutation], moved_edges), measure(name, x, edges))


@every
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-6, 1e6), negative=st.booleans())
def test_scaling(name, random_graph, seed, scale, negative):
    degree = {"": 0, "X": 1, "X^2": 2}[quantity("layers", name).unit]
    x, edges = drawn(seed=seed), random_graph(9, seed)
    close(measure(name, (-scale if negative else scale) * x, edges), scale**degree * measure(name, x, edges))


@every
def test_shift(name, random_graph):
    x, edges = drawn(), random_graph(9)
    before, after = measure(name, x, edges), measure(name, x + torch.tensor([3.0, -1.0, 0.5, 2.0]), edges)
    if CASES[name].shift:
        close(after, before)
    else:
        assert abs(after - before) > 1e-3


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_inputs_are_computed_as_exactly_as_they_are(name, random_graph, device, dtype):
    x, edges = (100 * drawn(40)).to(device, dtype), random_graph(40).to(device)  # squares sum beyond float16's range
    in_float32 = name in IN_FLOAT32 and dtype == torch.float32 and device.type == "cpu"
    close(measure(name, x, edges), measure(name, x.double(), edges), rtol=1e-6 if in_float32 else 1e-14)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_tensors_are_in_float64_on_the_device(name, random_graph, device, dtype):
    x, edges = drawn().to(device, dtype), random_graph(9).to(device)
    (metric,) = (each for each in metric_functions("layers") if name in [of.name for of in each.quantities])
    given = (x, edges) if metric.needs == "edges" else (x,)
    value = metric.by_column(getattr(metrics, metric.function)(*given))[name]
    assert isinstance(value, float) or (value.dtype, value.device.type) == (torch.float64, device.type)


@every
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(name, random_graph, device, bad):
    x, edges = drawn().to(device), random_graph(9).to(device)
    x[edges[0, 0], 1] = bad
    close(measure(name, x, edges), CASES[name].of_nan if math.isnan(bad) else CASES[name].of_infinity)


@every
@pytest.mark.parametrize("shape", [(0, 4), (0, 0), (3, 0)])
def test_empty(name, device, shape):
    edges = torch.zeros(2, 0, dtype=torch.long, device=device)
    close(measure(name, torch.zeros(shape, device=device), edges), CASES[name].of_empty)


@every
def test_zero(name, random_graph, device):
    close(measure(name, torch.zeros(9, 4, device=device), random_graph(9).to(device)), CASES[name].of_zero)


@every
def test_equal_rows(name, random_graph, device):
    edges, wanted = random_graph(9), CASES[name].of_constant
    value = measure(name, ROW.to(device).expand(9, 4), edges.to(device))
    wanted = wanted(edges) if callable(wanted) else wanted
    close(value, wanted, rtol=1e-6)
    assert value == 0 or wanted != 0  # exactly, where it is 0


@every
def test_single_node(name, device):
    x, edges = torch.tensor([[1.0, 2.0]], device=device), torch.zeros(2, 0, dtype=torch.long, device=device)
    close(measure(name, x, edges), CASES[name].of_single, rtol=1e-6)


@every
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device(name, random_graph):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if name in WAITS:
        pytest.skip("the decomposition waits")
    x, edges = drawn().cuda(), random_graph(9).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        measure(name, x, edges)
    finally:
        torch.cuda.set_sync_debug_mode("default")

"""What every metric of X promises alike: invariances, precision, masks, graphs, and a value for every odd input."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag import metrics


@dataclass(frozen=True)
class Case:
    name: str
    of: Any  # (x, edge_index, **options) -> value
    degree: float  # of(s x) = s^degree of(x)
    shift: bool = False  # adding one row vector to all rows changes nothing
    batched: bool = True
    masked: bool = True
    of_empty: float = float("nan")
    of_zero: float = float("nan")
    of_constant: float | None = None


def _sqrt_degree(x, edges):
    return metrics.sqrt_degree_direction(edges, len(x))


NAN = float("nan")
CASES = [
    Case("mu", lambda x, e, **o: metrics.mu(x, **o), 1, True, of_empty=0, of_zero=0, of_constant=0),
    Case("relative_mu", lambda x, e, **o: metrics.relative_mu(x, **o), 0, of_constant=0),
    Case(
        "mu_against",
        lambda x, e, **o: metrics.mu_against(x, _sqrt_degree(x, e), **o),
        1,
        of_empty=0,
        of_zero=0,
    ),
    Case("relative_mu_against", lambda x, e, **o: metrics.relative_mu_against(x, _sqrt_degree(x, e), **o), 0),
    Case("dirichlet", metrics.dirichlet_energy, 2, True, of_empty=0, of_zero=0, of_constant=0),
    Case(
        "symmetric dirichlet",
        lambda x, e, **o: metrics.dirichlet_energy(x, e, laplacian="symmetric", **o),
        2,
        of_empty=0,
        of_zero=0,
    ),
    Case("rayleigh", metrics.rayleigh_quotient, 0),
    Case("neighbor_distance", metrics.neighbor_distance, 1, True, masked=False, of_zero=0, of_constant=0),
    Case("mad", metrics.mad, 0, masked=False, of_zero=0, of_constant=0),
    Case("mad code", lambda x, e, **o: metrics.mad(x, e, mode="code", **o), 0, masked=False, of_empty=0, of_zero=0),
    Case("effective_rank", lambda x, e, **o: metrics.effective_rank(x, **o), 0, of_empty=0, of_zero=0, of_constant=1),
    Case("numerical_rank", lambda x, e, **o: metrics.numerical_rank(x, **o), 0, of_empty=0, of_zero=0, of_constant=1),
    Case("dead_fraction", lambda x, e, **o: metrics.dead_fraction(x, **o), 0, batched=False, of_zero=1, of_constant=0),
]
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
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(2, 12))
def test_order_of_nodes_and_edges_does_not_matter(case, random_graph, seed, num_nodes):
    x, edges = drawn(num_nodes, seed=seed), random_graph(num_nodes, seed)
    permutation = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    moved_edges = torch.argsort(permutation)[edges].flip(1)
    close(case.of(x[permutation], moved_edges), case.of(x, edges))


@every
@settings(max_examples=20, deadline=None, derandomize=True)
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
    elif case.name != "dead_fraction":
        assert abs(after - before) > 1e-3


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_inputs_are_computed_in_float64(case, random_graph, device, dtype):
    x, edges = (100 * drawn(40)).to(device, dtype), random_graph(40).to(device)  # squares sum beyond float16's range
    value = case.of(x, edges)
    assert value.dtype == torch.float64
    assert value.device.type == device.type
    close(value, case.of(x.double(), edges), rtol=1e-14)


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
    expected = case.of_empty
    if shape[0] and case.name == "neighbor_distance":
        expected = 0.0  # three nodes without a channel and without an edge
    close(case.of(torch.zeros(shape, device=device), edges), expected)


@every
def test_zero(case, random_graph, device):
    close(case.of(torch.zeros(9, 4, device=device), random_graph(9).to(device)), case.of_zero)


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


@pytest.mark.parametrize("case", [case for case in CASES if case.masked], ids=lambda case: case.name)
def test_a_mask_is_the_induced_subgraph(case, random_graph, device):
    x, edges = drawn().to(device), random_graph(9).to(device)
    kept = torch.tensor([True] * 6 + [False] * 3, device=device)
    inner = edges[:, kept[edges].all(0)]
    outside_only_degrees = {"mu_against", "relative_mu_against", "symmetric dirichlet", "rayleigh"}
    x[7] = torch.nan  # and a dropped node has no influence at all
    if case.name in outside_only_degrees:  # these use degrees of the whole graph, so cut the graph first
        close(case.of(x, inner, mask=kept), case.of(x[:6], inner))
    else:
        close(case.of(x, edges, mask=kept), case.of(x[:6], inner))


@pytest.mark.parametrize("case", [case for case in CASES if case.batched], ids=lambda case: case.name)
def test_one_value_a_graph(case, random_graph, device):
    sizes = [5, 1, 0, 7]
    xs = [drawn(n, seed=n) for n in sizes]
    edges = [random_graph(n, seed=n, density=0.7) for n in sizes]
    starts = [0, 5, 6, 6]
    batch = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))  # nodes of the graphs interleaved
    joined = torch.cat([e + start for e, start in zip(edges, starts, strict=True)], 1)
    x, joined, batch = torch.cat(xs)[order], torch.argsort(order)[joined], batch[order]
    values = case.of(x.to(device), joined.to(device), batch=batch.to(device), num_graphs=5)
    alone = [case.of(x, e) for x, e in zip(xs, edges, strict=True)]
    nothing = case.of(torch.zeros(0, 4), torch.zeros(2, 0, dtype=torch.long))
    close(values, torch.stack([*alone, nothing]))
    counted = case.of(x.to(device), joined.to(device), batch=batch.to(device))
    assert counted.shape == (4,)
    none = torch.zeros(0, dtype=torch.long, device=device)
    assert case.of(torch.zeros(0, 4, device=device), none.expand(2, 0), batch=none).shape == (0,)


@pytest.mark.parametrize("case", [case for case in CASES if case.batched and case.masked], ids=lambda case: case.name)
def test_a_bad_graph_leaves_the_others(case, random_graph):
    x, edges = drawn(8), torch.cat([random_graph(4, density=1.0), random_graph(4, density=1.0) + 4], 1)
    batch = torch.tensor([0] * 4 + [1] * 4)
    x[0, 0] = torch.nan
    values = case.of(x, edges, batch=batch, num_graphs=2)
    assert values.isnan().tolist() == [True, False]


@every
def test_nothing_waits_for_the_device(case, random_graph):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if "rank" in case.name:
        pytest.skip("the decomposition waits")
    x, edges = drawn().cuda(), random_graph(9).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.of(x, edges)
        if case.batched:
            case.of(x, edges, batch=torch.zeros_like(edges[0, :1]).expand(9), num_graphs=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")

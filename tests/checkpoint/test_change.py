"""How far two state dicts are apart, against the functions of `gatdiag.metrics` and the columns of a run."""

import math

import pytest
import torch

from gatdiag import metrics
from gatdiag.checkpoint.change import change, compare
from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.run.schema import TABLES
from gatdiag.structure.from_names import find_layers


def pair(*shape, dtype=torch.float32):
    """Weights of which some did not change, some changed a little, some much, and some are tiny."""
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(shape, generator=generator)
    factor = torch.randint(0, 4, shape, generator=generator)
    trained = torch.where(factor == 0, initial, initial * (1 + 0.04 * 4.0**factor))
    trained.view(-1)[0], initial.view(-1)[1] = 1e-6, 0.0
    return initial.to(dtype), trained.to(dtype)


def slow(initial, trained, role):
    found = {"unchanged_fraction": metrics.unchanged_fraction(initial, trained).item()}
    part = metrics.absolutely_changed_fraction if role == "attention vector" else metrics.changed_fraction
    found |= {
        f"changed_fraction_{name}": part(initial, trained, at).item() for name, at in (("005", 0.05), ("050", 0.5))
    }
    significant = trained.double().abs() >= 1e-4
    for kind, values, where in (
        ("relative", metrics.relative_change(initial, trained), significant),
        ("absolute", metrics.absolute_change(initial, trained), None),
    ):
        levels = metrics.quantiles(values, LEVELS, where=where).tolist()
        found |= {change_quantile(kind, level): value for level, value in zip(LEVELS, levels, strict=True)}
    return found


@pytest.mark.parametrize("role", ["feature weight", "attention vector", "bias"])
@pytest.mark.parametrize("shape", [(300, 400), (7,), (1, 4, 5), (70_000,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_columns_are_those_of_the_metrics(role, shape, dtype):
    initial, trained = pair(*shape, dtype=dtype)
    found, expected = change(initial, trained, role, quantiles=True), slow(initial, trained, role)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert found.keys() <= {column.name for column in TABLES["parameters"].columns}


@pytest.mark.parametrize("role", ["feature weight", "attention vector"])
@pytest.mark.parametrize(
    ("initial", "trained"),
    [
        ([1.0, 2.0], [1.0, math.nan]),
        ([math.nan, 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, math.inf]),
        ([math.inf, 2.0], [math.inf, 2.0]),
        ([math.inf, 2.0], [1.0, 2.0]),
        ([1.0, 1.0], [0.0, 1e-5]),
        ([], []),
    ],
)
def test_undefined_is_nan_where_the_metrics_say_so(initial, trained, role):
    initial, trained = torch.tensor(initial), torch.tensor(trained)
    found, expected = change(initial, trained, role, quantiles=True), slow(initial, trained, role)
    assert found == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_names_and_shapes_that_differ_are_told_of():
    before = {"a.weight": torch.ones(2, 2), "b.weight": torch.ones(3, 2), "gone.bias": torch.ones(3)}
    after = {"a.weight": torch.ones(2, 2), "b.weight": torch.ones(2, 3), "c.bias": torch.ones(3)}
    found = compare(before, after, find_layers(after).parameters)
    assert found.columns.keys() == {"a.weight"}
    assert (found.missing, found.new) == (("gone.bias",), ("c.bias",))
    assert found.incomparable == {"b.weight": "its shape was [3, 2] and is [2, 3]"}


def test_sparse_tensors_are_compared_where_the_same_entries_are_stored():
    places, moved = torch.tensor([[0, 5], [0, 5]]), torch.tensor([[0, 6], [0, 5]])
    before = {"w": torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0]), (10**8, 10**8))}
    same = {"w": torch.sparse_coo_tensor(places, torch.tensor([1.0, 4.0]), (10**8, 10**8))}
    other = {"w": torch.sparse_coo_tensor(moved, torch.tensor([1.0, 4.0]), (10**8, 10**8))}
    dense = {"w": torch.zeros(2)}
    parameters = find_layers(before).parameters
    assert compare(before, same, parameters).columns["w"]["unchanged_fraction"] == 0.5
    assert compare(before, other, parameters).incomparable == {"w": "other entries are stored"}
    assert "shape" in compare(before, dense, parameters).incomparable["w"]


def test_number_types_may_differ():
    initial, trained = pair(20, 30)
    assert change(initial.double(), trained, "bias") == change(initial, trained, "bias")
    assert change(initial, initial.bfloat16(), "bias")["changed_fraction_005"] == 0


def test_single_precision_does_not_round_a_weight_up_to_what_counts():
    initial, trained = torch.tensor([0.0, 1.0]), torch.tensor([1e-4, 1.0])  # in single precision 9.9999997e-05
    found = change(initial, trained, "feature weight", quantiles=True)
    assert found == pytest.approx(slow(initial, trained, "feature weight"), rel=1e-5, nan_ok=True)
    assert found["changed_fraction_005"] == 0

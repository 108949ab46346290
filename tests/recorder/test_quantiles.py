import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatdiag import metrics
from gatdiag.quantities import LEVELS
from gatdiag.recorder.quantiles import change_quantiles

ENTRIES = st.sampled_from([0.0, 1.0, -1.0, 1.5, 2e-4, 5e-5, -3e-5, 1e30, math.inf, -math.inf, math.nan]) | st.floats(
    -10, 10, width=32
)


def reference(initial, weight):
    significant = weight.double().abs() >= 1e-4
    relative = metrics.quantiles(metrics.relative_change(initial, weight), LEVELS, where=significant)
    return torch.stack([relative, metrics.quantiles(metrics.absolute_change(initial, weight), LEVELS)])


@given(st.lists(st.tuples(ENTRIES, ENTRIES), max_size=30), st.sampled_from([torch.float32, torch.float64]))
def test_as_the_metrics_have_it(pairs, dtype):
    table = torch.tensor(pairs, dtype=dtype).reshape(-1, 2)
    found = change_quantiles(table[:, 0].contiguous(), table[:, 1].contiguous())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, reference(table[:, 0], table[:, 1]), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_single_precision_does_not_round_a_weight_up_to_what_counts():
    initial, weight = torch.tensor([0.0]), torch.tensor([1e-4])  # in single precision 9.9999997e-05
    assert torch.equal(change_quantiles(initial, weight).isnan(), reference(initial, weight).isnan())
    assert change_quantiles(initial, weight)[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_other_types(dtype):
    torch.manual_seed(0)
    initial, weight = torch.randn(2, 100).to(dtype)
    assert torch.equal(change_quantiles(initial, weight), reference(initial, weight))


def test_the_weights_stay_as_they_are():
    initial, weight = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 5.0])
    change_quantiles(initial, weight)
    assert initial.tolist() == [3.0, 1.0]
    assert weight.tolist() == [2.0, 5.0]

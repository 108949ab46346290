"""Perturbed inputs: what must move moves, and stays in its range."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatdiag.structure.perturbation import perturbed

numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20)


def draw(tensor, seed=0):
    return perturbed(tensor, torch.Generator().manual_seed(seed))


@given(numbers)
def test_stays_in_the_range_of_the_input_and_zero(values):
    x = torch.tensor(values, dtype=torch.float64)
    y = draw(x)
    low, high = min(0.0, *values), max(0.0, *values)
    high = 1.0 if low == high else high
    assert ((low - 1e-9 <= y) & (y <= high + 1e-9)).all()
    assert (y != x).all()
    assert ((y - x).abs() <= 0.2 * (high - low) + 1e-9).all()


def test_formula():
    x = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    share, place = 0.2 * torch.rand(3, generator=generator), torch.rand(3, generator=generator)
    expected = [
        (1 - t) * v + t * (-2 + 3 * p) for v, t, p in zip(x.tolist(), share.tolist(), place.tolist(), strict=True)
    ]
    assert torch.allclose(draw(x), torch.tensor(expected, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.tensor([True, False]),
        torch.tensor([1j]),
        torch.empty(0, 3),
        torch.full((2,), torch.nan),
        torch.full((2,), -torch.inf),
    ],
)
def test_left_alone(tensor):
    assert torch.equal(torch.nan_to_num(draw(tensor)), torch.nan_to_num(tensor))


def test_attention_mask_keeps_its_infinities():
    mask = torch.tensor([0.0, -torch.inf])
    assert draw(mask)[1] == -torch.inf
    assert 0 < draw(mask)[0] < 1


SCALAR = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc}
BLOCKS = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()  # of one by two, stored where DENSE is not zero
DENSE = torch.tensor([[0.0, 2.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        torch.Tensor.to_sparse_csc,
        lambda dense: dense.to_sparse_bsr((1, 2)),
        lambda dense: dense.to_sparse_bsc((1, 2)),
    ],
)
def test_of_sparse_tensors_only_stored_values_move(make):
    sparse = make(DENSE)
    result = draw(sparse)
    assert (result.layout, result.dtype, result.shape) == (sparse.layout, sparse.dtype, sparse.shape)
    moved = result.to_dense() != DENSE
    stored = DENSE != 0 if sparse.layout in SCALAR else BLOCKS
    assert (moved <= stored).all()
    assert moved[DENSE != 0].all()
    assert (result.to_dense() >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_kept(dtype):
    assert draw(torch.ones(4, dtype=dtype)).dtype == dtype

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.remedies.band import Band


def dense(rows, columns, values, size):
    lower = torch.zeros(size, size, dtype=torch.float64).index_put_((rows, columns), values, accumulate=True)
    return lower + lower.tril(-1).T


@given(
    size=st.integers(1, 40),
    width=st.integers(0, 40),
    spread=st.floats(0, 4),
    seed=st.integers(0, 2**31),
    twice=st.booleans(),
)
@settings(deadline=None)
def test_solutions_are_those_of_the_dense_system(size, width, spread, seed, twice):
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(size, size, generator=generator, dtype=torch.float64).tril().triu(-width)
    plain = factor @ factor.T + torch.eye(size, dtype=torch.float64)
    scale = (spread * torch.randn(size, generator=generator, dtype=torch.float64)).exp()
    matrix = plain * scale * scale[:, None]  # neurons of very different sizes
    rows, columns = matrix.tril().nonzero(as_tuple=True)
    values = matrix[rows, columns]
    if twice:  # entries of one place add up
        rows, columns, values = rows.repeat(2), columns.repeat(2), values.repeat(2) / 2
    torch.testing.assert_close(dense(rows, columns, values, size), matrix)
    right = torch.randn(size, generator=generator, dtype=torch.float64) * scale
    found = Band(rows, columns, size).solve(values, right)
    expected = torch.linalg.solve(plain, right / scale) / scale
    torch.testing.assert_close(
        found * scale, expected * scale, rtol=1e-7, atol=1e-7 * float((expected * scale).abs().max())
    )


def test_many_blocks_are_used_where_the_band_is_narrow():
    size, width = 700, 3
    rows = torch.arange(size).repeat_interleave(width + 1)
    columns = rows - torch.arange(width + 1).repeat(size)
    rows, columns = rows[columns >= 0], columns[columns >= 0]
    values = torch.where(rows == columns, 8.0, -1.0).double()
    band = Band(rows, columns, size)
    assert band.blocks == 11
    matrix = dense(rows, columns, values, size)
    right = torch.linspace(-1, 1, size, dtype=torch.float64)
    torch.testing.assert_close(matrix @ band.solve(values, right), right, rtol=1e-9, atol=1e-9)


def test_what_no_entry_determines_stays():
    rows, columns = torch.tensor([0, 2]), torch.tensor([0, 2])
    found = Band(rows, columns, 3).solve(torch.tensor([2.0, 0.0]).double(), torch.tensor([4.0, 0.0, 0.0]).double())
    assert found.tolist() == pytest.approx([2.0, 0.0, 0.0])


def test_a_singular_system_is_solved_where_it_can_be():
    rows, columns = torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])
    values = torch.tensor([1.0, -1.0, 1.0]).double()  # x0 - x1 = 1, and nothing else is said
    found = Band(rows, columns, 2).solve(values, torch.tensor([1.0, -1.0]).double())
    assert float(found[0] - found[1]) == pytest.approx(1.0, rel=1e-6)

"""What is left out is implied by what is left."""

from fractions import Fraction

import pytest
import torch

from gatdiag.laws.label import Label
from gatdiag.laws.slices import deduplicate_slices, distinct_rows, expand_slices, independent_axes

ONE = Fraction(1)


@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (50, 1), (200, 3)])
def test_distinct_rows_are_those_of_unique(shape: tuple[int, int]) -> None:
    table = torch.randint(4, shape, generator=torch.Generator().manual_seed(0)) * 10**12

    assert torch.equal(distinct_rows(table), table.unique(dim=0))


def test_slices_that_were_left_out_come_back() -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = [torch.randint(3, (length,), generator=generator) for length in (20, 30)]
    label = Label(((ONE, kinds[0].reshape(20, 1)), (-ONE, 10 * kinds[1].reshape(1, 30))))

    small, found = deduplicate_slices(label)

    assert small.shape == (3, 3)
    for (_, array), (_, less) in zip(label.terms, small.terms, strict=True):
        assert torch.equal(expand_slices(less, found).expand(array.shape), array)


def test_axes_that_a_term_links_are_one_group() -> None:
    arrays = [torch.arange(6).reshape(shape) for shape in ((2, 1, 3, 1), (1, 6, 1, 1), (1, 1, 1, 6))]
    apart = Label(tuple((ONE, array) for array in arrays))

    assert sorted(map(sorted, independent_axes(apart))) == [[-4, -2], [-3], [-1]]
    assert len(independent_axes(Label((*apart.terms, (ONE, torch.arange(36).reshape(1, 6, 1, 6)))))) == 2
    assert len(independent_axes(Label(apart.terms, torch.zeros(2, 6, 1, 1, dtype=torch.bool)))) == 1
    assert independent_axes(Label()) == []

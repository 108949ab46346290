"""Reserved unknowns are those that would be written down, whatever the view."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from gatdiag.laws import find_laws
from gatdiag.laws.label import Label
from gatdiag.laws.reserved import Reserved

SHAPE = torch.Size((4, 6, 1, 5))
WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda array: array,
    "transposed": lambda array: array.permute(3, 1, 0, 2).unsqueeze(2),
    "in groups": lambda array: array.reshape(2, 2, 3, 2, 5).transpose(1, 2),
    "without an axis": lambda array: array.squeeze(2),
}
PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda array: array[1:3, 2],
    "every second": lambda array: array[:, 1::2].unsqueeze(0),
    "expanded": lambda array: array.expand(4, 6, 3, 5)[2:],
    "flat": lambda array: array.flatten()[7:50],
    "partly flat": lambda array: array.flatten(0, 1)[3:],
}


def entries(reserved: Reserved, ids: Tensor) -> Tensor:
    """The label as a table: entries x terms."""
    terms = reserved.label_of(ids).terms
    return torch.stack([coefficient.numerator * array.expand(ids.shape) for coefficient, array in terms], -1)


@pytest.mark.parametrize("name", WHOLE | PARTS)
def test_a_view_has_the_ids_that_the_same_view_of_all_ids_has(name: str) -> None:
    view = (WHOLE | PARTS)[name]
    reserved = Reserved(10, SHAPE)

    assert torch.equal(entries(reserved, view(reserved.ids))[..., 0], view(torch.arange(10, 130).reshape(SHAPE)))
    assert reserved.last == 129


@pytest.mark.parametrize("read", WHOLE | PARTS)
@pytest.mark.parametrize("bound", WHOLE)
def test_what_one_view_is_bound_to_is_read_through_every_other(bound: str, read: str) -> None:
    reserved = Reserved(10, SHAPE)
    view = WHOLE[bound](reserved.ids)
    lengths = list(view.shape)
    rows = torch.arange(lengths[0]).reshape(-1, *[1] * (view.ndim - 1))
    columns = 100 + torch.arange(view[0].numel()).reshape(1, *lengths[1:])
    dense = torch.zeros(2, *SHAPE, dtype=torch.int64)
    for table, ids in zip(dense, (rows, -columns), strict=True):
        WHOLE[bound](table).copy_(ids.expand(lengths)) if bound != "in groups" else table.reshape(
            2, 2, 3, 2, 5
        ).transpose(1, 2).copy_(ids.expand(lengths))

    assert reserved.can_bind(view)
    reserved.bind(view, Label(((Fraction(1), rows), (Fraction(-1), columns))))

    assert not reserved.can_bind(view)
    expected = torch.stack([(WHOLE | PARTS)[read](table) for table in dense], -1)
    assert torch.equal(entries(reserved, (WHOLE | PARTS)[read](reserved.ids)), expected)


@pytest.mark.parametrize("name", [*PARTS])
def test_a_part_cannot_be_bound(name: str) -> None:
    reserved = Reserved(10, SHAPE)

    assert not reserved.can_bind(PARTS[name](reserved.ids))


class Lying(nn.Module):
    """A weight whose memory is that of its transpose, so that a view of it is none of a contiguous tensor."""

    def __init__(self, is_contiguous: bool) -> None:
        super().__init__()
        weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(weight if is_contiguous else weight.t().contiguous().t())
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.t().reshape(12) if self.weight.is_contiguous() else self.weight.t().view(12)
        return self.last((x @ weight.view(4, 3)).relu())


def test_the_layout_of_a_weight_does_not_matter() -> None:
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    contiguous, other = (find_laws(Lying(is_contiguous), x) for is_contiguous in (True, False))

    assert [str(law) for law in other] == [str(law) for law in contiguous]
    assert len(other) == 3
    assert other.excluded == ()

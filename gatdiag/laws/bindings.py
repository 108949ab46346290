"""Which unknowns are bound to others, in tables that have pages only where something was written.

Unknowns are numbered, and most numbers belong to entries of weights that nothing ever binds one by one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

_BITS = 12
_PAGE = 2**_BITS  # unknowns


class Bindings:
    """For each bound unknown i: value[i] = value[plus[i]] - value[minus[i]]."""

    def __init__(self) -> None:
        self._rows_of_pages = torch.zeros(1, dtype=torch.int64)  # in the tables; row 0, which all share, stays empty
        self._plus, self._minus = torch.zeros(2, 1, _PAGE, dtype=torch.int64)
        self._is_bound, self._marks = torch.zeros(2, 1, _PAGE, dtype=torch.bool)  # marks: all false between uses
        self._rows = 1

    def extend(self, count: int) -> None:
        """Make room for so many unknowns."""
        if count > _PAGE * len(self._rows_of_pages):
            self._rows_of_pages = _lengthen(self._rows_of_pages, 2 * count // _PAGE + 1)

    def bind(self, ids: Tensor, plus: Tensor, minus: Tensor) -> None:
        """Bind unknowns; the other two broadcast against them."""
        places = self._make_places(ids)
        self._plus.view(-1)[places] = plus.expand(ids.shape)
        self._minus.view(-1)[places] = minus.expand(ids.shape)
        self._is_bound.view(-1)[places] = True

    def substitute(self, ids: Tensor) -> tuple[Tensor, Tensor] | None:
        """Plus and minus of each unknown, itself and zero if it is not bound; None if none is."""
        places = self._places(ids)
        is_bound = self._is_bound.take(places)
        if not bool(is_bound.any()):
            return None
        return self._plus.take(places).where(is_bound, ids), self._minus.take(places)

    def isin(self, ids: Tensor, others: Iterable[Tensor]) -> Tensor:
        """As `torch.isin`, in linear time."""
        written = [self._make_places(array.flatten()) for array in others]
        marks = self._marks.view(-1)
        for places in written:
            marks[places] = True
        found: Tensor = marks.take(self._places(ids))
        for places in written:
            marks[places] = False
        return found

    def mentions(self, ids: Tensor) -> Tensor:
        """Mask of the unknowns that are bound, or that others are bound to."""
        partners = torch.cat([self._plus[self._is_bound], self._minus[self._is_bound]])
        is_bound: Tensor = self._is_bound.take(self._places(ids))
        return is_bound | self.isin(ids, [partners])

    def _places(self, ids: Tensor) -> Tensor:
        """Positions in the tables."""
        rows: Tensor = self._rows_of_pages.take(ids >> _BITS)
        places: Tensor = (rows << _BITS) + (ids & (_PAGE - 1))
        return places

    def _make_places(self, ids: Tensor) -> Tensor:
        """Positions in the tables, in new rows for pages without one."""
        is_new = self._rows_of_pages == 0
        is_new &= torch.zeros_like(is_new).index_fill_(0, (ids >> _BITS).flatten(), True)
        rows = self._rows + int(is_new.sum())
        self._rows_of_pages[is_new] = torch.arange(self._rows, rows)
        self._rows = rows
        if rows > len(self._plus):
            tables = (self._plus, self._minus, self._is_bound, self._marks)
            self._plus, self._minus, self._is_bound, self._marks = (_lengthen(table, 2 * rows) for table in tables)
        return self._places(ids)


def _lengthen(table: Tensor, length: int) -> Tensor:
    return torch.cat([table, table.new_zeros(length - len(table), *table.shape[1:])])

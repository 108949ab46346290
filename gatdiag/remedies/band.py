"""Linear systems whose unknowns meet their near neighbours only, as neurons meet those of the layers beside theirs."""

import torch
from torch import Tensor

_RIDGE = 1e-13  # relative to a diagonal of one: what no entry determines stays where it is


class Band:
    """Solves symmetric positive semidefinite systems with entries in a band, by a block Cholesky factorisation.

    Unknowns fall into blocks at least as long as the band is wide, so that a block meets its two neighbours alone: the
    cost is linear in the number of layers. Where every unknown meets every other there is one block.

    Args:
        rows: Rows of the entries at and below the diagonal.
        columns: Their columns, none greater than its row.
        size: Number of unknowns.

    Example:
        >>> band = Band(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), size=2)
        >>> band.solve(torch.tensor([4.0, 2.0, 3.0]).double(), torch.tensor([8.0, 8.0]).double())
        tensor([1.0000, 2.0000], dtype=torch.float64)
    """

    def __init__(self, rows: Tensor, columns: Tensor, size: int) -> None:
        """Lay out the blocks."""
        width = int((rows - columns).max()) if len(rows) else 0
        self.size = size
        self.block = max(width, min(size, 64), 1)
        self.blocks = -(-size // self.block)
        beside = rows // self.block - columns // self.block  # 0 on the diagonal of blocks, 1 below it
        number = beside * self.blocks + columns // self.block
        self._places = (number * self.block + rows % self.block) * self.block + columns % self.block
        self._diagonal = rows == columns
        self._rows, self._columns = rows, columns

    def solve(self, values: Tensor, right: Tensor) -> Tensor:
        """The x of H x = right, with H scaled to a diagonal of one first; zero where H has a row of zeros.

        Args:
            values: Entries at the rows and columns; those of one place add up.
            right: Shape (size,).
        """
        diagonal = torch.zeros(self.size, dtype=values.dtype)
        diagonal.index_add_(0, self._rows[self._diagonal], values[self._diagonal])
        scale = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
        lower = self._factorised(values * scale[self._rows] * scale[self._columns])
        padded = torch.zeros(self.blocks * self.block, dtype=values.dtype)
        padded[: self.size] = right * scale
        return self._substituted(*lower, padded.reshape(self.blocks, self.block, 1)).flatten()[: self.size] * scale

    def _factorised(self, values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The blocks of L, H = L L^T: triangular ones on its diagonal, and those below it."""
        entries = torch.zeros(2 * self.blocks * self.block**2, dtype=values.dtype).index_add_(0, self._places, values)
        within, below = entries.reshape(2, self.blocks, self.block, self.block)
        diagonal = within.diagonal(dim1=1, dim2=2)
        diagonal.copy_(torch.where(diagonal > 0, diagonal, 1.0) + _RIDGE * self.size)
        triangles, sides = [torch.linalg.cholesky(within[0])], []
        for block, side in zip(within[1:], below, strict=False):
            sides.append(torch.linalg.solve_triangular(triangles[-1], side.mT, upper=False).mT)
            triangles.append(torch.linalg.cholesky(block - sides[-1] @ sides[-1].mT))
        return triangles, sides

    def _substituted(self, triangles: list[Tensor], sides: list[Tensor], right: Tensor) -> Tensor:
        found = list(right)
        for number, triangle in enumerate(triangles):
            known = found[number] - sides[number - 1] @ found[number - 1] if number else found[number]
            found[number] = torch.linalg.solve_triangular(triangle, known, upper=False)
        for number in reversed(range(len(triangles))):
            beyond = number + 1 < len(triangles)
            known = found[number] - sides[number].mT @ found[number + 1] if beyond else found[number]
            found[number] = torch.linalg.solve_triangular(triangles[number].mT, known, upper=True)
        return torch.stack(found)

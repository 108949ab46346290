"""The distributions that fresh weights are drawn from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.laws import Term
from gatdiag.remedies.balance import Neuron


@dataclass(frozen=True)
class Mirror:
    """How a matrix is doubled, so that a stack of such matrices with ReLU in between computes a linear map.

    Attributes:
        blocks: Into how many parts, one below the other, the rows fall, each with mirrored halves; 0 where the rows
            are outputs of the model.
        columns: Whether columns are mirrored: not where they are inputs of the model.
    """

    blocks: int = 0
    columns: bool = False


def mirrors(neurons: Iterable[Neuron]) -> Mapping[str, Mirror]:
    """Matrix -> its mirror, read off the neurons: rows lead into some, columns out of others.

    Heads that are averaged are one block each: mirrored across heads, their mean would be zero.

    Raises:
        ModelError: The layers on the two sides of a neuron are of different widths, as where several are
            concatenated, or no matrix leads into it, as after a normalization: halves would not meet halves.
    """
    blocks: dict[str, int] = {}
    columns = set()
    for terms in neurons:
        matrices = [term for term in terms if len(term.shape) == 2]
        rows = [term for term in matrices if term.exponent > 0]
        blocks |= {term.parameter: _positions(term, 0) for term in rows}
        columns |= {term.parameter for term in matrices if term.exponent < 0}
        widths = {_width(term) for term in matrices}
        if len(widths) > 1 or not rows or len(rows) == len(matrices):
            raise ModelError(
                f"Expected weight matrices that feed each other whole, got {', '.join(t.parameter for t in matrices)} "
                "around one neuron. Looks-linear matrices need a stack: use the scheme balanced_xavier here."
            )
    return {name: Mirror(blocks.get(name, 0), name in columns) for name in {*blocks, *columns}}


def _width(term: Term) -> int:
    """Into how many neurons the matrix leads, or out of how many."""
    axis = 0 if term.exponent > 0 else 1
    return term.shape[axis] // _positions(term, axis)


def _positions(term: Term, axis: int) -> int:
    """How many rows or columns the term has; a matrix of one row counts its columns as entries."""
    if axis not in term.axes:
        return term.shape[axis]
    return len({index[term.axes.index(axis)] for index in term.indices})


def xavier_(tensor: Tensor, generator: Generator | None = None) -> Tensor:
    """Normal with variance 2 / (fan_in + fan_out), as torch counts them: an attention vector (1, H, C) has H C and C.

    The paper's text counts 1 and C for an attention vector, PyG H and C.
    """
    return nn.init.xavier_normal_(tensor, generator=generator)


def looks_linear_(tensor: Tensor, mirror: Mirror, generator: Generator | None = None) -> Tensor:
    """Orthogonal, mirrored: [U; -U], [[U, -U], [-U, U]] or [U, -U], block by block; an odd last row or column left out.

    Of a hidden matrix of even size each row and column has a squared norm of 2 where U is square. Where there are
    several blocks, which is where heads are averaged, U is orthogonal up to a factor in their mean, and each block has
    one of its own.

    Source:
        Balduzzi et al., "The shattered gradients problem" (2017); section 3 of "Are GATs Out of Balance?".

    Example:
        >>> weight = looks_linear_(torch.empty(4, 4), Mirror(blocks=1, columns=True))
        >>> torch.equal(weight[:2], -weight[2:]), torch.equal(weight[:, :2], -weight[:, 2:])
        (True, True)
        >>> h = torch.tensor([1.0, -2.0])  # relu(u) - relu(-u) = u: what goes in comes out, turned
        >>> torch.allclose((weight @ torch.cat([h, -h]).relu())[:2].norm(), h.norm())
        True
    """
    blocks = tensor.chunk(max(mirror.blocks, 1))
    rows, columns = blocks[0].shape
    half = tensor.new_empty(-(-rows // 2) if mirror.blocks else rows, -(-columns // 2) if mirror.columns else columns)
    halves = torch.stack([nn.init.orthogonal_(half.clone(), generator=generator) for _ in blocks])
    for block, mixed in zip(blocks, _mixed(halves, generator), strict=True):
        whole = torch.cat([mixed, -mixed]) if mirror.blocks else mixed
        whole = torch.cat([whole, -whole], dim=1) if mirror.columns else whole
        block.copy_(whole[:rows, :columns])
    return tensor


def _mixed(matrices: Tensor, generator: Generator | None) -> Tensor:
    """Matrices whose mean is a multiple of the first one given, and whose squares add up to the same.

    The mean of several orthogonal matrices is none: product after product of such means loses directions.
    """
    if len(matrices) == 1:
        return matrices
    directions = torch.randn(len(matrices), len(matrices), generator=generator, device=matrices.device)
    directions[:, 0] = 1
    turn = torch.linalg.qr(directions).Q.to(matrices.dtype)
    return torch.einsum("hk,kij->hij", turn, matrices)

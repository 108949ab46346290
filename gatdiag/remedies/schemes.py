"""Initialization schemes, their options, and how each draws a weight."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import torch
from torch import Generator, Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Term
from gatdiag.remedies.applied import check_positive
from gatdiag.remedies.balance import Neuron
from gatdiag.roles import FEATURE
from gatdiag.structure import ParameterInfo

Scheme: TypeAlias = Literal["xavier", "xavier_uniform", "kaiming", "orthogonal", "identity", "looks_linear_identity"]
SCHEMES: Final[tuple[Scheme, ...]] = get_args(Scheme)
Attention: TypeAlias = Literal["zero", "random"]
Order: TypeAlias = Literal["forward", "reverse"]
STRUCTURED: Final = frozenset({"orthogonal", "identity", "looks_linear_identity"})  # depend on how neurons connect


@dataclass(frozen=True)
class Options:
    """The arguments of `gatdiag.remedies.initialize_`, checked."""

    scheme: Scheme
    balanced: bool
    attention: Attention
    beta: float | None
    in_reverse: bool

    @property
    def squared_norm(self) -> float:
        """Squared norm of rows and columns of square hidden matrices as drawn."""
        return 1.0 if self.scheme == "identity" else 2.0


def parse_options(
    scheme: str,
    balanced: bool | None,
    attention: Attention | None,
    beta: float | None,
    order: Order,
) -> Options:
    """Check the arguments of `gatdiag.remedies.initialize_`.

    Raises:
        InputError: The scheme is unknown, or an option is invalid.
    """
    name = str(scheme).replace("-", "_")
    short = name.removeprefix("balanced_")
    base = short.removesuffix("_zero_attention")
    known = next((known for known in SCHEMES if known == base), None)
    if known is None:
        raise InputError(f"Expected one of the schemes {', '.join(SCHEMES)}, optionally balanced_, got {scheme!r}.")
    if attention not in (None, *get_args(Attention)):
        raise InputError(f"Expected attention to be zero or random, got {attention!r}.")
    if order not in get_args(Order):
        raise InputError(f"Expected order to be forward or reverse, got {order!r}.")
    if (short != name and balanced is False) or (base != short and attention == "random"):
        raise InputError(f"Expected options that agree with the scheme {scheme!r}, got {balanced=} and {attention=}.")
    balanced = short != name or bool(balanced)
    if not balanced and (beta is not None or order != "forward"):
        raise InputError(f"beta and order apply to balanced schemes only: give balanced=True with {scheme!r}.")
    if attention is None:
        attention = "zero" if balanced or base != short or known in STRUCTURED else "random"
    squared_norm = None if beta is None else check_positive("beta", beta)
    return Options(known, balanced, attention, squared_norm, order == "reverse")


# --- drawing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LooksLinearLayout:
    """How a matrix is mirrored, so that a stack of such matrices with ReLU in between computes a linear map.

    Attributes:
        blocks: Number of blocks of rows, each with mirrored halves; 0 if the rows are outputs of the model.
        columns: Number of blocks of columns, each with mirrored halves; 0 if the columns are inputs of the model.
        transposed: Rows are inputs of the matrix, and columns its outputs.
    """

    blocks: int = 0
    columns: int = 0
    transposed: bool = False


_PLAIN: Final = LooksLinearLayout()


def draw_(
    weight: Tensor,
    info: ParameterInfo,
    scheme: Scheme,
    layouts: Mapping[str, LooksLinearLayout],
    generator: Generator | None,
    *,
    is_kernel: bool = False,
) -> None:
    """Draw a weight matrix, a stack of them, the kernel of a convolution on a grid, or an attention vector, in place.

    Fans are those of torch: H C and C for an attention vector (1, H, C), where the paper's text has 1 and C. Matrices
    of a stack, such as one per relation, are (in, out), as in a batched product.

    Raises:
        ModelError: The scheme is not defined for the weight's shape.
    """
    if info.role == FEATURE and scheme in STRUCTURED:
        if weight.dim() != 2:
            raise ModelError(
                f"Expected matrices for the scheme {scheme}, got {info.name} of shape {list(info.shape)}. Use xavier "
                "or kaiming instead, balanced or not."
            )
        layout = layouts.get(info.name, _PLAIN)
        _draw_structured_(weight.T if layout.transposed else weight, layout, scheme, generator)
    elif info.role == FEATURE and weight.dim() > 2 and not is_kernel:
        for part in weight:  # torch would take the last axes for those of a kernel
            draw_(part.T if part.dim() == 2 else part, info, scheme, layouts, generator)
    elif info.role == FEATURE and scheme == "kaiming":
        nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    else:
        draw = nn.init.xavier_uniform_ if scheme == "xavier_uniform" else nn.init.xavier_normal_
        draw(weight if weight.dim() > 1 else weight[None], generator=generator)


def looks_linear_layouts(neurons: Iterable[Neuron]) -> Mapping[str, LooksLinearLayout]:
    """The layout of each matrix, from the neurons that its rows lead into and its columns lead out of.

    Averaged heads are one block of rows each: mirrored across heads, their mean would be zero. If the outputs of
    several layers are concatenated, the matrix that reads them has as many blocks of columns.

    Raises:
        ModelError: Mirrored halves do not meet at a neuron: the layers before and after it do not match, as where
            inputs are concatenated with outputs, or it has no incoming matrix, as after a normalization.
    """
    blocks: dict[str, int] = {}
    columns: dict[str, int] = {}
    read: Counter[str] = Counter()
    shapes: dict[str, tuple[int, ...]] = {}
    transposed = set()
    for terms in neurons:
        matrices = [term for term in terms if len(term.shape) == 2]
        rows, others = ([t for t in matrices if (t.exponent > 0) is positive] for positive in (True, False))
        widths = {_width(term) for term in rows}
        parts = {term.parameter: _width(term) / min(widths, default=1) for term in others}
        if len(widths) != 1 or not others or any(columns.get(name, n) != n or n % 1 for name, n in parts.items()):
            raise _layout_error(terms)
        blocks |= {term.parameter: _positions(term) for term in rows}
        columns |= {name: int(n) for name, n in parts.items()}
        read.update({term.parameter: _positions(term) for term in others})
        shapes |= {term.parameter: term.shape for term in others}
        transposed |= {term.parameter for term in matrices if _is_transposed(term)}
    for name, shape in shapes.items():
        if read[name] != shape[0 if name in transposed else 1]:
            raise _layout_error([term for terms in neurons for term in terms if term.parameter == name][:1])
    names = {*blocks, *columns}
    return {name: LooksLinearLayout(blocks.get(name, 0), columns.get(name, 0), name in transposed) for name in names}


def _layout_error(terms: Iterable[Term]) -> ModelError:
    names = ", ".join(dict.fromkeys(term.parameter for term in terms))
    return ModelError(
        "Expected weight matrices that read all outputs of one another, as identity and looks-linear matrices require, "
        f"got {names} around one neuron. Use xavier or kaiming instead, balanced or not."
    )


def _is_transposed(term: Term) -> bool:
    return term.axes == ((1,) if term.exponent > 0 else (0,))


def _axis(term: Term) -> int:
    return int((term.exponent < 0) is not _is_transposed(term))


def _width(term: Term) -> int:
    """Number of neurons that the matrix leads into or out of."""
    return term.shape[_axis(term)] // _positions(term)


def _positions(term: Term) -> int:
    """Number of rows or columns in the term; in a matrix with one row, columns are indexed as entries."""
    axis = _axis(term)
    if axis not in term.axes:
        return term.shape[axis]
    return len({index[term.axes.index(axis)] for index in term.indices})


def looks_linear_(tensor: Tensor, layout: LooksLinearLayout, generator: Generator | None = None) -> Tensor:
    """Fill with looks-linear orthogonal blocks, in place: [U; -U], [[U, -U], [-U, U]] or [U, -U].

    Odd sizes omit the last row or column. In a hidden matrix of even size with a square U, each row and column has a
    squared norm of 2. With several blocks of rows (averaged heads), each has its own U, and their mean is orthogonal up
    to a factor.

    Source:
        Balduzzi et al., "The shattered gradients problem" (2017); section 3 of "Are GATs Out of Balance?".
    """
    return _draw_structured_(tensor, layout, "orthogonal", generator)


def _draw_structured_(tensor: Tensor, layout: LooksLinearLayout, scheme: Scheme, generator: Generator | None) -> Tensor:
    """Fill with orthogonal blocks, or square hidden matrices with identity blocks and all others by Xavier."""
    mirrored = _PLAIN if scheme == "identity" else layout
    blocks = tensor.chunk(max(layout.blocks, 1))
    half = _empty_half(blocks[0], mirrored)
    halves = []
    if scheme != "orthogonal":
        if not (layout.blocks and layout.columns and half.shape[0] == half.shape[1]):
            return nn.init.xavier_normal_(tensor, generator=generator)
        halves.append(nn.init.eye_(half.clone()))
    while len(halves) < len(blocks):
        halves.append(nn.init.orthogonal_(half.clone(), generator=generator))
    return _mirror_(tensor, mirrored, halves, generator)


def _empty_half(block: Tensor, layout: LooksLinearLayout) -> Tensor:
    """An uninitialized tensor that is mirrored to the shape of a block."""
    rows, columns = block.shape
    parts = layout.columns
    return block.new_empty(
        -(-rows // 2) if layout.blocks else rows, parts * -(-(columns // parts) // 2) if parts else columns
    )


def _mirror_(tensor: Tensor, layout: LooksLinearLayout, halves: list[Tensor], generator: Generator | None) -> Tensor:
    """Fill each block of rows with a mixture of the halves, mirrored."""
    for block, mixed in zip(tensor.chunk(len(halves)), _mix(torch.stack(halves), generator), strict=True):
        whole = torch.cat([mixed, -mixed]) if layout.blocks else mixed
        if layout.columns:
            width = block.shape[1] // layout.columns
            parts = [torch.cat([part, -part], dim=1)[:, :width] for part in whole.chunk(layout.columns, dim=1)]
            whole = torch.cat(parts, dim=1)
        block.copy_(whole[: len(block)])
    return tensor


def _mix(matrices: Tensor, generator: Generator | None) -> Tensor:
    """Rotate matrices (H, N, M) along the first axis so that their mean is a multiple of the first one.

    The mean of orthogonal matrices is not orthogonal, and products of such means lose rank.
    """
    if len(matrices) == 1:
        return matrices
    directions = torch.randn(len(matrices), len(matrices), generator=generator, device=matrices.device)
    directions[:, 0] = 1
    rotation = torch.linalg.qr(directions).Q.to(matrices.dtype)
    return torch.einsum("hk,kij->hij", rotation, matrices)

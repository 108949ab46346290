"""Fresh weights: schemes and their options, what each draws, and how looks-linear matrices are laid out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import torch
from torch import Generator, Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Term
from gatdiag.remedies.applied import positive
from gatdiag.remedies.balance import Neuron
from gatdiag.roles import FEATURE
from gatdiag.structure import ParameterInfo

Scheme: TypeAlias = Literal["xavier", "xavier_uniform", "kaiming", "orthogonal", "identity", "looks_linear_identity"]
SCHEMES: Final[tuple[Scheme, ...]] = get_args(Scheme)
Attention: TypeAlias = Literal["zero", "random"]
Order: TypeAlias = Literal["forward", "reverse"]
LAID_OUT: Final = frozenset({"orthogonal", "identity", "looks_linear_identity"})  # by what leads where


@dataclass(frozen=True)
class Recipe:
    """A scheme with its options."""

    scheme: Scheme
    balanced: bool
    attention: Attention
    beta: float | None
    in_reverse: bool
    zero_branches: bool

    @property
    def squared_norm(self) -> float:
        """Of rows and columns of hidden matrices of equal widths, as they are drawn."""
        return 1.0 if self.scheme == "identity" else 2.0


def read_recipe(
    scheme: str,
    balanced: bool | None,
    attention: Attention | None,
    beta: float | None,
    order: Order,
    zero_branches: bool,
) -> Recipe:
    """What is asked of `gatdiag.remedies.initialize_`.

    Raises:
        InputError: There is no such scheme, or an option does not fit.
    """
    name = scheme.replace("-", "_")
    short = name.removeprefix("balanced_")
    base = short.removesuffix("_zero_attention")
    found = next((known for known in SCHEMES if known == base), None)
    if found is None:
        raise InputError(
            f"Expected one of the schemes {', '.join(SCHEMES)}, or balanced_ and one of them, got {scheme!r}."
        )
    for option, value, known in (
        ("balanced", balanced, (None, True, False)),
        ("attention", attention, (None, *get_args(Attention))),
        ("order", order, get_args(Order)),
        ("zero_branches", zero_branches, (True, False)),
    ):
        if value not in known:
            names = ", ".join(str(one) for one in known if one is not None)
            raise InputError(f"Expected {option} to be one of {names}, got {value!r}.")
    if (short != name and balanced is False) or (base != short and attention == "random"):
        raise InputError(f"Expected options that agree with {scheme!r}, got {balanced=} and {attention=}.")
    balanced = short != name or bool(balanced)
    if not balanced and (beta is not None or order != "forward"):
        raise InputError(f"beta and order are of balanced schemes: give balanced=True with {scheme!r}.")
    if attention is None:
        attention = "zero" if balanced or base != short or found in LAID_OUT else "random"
    squared_norm = None if beta is None else positive(beta, "beta is a squared norm")
    return Recipe(found, balanced, attention, squared_norm, order == "reverse", zero_branches)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LooksLinearLayout:
    """How a matrix is doubled, so that a stack of such matrices with ReLU in between computes a linear map.

    Attributes:
        blocks: Into how many parts, one below the other, the rows fall, each with mirrored halves; 0 where the rows
            are outputs of the model.
        columns: Into how many parts, side by side, the columns fall, each with mirrored halves; 0 where they are inputs
            of the model.
        transposed: Rows are what the matrix reads, columns what it writes.
    """

    blocks: int = 0
    columns: int = 0
    transposed: bool = False


_NEITHER: Final = LooksLinearLayout()


def draw_(
    weight: Tensor,
    info: ParameterInfo,
    scheme: Scheme,
    layouts: Mapping[str, LooksLinearLayout],
    generator: Generator | None,
) -> None:
    """Draw a weight matrix, or an attention vector, in place.

    As torch counts fans: an attention vector (1, H, C) has H C and C; the paper's text has 1 and C.

    Raises:
        ModelError: The scheme is not defined for such a weight.
    """
    if info.role == FEATURE and scheme in LAID_OUT:
        if weight.dim() != 2:
            raise ModelError(
                f"Expected matrices, got {info.name} of shape {list(info.shape)}, for which {scheme} is not defined. "
                "Use the scheme xavier or kaiming here, balanced or not."
            )
        layout = layouts.get(info.name, _NEITHER)
        laid_out = weight.T if layout.transposed else weight
        if scheme == "orthogonal":
            looks_linear_(laid_out, layout, generator)
        else:
            _identity_(laid_out, layout, generator, is_doubled=scheme == "looks_linear_identity")
    elif info.role == FEATURE and scheme == "kaiming":
        nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    else:
        draw = nn.init.xavier_uniform_ if scheme == "xavier_uniform" else nn.init.xavier_normal_
        draw(weight if weight.dim() > 1 else weight[None], generator=generator)


def looks_linear_layouts(neurons: Iterable[Neuron]) -> Mapping[str, LooksLinearLayout]:
    """Matrix -> its layout, read off the neurons: rows lead into some, columns out of others.

    Heads that are averaged are one block each: mirrored across heads, their mean would be zero. Outputs of several
    layers that are concatenated are so many parts of the columns of what reads them.

    Raises:
        ModelError: The layers on the two sides of a neuron do not fit together, as where inputs are concatenated with
            outputs, or no matrix leads into it, as after a normalization: halves would not meet halves.
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
            raise _misfit(terms)
        blocks |= {term.parameter: _positions(term) for term in rows}
        columns |= {name: int(n) for name, n in parts.items()}
        read.update({term.parameter: _positions(term) for term in others})
        shapes |= {term.parameter: term.shape for term in others}
        transposed |= {term.parameter for term in matrices if _is_transposed(term)}
    for name, shape in shapes.items():
        if read[name] != shape[0 if name in transposed else 1]:
            raise _misfit([term for terms in neurons for term in terms if term.parameter == name][:1])
    names = {*blocks, *columns}
    return {name: LooksLinearLayout(blocks.get(name, 0), columns.get(name, 0), name in transposed) for name in names}


def _misfit(terms: Iterable[Term]) -> ModelError:
    names = ", ".join(dict.fromkeys(term.parameter for term in terms))
    return ModelError(
        f"Expected weight matrices that feed each other whole, got {names} around one neuron. Identities and "
        "looks-linear matrices need this: use the scheme xavier or kaiming here, balanced or not."
    )


def _is_transposed(term: Term) -> bool:
    return term.axes == ((1,) if term.exponent > 0 else (0,))


def _axis(term: Term) -> int:
    return int((term.exponent < 0) is not _is_transposed(term))


def _width(term: Term) -> int:
    """Into how many neurons the matrix leads, or out of how many."""
    return term.shape[_axis(term)] // _positions(term)


def _positions(term: Term) -> int:
    """How many rows or columns the term has; a matrix of one row counts its columns as entries."""
    axis = _axis(term)
    if axis not in term.axes:
        return term.shape[axis]
    return len({index[term.axes.index(axis)] for index in term.indices})


def looks_linear_(tensor: Tensor, layout: LooksLinearLayout, generator: Generator | None = None) -> Tensor:
    """Orthogonal, mirrored: [U; -U], [[U, -U], [-U, U]] or [U, -U], block by block; an odd last row or column left out.

    Of a hidden matrix of even size each row and column has a squared norm of 2 where U is square. Where there are
    several blocks, which is where heads are averaged, U is orthogonal up to a factor in their mean, and each block has
    one of its own.

    Source:
        Balduzzi et al., "The shattered gradients problem" (2017); section 3 of "Are GATs Out of Balance?".
    """
    blocks = tensor.chunk(max(layout.blocks, 1))
    half = _half(blocks[0], layout)
    return _double_(tensor, layout, [nn.init.orthogonal_(half.clone(), generator=generator) for _ in blocks], generator)


def _identity_(tensor: Tensor, layout: LooksLinearLayout, generator: Generator | None, *, is_doubled: bool) -> None:
    """The identity in a hidden matrix, block by block, doubled or plain; Xavier in all others, and where none fits."""
    doubled = layout if is_doubled else _NEITHER
    blocks = tensor.chunk(max(layout.blocks, 1))
    half = _half(blocks[0], doubled)
    if not (layout.blocks and layout.columns and half.shape[0] == half.shape[1]):
        nn.init.xavier_normal_(tensor, generator=generator)
        return
    others = [nn.init.orthogonal_(half.clone(), generator=generator) for _ in blocks[1:]]
    _double_(tensor, doubled, [nn.init.eye_(half), *others], generator)


def _half(block: Tensor, layout: LooksLinearLayout) -> Tensor:
    """An empty tensor for what is doubled to such a block."""
    rows, columns = block.shape
    parts = layout.columns
    return block.new_empty(
        -(-rows // 2) if layout.blocks else rows, parts * -(-(columns // parts) // 2) if parts else columns
    )


def _double_(tensor: Tensor, layout: LooksLinearLayout, halves: list[Tensor], generator: Generator | None) -> Tensor:
    """Fill a matrix block by block with mixtures of smaller ones, each of them doubled."""
    for block, mixed in zip(tensor.chunk(len(halves)), _mixed(torch.stack(halves), generator), strict=True):
        whole = torch.cat([mixed, -mixed]) if layout.blocks else mixed
        if layout.columns:
            width = block.shape[1] // layout.columns
            parts = [torch.cat([part, -part], dim=1)[:, :width] for part in whole.chunk(layout.columns, dim=1)]
            whole = torch.cat(parts, dim=1)
        block.copy_(whole[: len(block)])
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

"""Fresh weights for a model that does not train."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import Generator, Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Law, Laws, Term, find_laws
from gatdiag.remedies.balance import Neuron, balance_, preserving_factor
from gatdiag.remedies.least_norm import balancing
from gatdiag.remedies.orbit import multiply_
from gatdiag.remedies.stack import neurons_of_stack, squared_norm_of_stack
from gatdiag.structure import Layer, ParameterInfo, discover, unwrapped

Scheme: TypeAlias = Literal["xavier", "xavier_zero_attention", "balanced_xavier", "balanced_orthogonal"]
SCHEMES: Final[tuple[Scheme, ...]] = get_args(Scheme)

_TARGETS: Final[Mapping[str, str]] = {"GATv2Conv": "lin_r"}  # weights of the target node, which only score edges
_REWRITTEN: Final = re.compile(r"(^|\.)parametrizations\.|weight_[gv]$|_orig$")


def initialize_(
    model: nn.Module, scheme: Scheme | str, *args: Any, generator: Generator | None = None, **kwargs: Any
) -> nn.Module:
    """Give a model fresh weights, in place.

    The schemes, under the names of "Are GATs Out of Balance?":

    - ``xavier`` (Xav): every weight matrix and attention vector by `torch.nn.init.xavier_normal_`.
    - ``xavier_zero_attention`` (XavZ): the same with attention vectors of zero.
    - ``balanced_xavier`` (BalX): XavZ, then balanced.
    - ``balanced_orthogonal`` (BalO): looks-linear orthogonal matrices and attention vectors of zero, then balanced.
      With U orthogonal, the first matrix is [U; -U], hidden ones are [[U, -U], [-U, U]], the last is [U, -U]. Through
      ReLU such a stack starts as a linear map, and passes a signal on at its size however deep it is.

    To balance is to scale each row of the first matrix to a squared norm of 2, and then, layer after layer, each
    column to the norm of the row that feeds it: with a = 0 and b = 0,

        c_i = ||W^l[i, :]||^2 + b^l[i]^2 - a^l[i]^2 - ||W^(l+1)[:, i]||^2 = 0    for every neuron i.

    Gradient descent all but conserves c. A neuron with c far from zero can hardly change its heavier weights.

    A common factor of all weights leaves c at zero, and decides what becomes of a signal. Where widths change or heads
    are averaged, whose mean is smaller than each of them, it is not that of the first rows above, but the one with
    which the gains of all layers multiply to one (`gatdiag.remedies.stack.squared_norm_of_stack`); where inputs are
    given, the one with which the outputs are of that size in a forward pass, whatever sums, gates and skips do to it
    (`gatdiag.remedies.balance.preserving_factor`).

    Without inputs the model is taken for what the paper speaks of: a stack of GAT, GATv2, GCN and linear layers in
    module order, each feeding the next. Heads may be concatenated (row k C + i of head k feeds column k C + i) or
    averaged (the rows of all heads feed one column together). With the inputs of a forward pass, balanced schemes
    follow the laws that `gatdiag.find_laws` finds instead, in whatever layers the model has, queries and keys among
    them.

    Biases become zero. With ``share_weights=False`` the balanced schemes set the weights of the target node to zero,
    as the paper's code does: they begin to move as soon as the attention has. Heads that are averaged get matrices of
    their own, since equal heads would stay equal; it is their mean that is looks-linear. Scales and shifts of
    normalizations, gates and the like keep their values. Dtypes, devices and ``requires_grad`` stay as they are.

    Args:
        model: Any module for the Xavier schemes; a stack, or a model that has laws, for the balanced ones.
        scheme: One of the above; hyphens do for underscores.
        args: Positional inputs of the forward pass, to follow the model's own laws. Needed where it is no stack.
        generator: Source of random numbers, on the device of the model; torch's own if left out.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        The model itself. Nothing was changed if an error was raised.

    Raises:
        InputError: There is no such scheme, or the model is no module.
        ModelError: It is not clear which layer feeds which (give the inputs), the model's laws run along a residual
            stream, or no neuron has a law.

    Source:
        Section 3 (procedure 2.6) of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023), after
        Balduzzi et al., "The shattered gradients problem" (2017), for the looks-linear matrices. As in that paper's
        code, torch's Xavier draws an attention vector of shape (1, heads, C) with variance 2 / (heads C + C), so 1 / C
        for one head, where the paper's text has 2 / (1 + C). With an odd number of neurons, the matrix for one more is
        drawn, and its last row or column left out.

    Example:
        >>> from torch_geometric.nn import GATv2Conv
        >>> first, last = GATv2Conv(5, 4, share_weights=True), GATv2Conv(4, 3, share_weights=True)
        >>> model = initialize_(nn.ModuleList([first, last]), "balanced_orthogonal")
        >>> incoming, outgoing = first.lin_l.weight.square().sum(1), last.lin_l.weight.square().sum(0)
        >>> torch.allclose(incoming, torch.full((4,), 2.0)), torch.allclose(incoming, outgoing)
        (True, True)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a torch.nn.Module and then the name of a scheme, got {type(model).__name__} first.")
    scheme = _known(scheme)
    user = unwrapped(model)
    structure = discover(user)
    parameters = dict(user.named_parameters())
    laws = None
    neurons: tuple[Neuron, ...] = ()
    if scheme.startswith("balanced"):
        laws = find_laws(user, *args, **kwargs) if args or kwargs else None
        neurons = neurons_of_stack(user, structure) if laws is None else _neurons(laws)
    layouts = looks_linear_layouts(neurons) if scheme == "balanced_orthogonal" else {}
    with torch.no_grad():
        fresh = {}
        for layer in structure:
            for info in layer.parameters:
                parameter = parameters[info.name]  # drawn in single precision where its own is lower
                dtype = torch.promote_types(parameter.dtype, torch.float32)
                fresh[info.name] = parameter.detach().to(dtype, copy=True)
                _draw_(fresh[info.name], info, layer, scheme, layouts, generator)
        if laws is not None:
            _balance_by_laws_(user, fresh, neurons, laws, args, kwargs)
        elif neurons:
            balance_(fresh, neurons, squared_norm_of_stack(user, structure))
        for name, tensor in fresh.items():
            parameters[name].copy_(tensor)
    return model


def _known(scheme: str) -> Scheme:
    """The scheme of that name; run folders spell it with hyphens."""
    for known in SCHEMES:
        if known == str(scheme).replace("-", "_"):
            return known
    raise InputError(f"Expected one of the schemes {', '.join(SCHEMES)}, got {scheme!r}.")


def _neurons(laws: Laws) -> tuple[Neuron, ...]:
    """The neurons of a model's own laws, without a residual stream among them."""
    stream = next((law for law in laws if law.kind == "stream"), None)
    if stream is not None:
        raise ModelError(
            f"Expected neurons between layers, got a residual stream ({stream.name}), whose layers both read and write "
            "it: no order of scaling balances them. Use a scheme that is not balanced."
        )
    neurons = tuple(law.terms for law in laws if _is_neuron(law))
    if not neurons:
        reasons = "; ".join(f"{exclusion.what}: {exclusion.reason}" for exclusion in laws.excluded) or "one layer only"
        raise ModelError(
            f"Expected a model whose neurons have laws, got one without ({reasons}). Leave the inputs out to take it "
            "for a stack of layers in module order."
        )
    return neurons


def _is_neuron(law: Law) -> bool:
    """Something leads into it and something out of it; queries and keys both lead into their channels."""
    inner = any(term.exponent < 0 and term.kind == "columns" for term in law.terms)
    return law.kind == "neuron" or (law.kind == "product" and inner)


def _balance_by_laws_(
    model: nn.Module,
    weights: dict[str, Tensor],
    neurons: tuple[Neuron, ...],
    laws: Laws,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Balance neurons one after the other, at the size that passes a signal on; then queries with keys."""
    balance_(weights, neurons)
    matrices = frozenset(term.parameter for terms in neurons for term in terms if len(term.shape) > 1)
    factor = preserving_factor(model, weights, matrices, args, kwargs)
    balance_(weights, neurons, 2 * factor**2)
    if any(law.kind == "product" and not _is_neuron(law) for law in laws):
        for name, scale in balancing(laws, weights).factors.items():
            multiply_(weights[name], scale)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LooksLinearLayout:
    """How a matrix is doubled, so that a stack of such matrices with ReLU in between computes a linear map.

    Attributes:
        blocks: Into how many parts, one below the other, the rows fall, each with mirrored halves; 0 where the rows
            are outputs of the model.
        columns: Columns are mirrored: not where they are inputs of the model.
    """

    blocks: int = 0
    columns: bool = False


def _draw_(
    weight: Tensor,
    info: ParameterInfo,
    layer: Layer,
    scheme: Scheme,
    layouts: Mapping[str, LooksLinearLayout],
    generator: Generator | None,
) -> None:
    if _REWRITTEN.search(info.name):
        raise ModelError(
            f"Expected weights that are parameters themselves, got {info.name} of a parametrization (weight or "
            "spectral normalization, pruning). Initialize first, or remove it."
        )
    scoring = scheme.startswith("balanced") and info.module.rpartition(".")[2] == _TARGETS.get(layer.kind)
    if info.role == "bias" or scoring or (info.role == "attention vector" and scheme != "xavier"):
        weight.zero_()
    elif info.role == "feature weight" and scheme == "balanced_orthogonal":
        if weight.dim() != 2:
            raise ModelError(
                f"Expected matrices, got {info.name} of shape {list(info.shape)}, for which looks-linear is not "
                "defined. Use the scheme balanced_xavier here."
            )
        looks_linear_(weight, layouts.get(info.name, LooksLinearLayout()), generator)
    elif info.role in ("feature weight", "edge weight", "attention vector"):
        # as torch counts fans: an attention vector (1, H, C) has H C and C; the paper's text has 1 and C
        nn.init.xavier_normal_(weight if weight.dim() > 1 else weight[None], generator=generator)


def looks_linear_layouts(neurons: Iterable[Neuron]) -> Mapping[str, LooksLinearLayout]:
    """Matrix -> its layout, read off the neurons: rows lead into some, columns out of others.

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
    return {name: LooksLinearLayout(blocks.get(name, 0), name in columns) for name in {*blocks, *columns}}


def _width(term: Term) -> int:
    """Into how many neurons the matrix leads, or out of how many."""
    axis = 0 if term.exponent > 0 else 1
    return term.shape[axis] // _positions(term, axis)


def _positions(term: Term, axis: int) -> int:
    """How many rows or columns the term has; a matrix of one row counts its columns as entries."""
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

    Example:
        >>> weight = looks_linear_(torch.empty(4, 4), LooksLinearLayout(blocks=1, columns=True))
        >>> torch.equal(weight[:2], -weight[2:]), torch.equal(weight[:, :2], -weight[:, 2:])
        (True, True)
        >>> h = torch.tensor([1.0, -2.0])  # relu(u) - relu(-u) = u: what goes in comes out, turned
        >>> torch.allclose((weight @ torch.cat([h, -h]).relu())[:2].norm(), h.norm())
        True
    """
    blocks = tensor.chunk(max(layout.blocks, 1))
    rows, columns = blocks[0].shape
    half = tensor.new_empty(-(-rows // 2) if layout.blocks else rows, -(-columns // 2) if layout.columns else columns)
    halves = torch.stack([nn.init.orthogonal_(half.clone(), generator=generator) for _ in blocks])
    for block, mixed in zip(blocks, _mixed(halves, generator), strict=True):
        whole = torch.cat([mixed, -mixed]) if layout.blocks else mixed
        whole = torch.cat([whole, -whole], dim=1) if layout.columns else whole
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

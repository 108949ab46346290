"""Fresh weights for a model that does not train."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import Generator, Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Law, Laws, find_laws
from gatdiag.remedies.balance import Neuron, balance_
from gatdiag.remedies.draw import Mirror, looks_linear_, mirrors, xavier_
from gatdiag.remedies.gain import preserving_factor
from gatdiag.remedies.orbit import multiply_
from gatdiag.remedies.rescaling import balancing
from gatdiag.remedies.stack import neurons_of_stack, squared_norm_of_stack
from gatdiag.structure import Layer, ParameterInfo, Structure, discover, unwrapped

Scheme: TypeAlias = Literal["xavier", "xavier_zero_attention", "balanced_xavier", "balanced_orthogonal"]
SCHEMES: Final[tuple[Scheme, ...]] = get_args(Scheme)

_TARGETS: Final[Mapping[str, str]] = {"GATv2Conv": "lin_r"}  # weights of the target node, which only score edges
_REWRITTEN = re.compile(r"(^|\.)parametrizations\.|weight_[gv]$|_orig$")

Distribution: TypeAlias = Literal["zero", "xavier", "orthogonal", "kept"]


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
    given, the one with which the outputs are of that size in a forward pass (`gatdiag.remedies.gain`), whatever sums,
    gates and skips do to it.

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
    balanced, traced = scheme.startswith("balanced"), bool(args or kwargs)
    laws = _laws(user, args, kwargs) if balanced and traced else None
    neurons = _neurons(user, structure, laws) if balanced else ()
    mirror = mirrors(neurons) if scheme == "balanced_orthogonal" else {}
    with torch.no_grad():
        fresh = {
            info.name: _drawn(info, parameters[info.name], _distribution(info, layer, scheme), mirror, generator)
            for layer in structure
            for info in layer.parameters
        }
        if laws is not None:
            _balance_by_laws_(user, fresh, neurons, laws, args, kwargs)
        elif balanced:
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


def _laws(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Laws:
    """The model's own laws, without a residual stream among them."""
    laws = find_laws(model, *args, **kwargs)
    stream = next((law for law in laws if law.kind == "stream"), None)
    if stream is not None:
        raise ModelError(
            f"Expected neurons between layers, got a residual stream ({stream.name}), whose layers both read and write "
            "it: no order of scaling balances them. Use a scheme that is not balanced."
        )
    return laws


def _neurons(model: nn.Module, structure: Structure, laws: Laws | None) -> tuple[Neuron, ...]:
    """The neurons of a stack, or those of the model's laws."""
    if laws is None:
        return neurons_of_stack(model, structure)
    neurons = tuple(law.terms for law in laws if _is_neuron(law))
    if not neurons:
        reasons = "; ".join(f"{exclusion.what}: {exclusion.reason}" for exclusion in laws.excluded) or "one layer only"
        raise ModelError(
            f"Expected a model whose neurons have laws, got one without ({reasons}). Leave the inputs out to take it "
            "for a stack of layers in module order."
        )
    return neurons


def _is_neuron(law: Law) -> bool:
    """Whether something leads into it and something out of it; queries and keys both lead into their channels."""
    inner = any(term.exponent < 0 and term.kind == "columns" for term in law.terms)
    return law.kind == "neuron" or (law.kind == "product" and inner)


def _balance_by_laws_(
    model: nn.Module,
    weights: dict[str, Tensor],
    neurons: Sequence[Neuron],
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


def _distribution(info: ParameterInfo, layer: Layer, scheme: Scheme) -> Distribution:
    if _REWRITTEN.search(info.name):
        raise ModelError(
            f"Expected weights that are parameters themselves, got {info.name} of a parametrization (weight or "
            "spectral normalization, pruning). Initialize first, or remove it."
        )
    balanced = scheme.startswith("balanced")
    scoring = info.module.rpartition(".")[2] == _TARGETS.get(layer.kind)
    if info.role == "bias" or (balanced and scoring) or (info.role == "attention vector" and scheme != "xavier"):
        return "zero"
    if info.role == "feature weight" and scheme == "balanced_orthogonal":
        return "orthogonal"
    return "xavier" if info.role in ("feature weight", "edge weight", "attention vector") else "kept"


def _drawn(
    info: ParameterInfo,
    parameter: Tensor,
    distribution: Distribution,
    mirror: Mapping[str, Mirror],
    generator: Generator | None,
) -> Tensor:
    """A new tensor; in single precision where the parameter's own is lower."""
    weight = parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
    match distribution:
        case "zero":
            weight.zero_()
        case "xavier":
            xavier_(weight if weight.dim() > 1 else weight[None], generator)
        case "orthogonal":
            if weight.dim() != 2:
                raise ModelError(
                    f"Expected matrices, got {info.name} of shape {list(info.shape)}, for which looks-linear is not "
                    "defined. Use the scheme balanced_xavier here."
                )
            looks_linear_(weight, mirror.get(info.name, Mirror()), generator)
    return weight

"""Fresh weights for a model that does not train."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Generator, Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Exclusion, Law, Laws, find_laws
from gatdiag.laws.outputs import floating_tensors
from gatdiag.remedies.applied import Applied, refuse_without_values
from gatdiag.remedies.balance import (
    Neuron,
    balance_,
    ends,
    neurons_of_stack,
    preserving_factor,
    scale_,
    squared_norm_of_stack,
    squared_sides,
)
from gatdiag.remedies.fresh import (
    LAID_OUT,
    Attention,
    Order,
    Recipe,
    Scheme,
    draw_,
    looks_linear_layouts,
    read_recipe,
)
from gatdiag.remedies.least_norm import balancing
from gatdiag.remedies.orbit import multiply_
from gatdiag.remedies.weight_norm import is_rewritten
from gatdiag.roles import ATTENTION, BIAS, EDGE, FEATURE, STACKED
from gatdiag.structure import ParameterInfo, Structure, discover, replicate, unwrap
from gatdiag.structure.isolation import preserve_random_state

Inputs: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]

_TARGETS: Final[Mapping[str, str]] = {"GATv2Conv": "lin_r"}  # weights of the target node, which only score edges
_OPTIONS: Final = ("balanced", "attention", "beta", "order", "zero_branches", "generator")
_DRAWN: Final = (FEATURE, EDGE, ATTENTION)


class Initialized(Applied):
    """What was drawn, and the way back: `undo` gives the weights of before, bit for bit.

    Attributes:
        skipped: With a balanced scheme and inputs: laws that no scaling balances, and why; operations and parameters
            without laws.
    """

    def __init__(self, skipped: tuple[Exclusion, ...]) -> None:
        super().__init__("initialize")
        self.skipped = skipped


def initialize_(
    model: nn.Module,
    scheme: Scheme | str,
    *args: Any,
    balanced: bool | None = None,
    attention: Attention | None = None,
    beta: float | None = None,
    order: Order = "forward",
    zero_branches: bool = False,
    generator: Generator | None = None,
    **kwargs: Any,
) -> Initialized:
    """Give a model fresh weights, in place.

    What weight matrices are drawn by:

    - ``xavier``, ``xavier_uniform``, ``kaiming``: torch's `xavier_normal_`, `xavier_uniform_`, and `kaiming_normal_`
      for ReLU.
    - ``orthogonal``: looks-linear orthogonal. With U orthogonal, the first matrix is [U; -U], hidden ones are
      [[U, -U], [-U, U]], the last is [U, -U]. Through ReLU such a stack is a linear map to begin with, and passes a
      signal on at its size however deep it is.
    - ``identity``: the identity in hidden matrices that are square, Xavier in all others.
    - ``looks_linear_identity``: the same with [[I, -I], [-I, I]].

    Each may be had as it is or balanced; ``"balanced_orthogonal"`` is short for ``"orthogonal", balanced=True``. Of
    "Are GATs Out of Balance?" Xav is ``xavier``, XavZ ``xavier_zero_attention``, BalX ``balanced_xavier`` and BalO
    ``balanced_orthogonal``. Balanced means: for every neuron i, with b = 0,

        c_i = ||W^l[i, :]||^2 + b^l[i]^2 - a^l[i]^2 - ||W^(l+1)[:, i]||^2 = 0.

    Gradient descent all but conserves c. A neuron with c far from zero can hardly change its heavier weights.

    Without inputs the model is taken for what the paper speaks of: a stack of GAT, GATv2, GCN and linear layers in
    module order, each feeding the next. Heads may be concatenated (row k C + i of head k feeds column k C + i) or
    averaged (the rows of all heads feed one column together). With the inputs of a forward pass it follows the laws
    that `gatdiag.find_laws` finds instead, in whatever layers the model has. How it is balanced:

    - A stack, and any model whose neurons can be scaled one after the other: by the paper's procedure. Each row of the
      first matrix is scaled to a squared norm of beta, and then, layer after layer, each column, with the attention
      vector, to the norm of the row that feeds it (`gatdiag.remedies.balance.balance_`).
    - Any other model that has laws, such as one with a residual stream, whose layers both read and write it: what was
      drawn is rescaled along the laws, one scale for each neuron and each channel of a stream, to the point of least
      norm, where every c is zero (`gatdiag.remedies.least_norm.least_norm`). If beta is given, the rows of the first
      matrix are scaled to it, and stay. So are queries balanced with keys.

    A common factor of all weights leaves c at zero, and decides what becomes of a signal. Unless beta is given, the
    factor is the one with which a signal keeps its size: by the widths and heads of a stack
    (`gatdiag.remedies.balance.squared_norm_of_stack`), where inputs are given by forward passes on a copy
    (`gatdiag.remedies.balance.preserving_factor`). In a stack of equal widths beta is then the paper's 2.

    Biases become zero. Heads that are averaged get matrices of their own, since equal heads would stay equal; it is
    their mean that is looks-linear. Scales and shifts of normalizations, gates and the like keep their values. Dtypes,
    devices and ``requires_grad`` stay as they are.

    Args:
        model: Any module, if it is to be Xavier or Kaiming and not balanced; a stack, or a model that has laws.
        scheme: One of the above; hyphens do for underscores.
        args: Positional inputs of the forward pass, to follow the model's own laws. Needed where it is no stack.
        balanced: Balance what is drawn. False if left out, unless the scheme's name says so.
        attention: ``random``: attention vectors by Xavier, balanced as well; ``zero``: at zero, so that all neighbors
            count alike to begin with, as do then, in balanced schemes, the weights of GATv2's target nodes with
            ``share_weights=False`` (as the paper's code has it): they move as soon as the attention has. If left out,
            random for Xavier and Kaiming that are not balanced, else zero. Queries and keys are drawn in either case.
        beta: Squared norm of what leads into each neuron of the first layer. If left out, a signal keeps its size.
        order: From the first layer to the last, or in ``reverse``: beta is then of what leads out of a neuron into the
            last layer, and rows are scaled to the columns that follow them.
        zero_branches: Set the matrices by which the branches of a residual stream write into it to zero (inputs are
            needed). The neurons inside of branches cannot balance then.
        generator: Source of random numbers, on the device of the model; torch's own if left out.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        What was drawn, and the way back. Nothing was changed if an error was raised.

    Raises:
        InputError: There is no such scheme, an option does not fit, or the model is no module.
        ModelError: It is not clear which layer feeds which (give the inputs), no neuron has a law, or the scheme is not
            defined for a weight of the model.

    Source:
        Section 3 (procedure 2.6) and figure 9 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS
        2023), after Balduzzi et al., "The shattered gradients problem" (2017), for the looks-linear matrices. As in
        that paper's code, torch's Xavier draws an attention vector of shape (1, heads, C) with variance
        2 / (heads C + C), so 1 / C for one head, where the paper's text has 2 / (1 + C). With an odd number of neurons,
        the matrix for one more is drawn, and its last row or column left out.

    Example:
        >>> from torch_geometric.nn import GATv2Conv
        >>> first, last = GATv2Conv(5, 4, share_weights=True), GATv2Conv(4, 3, share_weights=True)
        >>> applied = initialize_(nn.ModuleList([first, last]), "balanced_orthogonal")
        >>> incoming, outgoing = first.lin_l.weight.square().sum(1), last.lin_l.weight.square().sum(0)
        >>> torch.allclose(incoming, torch.full((4,), 2.0)), torch.allclose(incoming, outgoing)
        (True, True)
        >>> print(applied.changes[2])
        0.lin_l.weight: orthogonal, balanced
        >>> applied.undo()
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a torch.nn.Module and then the name of a scheme, got {type(model).__name__} first.")
    if not isinstance(scheme, str) or not isinstance(generator, Generator | None):
        raise InputError(
            "Expected the name of a scheme after the model, then the inputs, and generator= to be a torch.Generator, "
            f"got {type(scheme).__name__} and {type(generator).__name__}."
        )
    recipe = read_recipe(scheme, balanced, attention, beta, order, zero_branches)
    user = unwrap(model)
    _refuse_unknown_names(user, kwargs)
    structure, inputs = discover(user), (args, kwargs)
    refuse_without_values(user.named_parameters())
    laws, neurons = _neurons_around(user, structure, recipe, inputs)
    drawn, said = _drawn(user, structure, recipe, neurons, generator)
    branches = _branches(discover(user, *args, **kwargs), laws) if recipe.zero_branches and laws is not None else []
    for name in branches:
        drawn[name].zero_()
        said[name] = "zero, the end of a branch"
    weights = {name: tensor.to(torch.float64) for name, tensor in drawn.items()}
    skipped: tuple[Exclusion, ...] = ()
    if recipe.balanced and laws is not None:
        skipped = _balance_by_laws_(user, structure, weights, recipe, laws, neurons, inputs)
    elif recipe.balanced:
        _balance_stack_(user, structure, weights, recipe, neurons)
    _refuse_dead_branches(user, weights, branches, inputs)
    applied = Initialized(skipped)
    parameters = dict(user.named_parameters())
    fresh = {name: weights[name].to(drawn[name].dtype).to(parameters[name].dtype) for name in said}
    _refuse_overflow(fresh, weights)
    with applied.changing():
        for name, what in said.items():
            applied.remember(name, what, parameters[name])
            parameters[name].detach().copy_(fresh[name])
        return applied


def _refuse_unknown_names(model: nn.Module, kwargs: Mapping[str, Any]) -> None:
    """A misspelled option would be taken for an input."""
    if not kwargs:  # some forward passes have no signature
        return
    try:
        inspect.signature(model.forward).bind_partial(**kwargs)
    except TypeError as error:
        raise InputError(
            f"Expected the options {', '.join(_OPTIONS)} or inputs of {type(model).__name__}.forward by name, got "
            f"{', '.join(kwargs)}: {error}."
        ) from error


def _refuse_overflow(fresh: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, tensor in fresh.items():
        if not bool(tensor.isfinite().all()) or (bool(weights[name].any()) and not bool(tensor.any())):
            raise ModelError(
                f"Expected weights that {tensor.dtype} can hold, but those of {name} would be as large as "
                f"{float(weights[name].abs().max()):.1e}. Give another beta, or convert the model first."
            )


def _neurons_around(
    model: nn.Module, structure: Structure, recipe: Recipe, inputs: Inputs
) -> tuple[Laws | None, tuple[Neuron, ...]]:
    """The laws, where inputs are given, and the neurons, as far as the scheme needs to know them."""
    if recipe.zero_branches and not any(inputs):
        raise InputError("Give the inputs of a forward pass: they tell what the branches of a residual stream are.")
    if not (recipe.balanced or recipe.zero_branches or recipe.scheme in LAID_OUT):
        return None, ()
    if not any(inputs):
        return None, neurons_of_stack(model, structure)
    laws = _laws(model, structure, *inputs)
    return laws, _neurons(laws)


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _drawn(
    model: nn.Module, structure: Structure, recipe: Recipe, neurons: Sequence[Neuron], generator: Generator | None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every parameter, drawn anew where the scheme says so (in single precision at least), and what was done to it."""
    layouts = looks_linear_layouts(neurons) if recipe.scheme in LAID_OUT else {}
    parameters = dict(model.named_parameters())
    fresh, said = {}, {}
    for layer in structure:
        for info in layer.parameters:
            parameter = parameters[info.name]
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            weight = fresh[info.name] = parameter.detach().to(dtype, copy=True)
            if is_rewritten(model, info.name):
                raise ModelError(
                    f"Expected weights that are parameters themselves, got {info.name} of a parametrization (weight or "
                    "spectral normalization, pruning). Initialize first, or remove it."
                )
            if _is_zero(info, layer.kind, recipe):
                weight.zero_()
                said[info.name] = "zero"
            elif info.role in _DRAWN:
                draw_(weight, info, recipe.scheme, layouts, generator)
                said[info.name] = recipe.scheme + (", balanced" if recipe.balanced else "")
    return fresh, said


def _is_zero(info: ParameterInfo, kind: str, recipe: Recipe) -> bool:
    if info.role == BIAS:
        return True
    only_scores = info.role == ATTENTION or (recipe.balanced and _is_target(info, kind))
    return recipe.attention == "zero" and only_scores


def _is_target(info: ParameterInfo, kind: str) -> bool:
    return info.module.rpartition(".")[2] == _TARGETS.get(kind)


# --- balanced ---------------------------------------------------------------------------------------------------------


def _balance_stack_(
    model: nn.Module,
    structure: Structure,
    weights: dict[str, Tensor],
    recipe: Recipe,
    neurons: Sequence[Neuron],
) -> None:
    vectors = [info.name for info in structure.parameters if info.role == ATTENTION]
    squared_norm = recipe.beta
    if squared_norm is None and neurons:
        passing = squared_norm_of_stack(model, structure, in_reverse=recipe.in_reverse)
        squared_norm = passing * recipe.squared_norm / 2
    left = balance_(weights, neurons, squared_norm or 2.0, in_reverse=recipe.in_reverse, vectors=vectors)
    if left is not None:
        into, out = squared_sides(weights, left)
        raise ModelError(
            f"Expected weights that can be scaled until each neuron balances, but the neuron of {left[0]} has a "
            f"squared norm of {into:.3g} leading in and {out:.3g} leading out. Give the inputs of a forward pass "
            "too, or use a scheme that is not balanced."
        )


def _laws(model: nn.Module, structure: Structure, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Laws:
    """The laws of a copy with weights of its own: those of the model may be zero, NaN or infinite."""
    replica, generator = replicate(model, args, kwargs), Generator().manual_seed(0)
    for info in structure.parameters:
        parameter = replica.parameters[info.name].detach()
        if info.role in (*_DRAWN, BIAS):
            fans = parameter.shape[-1] + (parameter.shape[-2] if parameter.dim() > 1 else 1)
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * (2 / fans) ** 0.5
            parameter.copy_(drawn)
    return find_laws(replica.model, *args, **kwargs)


def _neurons(laws: Laws) -> tuple[Neuron, ...]:
    """The neurons of a model's own laws, and the channels of its streams."""
    neurons = tuple(law.terms for law in laws if _is_neuron(law))
    if not neurons:
        reasons = "; ".join(map(str, laws.excluded)) or "one layer only"
        raise ModelError(
            f"Expected a model whose neurons have laws, got one without ({reasons}). Leave the inputs out to take it "
            f"for a stack of {', '.join(STACKED)} layers in module order, or use xavier or kaiming as they are."
        )
    return neurons


def _is_neuron(law: Law) -> bool:
    """Something leads into it and something out of it; queries and keys both lead into their channels."""
    inner = any(term.exponent < 0 and term.kind == "columns" for term in law.terms)
    return law.kind in ("neuron", "stream") or (law.kind == "product" and inner)


def _balance_by_laws_(
    model: nn.Module,
    structure: Structure,
    weights: dict[str, Tensor],
    recipe: Recipe,
    laws: Laws,
    neurons: Sequence[Neuron],
    inputs: Inputs,
) -> tuple[Exclusion, ...]:
    """Balance, at the size that passes a signal on; what cannot be balanced, and why."""
    roles = {info.name: info.role for info in structure.parameters}
    held = {name for name, role in roles.items() if role not in (*_DRAWN, BIAS)}
    queries_and_keys = {term.parameter for law in laws if not _is_neuron(law) for term in law.terms}
    vectors = {name for name, role in roles.items() if role == ATTENTION} | queries_and_keys
    squared_norm = recipe.squared_norm if recipe.beta is None else recipe.beta
    skipped = _settle_(weights, recipe, laws, neurons, squared_norm, vectors, held)
    if recipe.beta is None:
        scaled = frozenset(term.parameter for law in laws for term in law.terms) - held
        factor = preserving_factor(model, weights, scaled, *inputs)
        for name in scaled:
            weights[name] *= factor
        skipped = _settle_(weights, recipe, laws, neurons, squared_norm * factor**2, vectors, held)
    return (*skipped, *laws.excluded)


def _settle_(
    weights: dict[str, Tensor],
    recipe: Recipe,
    laws: Laws,
    neurons: Sequence[Neuron],
    squared_norm: float,
    vectors: Collection[str],
    held: Collection[str],
) -> tuple[Exclusion, ...]:
    """Balance neurons one after the other, or else all at once; what cannot be balanced, and why."""
    swept = {name: weight.clone() for name, weight in weights.items()}
    if balance_(swept, neurons, squared_norm, in_reverse=recipe.in_reverse, vectors=vectors, held=held) is None:
        weights.update(swept)
        if len(neurons) == len(laws):
            return ()
    elif recipe.beta is not None:
        begin = ends(neurons, recipe.in_reverse, {*vectors, *held})
        for terms in begin:
            scale_(weights, terms, squared_norm)
        held = {*held, *(term.parameter for terms in begin for term in terms)}
    rescaling = balancing(laws, weights, held=held)
    if not rescaling.balanced:
        reasons = "; ".join(map(str, rescaling.skipped))
        raise ModelError(f"Expected weights that can be balanced, but {reasons}. Use a scheme that is not balanced.")
    for name, factor in rescaling.factors.items():
        multiply_(weights[name], factor)
    return rescaling.skipped


# --- branches that begin at zero --------------------------------------------------------------------------------------


def _branches(structure: Structure, laws: Laws) -> list[str]:
    """The matrices by which branches write into a stream: they, or matrices before them, read it."""
    matrices = [
        info.name
        for layer in structure
        for info in layer.parameters
        if info.role == FEATURE and not _is_target(info, layer.kind)
    ]
    order = {name: number for number, name in enumerate(matrices)}
    found = set()
    for law in laws:
        places = [(order[term.parameter], term.exponent > 0) for term in law.terms if term.parameter in order]
        first = min((place for place, writes in places if not writes), default=len(order))
        if law.kind == "stream":
            found |= {place for place, writes in places if writes and place >= first}
    if not found:
        raise ModelError(
            "Expected a residual stream whose branches could begin at zero, but the laws of the model show none: leave "
            "zero_branches out."
        )
    return [matrices[place] for place in sorted(found)]


def _refuse_dead_branches(
    model: nn.Module, weights: Mapping[str, Tensor], branches: Sequence[str], inputs: Inputs
) -> None:
    """A branch that ends in ReLU has no gradient at zero, and would stay there."""
    if not branches:
        return
    replica = replicate(model, *inputs)
    for name, tensor in weights.items():
        replica.parameters[name].detach().copy_(tensor)
    ends_of_branches = [replica.parameters[name].requires_grad_() for name in branches]
    with torch.enable_grad(), preserve_random_state({tensor.device for tensor in ends_of_branches}):
        outputs = replica.run(lambda output: [out for out in floating_tensors(output) if out.requires_grad])
        value = torch.stack([(out * torch.randn_like(out)).sum().to(torch.float64) for out in outputs]).sum()
        gradients = torch.autograd.grad(value, ends_of_branches, allow_unused=True)
    for name, gradient in zip(branches, gradients, strict=True):
        if gradient is None or not gradient.any():
            raise ModelError(
                f"Expected branches that can leave zero, but {name} has no gradient there, as where an activation "
                "comes after it. Leave zero_branches out."
            )

"""Draw new weights for a model that does not train."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Generator, Tensor, nn

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Exclusion, Law, Laws, find_laws
from gatdiag.remedies.applied import Applied, unwrap_model
from gatdiag.remedies.balance import (
    Neuron,
    balance_,
    find_stack_neurons,
    first_matrices,
    scale_to_norm_,
    side_squared_norms,
    signal_preserving_factor,
    stack_squared_norm,
)
from gatdiag.remedies.least_norm import find_rescaling, multiply_
from gatdiag.remedies.schemes import (
    STRUCTURED,
    Attention,
    Options,
    Order,
    Scheme,
    draw_,
    looks_linear_layouts,
    parse_options,
)
from gatdiag.remedies.weight_norm import is_reparametrized
from gatdiag.roles import ATTENTION, BIAS, EDGE, FEATURE, OTHER, STACKED
from gatdiag.structure import ParameterInfo, Structure, discover, replicate
from gatdiag.structure.tensors import floating_tensors

Inputs: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]

_DRAWN: Final = (FEATURE, EDGE, ATTENTION)


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
) -> Applied:
    """Draw new weights for a model, in place.

    Schemes for weight matrices:

    - ``xavier``, ``xavier_uniform``, ``kaiming``: torch's `xavier_normal_`, `xavier_uniform_`, and `kaiming_normal_`
      for ReLU. Of stacked weights, such as one matrix (in, out) per relation, each matrix is drawn by itself.
    - ``orthogonal``: looks-linear orthogonal. With U orthogonal, the first matrix is [U; -U], hidden ones are
      [[U, -U], [-U, U]], the last is [U, -U]. With ReLU, such a stack starts as a linear map, and keeps the norm of a
      signal at any depth.
    - ``identity``: the identity in square hidden matrices, Xavier in all others.
    - ``looks_linear_identity``: the same with [[I, -I], [-I, I]].

    Each can be balanced; ``"balanced_orthogonal"`` is short for ``"orthogonal", balanced=True``. The names of "Are GATs
    Out of Balance?" are: Xav ``xavier``, XavZ ``xavier_zero_attention``, BalX ``balanced_xavier``, BalO
    ``balanced_orthogonal``. Balanced means that for every neuron i, with b = 0,

        c_i = ||W^l[i, :]||^2 + b^l[i]^2 - a^l[i]^2 - ||W^(l+1)[:, i]||^2 = 0.

    Gradient descent nearly conserves c. If c is far from zero, the larger weights of a neuron can hardly change.

    Without inputs, the model must be a stack of GAT, GATv2, GCN and linear layers in module order, as in the paper,
    with heads concatenated or averaged. With the inputs of a forward pass, the laws that `gatdiag.find_laws` finds are
    used instead, for any layers. Balancing:

    - Stacks, and models whose neurons can be scaled one after the other, by the paper's procedure
      (`gatdiag.remedies.balance.balance_`): each row of the first matrix is scaled to a squared norm of beta; then,
      layer by layer, each column with its attention vector to the norm of the row that feeds it.
    - Other models, such as those with a residual stream: the drawn weights are rescaled along the laws to the point of
      least norm, where every c is zero (`gatdiag.remedies.least_norm.least_norm`). If beta is given, the rows of the
      first matrix are scaled to it and then fixed.

    A common factor of all weights keeps c at zero, but changes the norm of a signal. Unless beta is given, the factor
    is chosen so that a signal keeps its norm: from the widths and heads of a stack, or with inputs by forward passes on
    a copy. For a stack of equal widths, beta is 2, as in the paper.

    Biases become zero. Averaged heads get different matrices, as equal heads would stay equal; their mean is
    looks-linear. Other parameters, such as scales and shifts of normalizations, keep their values. They count in c,
    except gates and temperatures that would set the size of the weights: their laws are skipped.

    Args:
        model: Any module for Xavier and Kaiming without balancing; otherwise a stack, or a model with laws.
        scheme: One of the above; hyphens are accepted for underscores.
        args: Positional inputs of the forward pass, to use the model's own laws. Required unless it is a stack.
        balanced: Balance the weights. Default: False, unless the name of the scheme says so.
        attention: ``random``: attention vectors by Xavier, balanced as well; ``zero``: zero, so that attention starts
            uniform. In balanced schemes, ``zero`` also sets the target weights of GATv2 layers with
            ``share_weights=False`` to zero (as in the paper's code); they train once the attention vectors are not
            zero. Default: ``random`` for Xavier and Kaiming without balancing, else ``zero``. Queries and keys are
            drawn in either case.
        beta: Squared norm of the incoming weights of each neuron in the first layer. Default: a signal keeps its norm.
        order: ``forward``, from the first layer to the last, or ``reverse``: beta is then for the outgoing weights of
            neurons before the last layer, and rows are scaled to the columns they feed.
        zero_branches: Set the last matrix of each branch of a residual stream to zero (requires inputs). Neurons inside
            such branches cannot be balanced.
        generator: Random number generator on the model's device. Default: torch's.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        The changed weights, and with inputs what could not be balanced. Nothing was changed if an error is raised.

    Raises:
        InputError: The scheme is unknown, an option is invalid, or the model is not a module.
        ModelError: The model is not a stack (give the inputs), no neuron has a law, or the scheme is not defined for a
            weight of the model, or a weight has no values.

    Source:
        Section 3 (procedure 2.6) and figure 9 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS
        2023), after Balduzzi et al., "The shattered gradients problem" (2017), for looks-linear matrices. As in the
        paper's code, torch's Xavier draws an attention vector of shape (1, heads, C) with variance 2 / (heads C + C),
        which is 1 / C for one head, where the paper's text has 2 / (1 + C). For an odd number of neurons, the matrix
        for one more is drawn, and its last row or column omitted.

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
    options = parse_options(scheme, balanced, attention, beta, order)
    user, inputs = unwrap_model(model), (args, kwargs)
    if zero_branches and not any(inputs):
        raise InputError("zero_branches requires the inputs of a forward pass, to find the branches.")
    _check_names(user, kwargs)
    _check_values(user)
    structure = discover(user)
    laws: Laws | None = None
    neurons: tuple[Neuron, ...] = ()
    branches: list[str] = []
    skipped: tuple[Exclusion, ...] = ()
    if options.balanced or zero_branches or options.scheme in STRUCTURED:
        laws = _find_laws(user, structure, *inputs) if any(inputs) else None
        neurons = find_stack_neurons(user, structure) if laws is None else _neurons_of_laws(laws)
    drawn, changes = _draw_weights(user, structure, options, neurons, generator)
    if zero_branches and laws is not None:
        branches = _find_branch_ends(discover(user, *args, **kwargs), laws)
        changes |= dict.fromkeys(branches, "zero, the last of a branch")
    weights = {name: tensor.to(torch.float64) for name, tensor in drawn.items()}
    weights |= {name: torch.zeros_like(weights[name]) for name in branches}
    if options.balanced and laws is not None:
        skipped = _balance_by_laws_(user, structure, weights, options, laws, neurons, inputs)
    elif options.balanced:
        _balance_stack_(user, structure, weights, options, neurons)
    if branches:
        _check_branch_gradients(user, weights, branches, inputs)
    applied = Applied("initialize", skipped)
    parameters = dict(user.named_parameters())
    with applied.undo_on_error():
        for name, what in changes.items():
            applied.save_tensors(name, what, parameters[name])
            parameters[name].detach().copy_(weights[name].to(drawn[name].dtype))
        return applied


def _check_names(model: nn.Module, kwargs: Mapping[str, Any]) -> None:
    """Raise InputError for names that are not inputs, such as misspelled options."""
    try:
        inspect.signature(model.forward).bind_partial(**kwargs)
    except TypeError as error:
        raise InputError(
            f"Expected options of initialize_ or inputs of {type(model).__name__}.forward: {error}."
        ) from error


def _check_values(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ModelError(f"Expected weights with values, but {name} is on the meta device: call model.to_empty().")


# --- drawing ----------------------------------------------------------------------------------------------------------


def _draw_weights(
    model: nn.Module, structure: Structure, options: Options, neurons: Sequence[Neuron], generator: Generator | None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All parameters, in float32 or wider, with new values where the scheme draws them, and descriptions of these."""
    layouts = looks_linear_layouts(neurons) if options.scheme in STRUCTURED else {}
    parameters = dict(model.named_parameters())
    weights, changes = {}, {}
    for layer in structure:
        for info in layer.parameters:
            parameter = parameters[info.name]
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            weight = weights[info.name] = parameter.detach().to(dtype, copy=True)
            if is_reparametrized(model, info.name):
                raise ModelError(
                    f"Expected weights that are parameters, but {info.name} is reparametrized (weight normalization, "
                    "spectral normalization, pruning). Initialize the model before that, or remove it."
                )
            if _is_zero(info, layer.kind, options):
                weight.zero_()
                changes[info.name] = "zero"
            elif info.role in _DRAWN:
                is_kernel = hasattr(model.get_submodule(info.module), "output_padding")
                draw_(weight, info, options.scheme, layouts, generator, is_kernel=is_kernel)
                changes[info.name] = options.scheme + (", balanced" if options.balanced else "")
    return weights, changes


def _is_zero(info: ParameterInfo, kind: str, options: Options) -> bool:
    if info.role == BIAS:
        return True
    affects_only_scores = info.role == ATTENTION or (options.balanced and _is_target_weight(info, kind))
    return options.attention == "zero" and affects_only_scores


def _is_target_weight(info: ParameterInfo, kind: str) -> bool:
    """Whether it only affects scores."""
    return kind == "GATv2Conv" and info.module.rpartition(".")[2] == "lin_r"


# --- balancing --------------------------------------------------------------------------------------------------------


def _balance_stack_(
    model: nn.Module,
    structure: Structure,
    weights: dict[str, Tensor],
    options: Options,
    neurons: Sequence[Neuron],
) -> None:
    vectors = [info.name for info in structure.parameters if info.role == ATTENTION]
    squared_norm = options.beta
    if squared_norm is None and neurons:
        squared_norm = stack_squared_norm(model, structure, in_reverse=options.in_reverse) * options.squared_norm / 2
    unbalanced = balance_(weights, neurons, squared_norm or 2.0, in_reverse=options.in_reverse, vectors=vectors)
    if unbalanced is not None:
        incoming, outgoing = side_squared_norms(weights, unbalanced)
        raise ModelError(
            f"Expected neurons that can be balanced, but the weights into the neuron of {unbalanced[0]} have a squared "
            f"norm of {incoming:.3g}, and those out of it {outgoing:.3g}. Give the inputs of a forward pass too, or "
            "use a scheme that is not balanced."
        )


def _find_laws(model: nn.Module, structure: Structure, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Laws:
    """The laws of a copy with random weights, as those of the model may be zero, NaN or infinite.

    A gate or temperature that is all one side of a law, and so would set the size of the other's weights, is fixed.
    """
    replica, generator = replicate(model, args, kwargs), Generator().manual_seed(0)
    for info in structure.parameters:
        parameter = replica.parameters[info.name].detach()
        if info.role in (*_DRAWN, BIAS):
            fans = parameter.shape[-1] + (parameter.shape[-2] if parameter.dim() > 1 else 1)
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * (2 / fans) ** 0.5
            parameter.copy_(drawn)
    laws = find_laws(replica.model, *args, **kwargs)
    others = {info.name for info in structure.parameters if info.role == OTHER}
    sides = [{term.parameter for term in law.terms if term.exponent * sign > 0} for law in laws for sign in (1, -1)]
    kept = sorted({name for side in sides if side <= others for name in side})
    if not kept:
        return laws
    for name in kept:  # laws hold at any value but zero
        replica.parameters[name].requires_grad_(False).fill_(1)
    laws = find_laws(replica.model, *args, **kwargs)
    reason = "it keeps its value, so its own laws are not balanced"
    return Laws(list(laws), laws.parameters, [*(Exclusion(name, reason) for name in kept), *laws.excluded])


def _neurons_of_laws(laws: Laws) -> tuple[Neuron, ...]:
    """The neurons of a model's laws, and the channels of its residual streams."""
    neurons = tuple(law.terms for law in laws if _is_neuron(law))
    if not neurons:
        reasons = "; ".join(map(str, laws.excluded)) or "no matrix reads the outputs of another"
        raise ModelError(
            f"Expected a model whose neurons have laws, got none ({reasons}). For a stack of {', '.join(STACKED)} "
            "layers in module order, omit the inputs; otherwise use xavier or kaiming without balancing."
        )
    return neurons


def _is_neuron(law: Law) -> bool:
    if law.kind != "product":
        return law.kind in ("neuron", "stream")
    # not the channels of queries and keys, which both lead into them
    incoming, outgoing = (
        {term.kind for term in law.terms if len(term.shape) > 1 and term.exponent * sign > 0} for sign in (1, -1)
    )
    return bool(outgoing - incoming)


def _balance_by_laws_(
    model: nn.Module,
    structure: Structure,
    weights: dict[str, Tensor],
    options: Options,
    laws: Laws,
    neurons: Sequence[Neuron],
    inputs: Inputs,
) -> tuple[Exclusion, ...]:
    """Balance by laws so that a signal keeps its norm; returns what could not be balanced, with reasons."""
    fixed = {info.name for info in structure.parameters if info.role not in (*_DRAWN, BIAS)}
    queries_and_keys = {term.parameter for law in laws if not _is_neuron(law) for term in law.terms}
    vectors = {info.name for info in structure.parameters if info.role == ATTENTION} | queries_and_keys
    squared_norm = options.squared_norm if options.beta is None else options.beta
    skipped = _balance_weights_(weights, options, laws, neurons, squared_norm, vectors, fixed)
    if options.beta is None:
        scaled = frozenset(term.parameter for law in laws for term in law.terms) - fixed
        factor = signal_preserving_factor(model, weights, scaled, *inputs)
        for name in scaled:
            weights[name] *= factor
        skipped = _balance_weights_(weights, options, laws, neurons, squared_norm * factor**2, vectors, fixed)
    return (*skipped, *laws.excluded)


def _balance_weights_(
    weights: dict[str, Tensor],
    options: Options,
    laws: Laws,
    neurons: Sequence[Neuron],
    squared_norm: float,
    vectors: Collection[str],
    fixed: Collection[str],
) -> tuple[Exclusion, ...]:
    """Balance neurons one after the other, or else all at once; returns what could not be balanced, with reasons."""
    copies = {name: weight.clone() for name, weight in weights.items()}
    if balance_(copies, neurons, squared_norm, in_reverse=options.in_reverse, vectors=vectors, fixed=fixed) is None:
        weights.update(copies)
        if len(neurons) == len(laws):
            return ()
    elif options.beta is not None:
        first = first_matrices(neurons, options.in_reverse, {*vectors, *fixed})
        for terms in first:
            scale_to_norm_(weights, terms, squared_norm)
        fixed = {*fixed, *(term.parameter for terms in first for term in terms)}
    rescaling = find_rescaling(laws, weights, fixed=fixed)
    if not rescaling.balanced:
        reasons = "; ".join(map(str, rescaling.skipped))
        raise ModelError(f"Expected weights that can be balanced, but {reasons}. Use a scheme that is not balanced.")
    for name, factor in rescaling.factors.items():
        multiply_(weights[name], factor)
    return rescaling.skipped


# --- zero branches ----------------------------------------------------------------------------------------------------


def _find_branch_ends(structure: Structure, laws: Laws) -> list[str]:
    """The last matrix of each branch: it writes into a stream that it, or an earlier matrix, reads."""
    matrices = [
        info.name
        for layer in structure
        for info in layer.parameters
        if info.role == FEATURE and not _is_target_weight(info, layer.kind)
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
            "Expected a residual stream with branches, but the laws of the model show none: call without zero_branches."
        )
    return [matrices[place] for place in sorted(found)]


def _check_branch_gradients(
    model: nn.Module, weights: Mapping[str, Tensor], branches: Sequence[str], inputs: Inputs
) -> None:
    """Raise ModelError for branches that cannot train: one that ends in ReLU has no gradient at zero."""
    replica = replicate(model, *inputs)
    for name, tensor in weights.items():
        replica.parameters[name].detach().copy_(tensor)
    branch_ends = [replica.parameters[name].requires_grad_() for name in branches]
    with torch.enable_grad():  # the sum of squares may be constant, as after a normalization
        total = torch.stack([out.abs().double().pow(3).sum() for out in floating_tensors(replica.run())]).sum()
        gradients = torch.autograd.grad(total, branch_ends, allow_unused=True)
    for name, gradient in zip(branches, gradients, strict=True):
        if gradient is None or not gradient.any():
            raise ModelError(
                f"Expected branches with a gradient at zero, but {name} has none; an activation may follow it. Call "
                "without zero_branches."
            )

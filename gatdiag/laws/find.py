"""From a model to its laws."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gatdiag.errors import ModelError
from gatdiag.law import Exclusion, Law
from gatdiag.laws.assembly import Place, assemble
from gatdiag.laws.check import POINTS, Evidence, check_laws, gather_evidence
from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import Label
from gatdiag.laws.laws import Laws
from gatdiag.laws.point import distant_points
from gatdiag.laws.solver import Basis, solve
from gatdiag.laws.trace import OUTPUT, Running, Trace
from gatdiag.laws.zero_factors import only_times_zeros, split_unclear
from gatdiag.roles import FEATURE
from gatdiag.structure.deadline import check_time
from gatdiag.structure.discovery import discover
from gatdiag.structure.inputs import Inputs, fill_empty, sample_inputs
from gatdiag.structure.isolation import DispatchMode
from gatdiag.structure.layers import Structure
from gatdiag.structure.replica import Caller, Replica, initialized_parameters, replicate, unwrap
from gatdiag.structure.tensors import all_tensors, floating_tensors, tensor_arguments


def find_laws(model: nn.Module, *args: Any, **kwargs: Any) -> Laws:
    """Find every conservation law of a model by tracing one forward pass.

    Each channel of each activation gets an unknown exponent; every operation of the forward pass adds linear equations
    between them; every solution is a rescaling of the parameters that leaves the computed function unchanged, and by
    Noether's theorem gives a law: sum_k e_k <w_k, dL/dw_k> = 0 at every point (delta), so that
    sum_k e_k ||w_k||^2 (c) is conserved by gradient flow. Each law is then checked in float64 with random weights,
    inputs and loss. No layer type is known to the method.

    The laws are those of the function the model computes in the mode it is in (dropout is covered: a law holds for
    every mask), of its trainable parameters, of everything its forward pass returns, and of the branch it takes on
    these inputs, if it branches on their values (an expert that no row is sent to, a type of edges that a dictionary
    does not have). They assume that every call computes the same function, up to masks and data: two calls that run
    different operations have no law, but a layer that is rarely dropped, or a counter that decides after many calls, is
    not noticed. If two parameters share memory, no law is claimed, either; `excluded` has the reason.

    A law holds for every batch, not only for these inputs: rows that integers among the inputs pick from a table share
    a law only if they do whichever rows are picked, and an empty axis of an input counts as one with entries. Of a
    recurrent net give at least two steps: one step does not tell what its first state, learned or zero, stands for.

    A law is about the gradient at a point, so it may be exact although the function jumps: `StdAggregation`, in PNA,
    replaces deviations below a constant by zero, and on either side of it delta is zero and c conserved. The rescaling
    then has no effect only as long as nothing crosses the constant; `gatdiag.remedies.rebalance_` verifies that. A
    lower bound (`clamp(min=1e-12)`) and a guard against a zero that does not occur (`where(x == 0, 1, x)`) are taken to
    be inactive. What the function chooses (the nearest neighbors of features, the largest weights) must not change
    along a law, though the gradient alone would allow it: `excluded` names such operations.

    Args:
        model: Any module that was run at least once if it has lazy layers. It is not changed in any way.
        args: Positional inputs of its forward pass.
        kwargs: Keyword inputs of its forward pass.

    Returns:
        The laws, bound to the model's parameters.

    Raises:
        ModelError: The model is lazy, cannot be copied, its forward pass fails on the inputs, or its output cannot be
            searched for tensors.

    Source:
        Generalizes theorem 2.2 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).

    Example:
        >>> _ = torch.manual_seed(0)
        >>> mlp = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> laws = find_laws(mlp, torch.randn(5, 4))
        >>> print(laws[1])
        layer 1 (0), neuron 1: 0.weight[1, :] + 0.bias[1] - 2.weight[:, 1]
        >>> mlp(torch.randn(5, 4)).square().sum().backward()
        >>> bool((laws.normalized_delta() < 1e-5).all())
        True
    """
    user = unwrap(model)
    return find_laws_with_structure(discover(user, *args, **kwargs), user, args, kwargs)


def find_laws_with_structure(
    structure: Structure, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Laws:
    """As `find_laws`, for a model whose structure is known already."""
    user = unwrap(model)
    filled = fill_empty(args, kwargs)
    if filled is None:
        return _find(structure, user, args, kwargs)
    try:
        return _find(structure, user, *filled)
    except ModelError as error:
        reason = f"they are empty, and other inputs may run through more operations, but one entry fails ({error})"
        return Laws([], _trained(user), [Exclusion("the inputs", reason)])


def _find(structure: Structure, user: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Laws:
    replica = replicate(user, args, kwargs)
    trained = _trained(user)
    if not _repeats(replica):
        reason = "it takes another branch at each call: two calls ran different operations; no law is certain"
        return Laws([], trained, [Exclusion("the forward pass", reason)])
    if shared := find_shared_memory(trained):
        reason = "these two parameters share memory, so that each step moves it twice; no law is conserved"
        return Laws([], trained, [Exclusion(" and ".join(shared), reason)])
    if (part := sample_inputs(args, kwargs)) is not None:
        with suppress(ModelError):
            laws, is_certain = _find_on_inputs(structure, user, part, replica)
            if is_certain:
                return laws
    del replica  # to save memory
    return _find_on_inputs(structure, user, (args, dict(kwargs)))[0]


def _repeats(replica: Replica) -> bool:
    """Whether two calls run the same operations on what depends on parameters; a cached graph changes the others."""
    first, second = _Operations(replica.parameters), _Operations(replica.parameters)
    with torch.enable_grad(), replica.isolated() as call:
        for operations in (first, second):
            with operations:
                call()
    return first.found == second.found


class _Operations(DispatchMode):
    """Lists operations whose arguments depend on parameters, and which of these are arguments."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self.found: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        check_time()
        tensors = tensor_arguments(args, kwargs)
        if any(tensor.requires_grad for tensor in tensors):
            self.found.append((func, *(self._names.get(id(tensor)) for tensor in tensors)))
        return func(*args, **(kwargs or {}))


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in initialized_parameters(model).items() if parameter.requires_grad}


def find_shared_memory(parameters: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Names of two parameters that share memory, which copies of the model do not preserve; None if there are none."""
    seen: dict[int, str] = {}
    for name, parameter in parameters.items():
        first = seen.setdefault(parameter.data_ptr(), name)
        if first != name and parameter.numel():
            return first, name
    return None


def _find_on_inputs(
    structure: Structure, user: nn.Module, inputs: Inputs, whole: Replica | None = None
) -> tuple[Laws, bool]:
    """The laws checked on the inputs, and whether a check on the whole inputs would find the same.

    It may not where these inputs are a part that does not reach all weights (a row of an embedding, an expert), or
    that refutes a law. The equations are those of `whole`, a replica on the whole inputs, if it is given.
    """
    places = places_of(structure)
    parameters = dict(user.named_parameters())
    evidence = gather_evidence(user, *inputs, {name: place.layer for name, place in places.items()})
    exponents = Exponents()
    labels, trace = _trace_labels(whole or evidence.replica, exponents, evidence)
    candidates, unclear, limits = find_candidates(
        trace, exponents, labels, places, _only_times_zeros(exponents, evidence)
    )
    kept, failed = check_laws(candidates, evidence)
    excluded = [*unclear, *_exclude_without_effect(evidence), *limits, *failed]
    laws = Laws(kept, {name: parameters[name] for name in evidence.point.weights}, excluded)
    all_reached = all(bool(gradient.any()) for gradient in evidence.point.gradients.values())
    is_open = evidence.unreached or evidence.unsearched or failed or any(math.isnan(law.residual) for law in kept)
    return laws, all_reached and not is_open


def find_candidates(
    trace: Trace, exponents: Exponents, labels: Mapping[str, Label], places: Mapping[str, Place], times_zeros: list[str]
) -> tuple[list[Law], list[Exclusion], list[Exclusion]]:
    """The laws that solve the equations of a trace.

    Args:
        trace: The trace.
        exponents: Its equations.
        labels: Name of a parameter -> its label in unbound unknowns.
        places: Name of a parameter -> its place.
        times_zeros: Names of the parameters that multiply nothing but zeros.

    Returns:
        The laws, the laws that are left out for such parameters, and where operations prevent laws.
    """
    basis = solve(exponents, (ids for label in labels.values() for _, ids in label.terms))
    laws, unclear = split_unclear(assemble(labels, basis, places), exponents.times_zeros, times_zeros, places)
    channels = _exclude_channels(exponents, basis, {name: places[name] for name in labels})
    return laws, unclear, [*_exclude_operations(trace, exponents), *channels]


def places_of(structure: Structure) -> dict[str, Place]:
    """Name of a parameter -> its place."""
    infos = [(layer, info) for layer in structure for info in layer.parameters]
    return {
        info.name: Place(layer.index, layer.name, order, info.shape, info.role == FEATURE)
        for order, (layer, info) in enumerate(infos)
    }


def _only_times_zeros(exponents: Exponents, evidence: Evidence) -> list[str]:
    """The parameters that multiply nothing but zeros, at every point."""
    masks = {name: mask for name, mask in exponents.times_zeros.items() if name in evidence.point.gradients}
    distant = distant_points(evidence.replica, evidence.point, POINTS) if masks else ()
    return only_times_zeros(masks, (point.gradients for point in chain([evidence.point], distant)))


def _trace_labels(replica: Replica, exponents: Exponents, evidence: Evidence) -> tuple[dict[str, Label], Trace]:
    """Trace one call with equations that require the outputs to keep their scale; return the parameters' labels.

    Entries that cancel out of the output are part of laws like others, as they may not cancel for other inputs.
    Parameters without a gradient are in no law: they keep their scale if the output depends on them; else they may have
    any, and demand nothing of others.
    """
    labels: dict[str, Label] = {}
    running = Running(replica.model)

    def trace_call(call: Caller) -> Trace:
        trace = Trace(exponents, running, all_tensors(replica.model))
        for name in (*evidence.point.weights, *evidence.unreached):
            labels[name] = trace.label_parameter(replica.parameters[name], name)
        with trace:
            outputs = list(floating_tensors(call()))
        exponents.cause = OUTPUT
        for tensor in outputs:
            exponents.require_zero(trace.label_of(tensor))
        trace.flow.add_outputs(outputs)
        return trace

    with (
        register_module_forward_pre_hook(lambda module, args: running.enter(module)),
        register_module_forward_hook(lambda module, args, out: running.leave()),
    ):
        trace = replica.no_grad(trace_call)
    trace.flow.follow_back()
    names = {id(replica.parameters[name]): name for name in labels}
    require_constant_rows(exponents, names, evidence.point.gradients)
    exponents.complete(label.terms[0][1] for label in labels.values())
    for name, label in labels.items():
        if name in evidence.unreached and trace.flow.reaches_outputs(replica.parameters[name]):
            exponents.require_zero(label)
    return {name: exponents.resolve(labels[name]) for name in evidence.point.weights}, trace


def require_constant_rows(exponents: Exponents, names: Mapping[int, str], gradients: Mapping[str, Tensor]) -> None:
    """Let tables keep their scale whose padding row is not zero, or will not stay so as other operations train it."""
    for table, row, label, cause in exponents.constant_rows:
        gradient = gradients.get(names.get(id(table), ""))
        if bool(table[row].any()) or gradient is None or bool(gradient[row].any()):
            exponents.cause = f"the padding row of {cause}"
            exponents.require_zero(label)


def _exclude_without_effect(evidence: Evidence) -> Iterator[Exclusion]:
    for name in evidence.unreached:
        reason = "it never reaches the output on these inputs; laws do not hold of a branch of the model that uses it"
        yield Exclusion(name, reason)
    for name, mask in evidence.no_effect.items():
        reason = "no effect: they cancel out of the output; they are taken to scale as what they are added to"
        yield Exclusion(f"{int(mask.sum())} entries of {name}", reason)
    if evidence.unsearched:
        yield Exclusion("parameters that cancel out", evidence.unsearched)


def _exclude_operations(trace: Trace, exponents: Exponents) -> Iterator[Exclusion]:
    for (name, module), error in trace.failed.items():
        reason = f"its rule does not support this call, so its arguments must keep their scale ({error})"
        yield Exclusion(f"operation {name} in {module}", reason)
    for (name, module), times in trace.unknown.items():
        reason = f"no rule for this operation, so its arguments must keep their scale (calls: {times})"
        yield Exclusion(f"operation {name} in {module}", reason)
    for cause in trace.flow.deciding:
        reason = (
            "it only decides (by a choice, a detached value or a number that Python reads): no gradient passes it, but "
            "what it decides must not change with the scale of its arguments, so laws of the gradient may be missed"
        )
        yield Exclusion(f"operation {cause}", reason)
    for name in exponents.partly_read:
        reason = "these inputs read a part of it; others may read more, so all must scale alike, and laws may be missed"
        yield Exclusion(name, reason)
    for cause in exponents.coarse:
        reason = "its rule requires entries to scale alike that need not, so laws may be missed"
        yield Exclusion(f"operation {cause}", reason)


def _exclude_channels(exponents: Exponents, basis: Basis, places: Mapping[str, Place]) -> list[Exclusion]:
    """Channels that are in no law, counted by layer and by the operation that prevents it."""
    counts: Counter[tuple[str, str]] = Counter()
    channels = {
        block.parameter: block
        for block in exponents.blocks
        if block.parameter
        and block.parameter in places
        and not block.is_entry
        and places[block.parameter].is_feature_weight
    }
    zero_causes, tie_causes = exponents.zero_causes(), exponents.tie_causes()
    for name, block in channels.items():
        check_time()
        ids = torch.arange(block.start, block.start + block.length)
        label = exponents.resolve(Label(((Fraction(1), ids),)))
        columns = [term.expand(block.length).tolist() for _, term in label.terms]
        for position, unknown in enumerate(ids.tolist()):
            parts = [column[position] for column in columns]
            if any(basis.values.get(part) for part in parts):
                continue
            cause, reason = exponents.cause_of(unknown, zero_causes), "does not commute with scaling"
            if cause is None:
                cause = next((tie_causes[part] for part in parts if part in tie_causes), None)
                reason = "ties them to a fixed scale"
            if cause and cause != OUTPUT:
                counts[places[name].layer, f"{cause} {reason}"] += 1
    return [Exclusion(f"{count} channels of {layer}", reason) for (layer, reason), count in counts.items()]

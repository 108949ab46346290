"""What the graphs of a loss and of an output show: which operations they consist of, and over what.

Only the names of autograd's nodes and the shapes that they expect are read: by the time a hook runs, the tensors that
nodes nearer to the loss had saved are gone.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

_MAX_NODES: Final = 10_000
_MAX_NAMES: Final = 40
_MAX_COMPARED: Final = 300  # nodes of a loss in which a comparison of outputs is looked for
_MAX_PRODUCTS: Final = 2000  # the same of a product
_SQUARES: Final = ("Pow", "MseLoss", "SmoothL1Loss", "HuberLoss")
# losses whose target may require a gradient, by the start of the node's name; it is their second input
_WITH_TARGET: Final = ("BinaryCrossEntropy", "MseLoss", "SmoothL1Loss", "HuberLoss", "KlDiv")
_VIEWS: Final = frozenset({
    "View", "UnsafeView", "Reshape", "Alias", "Clone", "ToCopy", "T", "Transpose", "Permute", "Squeeze", "Unsqueeze",
    "Expand", "Slice", "Select",
})  # fmt: skip
_SUMS: Final = frozenset({
    "Add", "Sub", "Neg", "Sum", "Mean", "Cat", "Stack", "Index", "IndexSelect", "Gather", "ScatterAdd", "IndexAdd",
    "Split", "SplitWithSizes", "Unbind", "NativeDropout", "AvgPool2D", "AdaptiveAvgPool2D", "AccumulateGrad",
})  # fmt: skip
_PRODUCTS: Final = ("Addmm", "Mm", "Convolution")
_PROBABILITIES: Final = ("Sigmoid", "Softmax", "LogSoftmax", "LogSigmoid")
_DISTANCES: Final = ("Cdist", "EuclideanDist")  # of all rows of one matrix to all of another, or of the same
_FACTORS: Final = ("Neg", "Mul", "Div")
_MAX_VIEWS: Final = 8  # between the log of a softmax and the loss
_ERRORS: Final = {  # that are never negative
    "MseLoss": "squared error",
    "SmoothL1Loss": "Huber error",
    "HuberLoss": "Huber error",
    "BinaryCrossEntropy": "binary cross-entropy",
    "BinaryCrossEntropyWithLogits": "binary cross-entropy",
}
_LINEAR: Final = _VIEWS | {"Sub", "Rsub", "Add", "Neg", "Mul", "Div", "Mean", "Std", "Var", "Index", "IndexSelect"}
_LOGARITHMS: Final = frozenset({"LogSoftmax", "Logsumexp", "Log", "LogSigmoid"})
_DIFFERENCES: Final = ("Sub", "Rsub", "MseLoss", "SmoothL1Loss", "HuberLoss")
_CHOICES: Final = ("Max", "Amax", "Gather")  # of one of the outputs of a row
_COMPARING: Final = (*_WITH_TARGET, *_DISTANCES, "Sub", "Rsub", "Mul", "Mm", "Bmm", "Mv", "Dot")


def describe_loss(loss: Tensor, outputs: Collection[Any]) -> dict[str, Any]:
    """The operations from a loss back to the model's outputs, as they stand in meta.json.

    Args:
        loss: What `backward()` was called on.
        outputs: The nodes that computed the model's outputs.

    Returns:
        "operations", from the loss to the output, without those on other ways to parameters; "empty", the first of
        them that computes nothing (a mean over no rows); "divides", whether a single number is divided by one that
        requires no gradient, as a sum by a count; "target_of", the loss whose target is computed by the model;
        "has_labels", whether there is a loss with a target that the model does not compute;
        "divergence_of", the operation whose result kl_div is given;
        "multiple_of", the error that the loss is a multiple of, which is never negative, if it is nothing else;
        "bounded_slope", the distance from which on a Huber error has a constant slope;
        "broadcast_rows", the number N of rows of an output [N, 1] that an error compares with N targets each, or 0;
        "bootstraps", whether an error compares an output with a number plus another output, as a reward plus the best
        value of the next state, through both of which gradients go;
        "ignored", the class that a loss of classes ignores, if there is such a class; "softmax_over_rows", whether the
        log-probabilities that it is given add up to one over the rows instead of the classes.

    Example:
        >>> weight = torch.ones(3, requires_grad=True)
        >>> out = weight * torch.arange(3.0)
        >>> found = describe_loss(out[out > 5].mean(), {out.grad_fn})
        >>> found["operations"], found["empty"], found["divides"]
        (['Mean', 'Index'], 'Mean', False)
    """
    path = [*_path(loss.grad_fn, outputs)]
    names = [operation_name(node) for node in path]
    of_classes = [node for node, name in zip(path, names, strict=True) if name == "NllLoss"]
    empty = next((name for node, name in zip(path, names, strict=True) if _is_of_nothing(node)), None)
    return {
        "operations": list(dict.fromkeys(names))[:_MAX_NAMES],
        "empty": empty,
        "divides": any(map(_is_quotient_of_numbers, path)),
        "target_of": next((name for node, name in zip(path, names, strict=True) if _has_target_of(node, path, outputs)),
                          None),
        "has_labels": any(_has_labels(node, path, outputs) for node in path),
        "divergence_of": next(filter(None, map(_input_of_divergence, path)), None),
        "ignored": next((number for number in map(_ignored_class, of_classes) if number is not None), None),
        "softmax_over_rows": any(map(_is_over_rows, of_classes)),
        "multiple_of": _multiple_of(loss.grad_fn),
        "bounded_slope": next((known for known in map(_bound_of_slope, path) if known), None),
        "broadcast_rows": _rows_of_broadcasts(path),
        "bootstraps": any(_bootstraps(node, outputs) for node in path[:_MAX_COMPARED]),
    }  # fmt: skip


def compares_outputs(loss: Tensor, outputs: Collection[Any]) -> bool:
    """Whether a loss compares outputs of the model with each other: those of two calls, or rows of one output.

    Args:
        loss: What `backward()` was called on.
        outputs: The nodes that computed all that the model returned.

    Example:
        >>> out = torch.ones(3, 2, requires_grad=True) * 2
        >>> compares_outputs((out[[0, 1]] - out[[1, 2]]).square().sum(), {out.grad_fn})
        True
        >>> compares_outputs((out[:, None] - out[None, :]).square().sum(), {out.grad_fn})
        True
        >>> compares_outputs((out - 1).square().mean() * out.sigmoid().mean(), {out.grad_fn})
        False
    """
    path = [*_path(loss.grad_fn, outputs)]
    if len(path) > _MAX_COMPARED:
        return False
    known = {*path, *outputs}
    return any(_joins_rows(node, known, outputs) for node in path if operation_name(node).startswith(_COMPARING))


def count_weights(loss: Tensor, outputs: Collection[Any], own: Collection[int]) -> int:
    """Number of weight matrices between a loss and outputs that are not of the model, as those of a critic.

    Args:
        loss: What `backward()` was called on.
        outputs: The nodes that computed all that the model returned.
        own: Ids of the parameters of the model.

    Example:
        >>> out = torch.ones(3, 2, requires_grad=True) * 2
        >>> critic = torch.nn.Linear(2, 1)
        >>> count_weights(critic(out).mean(), {out.grad_fn}, ())
        1
    """
    leaves = (node.variable for node in _nodes(loss.grad_fn, outputs) if hasattr(node, "variable"))
    weights = {id(leaf) for leaf in leaves if isinstance(leaf, nn.Parameter) and leaf.dim() > 1}  # no inputs
    return len(weights - {*own})


def penalizes_weights(loss: Tensor, outputs: Collection[Any], own: Collection[int]) -> bool:
    """Whether a loss depends on parameters of the model otherwise than by its outputs, as with a penalty on weights.

    Args:
        loss: What `backward()` was called on.
        outputs: The nodes that computed all that the model returned.
        own: Ids of the parameters of the model.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> out, own = layer(torch.ones(3, 2)), {id(layer.weight)}
        >>> penalty = layer.weight.square().sum()
        >>> [penalizes_weights(loss, {out.grad_fn}, own) for loss in (out.mean() + penalty, out.mean())]
        [True, False]
    """
    return any(id(getattr(node, "variable", None)) in own for node in _nodes(loss.grad_fn, outputs))


def depends_on(loss: Tensor, others: Collection[Any], outputs: Collection[Any]) -> bool:
    """Whether a loss depends on something else that the model returned, and not only by its output.

    Args:
        loss: What `backward()` was called on.
        others: The nodes that computed what else the model returned.
        outputs: Those that computed its output.

    Example:
        >>> hidden = torch.ones(3, 2, requires_grad=True)
        >>> out, other = hidden * 2, hidden * 3
        >>> [depends_on(loss, {other.grad_fn}, {out.grad_fn}) for loss in (out.sum(), out.sum() + other.sum())]
        [False, True]
    """
    return not {*others}.isdisjoint(_nodes(loss.grad_fn, {*others, *outputs}))


def has_divergence(loss: Tensor, latents: Collection[Any], outputs: Collection[Any]) -> bool:
    """Whether a loss holds the exponential of something else that the model returned, as of a log-variance.

    Args:
        loss: What `backward()` was called on.
        latents: The nodes that computed what else the model returned.
        outputs: Those that computed its output.

    Example:
        >>> hidden = torch.ones(3, 2, requires_grad=True)
        >>> log_variance, out = hidden * 2, hidden.sum(1)
        >>> has_divergence(out.mean() + log_variance.exp().mean(), {log_variance.grad_fn}, {out.grad_fn})
        True
    """
    ends = {*latents, *outputs}
    powers = (node for node in _nodes(loss.grad_fn, ends) if operation_name(node) == "Exp")
    return any(not {*latents}.isdisjoint(_nodes(node, ends)) for node in powers)


def weighs_by_another(loss: Tensor, outputs: Collection[Any]) -> bool:
    """Whether a loss multiplies a log-likelihood by what is computed linearly from another output, with its gradient.

    As of a policy and the advantage, reward - value, which is to weigh the likelihood and not to be changed by it. That
    output is a value if its squared error is part of the loss, too; a gate or an uncertainty has none.

    Args:
        loss: What `backward()` was called on.
        outputs: The nodes that computed all that the model returned.

    Example:
        >>> scores, value = (torch.ones(3, 2, requires_grad=True) * 2 for _ in range(2))
        >>> log_p, advantage = scores.log_softmax(1)[:, 0], 1 - value[:, 0]
        >>> ends, critic = {scores.grad_fn, value.grad_fn}, advantage.square().mean()
        >>> [weighs_by_another(critic - (log_p * each).mean(), ends) for each in (advantage, advantage.detach())]
        [True, False]
    """
    path = [*_path(loss.grad_fn, outputs)] if len(outputs) > 1 else []
    if len(path) > _MAX_PRODUCTS:
        return False
    weights = [
        own
        for node in path
        if operation_name(node) == "Mul" and len(inputs := [one for one, _ in node.next_functions if one]) == 2
        for likelihood, weight in (inputs, inputs[::-1])
        if (own := _outputs_that_weigh(likelihood, weight, outputs))
    ]
    squared = (
        [{*_nodes(node, outputs)} & {*outputs} for node in path if operation_name(node) in _SQUARES] if weights else []
    )
    return any(ends and ends <= own for own in weights for ends in squared)


def _outputs_that_weigh(likelihood: Any, weight: Any, outputs: Collection[Any]) -> set[Any]:
    """The outputs from which the weight of a log-likelihood is computed linearly, if that is one of others."""
    behind, others = ({*_nodes(one, outputs)} for one in (likelihood, weight))
    ends, own = behind & {*outputs}, others & {*outputs}
    names = {operation_name(node) for node in others - own}
    is_linear = names <= _LINEAR and not names.isdisjoint(("Sub", "Rsub", "Add"))
    has_logarithm = any(operation_name(node) in _LOGARITHMS for node in behind)
    return own if ends and ends.isdisjoint(own) and is_linear and has_logarithm else set()


def _joins_rows(node: Any, known: Collection[Any], outputs: Collection[Any]) -> bool:
    """Whether two inputs of an operation come from different outputs, or from different rows of one."""
    behind = [{*_nodes(one, outputs)} & {*known} for one, _ in node.next_functions if one is not None]
    if len(behind) < 2 or not all(behind[:2]):
        return False
    one, other = behind[:2]
    ends = [each & {*outputs} for each in (one, other)]
    is_of_all = operation_name(node).startswith(_DISTANCES)
    return is_of_all or ends[0].isdisjoint(ends[1]) or any(map(_takes_rows, one ^ other))


def _takes_rows(node: Any) -> bool:
    """Whether an operation takes some rows of a matrix, some entries of a vector, transposes, or repeats a matrix.

    By a new dimension before the last, z[:, None] - z[None, :], the rows of a matrix are broadcast against each other.
    """
    name, following = operation_name(node), node.next_functions[0][0] if node.next_functions else None
    if name in ("T", "Transpose", "Permute"):
        return True
    if name not in ("Index", "IndexSelect", "Slice", "Split", "Roll", "Unsqueeze") or following is None:
        return False
    taken, given = _shapes(node), _shapes(following)
    if not taken or not given or len(taken[0]) != len(given[0]) + (name == "Unsqueeze"):
        return False
    return len(taken[0]) == 1 or (len(given[0]) > 1 and taken[0][-1] == given[0][-1])


def operation_name(node: Any) -> str:
    """The name of an operation, such as "LogSoftmax" for LogSoftmaxBackward0; "Root" for a power below one."""
    name = type(node).__name__.partition("Backward")[0]
    is_number = type(node).__name__ == "PowBackward0"  # a tensor may be gone by now
    exponent = getattr(node, "_saved_exponent", 1) if is_number else 1
    return name if not isinstance(exponent, int | float) or exponent >= 1 else "Root"


def is_linear_chain(output: Any) -> bool:
    """Whether an output is linear in the data, up to a last sigmoid or softmax, though weights are multiplied in a row.

    Args:
        output: The node that computed the output. Operations that are not known count as not linear.

    Example:
        >>> x, first, last = torch.ones(2, 3), torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        >>> is_linear_chain(last(first(x)).sigmoid().grad_fn), is_linear_chain(last(first(x).relu()).grad_fn)
        (True, False)
    """
    start = _behind_views(output)
    if start is not None and operation_name(start) in _PROBABILITIES:
        start = start.next_functions[0][0]
    nodes = list[Any]()
    for node in _nodes(start, ()):
        if not _is_linear(node):
            return False
        nodes.append(node)
    products = [node for node in nodes if operation_name(node) in _PRODUCTS]
    has_chain = any(operation_name(one) in _PRODUCTS for last in products for one in [*_nodes(last, ())][1:])
    return has_chain and len(nodes) < _MAX_NODES


def _is_linear(node: Any) -> bool:
    """One of the factors of a product is constant or a weight; the first input of "Addmm" is added."""
    name = operation_name(node)
    if name in _SUMS or name in _VIEWS or hasattr(node, "variable"):
        return True
    factors = [following for following, _ in node.next_functions][-2 if name == "Addmm" else 0 :][:2]
    is_product = name in (*_PRODUCTS, "Mul") or (name == "Div" and (len(factors) < 2 or _is_weight(factors[1])))
    return is_product and (len(factors) < 2 or any(map(_is_weight, factors)))


def _is_weight(node: Any) -> bool:
    behind = _behind_views(node)
    return behind is None or hasattr(behind, "variable")


def _behind_views(node: Any) -> Any:
    while node is not None and operation_name(node) in _VIEWS:
        node = node.next_functions[0][0]
    return node


def _input_of_divergence(node: Any) -> str | None:
    """What computed the input of kl_div, which torch computes as xlogy(target, target) - target * input."""
    inputs = [following for following, _ in node.next_functions]
    if operation_name(node) != "Sub" or len(inputs) != 2 or inputs[0] is not None or inputs[1] is None:
        return None
    factors = [following for following, _ in inputs[1].next_functions]
    if operation_name(inputs[1]) != "Mul" or len(factors) != 2 or factors.count(None) != 1:
        return None
    behind = _behind_views(factors[factors[0] is None])
    return None if behind is None else operation_name(behind)


def follow_slope(output: Any, report: Callable[[str, int], None]) -> None:
    """Watch the running backward pass, from the node of an output on, for operations that return only zeros.

    Args:
        output: The node that computed the output; it and those before it have not run yet.
        report: Called with the name of such an operation, and the length of the dimension that it runs over (0 if it
            runs over none).
    """

    def watch(node: Any) -> None:
        def after(returned: Any, given: Any) -> None:
            if _is_nonzero(given) and not _is_nonzero(returned) and any(one is not None for one in returned):
                report(name, length)

        name, length = operation_name(node), _length_of_dimension(node)
        node.register_hook(after)

    for node in _nodes(output, ()):
        if not hasattr(node, "variable"):
            watch(node)


def _path(loss: Any, outputs: Collection[Any]) -> Iterator[Any]:
    """The nodes on the ways from a loss to outputs, those nearer to the loss first."""
    nodes = [*_nodes(loss, outputs)]
    leads = {*outputs}
    for _ in range(2):  # a node may come before one that it leads to
        for node in reversed(nodes):
            if any(following in leads for following, _ in node.next_functions):
                leads.add(node)
    return (node for node in nodes if node in leads and node not in outputs)


def _nodes(start: Any, ends: Collection[Any]) -> Iterator[Any]:
    """The nodes behind a node, without those behind the ends."""
    waiting, seen = [start], set[Any]()
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node not in ends:
            waiting += [following for following, _ in node.next_functions]


def _shapes(node: Any) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in node._input_metadata if not each.is_nested_tensor]


def _is_of_nothing(node: Any) -> bool:
    """Whether it reduces rows of which there are none: the shape of what it was given has no entries, its own has."""
    given = [shape for following, _ in node.next_functions if following is not None for shape in _shapes(following)]
    has_none = any(0 in shape for shape in given)
    return has_none and operation_name(node) in ("Mean", "NllLoss", "NllLoss2D", "MseLoss", "BinaryCrossEntropy",
        "BinaryCrossEntropyWithLogits", "SmoothL1Loss", "HuberLoss", "Div")  # fmt: skip


def _is_quotient_of_numbers(node: Any) -> bool:
    if operation_name(node) != "Div" or _shapes(node) != [()] or len(node.next_functions) < 2:
        return False
    return node.next_functions[1][0] is None


def _multiple_of(loss: Any) -> str | None:
    """The error whose mean or sum a loss is, times a number; a likelihood counts behind a softmax alone."""
    node = loss
    while node is not None and operation_name(node) in _FACTORS and _shapes(node) == [()]:
        inputs = [following for following, _ in node.next_functions if following is not None]
        node = inputs[0] if len(inputs) == 1 else None
    if node is None or _shapes(node) != [()]:
        return None
    name = operation_name(node)
    if name.startswith("NllLoss"):
        inputs = [operation_name(behind) for behind in _nodes(node, ())][1:_MAX_VIEWS]
        is_likelihood = (
            next((one for one in inputs if one not in (*_VIEWS, "Index", "IndexSelect")), "") == "LogSoftmax"
        )
        return "cross-entropy" if is_likelihood else None
    return _ERRORS.get(name)


def _bound_of_slope(node: Any) -> float | None:
    attribute = {"SmoothL1Loss": "_saved_beta", "HuberLoss": "_saved_delta"}.get(operation_name(node), "")
    bound = getattr(node, attribute, None) if attribute else None
    return float(bound) if bound else None


def _rows_of_broadcasts(path: Collection[Any]) -> int:
    """The most rows that are compared with all targets; 0 if outputs are compared with each other, too, as samples."""
    rows = max(map(_rows_of_broadcast, path), default=0)
    differences = (node for node in path if rows and operation_name(node) in ("Sub", "Rsub"))
    are_samples = any(
        _shapes(node) == [(rows, rows)] and all(one for one, _ in node.next_functions) for node in differences
    )
    return 0 if are_samples else rows


def _rows_of_broadcast(node: Any) -> int:
    """N if an error with constant targets turns an output of N rows and one column into N x N differences, else 0.

    A loss of torch may be given targets with a gradient, too; of a difference both may be rows that are compared.
    """
    inputs = [(following, number) for following, number in node.next_functions if following is not None]
    is_difference = operation_name(node) in ("Sub", "Rsub")
    if operation_name(node) not in _DIFFERENCES or not inputs or len(inputs) > 2 - is_difference:
        return 0
    made = (_shapes(node) if is_difference else [_shape_of(*inputs[0])])[:1]
    given = [_shape_before_expand(*each) for each in inputs]
    rows = made[0][0] if made and made[0] else 0
    is_square = rows > 1 and made == [(rows, rows)] and len({*given}) == len(given)
    return rows if is_square and {*given} <= {(rows,), (rows, 1)} else 0


def _shape_before_expand(node: Any, number: int) -> tuple[int, ...]:
    while operation_name(node) == "Expand":
        if node.next_functions[0][0] is None:
            return ()
        node, number = node.next_functions[0]
    return _shape_of(node, number)


def _bootstraps(node: Any, outputs: Collection[Any]) -> bool:
    """Whether one of the compared outputs is chosen and added to a constant, and the other is of another call."""
    sides = [following for following, _ in node.next_functions if following is not None]
    if operation_name(node) not in _DIFFERENCES or len(sides) != 2:
        return False
    behind = [{*_nodes(side, outputs)} for side in sides]
    ends = [each & {*outputs} for each in behind]
    if not all(ends) or not ends[0].isdisjoint(ends[1]):
        return False
    own = [each - {*outputs} for each in behind]
    are_added = [any(operation_name(one) == "Add" and None in dict(one.next_functions) for one in each) for each in own]
    return sum(are_added) == 1 and any(operation_name(one) in _CHOICES for one in own[are_added.index(True)])


def _shape_of(node: Any, number: int) -> tuple[int, ...]:
    """The shape of one of the results of a node."""
    found = node._input_metadata[number:]  # a leaf has none
    return () if not found or found[0].is_nested_tensor else tuple(found[0].shape)


def _has_target_of(node: Any, path: Collection[Any], outputs: Collection[Any]) -> bool:
    """Whether the target of a loss is computed by the model."""
    if not operation_name(node).startswith(_WITH_TARGET) or len(node.next_functions) < 2:
        return False
    target = node.next_functions[1][0]
    return target is not None and any(one in path or one in outputs for one in _nodes(target, outputs))


def _has_labels(node: Any, path: Collection[Any], outputs: Collection[Any]) -> bool:
    is_loss = operation_name(node).startswith((*_WITH_TARGET, "NllLoss"))
    return is_loss and not _has_target_of(node, path, outputs)


def _ignored_class(node: Any) -> int | None:
    """The class that a loss ignores; None if the number that it ignores is no class."""
    following, ignored = node.next_functions[0][0], node._saved_ignore_index
    shapes = [] if following is None else _shapes(following)
    return int(ignored) if shapes and shapes[0] and 0 <= ignored < shapes[0][-1] else None


def _is_over_rows(node: Any) -> bool:
    """Whether a loss of classes, which are columns, is given the log of a softmax over the rows.

    In a square matrix rows may be the classes, as in contrastive losses.
    """
    while operation_name(node) in ("NllLoss", "Index", "IndexSelect", "Slice") and node.next_functions[0][0]:
        node = node.next_functions[0][0]
    if operation_name(node) != "LogSoftmax":
        return False
    shape, axis = _shapes(node)[0], node._saved_dim
    return len(shape) == 2 and axis in (0, 2**64 - 2) and shape[1] > 1 and shape[0] != shape[1]


def _length_of_dimension(node: Any) -> int:
    """The length of the dimension that a softmax runs over; 0 for other operations."""
    axis, shapes = getattr(node, "_saved_dim", None), _shapes(node)
    if "Softmax" not in operation_name(node) or not isinstance(axis, int) or not shapes or not shapes[0]:
        return 0
    return shapes[0][axis if axis < len(shapes[0]) else axis - 2**64]


def _is_nonzero(tensors: Any) -> bool:
    return any(isinstance(one, Tensor) and one.layout is torch.strided and bool(one.any()) for one in tensors)

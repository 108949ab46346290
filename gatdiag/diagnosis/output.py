"""The model's output and the loss: what is passed to a loss that expects logits or log-probabilities."""

import math
from collections.abc import Mapping
from typing import Any

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.evaluation import evaluates_badly
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short
from gatdiag.operations import RANGES

declare_limits(
    {
        "criterion": Limit(0.5, "share of the steps whose dL/dout is that of the criterion"),
    }
)

_ON_LOGITS = {  # criterion -> the loss, and what it applies to its input
    "cross-entropy": ("cross_entropy", "softmax"),
    "bce-logits": ("binary_cross_entropy_with_logits", "the sigmoid"),
}
_TO_PROBABILITIES = ("Softmax", "Sigmoid")
_MAYBE_TO_PROBABILITIES = (*_TO_PROBABILITIES, "Exp", "Div", "Tanh", "Hardsigmoid")
_ERRORS = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_OF_LOGITS = (
    "NllLoss", "LogSoftmax", "Logsumexp", "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy", "LogSigmoid",
    "Softplus", "Softmax", "Sigmoid", "Log", "Log1P", "Exp",
)  # fmt: skip
NEEDS_PASS = "it takes a backward pass of its own: gatdiag.preflight makes one"
_EXACT = (
    "Exact: the last operation of the model, and dL/dout = k (softmax(out) - onehot), or the gradient of another such "
    "loss, within 1%."
)


@cause(
    "output-softmax-twice",
    "The loss expects logits but gets probabilities",
    rank=80,
    why="the slope of the inner softmax multiplies every gradient",
    figure="training_curves",
    falsified_by="The outputs that are passed to the loss are below 0 or above 1.",
    remedy=Remedy("return x  # in forward, instead of x.softmax(-1) or x.sigmoid(): the loss applies it itself"),
    severity="certain",
    is_independent=True,
)
def check_softmax_twice(facts: Facts) -> Finding | str | None:
    """Outputs are probabilities, but dL/dout is the gradient of a loss that expects logits or log-probabilities."""
    return _divergence_of_probabilities(facts) or _criterion_of_probabilities(facts)


def _divergence_of_probabilities(facts: Facts) -> Finding | None:
    """kl_div of probabilities, which is negative, as no divergence is."""
    operation = str(facts.loss_graph.get("divergence_of"))
    if operation not in _TO_PROBABILITIES or not len(facts.finite_loss) or not facts.finite_loss.max() < 0:
        return None
    applied = operation.lower()
    instead = "kl_div(out.log_softmax(-1), target, reduction='batchmean')"
    if operation == "Sigmoid":
        instead = "binary_cross_entropy(out, target)"
    return facts.finding(
        "output-softmax-twice",
        f"kl_div expects log-probabilities but gets the result of {applied}: what is minimized is minus the mean "
        "probability, which is lowest if all of it is where the target is largest.",
        Evidence("largest loss; a divergence is never negative", float(facts.finite_loss.max())),
        title="kl_div expects log-probabilities but gets probabilities",
        remedy=Remedy(f"loss = torch.nn.functional.{instead}"),
        threshold="Exact: the operations of the loss, and its sign.",
        falsified_by="The first argument of kl_div is negative in each entry.",
    )


def _criterion_of_probabilities(facts: Facts) -> Finding | str | None:
    name, reason = _criterion(facts)
    if reason:
        return reason
    output, operation = facts.output, _last_operation(facts)
    base, _, outside = name.partition("-of-")
    loss, applies = _ON_LOGITS.get(base, ("nll_loss", ""))
    fix = None
    if outside in ("softmax", "sigmoid"):
        text = f"The model's output passes through {outside} before {loss}, which expects logits and applies {applies}"
        fix = Remedy(f"loss = torch.nn.functional.{loss}(logits, target)  # without {outside} before it")
    elif not _has_probabilities(output, operation) or name not in (*_ON_LOGITS, "nll"):
        return None
    elif name == "nll":
        text = "The model returns probabilities, but nll_loss expects log-probabilities"
        fix = Remedy("return torch.log_softmax(x, -1)  # in forward, instead of x.softmax(-1)")
    else:
        last = operation.lower() if operation.startswith(_TO_PROBABILITIES) else "softmax"
        text = f"The model ends in {last}, but the loss ({loss}) expects logits and applies {applies} itself"
    return facts.finding(
        "output-softmax-twice",
        f"{text}: the gradient is small wherever the model is wrong.",
        *_range(facts),
        Evidence(f"misfit of dL/dout to the gradient of {name}", float(output.get("criterion_misfit", 0.0))),
        title="nll_loss expects log-probabilities but gets probabilities" if name == "nll" else "",
        remedy=fix,
        threshold=_EXACT,
    )


@cause(
    "output-softmax-over-nodes",
    "Softmax over the nodes",
    rank=90,
    why="this loss stays high for any weights",
    figure="training_curves",
    falsified_by="out.exp().sum(-1) is 1 for each node.",
    remedy=Remedy("return torch.log_softmax(x, dim=-1)  # in forward, instead of dim=0"),
    severity="certain",
    is_independent=True,
)
def check_softmax_over_nodes(facts: Facts) -> Finding | str | None:
    """The output of log_softmax over dim=0, where nll_loss expects the log-probabilities of each node's classes.

    Cross-entropy takes another softmax, over the classes, so that it trains in spite of it.
    """
    is_in_loss = bool(facts.loss_graph.get("softmax_over_rows"))
    name, reason = _criterion(facts)
    if reason and not is_in_loss:
        return reason
    is_at_end = name in ("nll", "nll-of-p") and bool(facts.output.get("softmax_over_rows"))
    if not (is_at_end or is_in_loss):
        return None
    where = "The model ends in log_softmax over" if is_at_end else "Before nll_loss, log_softmax is taken over"
    return facts.finding(
        "output-softmax-over-nodes",
        f"{where} the nodes instead of the classes: the nodes of a class compete with each "
        "other, so the loss cannot fall below the logarithm of their number.",
        *(_range(facts) if "min" in facts.output and "max" in facts.output else ()),
        threshold=_EXACT if is_at_end else "Exact: the dimension of the softmax in the autograd graph of the loss.",
    )


@cause(
    "output-relu",
    "The logits pass a ReLU",
    rank=280,
    why="a network trains in spite of it, but not as far",
    figure="training_curves",
    falsified_by="Without the ReLU the learning curve is the same.",
    remedy=Remedy("return x  # in forward, instead of x.relu(): logits may be negative"),
    is_independent=True,
)
def check_relu(facts: Facts) -> Finding | str | None:
    """The logits passed through ReLU."""
    name, reason = _criterion(facts)
    if reason:
        return reason
    if name not in _ON_LOGITS or not _last_operation(facts).startswith("Relu"):
        return None
    return facts.finding(
        "output-relu",
        "The model ends in ReLU, so a class whose logits are zero at all nodes gets no gradient.",
        *_range(facts),
        threshold=_EXACT,
        severity="warning" if facts.is_preflight else facts.severity,  # many networks train in spite of it
    )


@cause(
    "output-out-of-range",
    "The output cannot reach the targets",
    rank=95,
    why="no weights bring the loss below what these targets leave",
    figure="training_curves",
    falsified_by="y.min() and y.max() are within what the last operation of the model can return.",
    severity="certain",
    is_independent=True,
    limits={
        "negatives": Limit(0.5, "of the labels: with fewer, a constant is positive, too"),
        "unreachable": Limit(0.02, "share of the targets that no output can equal; of targets within the range 0"),
        "unreachable-error": Limit(
            0.1, "of a squared error is what these targets leave at least; less is noise beyond the range"
        ),
    },
)
def check_range(facts: Facts) -> Finding | str | None:
    """Targets of a regression that the last operation of the model (ReLU, sigmoid, tanh) cannot return."""
    if found := _never_negative(facts):
        return found
    share = facts.output.get("unreachable_targets")
    if share is None:
        return "the loss is no error of a regression, or was not seen"
    least = facts.output.get("unreachable_error", math.nan)
    if not share > limit("unreachable") or least < limit("unreachable-error") * facts.last_loss:
        return None
    operation = _last_operation(facts)
    return facts.finding(
        "output-out-of-range",
        f"The model ends in {operation.lower()}, and {percent(share)} of the targets are outside of what it returns "
        f"({_bounds(operation)}).",
        Evidence("share of the targets that the output cannot reach", share),
        Evidence("part of the squared error at the end that no output can reduce", least / facts.last_loss),
        *_range(facts),
        threshold=f"Flagged above {threshold_text('unreachable')}.",
        remedy=Remedy(
            f"return x  # in forward, without the last {operation.lower()}; or scale the targets into its range"
        ),
    )


def _never_negative(facts: Facts) -> Finding | None:
    """Logits of a binary cross-entropy of which none was ever negative, as products of what passed a ReLU."""
    labels, lowest = facts.output.get("labels") or [], float(facts.output.get("lowest", -math.inf))
    is_relu = _last_operation(facts).startswith("Relu")  # see `check_relu`
    is_asked = (
        _criterion(facts)[0] == "bce-logits" and len(labels) == 2 and labels[0] > limit("negatives") * sum(labels)
    )
    if is_relu or not is_asked or lowest < 0 or facts.step_count < limit("steps") or facts.state == "trained":
        return None
    share = labels[0] / sum(labels)
    return facts.finding(
        "output-out-of-range",
        f"No output was ever below zero (the lowest is {number(lowest)}), so that no probability is below one half, "
        f"though {percent(share)} of the labels are 0: outputs are computed of numbers that are never negative, as "
        "products of what passed a ReLU are.",
        Evidence("lowest output in all steps that were looked at", lowest),
        Evidence("share of the labels that are 0", share),
        title="No logit is negative",
        threshold=f"Flagged from 0 on, if more than {threshold_text('negatives')} are 0.",
        remedy=Remedy("return x  # of the last layer, without the ReLU behind it: its products may be negative then"),
        falsified_by="Some output is below zero.",
    )


def _bounds(operation: str) -> str:
    low, high = RANGES.get(operation, (-math.inf, math.inf))
    return f"{low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"


def _criterion(facts: Facts) -> tuple[str, str]:
    """The loss function, or "" and the reason why it is unknown."""
    output = facts.output
    if "min" not in output or "max" not in output:
        return "", "the model's output was not recorded"
    if not (name := output.get("criterion")) or output.get("criterion_share", 0.0) < limit("criterion"):
        return "", "dL/dout is not the gradient of a known classification loss"
    operations = facts.loss_operations
    if name in _ON_LOGITS and not operations.isdisjoint(_ERRORS) and operations.isdisjoint(_OF_LOGITS):
        return "", "the loss is an error, whose gradient is like that of a classification loss where outputs are alike"
    return str(name), ""


def _last_operation(facts: Facts) -> str:
    return str(facts.output.get("last_operation", "")).removesuffix("Backward0")


def _range(facts: Facts) -> tuple[Evidence, ...]:
    output = facts.output
    return Evidence("smallest output", float(output["min"])), Evidence("largest output", float(output["max"]))


def _has_probabilities(output: dict[str, object], operation: str) -> bool:
    """By the last operation; if that does not tell, by range and row sums."""
    if operation.startswith(_TO_PROBABILITIES):
        return not (operation.startswith("Softmax") and output.get("criterion") == "bce-logits")
    if operation and not operation.startswith(_MAYBE_TO_PROBABILITIES):
        return False
    low, high, off = (float(str(output.get(key, "nan"))) for key in ("min", "max", "row_sum_error"))
    return low >= 0 and high <= 1 + 1e-6 and off < 1e-3


@cause(
    "wrong-axis",
    "Outputs of different examples depend on each other",
    rank=85,
    why="what is computed over the batch instead of the features is not what is meant",
    figure="training_curves",
    falsified_by="In evaluation mode, an example has the same output alone and in a batch.",
    severity="warning",
    is_independent=True,
    limits={"mixed": Limit(1e-3, "share of the gradient of one output that is at the inputs of other examples")},
)
def check_axis(facts: Facts) -> Finding | str | None:
    """Before training: the output of one example has a gradient at the inputs of others, though no edge joins them.

    As of a softmax, a mean, a normalization or an attention over the batch. The model is in evaluation mode, in which
    batch normalization joins no examples. While training: a recurrent network or attention takes for time what
    convolutions, or the rows of the output, take for the batch, or a softmax runs over the examples.
    """
    if not facts.is_preflight:
        known = facts.signals.get("batch_axes") or {}
        return _read_along_batch(facts, known) or _softmax_over_batch(facts) or (None if known else NEEDS_PASS)
    if isinstance(facts.mixing, str):
        return facts.mixing
    found = facts.mixing
    if found is None or found["others"] == "nodes":
        return "the rows of the inputs are not known to be examples"
    if not found["share"] > limit("mixed"):
        return None
    if found.get("is_by_order"):
        return _by_order(found["share"], facts)
    fix = "softmax(x, dim=-1), x.mean(-1), for graphs norm(x, batch): the features are the last dimension"
    if found["sequence_first"]:
        fix = f"{join_names(found['sequence_first'], 3)}: with batch_first=True, for inputs [batch, length, features]"
    return facts.finding(
        "wrong-axis",
        f"The output of {found['of']} depends on the inputs of other {found['others']}: {percent(found['share'])} of "
        "its gradient is there, in evaluation mode. Something is computed over the batch instead of within an example.",
        Evidence("share of the gradient at the inputs of other examples", found["share"]),
        threshold=f"Flagged above {threshold_text('mixed')}.",
        remedy=Remedy(f"# {fix}"),
    )


def _by_order(change: float, facts: Facts) -> Finding:
    return facts.finding(
        "wrong-axis",
        f"Outputs change by {percent(change)} of their size if the examples come in another order, in evaluation mode: "
        "something that depends on the place in the batch is added, as where an encoding of positions runs along the "
        "batch instead of along time.",
        Evidence("change of the outputs with the order of the examples, over their norm", change),
        title="Outputs depend on the place in the batch",
        threshold=f"Flagged above {threshold_text('mixed')}.",
        remedy=Remedy(
            "x = x + positions[: x.shape[1]]  # for x [batch, length, features]: positions [length, features]"
        ),
        falsified_by="In evaluation mode, an example has the same output at each place in a batch.",
    )


def _read_along_batch(facts: Facts, known: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    """Layers over sequences whose time is what other modules take for the batch, in each step that shows it."""
    swapped = tuple(name for name, one in known.items() if one["swapped"] == one["steps"])
    if not swapped or facts.state not in ("failing", "partly"):
        return None
    one = known[swapped[0]]
    name, turned = short(swapped[0]), not one["batch_first"]
    order = "[batch, length, features]" if one["batch_first"] else "[length, batch, features]"
    return facts.finding(
        "wrong-axis",
        f"Layer {name} takes its inputs for {order}, here {one['batch']:,} sequences of {one['time']:,} time steps; by "
        f"the rest of the model {one['time']:,} is the number of examples. It runs over the examples of a batch.",
        Evidence("steps in which its time is what others take for the batch", one["swapped"], "steps"),
        title="A sequence is read along the batch",
        threshold="Flagged if it holds in all inspected steps in which the two lengths differ.",
        layers=swapped,
        severity="error" if facts.state == "failing" else "warning",
        remedy=Remedy(f"batch_first={turned}  # of {join_names(map(short, swapped), 3)}; or transpose its inputs"),
        falsified_by=f"The first axis of the inputs of {name} is {'examples' if one['batch_first'] else 'time'}.",
    )


def _is_over_examples(shape: list[int], rows: int | None) -> bool:
    """The first axis is that of the examples: as long as the output has rows or, of images, rows at each place."""
    places = math.prod(shape[2:]) if len(shape) == 4 else 1
    return bool(shape) and shape[0] * places == rows and shape[0] not in shape[1:]


def _softmax_over_batch(facts: Facts) -> Finding | None:
    """A softmax within the model whose first axis is as long as the output, where rows are examples and no nodes."""
    found: dict[str, list[int]] = facts.signals.get("softmax_along_rows") or {}
    rows = (facts.signals.get("rows") or {}).get(facts.layers[-1]["name"] if facts.layers else "")
    along = {name: shape for name, shape in found.items() if _is_over_examples(shape, rows)}
    is_of_nodes = facts.has_convolutions or bool(facts.signals.get("edges") or facts.signals.get("propagations"))
    if not along or is_of_nodes:
        return None
    name, shape = next(iter(along.items()))
    is_good = facts.state == "trained" and not evaluates_badly(facts)
    return facts.finding(
        "wrong-axis",
        f"A softmax in {short(name)} runs over the first axis of {' x '.join(map(str, shape))} entries, which is that "
        f"of the {shape[0]:,} examples: the weights of an example depend on the others in its batch, and alone it has "
        "other outputs.",
        Evidence("length of the axis of the softmax", shape[0], "examples"),
        title="A softmax runs over the examples of a batch",
        threshold="Exact: the axis of the softmax, in the first step.",
        severity="note" if is_good else facts.severity if facts.state == "failing" else "warning",
        remedy=Remedy("softmax(x, dim=1)  # over the entries of an example, instead of dim=0"),
    )

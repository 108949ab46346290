"""The training loop: parameters in no optimizer or without a gradient, old gradients, faults of the loss, the mode."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.evaluation import evaluates_badly
from gatdiag.diagnosis.facts import Facts, largest, median
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy, Severity
from gatdiag.diagnosis.slope import fix_slope, where_slope_ends
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.units import check_dead_units
from gatdiag.names import join_names, short
from gatdiag.roles import BIAS

_MAX_NAMES = 3  # in a sentence
_COMPARISONS = ("Sub", "Rsub", "Div")  # of two results of one network
_OF_ERRORS = {  # between outputs and the loss, and not of rankings or kernels
    "Sub", "Rsub", "Pow", "Mul", "Abs", "MseLoss", "SmoothL1Loss", "HuberLoss", "Mean", "Sum", "Div", "Add", "Sqrt",
    "Expand", "Squeeze", "Unsqueeze", "View", "Reshape", "Stack", "Cat", "Select", "Index", "Slice", "Split",
    "Gather",
}  # fmt: skip
_PRODUCTS = ("Addmm", "Mm", "Convolution")  # with the weights of a layer
_ZERO_GRADIENT = Evidence("largest gradient norm of a parameter", 0.0)
_PRINT_MISSING = (
    "print([name for name, p in model.named_parameters() if p.grad is None or p.grad.norm() == 0])"
    "  # after loss.backward()"
)


@cause(
    "parameters-not-in-optimizer",
    "Parameters are not in the optimizer",
    rank=20,
    why="parameters that never move cause every symptom below",
    figure="unchanged_fraction",
    column="parameters.unchanged_fraction",
    falsified_by="The id() of every parameter in model.parameters() is among those in optimizer.param_groups.",
    severity="certain",
)
def check_optimizer(facts: Facts) -> Finding | str | None:
    """Trainable parameters that the output depends on and that no optimizer holds."""
    if facts.is_of_checkpoints or not facts.run.meta["optimizers"]:
        return "no optimizer was seen"
    trainable, missing = facts.trainable, facts.not_in_optimizer
    foreign = facts.signals.get("foreign_leaves", 0)  # leaves of the graph that are no parameters of the model
    if not missing and not foreign:
        return None
    registered = (Action("register"),) if foreign else ()
    if missing:
        held = len(trainable) - len(missing) if facts.in_optimizer else "none"
        text = (
            f"The optimizer holds {held} of the model's {len(trainable)} trainable parameters. The others keep their "
            f"initial values: {join_names(map(short, missing), _MAX_NAMES)}."
        )
    else:
        text = (
            f"{foreign} tensors that the output depends on and that require gradients are not parameters of the model "
            "(layers in a plain list or dict are not registered), so the optimizer does not update them."
        )
    return facts.finding(
        "parameters-not-in-optimizer",
        text,
        Evidence("trainable parameters in no optimizer", len(missing) + foreign, "parameters"),
        threshold="Flagged from the first parameter on.",
        layers=_layers_of(facts, missing),
        parameters=tuple(missing),
        severity="warning" if facts.state == "unknown" and _holds_first_layers(facts) else None,
        remedy=Remedy(*registered, remedy.optimize_all(facts)),
    )


def _holds_first_layers(facts: Facts) -> bool:
    """Optimizers hold all of the first layers and nothing of the others, whose turn in training may still come."""
    are_held = [facts.in_optimizer.issuperset(names) for names in _trainable_by_layer(facts)]
    held = sum(are_held)
    others = {name for names in _trainable_by_layer(facts)[held:] for name in names}
    return held > 0 and all(are_held[:held]) and facts.in_optimizer.isdisjoint(others)


@cause(
    "parameters-without-gradient",
    "Parameters without a gradient",
    rank=250,
    why="what gets no gradient does not move",
    figure="gradient_norms",
    column="parameters.unchanged_fraction",
    falsified_by="After loss.backward(), p.grad of these parameters is neither None nor zero.",
)
def check_gradients(facts: Facts) -> Finding | str | None:
    """Parameters that get no gradient: detached, frozen, unused.

    An error if the network does not train, unless only a branch is unused, like the last weights of node types without
    labels in heterogeneous graphs: that does not keep a network from training. Nor does a weight that its layer leaves
    unused, like that of PyG's `ARMAConv` with one layer.
    """
    if facts.is_of_checkpoints:
        return next(_without_stored_gradients(facts), "checkpoints hold no gradients")
    if not facts.has_recorded_gradients:
        return "no gradient was recorded"
    grads = dict(zip(facts.parameter_names, facts.gradient_norms.T, strict=True))
    # what moved, or got a gradient later, was not frozen: two networks may take turns
    thawed = {name for name, values in grads.items() if np.isnan(values[0]) and not np.isnan(values).all()}
    trained = {*facts.trainable, *thawed, *facts.moved}
    frozen = [name for name in facts.parameters if name not in trained]
    cut_off = facts.without_gradient.difference(frozen, facts.moved)
    never = [name for name in grads if name in cut_off]
    zero = [name for name, values in grads.items() if name not in frozen and len(values) > 2 and (values == 0).all()]
    total = len(facts.parameters)
    if len(zero) >= total:
        return None  # every gradient is zero: see check_signal
    if never:
        is_error = facts.state in ("failing", "unknown") and _is_cut_off(facts, never)
        severity: Severity = "error" if is_error else "note" if _is_harmless(facts, never) else "warning"
        why, fix = _why_never(facts, never)
        text = f"{len(never)} of {total} parameters never get a gradient ({why})"
        return _no_gradient(facts, never, text, severity, fix)
    unfreeze = Remedy(Action("unfreeze"), _of_embeddings(facts, frozen))
    if frozen and facts.is_preflight:
        text = f"{len(frozen)} of {total} parameters are frozen (requires_grad=False), so only the others can learn"
        return _no_gradient(facts, frozen, text, "note", unfreeze)
    if frozen and facts.state in ("failing", "partly"):
        text = f"{len(frozen)} of {total} parameters are frozen (requires_grad=False), and the loss has not fallen far"
        return _no_gradient(facts, frozen, text, _severity_of_frozen(facts), unfreeze)
    zero = _of_whole_layers(facts, zero, {*grads}.difference(zero))
    is_cut_off = _is_cut_off(facts, zero) and not isinstance(check_dead_units(facts), Finding)
    if zero and (len(zero) >= 0.2 * total or is_cut_off or not isinstance(check_dead_units(facts), Finding)):
        text = f"The gradient of {len(zero)} of {total} parameters is exactly zero at every step"
        is_harmless = facts.state == "trained" and not evaluates_badly(facts)
        severity = "error" if is_cut_off and facts.state == "failing" else "note" if is_harmless else "warning"
        return _no_gradient(facts, zero, text, severity, _look_for_zeros(zero))
    return None


def _severity_of_frozen(facts: Facts) -> Severity:
    """Less where weights are left that learn, as of a head or of adapters: that may be meant."""
    is_meant = any(len(one["shape"]) > 1 for one in facts.trainable.values())
    return facts.mild_severity if is_meant else facts.severity


def _of_embeddings(facts: Facts, frozen: Sequence[str]) -> str:
    tables = {p["name"] for layer in facts.layers if layer.get("kind") == "Embedding" for p in layer["parameters"]}
    return "" if tables.isdisjoint(frozen) else "# or: torch.nn.Embedding.from_pretrained(weights, freeze=False)"


def _is_harmless(facts: Facts, never: Sequence[str]) -> bool:
    """The network trains nevertheless or, before training, it learns or each layer has a parameter with a gradient."""
    if not facts.is_preflight:
        return facts.state == "trained"
    is_partial = not any({*names} <= {*never} for names in _trainable_by_layer(facts))
    return is_partial or (facts.is_learning and not _is_cut_off(facts, never))


def _is_cut_off(facts: Facts, never: Sequence[str]) -> bool:
    """No parameter of the first layer gets a gradient, though the optimizer holds them and later layers get one.

    Unlike a branch that the loss does not use, this is never intended: something in between detaches.
    """
    first, *others = _trainable_by_layer(facts) or [[]]
    is_behind = any(name not in never for names in others for name in names)
    return is_behind and {*first} <= facts.in_optimizer.intersection(never)


def _why_never(facts: Facts, never: Sequence[str]) -> tuple[str, Remedy]:
    layers = [layer for layer in facts.run.meta["structure"]["layers"] if layer.get("executed") is False]
    if {*never} <= {one["name"] for layer in layers for one in layer["parameters"]}:
        return "their layers are never called", Remedy("# call these layers in forward, or remove them")
    return "detached, or not used by the loss", _look_behind(never)


def _of_whole_layers(facts: Facts, zero: Sequence[str], others: set[str]) -> list[str]:
    """Those of layers without other gradients: that of a bias alone may cancel, as in the difference of two outputs."""
    mixed = {name for layer in _trainable_by_layer(facts) if not others.isdisjoint(layer) for name in layer}
    found = [name for name in zero if name not in mixed]
    layers = _layers_of(facts, found)
    return [] if facts.single_units.issuperset(layers) else found  # one unit may have a constant effect on purpose


def _trainable_by_layer(facts: Facts) -> list[list[str]]:
    """The parameters that require gradients, of each layer that has some."""
    known = [[p["name"] for p in layer["parameters"] if p["name"] in facts.trainable] for layer in facts.layers]
    return [names for names in known if names]


def _look_behind(names: Sequence[str]) -> Remedy:
    return _look_between(names, ".detach(), .data, torch.no_grad(), .argmax(), .round(), .sign() or .item()")


def _look_for_zeros(names: Sequence[str]) -> Remedy:
    what = "what multiplies by zero (a mask that is the wrong way round, a clamp, a saturated activation) or cancels"
    return _look_between(names, what)


def _look_between(names: Sequence[str], what: str) -> Remedy:
    module = names[0].rpartition(".")[0] or names[0]
    return Remedy(f"# look for {what} between {module} and the loss:\n{_PRINT_MISSING}")


def _without_stored_gradients(facts: Facts) -> Iterator[Finding]:
    """Parameters whose second moment in Adam, a sum of squared gradients, is zero: they never got a gradient."""
    known = facts.last_checkpoint.dropna(subset=["second_moment"])
    never = known[known["second_moment"] == 0]
    if len(never):
        text = f"{len(never)} of {len(known)} parameters never got a gradient (Adam's second moment is zero)"
        found = _no_gradient(facts, never["parameter"].tolist(), text, "warning", Remedy(_PRINT_MISSING))
        layers = tuple(dict.fromkeys(never["layer"]))
        yield replace(found, layers=layers, threshold="Flagged from the first parameter on.", figure="")


def _no_gradient(facts: Facts, names: Sequence[str], text: str, severity: Severity, fix: Remedy) -> Finding:
    return facts.finding(
        "parameters-without-gradient",
        f"{text}: {join_names(map(short, names), _MAX_NAMES)}.",
        Evidence("parameters without a gradient", len(names), "parameters"),
        threshold="Flagged if it holds at every recorded step.",
        severity=severity,
        layers=_layers_of(facts, names),
        parameters=tuple(names),
        remedy=fix,
    )


@cause(
    "gradients-not-cleared",
    "Gradients are not cleared",
    rank=30,
    why="steps along sums of old gradients are too long and lag behind",
    figure="training_curves",
    falsified_by="Every p.grad is None or zero when loss.backward() is called.",
    remedy=Remedy(Action("clear_gradients")),
    severity="certain",
    needs_training=True,
    limits={
        "stale": Limit(0.5, "norm of the old gradient over that of the last step's gradient: 0 if cleared, 1 if not"),
        "scaled": Limit(1e-3, "between its largest and smallest value: the same factor scales old gradients each time"),
    },
    borrowed=("momentum",),
)
def check_cleared(facts: Facts) -> Finding | str | None:
    """Gradients of the step before are still there when the backward pass begins."""
    if facts.has_several_optimizers:
        return "there are several optimizers, and one may clear the gradients that another left before they are used"
    if facts.groups and facts.not_in_optimizer:
        return "leftover gradients may belong to parameters in no optimizer, which never use them"
    stale = facts.steps_column("stale_gradient")
    if len(stale) < 3:
        return "leftover gradients were not recorded, which needs recorded steps in a row"
    share = float((stale > limit("stale")).mean())
    # a sum that is scaled by f in each step is what an optimizer with momentum f follows: too much of it is so in both
    is_momentum = float(np.ptp(stale)) < limit("scaled") and float(stale.max()) < limit("momentum")
    if share <= 0.9 or is_momentum:
        return None
    return facts.finding(
        "gradients-not-cleared",
        "Gradients are never cleared, so each backward pass adds to those of all steps before: the optimizer follows "
        "their sum, which lags behind and oscillates.",
        Evidence("norm of the leftover gradient over that of the last step, median", float(np.median(stale))),
        threshold=f"Flagged above {threshold_text('stale')} in 90% of the steps.",
        column="steps.stale_gradient",
        line=limit("stale"),
    )


@cause(
    "no-training-signal",
    "No training signal",
    rank=50,
    why="without a gradient nothing else can be judged",
    figure="gradient_norms",
    column="parameters.relative_gradient_norm",
    falsified_by="The loss changes when a weight of the last layer changes, and the labels are of more than one class.",
    remedy=Remedy("print(mask.sum(), y[mask].unique(return_counts=True), loss.requires_grad)  # what the loss sees"),
    severity="error",
    limits={
        "labels": Limit(20, "labels seen: with fewer, they are not judged"),
        "cancels": Limit(1e-4, "gradient of the last bias over that of the last weights; of classes 0.1 and more"),
    },
)
def check_signal(facts: Facts) -> Finding | str | None:
    """The loss does not depend on the output, all labels are of one class, or gradients are cleared too late."""
    if found := _targets_without_signal(facts):
        return found
    known = facts.gradient_norms[np.isfinite(facts.gradient_norms)]
    if not facts.has_recorded_gradients:
        return "no gradient was recorded"
    if facts.unmeasured and not facts.is_non_finite:
        return "gradients of complex or sparse parameters are not measured"
    if known.any() or (not len(known) and (facts.is_non_finite or facts.run.meta["first_non_finite"])):
        return None
    if (norm := median(facts.steps_column("gradient_norm_before_clipping"))) > 0:
        return _no_signal(
            facts,
            "The gradients that loss.backward() computes are gone when the optimizer makes its step: they are cleared "
            "in between.",
            Evidence("norm of the gradients after the backward pass, median", norm),
            remedy=Remedy("optimizer.zero_grad()  # before loss.backward(), not between it and optimizer.step()"),
            falsified_by="Just before optimizer.step(), p.grad of some parameter is neither None nor zero.",
        )
    if not len(known):
        return _no_signal(facts, "No parameter ever gets a gradient: the loss does not depend on the model.")
    text = f"The gradient of every parameter is exactly zero at every step. {where_slope_ends(facts)}"
    return _no_signal(facts, text.rstrip(), remedy=fix_slope(facts))


def _targets_without_signal(facts: Facts) -> Finding | None:
    output = facts.output
    if output.get("has_graph") is False:
        return _no_signal(facts, "The model's output has no autograd graph, so no gradient can reach its parameters.")
    labels = [] if facts.has_several_optimizers or _is_no_likelihood(facts) else output.get("labels") or []
    seen = sum(labels)
    if sum(rows > 0 for rows in (facts.signals.get("class_weights") or {}).get("rows", ())) > 1:
        seen = 0  # weights of classes hide the labels of all batches but those of one class
    is_early = facts.steps_until_broken < limit("steps")  # the first batches may lack a rare class
    is_known = not (is_early and facts.is_non_finite)  # nor are rows counted whose softmax is saturated
    is_known = is_known and output.get("are_all_labeled", True)  # others may be of losses that weigh classes
    is_known = is_known and _are_columns_classes(facts, len(labels))
    if len(labels) > 1 and seen >= limit("labels") and max(labels) == seen and is_known:
        text = f"All {seen:,} labels that the loss saw are of class {labels.index(seen)}: nothing to tell apart."
        severity: Severity = "warning" if is_early else "error"
        return _no_signal(facts, text, Evidence("classes among the labels", 1.0), severity=severity)
    if output.get("criterion") == "uniform-targets" and output["criterion_share"] >= limit("criterion"):
        return _no_signal(
            facts,
            "The loss is a cross-entropy whose targets are the same for all classes and rows: it is lowest where the "
            "model predicts nothing, as with a label smoothing of 1.",
            Evidence("misfit of dL/dout to softmax(out) - 1 / classes", float(output.get("criterion_misfit", 0.0))),
            remedy=Remedy("loss = torch.nn.functional.cross_entropy(out, y)  # or with label_smoothing=0.1"),
            falsified_by="The targets of two rows of different classes differ.",
        )
    return None


def _are_columns_classes(facts: Facts, classes: int) -> bool:
    """Whether a column of the output belongs to a class, with weights of its own, and all that is compared was seen.

    In rankings, link prediction and contrastive losses the right one may come first, or be positive, in each row: what
    is told apart are the columns, of one network, or what was subtracted, or the other outputs of the model.
    """
    signals = facts.signals
    if signals.get("has_other_outputs") or signals.get("compares_outputs") or min(facts.auc_shares, default=0.0) > 0:
        return False
    if str(facts.output.get("last_operation", "")).startswith(_COMPARISONS):
        return False
    last: list[dict[str, Any]] = next((one["parameters"] for one in reversed(facts.layers) if one["parameters"]), [])
    columns = 1 if facts.output.get("criterion", "").startswith("bce") else classes
    may_be_sliced = str(facts.output.get("last_operation", "")).startswith(_PRODUCTS)  # of a layer with more columns
    is_sliced = may_be_sliced and any(one["shape"][0] > columns for one in last)
    are_there = is_sliced or any(columns in one["shape"] for one in last)
    return are_there and not _cancel_biases(facts, last)


def _cancel_biases(facts: Facts, parameters: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a bias of a layer gets no gradient where its weights do: a shift of all columns changes nothing."""
    known = dict(zip(facts.parameter_names, facts.gradient_norms.T, strict=True))
    size = {one["name"]: largest(known.get(one["name"], ())) for one in parameters}
    biases = [size[one["name"]] for one in parameters if one["role"] == BIAS]
    return bool(biases) and max(biases) < limit("cancels") * max(size.values())


@cause(
    "loss-broadcast",
    "Outputs and targets are broadcast in the loss",
    rank=40,
    why="the gradient does not depend on a node's own target",
    figure="training_curves",
    falsified_by="out.shape == y.shape is True where the loss compares outputs and targets.",
    remedy=Remedy("y = y.view_as(out)  # before the loss: [N, 1] - [N] is [N, N]"),
    severity="certain",
    is_independent=True,
    limits={
        "broadcast": Limit(1e-3, "of the first loss is left if all outputs equal the target that they share"),
        "target-moves": Limit(10, "times the spread of targets within batches; the mean of usual targets moves less"),
    },
)
def check_broadcast(facts: Facts) -> Finding | str | None:
    """The loss compares each output with the targets of all nodes, because the shapes of the two are broadcast."""
    output = facts.output
    if "min" not in output:
        return "the model's output was not recorded"
    if facts.has_several_optimizers:
        return "there are several optimizers, each with a loss of its own"
    target = output.get("common_target")
    if values := output.get("counted_targets"):
        text, learned = (
            "The gradient at each output is the number of all targets below it minus that above it",
            "median",
        )
        evidence = [Evidence("values of dL/dout, of which an absolute error has two", values)]
        threshold = "Exact: these values are integers over N^2 and ascend with the outputs."
    elif target is None or None in target.values():
        return _broadcast_in_graph(facts)
    else:
        moves = target["high"] - target["low"] > limit("target-moves") * target["spread"]
        if math.isnan(facts.broadcast_loss) and (target["step"] in facts.loss.index or not moves):
            return "all targets are the same, or the loss of the first step was not logged"
        text, learned = "The loss pulls all outputs to one value, instead of each to its own target", "mean"
        evidence = [
            Evidence("spread of the targets in dL/dout", target["spread"]),
            Evidence("mean of the targets", target["low"]),
            Evidence("part of the first loss that no output can reduce", facts.broadcast_loss),
        ]
        threshold = (
            "Flagged if this spread is below 1e-3 of that of the outputs in the first steps, and a part of the loss is "
            f"left or the mean moves: {threshold_text('broadcast', 'target-moves')}."
        )
    return facts.finding(
        "loss-broadcast",
        f"{text}: outputs [N, 1] and targets [N] are broadcast to [N, N], so the network can only learn the {learned} "
        "of the targets.",
        *evidence,
        threshold=threshold,
    )


def _broadcast_in_graph(facts: Facts) -> Finding | None:
    """Where the loss adds up errors of several outputs, the gradient does not show it, and its graph does."""
    rows = facts.loss_graph.get("broadcast_rows", 0)
    operations = facts.loss_operations
    is_weighed = "Mul" in operations and not operations.isdisjoint(("HuberLoss", "SmoothL1Loss"))  # as of quantiles
    is_of_targets = operations <= _OF_ERRORS and not is_weighed and not facts.signals.get("compares_outputs")
    is_error = is_of_targets or bool(facts.loss_graph.get("bootstraps"))
    if not rows or not is_error or facts.step_count < limit("steps"):
        return None
    return facts.finding(
        "loss-broadcast",
        f"In the loss, each of {rows:,} outputs is compared with {rows:,} targets: outputs [N, 1] and targets [N] are "
        "broadcast to [N, N], so the network can only learn the mean of the targets.",
        Evidence("differences that are computed for each output", rows),
        threshold="Exact: the shapes in the graph of the loss.",
    )


def _is_no_likelihood(facts: Facts) -> bool:
    """The gradient is that of nll_loss, but another loss was seen: a sum of outputs has such a gradient, too."""
    operations = facts.loss_operations
    is_other = bool(operations) and not any(name.startswith("NllLoss") for name in operations)
    return facts.output.get("criterion") == "nll" and is_other


def _no_signal(facts: Facts, text: str, evidence: Evidence = _ZERO_GRADIENT, **more: Any) -> Finding:
    return facts.finding("no-training-signal", text, evidence, threshold="Exact: no threshold.", **more)


@cause(
    "evaluation-mode",
    "Training in evaluation mode",
    rank=100,
    why="without normalization of batches, the causes below are another model's",
    figure="training_curves",
    falsified_by="With model.train() before each step the learning curve is the same.",
    remedy=Remedy("model.train()  # at the start of each epoch, as evaluation leaves the model in evaluation mode"),
    needs_training=True,
    is_independent=True,
    limits={
        "batches": Limit(20, "batches: until then, initial values are an eighth or more of the running statistics")
    },
)
def check_mode(facts: Facts) -> Finding | None:
    """Training in evaluation mode: dropout does nothing, and batch normalization does not normalize the batch.

    Only a note unless there is batch normalization with running statistics of few batches, as networks train well
    without dropout, and with the statistics of a training before.
    """
    since, dropout = facts.signals.get("evaluation_from"), facts.signals.get("dropout") or {}
    norms = facts.signals.get("batch_norms") or {}
    if since is None or since > facts.step_count // 2 or not (dropout or norms):
        return None
    copied = facts.signals.get("copied_statistics") or ()
    known = [batches for name, batches in norms.items() if name not in copied]
    few = [batches for batches in known if batches + since < limit("batches")]
    effects = ["dropout does nothing"] * bool(dropout)
    effects += ["batch normalization uses its running statistics, which are not updated"] * bool(norms)
    return facts.finding(
        "evaluation-mode",
        f"The model is trained in evaluation mode{f' from step {since:,} on' if since else ''}: "
        f"{' and '.join(effects)}.",
        Evidence("batches that running statistics are of, fewest", min(few) + since if few else math.nan),
        threshold=f"A cause below {threshold_text('batches')}.",
        severity=None if few else "note",
        steps=(since,),
    )


def _layers_of(facts: Facts, names: Sequence[str]) -> tuple[str, ...]:
    wanted = {*names}
    layers = facts.run.meta["structure"]["layers"]
    return tuple(layer["name"] for layer in layers if any(p["name"] in wanted for p in layer["parameters"]))

"""The targets and what the loss makes of them: NaN, scale, a target that is an output, no lower bound, one class."""

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pandas as pd

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short
from gatdiag.summary import logged_series, scores

# operations of a loss that return finite numbers, and finite slopes, for all finite numbers
_DEFINED: Final = frozenset({
    "Add", "Sub", "Mul", "Neg", "Abs", "Pow", "Mean", "Sum", "Index", "IndexSelect", "Select", "Slice", "Squeeze",
    "Unsqueeze", "View", "UnsafeView", "Reshape", "Expand", "Permute", "Transpose", "T", "Clone", "ToCopy", "Cat",
    "Stack", "Gather", "MaskedSelect", "Relu", "LeakyRelu", "Clamp", "LogSoftmax", "Softmax", "Sigmoid",
    "LogSigmoid", "Softplus", "NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss",
    "BinaryCrossEntropyWithLogits", "Tanh", "Alias", "Where", "MaskedFill", "AsStrided", "Split", "Unbind", "Repeat",
})  # fmt: skip
_BINARY: Final = ("BinaryCrossEntropy", "KlDiv")
_HUBER: Final = frozenset({"SmoothL1Loss", "HuberLoss"})
_ABSOLUTE: Final = (
    frozenset({"Abs", "Sub", "Rsub", "Mean", "Sum", "Squeeze", "View", "Select", "Slice", "Index"}) | _HUBER
)
_SAME_UNITS: Final = 10.0  # of gradients: a learning rate suits both
_NO_GRAPH = "the graph of the loss was not seen"


@cause(
    "target-nonfinite",
    "NaN or infinity in the targets",
    rank=11,
    why="NaN spreads from the loss to every weight",
    figure="training_curves",
    falsified_by="torch.isfinite(y).all() is True for the targets, and the weights, that the loss is given.",
    remedy=Remedy(
        "known = y.isfinite()  # targets that are missing\n"
        "loss = torch.nn.functional.mse_loss(out[known], y[known])  # or your loss, of these alone"
    ),
    severity="error",
    is_independent=True,
)
def check_non_finite(facts: Facts) -> Finding | str | None:
    """NaN in the targets: outputs are finite, and dL/dout is NaN in some entries, though no operation can make it."""
    broken = facts.signals.get("broken_loss") or {}
    if not broken.get("bad_entries") or not broken.get("is_output_finite") or not _is_defined(broken):
        return None
    share = broken["bad_entries"] / broken["entries"]
    if is_mean_of_nothing(facts) or (share == 1 and broken.get("divides")):
        return None
    return facts.finding(
        "target-nonfinite",
        f"At step {broken['step']:,} {percent(share)} of the entries of dL/dout are NaN or infinite, though the output "
        "is finite and the loss holds no operation that is undefined for finite numbers: the targets (or weights of "
        "the loss) there are NaN or infinite. After one step every weight is NaN.",
        Evidence("NaN or infinite entries of dL/dout", broken["bad_entries"], "entries"),
        Evidence("entries of dL/dout", broken["entries"], "entries"),
        threshold="Flagged from the first entry on.",
        steps=(int(broken["step"]),),
    )


def _is_defined(loss: dict[str, object]) -> bool:
    """Whether the graph of a loss was seen, and no operation in it makes NaN or infinity of finite numbers."""
    operations = loss.get("operations")
    divides = {"Div"} if loss.get("divides") else set[str]()
    return isinstance(operations, list) and bool(operations) and {*operations} <= _DEFINED | divides


def is_mean_of_nothing(facts: Facts) -> bool:
    """Whether the first NaN of the loss is the mean over a selection without rows.

    A mean shows it by its shape. A sum over a mask that is divided by the number of ones, 0 / 0, makes every entry of
    dL/dout NaN; cross-entropy of rows that are all ignored none.
    """
    broken = facts.signals.get("broken_loss") or {}
    if broken.get("empty"):
        return True
    if not _is_defined(broken) or not broken.get("is_output_finite"):
        return False
    bad = broken["bad_entries"]
    if not bad:
        return "NllLoss" in broken["operations"] and not broken.get(
            "is_infinite"
        )  # that is of a large output, not 0 / 0
    is_of_classes = any(name.startswith("NllLoss") for name in broken["operations"])
    is_all = bad == broken["live_entries"]
    return bool(broken["divides"] and is_all and (is_of_classes or broken["step"] > 0))


@cause(
    "empty-selection",
    "The loss is the mean of nothing",
    rank=12,
    why="0 / 0 is NaN, and spreads to every weight",
    figure="training_curves",
    falsified_by="mask.sum() is above zero in every step.",
    remedy=Remedy("if not mask.any():\n    continue  # skip the batch; or divide by mask.sum().clamp(min=1)"),
    severity="error",
    is_independent=True,
)
def check_empty(facts: Facts) -> Finding | str | None:
    """A loss that is the mean of nothing, in some step."""
    if not is_mean_of_nothing(facts):
        return None
    broken = facts.signals["broken_loss"]
    spreads = bool(broken.get("bad_entries"))
    effect = "and after this step every weight is, too" if spreads else "which says nothing about the model"
    return facts.finding(
        "empty-selection",
        f"At step {broken['step']:,} the loss is the mean over a selection without rows (a mask without a "
        f"true entry, a batch without labels): 0 / 0 is NaN, {effect}.",
        Evidence("step of the first such loss", broken["step"]),
        threshold="Exact: no threshold.",
        steps=(int(broken["step"]),),
    )


@cause(
    "target-changes",
    "Inputs and targets do not belong together",
    rank=41,
    why="what is asked has nothing to do with the inputs, and no network can learn it",
    figure="training_curves",
    falsified_by="The same row of the inputs comes with the same target in two epochs.",
    remedy=Remedy(
        "order = torch.randperm(len(x))\n"
        "x, y = x[order], y[order]  # one order for both; a DataLoader of TensorDataset(x, y) keeps them together"
    ),
    needs_training=True,
    is_independent=True,
    limits={
        "pairs": Limit(30, "targets of inputs that came again"),
        "agreement": Limit(0.2, "Cohen's kappa of classes, correlation of numbers: 0 if unrelated; 30% of noise 0.4"),
    },
)
def check_changes(facts: Facts) -> Finding | str | None:
    """Inputs that came again were to be something else, as where inputs and labels are shuffled apart."""
    found = facts.signals.get("repeated_examples") or {}
    agreement = found.get("agreement")
    if agreement is None or found["pairs"] < limit("pairs"):
        return "too few examples came again with a target that the gradient shows"
    if facts.has_opponent or facts.has_several_optimizers or facts.is_policy or facts.has_open_loss:
        return "another network, or a reward, decides on the targets"
    if not agreement < limit("agreement") or facts.state not in ("failing", "unknown"):
        return None  # a network that learns has tasks, or a state, that are no inputs
    return facts.finding(
        "target-changes",
        f"{found['pairs']:,} examples came again with the same inputs and another target: these agree with those of "
        f"the first time by {number(agreement)}, where 1 is the same and 0 is drawn at random. Inputs and targets are "
        "shuffled apart from each other, or the target is made anew each time.",
        Evidence("agreement of the targets of the same inputs", agreement),
        Evidence("examples that came again", found["pairs"], "examples"),
        threshold=f"Flagged below {threshold_text('agreement')}, from {threshold_text('pairs')} on.",
    )


@cause(
    "target-is-output",
    "The target is an output of the model",
    rank=42,
    why="the loss does not know what is right",
    figure="training_curves",
    falsified_by="target.requires_grad is False where the loss is called.",
    remedy=Remedy(
        "scores = torch.cat([positive, negative])\n"
        "labels = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])\n"
        "loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)"
    ),
    severity="certain",
    is_independent=True,
)
def check_is_output(facts: Facts) -> Finding | str | None:
    """The target of a binary cross-entropy or divergence is computed by the model itself, with its gradient.

    Or that of an error is a number plus the value of the next state. Beside a loss with labels it is a penalty, as on
    the entropy of predictions.
    """
    loss = facts.loss_graph
    if not loss:
        return _NO_GRAPH
    if loss.get("bootstraps"):
        return _undetached(facts)
    name = str(loss.get("target_of") or "")
    if not name.startswith(_BINARY) or loss.get("has_labels"):
        return None
    return facts.finding(
        "target-is-output",
        f"The target of the loss ({name}) is an output of the model, too, and gets a gradient: nothing says which "
        "output should be high, and which low. For targets outside of 0 to 1 this loss has no lower bound.",
        Evidence("targets that are computed by the model", 1.0),
        threshold="Exact: no threshold.",
    )


def _undetached(facts: Facts) -> Finding:
    return facts.finding(
        "target-is-output",
        "The loss compares an output with a number plus another output, as a value with a reward plus the best value "
        "of the next state, and gradients go through both: the network learns to make the next state worth what the "
        "present one is, instead of the other way round.",
        Evidence("targets that are computed by the model", 1.0),
        title="The target gets a gradient",
        threshold="Exact: no threshold.",
        severity="error" if facts.state == "failing" else "note" if facts.state == "trained" else "warning",
        remedy=Remedy("target = (reward + gamma * next_value).detach()  # or computed under torch.no_grad()"),
    )


@cause(
    "target-not-binary",
    "Targets of a binary cross-entropy are not 0 or 1",
    rank=41.5,
    why="the loss has no lower bound, or asks for what is no probability",
    figure="training_curves",
    falsified_by="y.min() is 0 or more and y.max() is 1 or less, for the targets that the loss is given.",
    remedy=Remedy(
        "print(y.unique())  # 0 and 1 are expected\n"
        "# negatives that are drawn twice have labels 0, 1 and 2: RandomLinkSplit(add_negative_train_samples=False)"
    ),
    severity="certain",
    is_independent=True,
    limits={"outside": Limit(0.01, "share of the targets that are below 0 or above 1")},
)
def check_binary(facts: Facts) -> Finding | str | None:
    """Targets of a binary cross-entropy with logits below 0 or above 1: with them, it falls for ever."""
    found = facts.output.get("binary_targets")
    if not found:
        return "the loss is no binary cross-entropy with logits, or its targets are 0 and 1"
    if not found["outside"] > limit("outside"):
        return None
    return facts.finding(
        "target-not-binary",
        f"{percent(found['outside'])} of the targets of the binary cross-entropy are below 0 or above 1; they are from "
        f"{number(round(found['low'], 3))} to {number(round(found['high'], 3))}. For these the loss falls for ever as "
        "outputs grow, which outweighs what is asked of the others.",
        Evidence("share of the targets that are below 0 or above 1", found["outside"]),
        Evidence("largest target", found["high"]),
        Evidence("smallest target", found["low"]),
        threshold=f"Flagged above {threshold_text('outside')}.",
    )


@cause(
    "advantage-not-detached",
    "The advantage gets a gradient",
    rank=43,
    why="the critic is told to make the policy's loss small instead of to foresee rewards",
    figure="training_curves",
    falsified_by="advantage.requires_grad is False where it multiplies the log-likelihood.",
    remedy=Remedy(
        "advantage = (returns - value).detach()  # in the loss of the policy; that of the critic keeps value"
    ),
    severity="warning",
    is_independent=True,
)
def check_advantage(facts: Facts) -> Finding | str | None:
    """A log-likelihood is multiplied by a difference of rewards and another output, which gets a gradient by that."""
    if not facts.loss_graph:
        return _NO_GRAPH
    if not facts.loss_graph.get("weighs_by_another"):
        return None
    return facts.finding(
        "advantage-not-detached",
        "The loss multiplies a log-likelihood by what is computed from another output of the model, as the advantage "
        "from the value, and that output gets a gradient there: it moves to where the product is small, the value "
        "rises, and the policy ends in one action or in none.",
        Evidence("outputs that weigh a log-likelihood and get a gradient by it", 1.0),
        threshold="Exact: the graph of the loss.",
    )


@cause(
    "loss-unbounded",
    "The loss has no lower bound",
    rank=44,
    why="outputs grow instead of becoming right",
    figure="training_curves",
    falsified_by="The loss has a lowest value, and training approaches it.",
    remedy=Remedy("print(loss, out.abs().max())  # both grow: look for a flipped sign, or bound the outputs"),
    severity="certain",
    is_independent=True,
    limits={
        "bottomless": Limit(100, "times the size of the first loss; log-likelihoods of densities reach a few times it"),
    },
)
def check_unbounded(facts: Facts) -> Finding | str | None:
    """The negative log-likelihood of outputs that are no log-probabilities, or a loss that falls without end.

    So does minus an error: one that is never negative, times a negative number.
    """
    if facts.has_several_optimizers:
        return "there are several optimizers, each with a loss of its own"
    output, operations = facts.output, facts.loss_operations
    is_raw = "NllLoss" in operations and operations.isdisjoint(("LogSoftmax", "Log"))
    high, low = float(output.get("max", 0.0)), float(output.get("min", 0.0))
    if is_raw and output.get("criterion") == "nll" and (high > 1 or (high > 0 and low < 0)):
        return facts.finding(
            "loss-unbounded",
            "nll_loss expects log-probabilities, which are never positive, but gets raw outputs: it is minus the "
            "output of the right class, which any step can lower further by scaling the output up.",
            Evidence("largest output", high),
            threshold="Exact: log-probabilities are at most 0.",
            remedy=Remedy("return torch.log_softmax(x, -1)  # in forward; or cross_entropy instead of nll_loss"),
        )
    if found := _flipped_sign(facts):
        return found
    losses = facts.finite_loss
    last, scale = median(losses[-max(3, len(losses) // 10) :]), max(1.0, abs(facts.first_loss))
    middle = median(losses[len(losses) // 2 :])
    if len(losses) < limit("steps") or not last < -limit("bottomless") * scale or not last < 1.05 * middle:
        return None
    return facts.finding(
        "loss-unbounded",
        f"The loss is {number(last)} and still falls: a loss without a lowest value is lowered by outputs that grow "
        "without end, whatever the targets are (a flipped sign, a product that is maximized).",
        Evidence("loss at the end over its size at the start", last / scale),
        threshold=f"Flagged below minus {threshold_text('bottomless')}.",
        severity="warning",
    )


def _flipped_sign(facts: Facts) -> Finding | None:
    """What is minimized is minus an error, or what is maximized is one: a cross-entropy, or any that has diverged."""
    loss, is_up = facts.loss_graph, facts.maximizes
    kind = str(loss.get("multiple_of") or "")
    is_sure = not is_up or kind.endswith("cross-entropy") or facts.is_non_finite
    if not kind or not is_sure or bool(loss.get("is_negative")) == is_up or facts.maximizes_on_purpose:
        return None
    if is_up and facts.state not in ("failing", "unknown"):
        return None
    what = f"maximized (maximize=True) is a {kind}" if is_up else f"minimized is a {kind} times a negative number"
    fix = remedy.set_in_optimizer(facts, "maximize", False) if is_up else ""
    return facts.finding(
        "loss-unbounded",
        f"What is {what}. It is never negative itself, so the network learns to be as wrong as it can, and that has no "
        "end.",
        Evidence("loss at the end", facts.final_loss),
        title="The loss is maximized" if is_up else "The sign of the loss is flipped",
        threshold="Exact: the operations of the loss, its sign, and the direction of the optimizer.",
        severity="warning" if is_up and facts.state == "unknown" else None,
        remedy=Remedy(fix or "loss = -loss  # before loss.backward(); or remove the minus from its definition"),
        falsified_by="The loss is no such error, or falls to zero where predictions are right.",
    )


@cause(
    "target-scale",
    "Targets are far from zero",
    rank=125,
    why="all steps are spent on the mean of the targets",
    figure="training_curves",
    falsified_by="With standardized targets the loss, over their variance, stays as high.",
    remedy=Remedy("y = (y - y.mean(0)) / y.std(0)  # the targets, before training; undo it for predictions"),
    limits={
        "target-offset": Limit(
            3, "mean of the targets over their standard deviation; standardized targets 0, counts and prices about 1"
        ),
        "above-variance": Limit(1, "times the variance of the targets: the loss of a constant that is their mean"),
        "uneven-columns": Limit(
            30, "times the standard deviation of one column of the targets is that of another, whose errors count 900"
        ),
        "unlearned": Limit(
            0.8, "of its standard deviation is the error in a column: hardly more than its mean is known"
        ),
    },
)
def check_scale(facts: Facts) -> Finding | str | None:
    """Targets that are far from zero, relative to their spread, or whose columns are of very different size.

    Of a squared error the slope at the output shows them, and the loss is above their variance, or errors in a small
    column stay as large as those of its mean. Of an absolute error its sign shows that outputs have not come near them.
    """
    far = _far_from_zero(facts)
    return far if isinstance(far, Finding) else _on_one_side(facts) or _of_uneven_columns(facts) or far


def _on_one_side(facts: Facts) -> Finding | None:
    """Every target is above its output, or below, in all steps that were looked at: outputs are still on their way."""
    side, spread = facts.output.get("side_of_targets"), (facts.output.get("last_rows") or {}).get("size", math.nan)
    operations = facts.loss_operations
    is_absolute = operations <= _ABSOLUTE and (operations >= {"Abs", "Sub"} or not operations.isdisjoint(_HUBER))
    if not side or not is_absolute or facts.is_preflight:
        return None
    if facts.step_count < limit("steps") or not facts.last_loss > limit("target-offset") * spread:
        return None
    return facts.finding(
        "target-scale",
        f"Every target is {side} its output in all steps that were looked at, and the loss, an absolute error, is "
        f"still {number(facts.last_loss / spread)} times the standard deviation of the "
        "outputs: all that the network learns is the way to the mean of the targets.",
        Evidence("loss at the end over the standard deviation of the outputs", facts.last_loss / spread),
        threshold=f"Flagged above {threshold_text('target-offset')}.",
        severity="error" if facts.state == "failing" else "warning",
        falsified_by="Some target of each batch is above its output, and some below.",
    )


def _of_uneven_columns(facts: Facts) -> Finding | None:
    """A column of the targets that is small beside another one, and that the network has not learned."""
    found = facts.output.get("columns") or {}
    spread, error = (np.array(found.get(name, ()), float) for name in ("spread", "error"))
    if not facts.target_variance > 0 or len(spread) < 2 or not spread.min() > 0 or facts.is_preflight:
        return None
    missed = (spread * limit("uneven-columns") < spread.max()) & (error > limit("unlearned") * spread)
    if not missed.any():
        return None
    least, most = int(np.flatnonzero(missed)[spread[missed].argmin()]), int(spread.argmax())
    return facts.finding(
        "target-scale",
        f"Column {most} of the targets has a standard deviation of {number(spread[most])}, and column {least} one of "
        f"{number(spread[least])}: the squared error is nearly all of column {most}. At the end the error in column "
        f"{least} is {number(error[least] / spread[least])} times its standard deviation, as that of a constant.",
        Evidence("standard deviation of a column over that of another", float(spread[most] / spread[least])),
        Evidence("error in the small column over its standard deviation", float(error[least] / spread[least])),
        title="Columns of the targets are of very different size",
        threshold=f"Flagged above {threshold_text('uneven-columns', 'unlearned')}.",
        severity="warning",
        falsified_by=f"With standardized targets the error in column {least} stays as high.",
    )


def _far_from_zero(facts: Facts) -> Finding | str | None:
    variance, mean_square = facts.target_variance, float(facts.output.get("implied_square", math.nan))
    if not variance > 0 or not mean_square > 0:
        return "the loss is no mean squared error of the output"
    offset = math.sqrt(max(0.0, mean_square - variance) / variance)
    if facts.state not in ("failing", "untrained") or not offset > limit("target-offset") or facts.is_learning:
        return None
    if not facts.last_loss > limit("above-variance") * variance:
        return None
    return facts.finding(
        "target-scale",
        f"The targets are around {number(math.sqrt(max(0.0, mean_square - variance)))}, {number(offset)} times their "
        f"standard deviation of {number(math.sqrt(variance))}: what the network learns is part of their mean, and the "
        f"loss is {number(facts.last_loss / variance)} times their variance.",
        Evidence("mean of the targets over their standard deviation", offset),
        Evidence("loss at the end over the variance of the targets", facts.last_loss / variance),
        threshold=f"Flagged above {threshold_text('target-offset', 'above-variance')}.",
        remedy=_rescale_output(facts, math.sqrt(variance)),
    )


def _rescale_output(facts: Facts, scale: float) -> Remedy | None:
    """Outputs in units of the targets; None if the mean of the targets, with its sign, was not recorded."""
    shift = facts.output.get("implied_mean")
    if shift is None:
        return None
    rounded = {"scale": float(f"{scale:.4g}"), "shift": float(f"{shift:.4g}")}
    fix = Action("rescale_output", rounded)
    rate, factor = remedy.initial_learning_rate(facts), rounded["scale"] ** -2  # of gradients of standardized targets
    if facts.is_adam or not rate > 0 or 1 / _SAME_UNITS < factor < _SAME_UNITS:
        return Remedy(fix)
    return Remedy(fix, *remedy.change_learning_rate(facts, remedy.round_to_one_digit(rate * factor)).fixes)


@cause(
    "class-imbalance",
    "One class is predicted for all",
    rank=294,
    why="a constant has a low loss where one class is frequent",
    figure="training_curves",
    falsified_by="With weights of classes the rare ones are not predicted either.",
    needs_training=True,
    limits={
        "imbalance-share": Limit(0.8, "share of the most frequent class: a constant is right in four of five"),
        "as-share": Limit(0.03, "between the logged accuracy and the share of the most frequent class"),
        "separates": Limit(
            0.6, "AUC of the frequent class on a batch: one half is chance; it learns to tell them apart"
        ),
    },
)
def check_imbalance(facts: Facts) -> Finding | str | None:
    """Most labels are of one class, and that class is predicted for every example."""
    labels = np.asarray(facts.output.get("labels") or [], float)
    predicted = facts.output.get("predicted_share")
    if predicted is None or labels.sum() < limit("labels"):
        return "labels or predictions were not seen"
    share = float(labels.max() / labels.sum())
    if facts.state not in ("failing", "partly") or not limit("imbalance-share") < share < 1 or predicted < 1:
        return None
    separation = float(facts.output.get("separation", math.nan))
    is_far = facts.tells_rare_apart or not facts.progress < limit("fall")
    tells_apart = is_far or not separation <= limit("separates")
    if tells_apart and facts.state == "partly":
        return None  # it learns to tell rare ones, and only the threshold is to be chosen
    logged = [series.iloc[-1] for name in scores(facts.run).get("accuracy", ())
              if len(series := logged_series(facts.run, name).dropna())]  # fmt: skip
    if any(abs(value - share) > limit("as-share") for value in logged):
        return None
    count = len(labels)
    weights = [round(float(labels.sum() / (count * each)), 3) if each else 1.0 for each in labels]
    fix = f"loss = torch.nn.functional.cross_entropy(out, y, weight=torch.tensor({weights}))"
    if facts.output.get("criterion") == "bce-logits":
        ratio = labels[0] / max(1.0, labels[1])
        loss = "torch.nn.functional.binary_cross_entropy_with_logits"
        fix = f"loss = {loss}(out, y, pos_weight=torch.tensor({ratio:.3g}))"
    accuracy = f" Its accuracy of {percent(logged[0])} is that of a constant." if logged else ""
    if separation > limit("separates"):
        accuracy += " Yet outputs tell the classes apart: a lower threshold finds the rare ones."
    return facts.finding(
        "class-imbalance",
        f"{percent(share)} of the labels are of class {int(labels.argmax())}, and at the end this class is predicted "
        f"for every example.{accuracy}",
        Evidence("share of the most frequent class", share),
        Evidence("share of the most frequent prediction", float(predicted)),
        Evidence("AUC of the frequent class against the others", separation),
        threshold=f"Flagged above {threshold_text('imbalance-share')}.",
        severity="warning",
        remedy=Remedy(f"{fix}  # and look at balanced accuracy or average precision"),
    )


@cause(
    "labels-inverted",
    "The scores are in the opposite order",
    rank=47,
    why="a network that learned the opposite of what is asked is worth no other remedy",
    figure="training_curves",
    falsified_by="With minus the score, or one minus the labels, the AUC on the same data is no better.",
    remedy=Remedy(
        "# compare the labels of the loss with those of the evaluation: which one is positive?\n"
        "# a distance is small for pairs that belong together: evaluate -distance"
    ),
    severity="warning",
    needs_training=True,
    is_independent=True,
    limits={
        "inverted": Limit(0.3, "AUC or accuracy; 0.5 without information, inverted labels 0 to 0.2"),
        "rose-accuracy": Limit(0.05, "rise of the accuracy of pairs, while the loss fell: that of many classes rises"),
    },
)
def check_inverted(facts: Facts) -> Finding | str | None:
    """The loss falls and the AUC ends far below one half: labels of training and evaluation are opposite.

    Of two classes, the accuracy shows it, too, if the loss has fallen far: then outputs tell them apart. So it does of
    pairs, where it does not rise though the loss that compares outputs falls.
    """
    names = [*scores(facts.run).get("AUC", ())]
    accuracies = scores(facts.run).get("accuracy", ()) if facts.state == "trained" else ()
    if facts.class_count in (1, 2):
        names += accuracies
    logged = {name: logged_series(facts.run, name).dropna() for name in names}
    logged |= {name: values for name, values in _of_pairs(facts, accuracies) if name not in names}
    ends = {name: median(values.to_numpy(float)[-3:]) for name, values in logged.items() if len(values)}
    if not ends:
        return "no AUC was logged, nor the accuracy of two classes in a training whose loss has fallen far"
    name = min(ends, key=ends.__getitem__)
    has_fallen = facts.last_loss < facts.first_loss and facts.state != "untrained"
    if not ends[name] < limit("inverted") or not has_fallen:
        return None
    return facts.finding(
        "labels-inverted",
        f"The loss fell from {number(facts.first_loss)} to {number(facts.final_loss)}, and {name} is "
        f"{number(ends[name])}, far below one half: the scores tell the classes apart, in the opposite order. Either "
        "the labels of the loss are inverted, or the score that is evaluated has the wrong sign.",
        Evidence(f"{name}, median of the last three", ends[name]),
        threshold=f"Flagged below {threshold_text('inverted')}.",
    )


def _of_pairs(facts: Facts, names: Iterable[str]) -> Iterator[tuple[str, "pd.Series[float]"]]:
    """Accuracies of a loss that compares outputs without classes, which did not rise, as those of many classes do."""
    operations = facts.loss_operations
    if not facts.signals.get("compares_outputs") or not operations.isdisjoint(("NllLoss", "LogSoftmax")):
        return
    for name in names:
        values = logged_series(facts.run, name).dropna()
        if len(values) and median(values.to_numpy(float)[-3:]) < values.iloc[0] + limit("rose-accuracy"):
            yield name, values


@cause(
    "target-leakage",
    "The model sees what it is to predict",
    rank=48,
    why="the loss falls to nothing by copying, and generation fails",
    figure="training_curves",
    falsified_by="The output at a time does not change if later tokens of the input do.",
    remedy=Remedy(
        "mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])  # a causal mask\n"
        "x = encoder(x, mask=mask, is_causal=True)  # of one direction, if it is a recurrent network"
    ),
    severity="warning",  # what follows may be the target by design, of a network that is not to generate
    is_independent=True,
    limits={
        "leaks": Limit(0.01, "change of outputs if later tokens change, over their spread; causal ones 0 to 1e-5"),
        "copied": Limit(
            0.1, "of the loss of a constant is left where tokens are copied; more if they shift in the model"
        ),
    },
)
def check_leakage(facts: Facts) -> Finding | str | None:
    """The target is the next token of the input, and the output depends on it: there is no causal mask."""
    change = facts.dependence_on_future
    if change is None:
        return _attention_ahead(facts)
    if isinstance(change, str):
        return change
    if not change > limit("leaks"):
        return None
    return facts.finding(
        "target-leakage",
        "The target at each time is the next token of the input, and the output changes with later tokens: the model "
        "can copy it (attention without a causal mask, or a recurrent network of both directions).",
        Evidence("largest change of earlier outputs if later tokens change, over their standard deviation", change),
        threshold=f"Flagged above {threshold_text('leaks')}.",
    )


def _own_token(facts: Facts, lengths: Iterable[str]) -> Finding:
    """The target is what the model is given, though attention has a causal mask, as of one that is to generate."""
    return facts.finding(
        "target-leakage",
        f"The target at each time is the token that the model is given there, though attention "
        f"({join_names([*map(short, lengths)], 3)}) reads no later ones, as in a model that is to predict them: it "
        "learns to copy, and the targets are to be shifted by one.",
        Evidence("targets that are the token at the same place", 1.0),
        title="The target is the token that is given",
        threshold=f"Flagged below {threshold_text('copied')}.",
        remedy=Remedy(
            "out = model(tokens[:, :-1])  # without the last one, and targets without the first one\n"
            "loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())"
        ),
        falsified_by="The targets are other tokens than those that the model is given at the same places.",
    )


def _attention_ahead(facts: Facts) -> Finding | str | None:
    """While training: targets are next tokens of the only tokens that are given, and attention reads later ones."""
    is_next = facts.output.get("is_next_token")
    if is_next is None:
        return "the output has no row for each token of the input"
    lengths: dict[str, int] = facts.signals.get("attention_ahead") or {}
    is_copied = facts.last_loss < limit("copied") * facts.chance_loss
    if facts.output.get("is_own_token") and lengths and not any(lengths.values()) and is_copied:
        return _own_token(facts, lengths)
    ahead = {name: length for name, length in lengths.items() if length}
    if not is_next or not ahead:
        return None
    return facts.finding(
        "target-leakage",
        "The target at each time is the next token of the input, and attention "
        f"({join_names([*map(short, ahead)], 3)}) reads all {max(ahead.values())} tokens, later ones, too: there is no "
        "causal mask, so the model can copy what it is to predict, which is not there when it generates. "
        "It is meant where each token is to be described from both sides.",
        Evidence("layers whose attention reads later tokens", len(ahead), "layers"),
        threshold="Exact: the last coefficient of the last time but one is not zero.",
    )

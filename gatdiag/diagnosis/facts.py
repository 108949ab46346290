"""A run as the checks need it: how training went, norms by layer and by step. Computed on first access."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag.diagnosis.causes import CAUSES, Cause
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy, Severity
from gatdiag.diagnosis.fixes import suit
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit
from gatdiag.diagnosis.training import Course, Floats, State, judge_by_scores, judge_course, last_level
from gatdiag.diagnosis.wording import describe_range, number
from gatdiag.names import is_mask
from gatdiag.quantities import HEALTHY, HEALTHY_RANGE, TableName
from gatdiag.roles import FEATURE, ROOT, is_conv
from gatdiag.run import Run
from gatdiag.summary import (
    compared_score,
    is_of_checkpoints,
    last_values,
    logged_series,
    loss_name,
    matrices,
    score_names,
    scores,
    series_of,
)

declare_limits(
    {
        "kept": Limit(0.9, "share of the loss of the best constant prediction that is gone, from the first step on"),
        "same-loss": Limit(0.5, "relative difference of the loss and the cross-entropy of its rows with a gradient"),
        "pooled": Limit(0.25, "of the rows that the first convolution is given: fewer are clusters of its nodes"),
        "few": Limit(10, "rows: of the clusters of one graph, rank and differences are small whatever the network is"),
        "together": Limit(0.5, "share of the recorded steps in which all optimizers move their parameters"),
        "spare-rows": Limit(0.1, "of an embedding's rows: tokens that are never a target"),
        "task-changes": Limit(3, "times the first size of inputs, or number of rows, or one over it; usual: 1.2"),
        "task-spoiled": Limit(1e4, "the same: data that are divided anew in each step change by more"),
        "auc": Limit(0.92, "AUC that is high, whatever it was at the start: random weights 0.5 to 0.85"),
    }
)

_SEVERITY: Final[Mapping[State, Severity]] = {
    "failing": "error", "partly": "warning", "unknown": "warning", "trained": "note", "untrained": "error",
}  # fmt: skip
_OF_ROWS: Final = ("effective_rank", "relative_mu")  # that compare the rows of an output
BY_HAND: Final = "weights change without a torch.optim.Optimizer: call recorder.step() before they do, in each step"
_EARLY: Final = 30  # steps whose overshoot is known
_ROUNDING: Final = 1e-10  # of the first loss: the variance of targets that are all the same
_GRADIENT_NORMS: Final = ("gradient_norm", "gradient_norm_before_clipping")
_GRAPH_LEVEL: Final = ("Linear", "Sequential")  # kinds of layers that may follow a pooling
_LIKELIHOODS: Final = ("NllLoss", "LogSoftmax", "Logsumexp")
_FIRST: Final = 10  # losses, of one of which the gradient shows the cross-entropy
_GENERATED: Final = ("GraphModule", "RecursiveScriptModule", "ScriptModule", "TopLevelTracedModule")  # by torch
_COMPUTED: Final = re.compile(
    r"(^|\.)parametrizations\.|(weight|bias)\w*_(orig|g|v)$"
)  # what a weight is computed from


@dataclass(frozen=True)
class Facts:
    """What the checks look at.

    Attributes:
        run: The run.
        is_preflight: The run holds the first steps of a copy, before training; see `gatdiag.preflight`.
        mixing: Before training: how much the output of one example, or node, depends on others; see
            `gatdiag.structure.mixing`. None if there is nothing to compare, or the reason why it is not known.
        dependence_on_future: How far outputs change with later tokens, where the target is the next token; None if that
            was not asked, as only `gatdiag.preflight` does, or the reason why it is not known.
    """

    run: Run
    is_preflight: bool = False
    mixing: Mapping[str, Any] | str | None = None
    dependence_on_future: float | str | None = None

    # --- what was recorded --------------------------------------------------------------------------------------------

    @cached_property
    def is_of_checkpoints(self) -> bool:
        """The run was made from saved checkpoints, without the steps between them."""
        return is_of_checkpoints(self.run)

    @cached_property
    def signals(self) -> Mapping[str, Any]:
        """What the recorder noted once: inputs, outputs, the autograd graph; empty in runs without it."""
        return self.run.meta.get("signals") or {}

    @cached_property
    def inputs(self) -> list[dict[str, Any]]:
        """The recorder's notes on the model's floating-point inputs but masks; norms that overflowed are infinite."""
        unknown = {**dict.fromkeys(("largest_column", "smallest_column", "row_norm"), math.inf), "relative_mu": 1.0}
        found = [one for one in self.signals.get("inputs", []) if not self._masks(one)]
        return [unknown | {name: value for name, value in one.items() if value is not None} for one in found]

    def _masks(self, one: Mapping[str, Any]) -> bool:
        """An input masks others: minus infinity is all that is not finite in it, and did not break the step it came in.

        As features, such as the logarithm of zero, it would.
        """
        if not one["non_finite"] or one.get("negative", 0) < one["non_finite"]:
            return False
        return (
            is_mask(one["name"])
            or self.run.meta["first_non_finite"] is None
            or (self.steps_until_broken != one.get("step", 0))
        )

    @cached_property
    def output(self) -> dict[str, Any]:
        """The recorder's notes on the model's output and on dL/dout, without missing values."""
        return {name: value for name, value in self.signals.get("output", {}).items() if value is not None}

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """The layers that took part in the forward pass, in order.

        Parameters of the model itself, such as the embedding of a virtual node, are no layer beside others.
        """
        return [layer for layer in self._used_layers if layer["name"] != ROOT] or self._used_layers

    @property
    def _used_layers(self) -> list[dict[str, Any]]:
        return [layer for layer in self.run.meta["structure"]["layers"] if layer.get("executed") is not False]

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Parameter -> its entry in the structure."""
        return {p["name"]: p for layer in self.run.meta["structure"]["layers"] for p in layer["parameters"]}

    @cached_property
    def trainable(self) -> dict[str, dict[str, Any]]:
        """Those that require gradients."""
        return {name: one for name, one in self.parameters.items() if one.get("trainable", True)}

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers, each with the optimizer's class as "class"."""
        return [{**group, "class": one["class"]} for one in self.run.meta["optimizers"] for group in one["groups"]]

    @cached_property
    def in_optimizer(self) -> set[str]:
        """The parameters that some optimizer holds."""
        return {name for group in self.groups for name in group.get("parameters") or []}

    @cached_property
    def not_in_optimizer(self) -> list[str]:
        """Trainable parameters that the loss depends on, as far as it is known, and that no optimizer holds."""
        known = {*self.in_optimizer, *self.signals.get("unreached", ())}
        # without a gradient, its turn in a layer-wise training may not have come
        used = {name: one for name, one in self.trainable.items() if name not in self.without_gradient}
        return [name for name, one in used.items() if known.isdisjoint(one.get("names") or [name])]

    def setting(self, name: str) -> float:
        """The largest number of a setting, such as "momentum", over all groups; 0 if there is none."""
        values = (group.get(name) for group in self.groups)
        return max((float(value) for value in values if isinstance(value, int | float)), default=0.0)

    @cached_property
    def decays(self) -> Floats:
        """The weight decay of each parameter in the table `parameters`: that of its group, 0 in none."""
        found = {
            name: float(decay)
            for group in self.groups
            for name in group.get("parameters") or self.parameter_names
            if isinstance(decay := group.get("weight_decay"), int | float)
        }
        return np.array([found.get(name, 0.0) for name in self.parameter_names])

    @cached_property
    def has_several_optimizers(self) -> bool:
        """Several optimizers take steps, as in adversarial training, each with gradients and labels of its own."""
        return len(self.run.meta["optimizers"]) > 1

    @cached_property
    def held_by_optimizer(self) -> list[set[str]]:
        """The parameters of the model that each optimizer holds."""
        optimizers = self.run.meta["optimizers"]
        return [{name for group in one["groups"] for name in group.get("parameters") or []} for one in optimizers]

    @cached_property
    def takes_turns(self) -> bool:
        """Optimizers of different parameters step one after another all along, as in adversarial training."""
        held = [names for names in self.held_by_optimizer if not names.isdisjoint(self.moved)]
        if len(held) < 2 or any(not one.isdisjoint(other) for one, other in combinations(held, 2)):
            return False
        columns = [[name in names for name in self.parameter_names] for names in held]
        moves = np.array([(self.update_ratios[:, which] > 0).any(axis=1) for which in columns])
        first, last = np.array_split(moves, 2, axis=1)
        lasts = (first.any(axis=1) == last.any(axis=1)).all()
        return bool(lasts and moves.all(axis=0).mean() < limit("together"))

    @property
    def has_opponent(self) -> bool:
        """Another network is trained against this one.

        Optimizers take turns, the loss is computed by a network, or what is given is sometimes data and sometimes what
        a network computes.
        """
        return self.takes_turns or any(self.signals.get(sign) for sign in ("loss_weights", "is_critic"))

    @property
    def predicts_tokens(self) -> bool:
        """The classes are the tokens that the model is given, as those of a language: it embeds as many.

        Large tables may have a few rows more, as for a mask.
        """
        classes = len(self.output.get("labels") or [])
        tables = (p["shape"] for one in self.layers if one.get("kind") == "Embedding" for p in one["parameters"])
        spare = [shape[0] - classes for shape in tables if shape]
        return classes > 1 and any(0 <= rows <= limit("spare-rows") * classes for rows in spare)

    @property
    def loss_graph(self) -> dict[str, Any]:
        """What was seen between output and loss; empty if nothing was."""
        return self.signals.get("loss_graph") or {}

    @property
    def loss_operations(self) -> frozenset[str]:
        """The operations between output and loss."""
        return frozenset(self.loss_graph.get("operations", ()))

    @property
    def is_policy(self) -> bool:
        """The loss weighs likelihoods with numbers of both signs, or negative ones, as rewards of a policy are."""
        is_weighed = "Mul" in self.loss_operations and not self.loss_operations.isdisjoint(_LIKELIHOODS)
        weighs = is_weighed and not self.loss_graph.get("multiple_of")
        return bool(weighs and len(self.finite_loss) and self.finite_loss.min() < 0)

    @property
    def learns_nothing_but_a_penalty(self) -> bool:
        """The loss holds a penalty on weights, and its cross-entropy is that of a constant prediction at the end."""
        entropy = _entropy(self.output.get("labels") or [])
        return bool(self.loss_graph.get("penalizes_weights") and self._ends_at(entropy))

    @property
    def learns_nothing_of_labels(self) -> bool:
        """The loss has other parts, and its cross-entropy is that of a constant prediction at the end."""
        entropy = self._entropy_of_labels
        is_other = self.has_opponent or self.has_several_optimizers or self.predicts_tokens
        if is_other or not (self._ends_at(entropy) and entropy > 0) or not self._has_other_parts(entropy):
            return False
        return not float(self.output.get("separation", math.nan)) > limit("separates")

    def _ends_at(self, entropy: float) -> bool:
        """The cross-entropy at the end is that of a constant prediction."""
        return float(self.output.get("last_cross_entropy", math.nan)) >= (1 - limit("fall")) * entropy

    @property
    def maximizes(self) -> bool:
        """An optimizer goes up the slope of what was logged as the loss."""
        return any(group.get("maximize") for group in self.groups)

    @property
    def maximizes_on_purpose(self) -> bool:
        """The loss was low before it was maximized, as to find an attack or to forget, or another network opposes."""
        is_low = self.first_loss < (1 - limit("begun")) * self.chance_loss
        return self.maximizes and (is_low or self.has_opponent)

    @property
    def has_open_loss(self) -> bool:
        """The loss compares outputs with each other, or is computed of parts of a model that is not called itself."""
        return bool(self.signals.get("compares_outputs") or (self.signals and not self.output))

    @cached_property
    def is_adam(self) -> bool:
        """The optimizer is a variant of Adam (it has betas), whose steps do not scale with the gradient."""
        return any("betas" in group for group in self.groups)

    @cached_property
    def has_convolutions(self) -> bool:
        """The network has a graph convolution."""
        return any(is_conv(layer) for layer in self.layers)

    @cached_property
    def mixes_nodes(self) -> bool:
        """Most layers sum over neighbors: by graph convolutions, or by products that the model writes out."""
        return self.has_convolutions or self.signals.get("propagations", 0) >= limit("deep")

    @cached_property
    def has_residual_streams(self) -> bool:
        """Some of the laws belong to residual streams."""
        return any(law.get("kind") == "stream" for law in self.laws)

    @cached_property
    def laws(self) -> list[dict[str, Any]]:
        """The entries of the recorded laws, each of which stands for several."""
        return list(self.run.meta["laws"]["found"])

    @cached_property
    def is_generated(self) -> bool:
        """The code of the forward pass was generated by torch, as by `torch.fx` or PyG's `to_hetero`."""
        return self.run.meta["model"] in _GENERATED

    @cached_property
    def is_reparametrized(self) -> bool:
        """Some weights are computed from parameters: by weight or spectral normalization, or pruning."""
        return any(map(_COMPUTED.search, self.parameters))

    # --- the loss -----------------------------------------------------------------------------------------------------

    @cached_property
    def step_count(self) -> int:
        """Number of optimizer steps."""
        return int(self.run.steps["step"].iloc[-1]) + 1 if len(self.run.steps) else 0

    @cached_property
    def loss(self) -> "pd.Series[float]":
        """The logged training loss by step."""
        name = loss_name(self.run)
        return logged_series(self.run, name) if name else pd.Series(dtype=np.float64)

    @cached_property
    def finite_loss(self) -> Floats:
        """Finite values of the loss."""
        values = np.asarray(self.loss, np.float64)
        return values[np.isfinite(values)]

    @cached_property
    def is_non_finite(self) -> bool:
        """The loss ended as NaN or infinite, or another value did and no loss was logged since."""
        noted = self.run.meta["first_non_finite"]
        last = int(self.loss.index[-1]) if len(self.loss) else self.step_count - 1
        is_lost = bool(len(self.loss)) and not math.isfinite(self.loss.iloc[-1])
        return is_lost or (noted is not None and int(noted["step"]) >= last)

    @cached_property
    def steps_until_broken(self) -> int:
        """Number of steps before the first NaN or infinity, or of all."""
        noted = self.run.meta["first_non_finite"]
        return self.step_count if noted is None else int(noted["step"])

    @cached_property
    def first_loss(self) -> float:
        """The first value of the loss; NaN without a loss."""
        return float(self.loss.iloc[0]) if len(self.loss) else math.nan

    @property
    def _labels(self) -> list[int]:
        """Rows of each class; none if a few gradients are those of a classification by coincidence."""
        is_other = self.output.get("criterion") == "" and self.output["criterion_share"] >= limit("criterion")
        return [] if is_other and not self.is_non_finite else self.output.get("labels") or []

    @property
    def _entropy_of_labels(self) -> float:
        """Cross-entropy of a prediction of their frequencies; NaN if there are none."""
        return _entropy(self._labels)

    @cached_property
    def class_count(self) -> int:
        """Number of classes, as far as it is known; 0 if nothing shows that this is a classification."""
        if self._labels:
            return len(self._labels)
        if self.has_many_labels or not any(kind == "accuracy" for kind in scores(self.run)):
            return 0
        shapes = [p["shape"] for layer in self.layers[-1:] for p in layer["parameters"] if p["role"] == FEATURE]
        return int(shapes[-1][0]) if shapes and len(shapes[-1]) == 2 else 0

    @property
    def has_many_labels(self) -> bool:
        """Each column of the output is a question of its own, as the gradient of a binary cross-entropy shows."""
        is_binary = str(self.output.get("criterion", "")).startswith("bce") and not self._labels
        return is_binary and self.output["criterion_share"] >= limit("criterion")

    @cached_property
    def chance_loss(self) -> float:
        """Loss of the best constant prediction: entropy of labels, variance of targets, or log of the class count.

        NaN for a loss that was ever negative, as neither cross-entropy nor squared errors are.
        """
        if len(self.finite_loss) and self.finite_loss.min() < 0:
            return math.nan
        if self.broadcast_loss > 0:
            return self.broadcast_loss
        entropy = self._entropy_of_labels
        if entropy == 0 and self._are_differences:
            return math.log(2) * self.loss_unit  # of pairs, of which the better one comes first
        if not math.isnan(entropy):
            return math.nan if self._has_other_parts(entropy) else entropy * self.loss_unit
        if (variance := self.target_variance) > _ROUNDING * self.first_loss and not self.has_open_loss:
            return variance
        if self.has_many_labels:
            return float(self.output.get("columns_entropy", math.nan))
        return math.log(self.class_count) if self.class_count > 1 else math.nan

    @property
    def _are_differences(self) -> bool:
        """The output is a difference of two scores, which a logistic loss asks to be positive; it reads no more."""
        is_difference = str(self.output.get("last_operation", "")).startswith("Sub")
        is_logistic = self.output.get("criterion") == "bce-logits"
        return is_difference and is_logistic and not self.signals.get("has_other_outputs")

    def _has_other_parts(self, entropy: float) -> bool:
        """The logged loss is a sum of the cross-entropy that its gradient shows, and of others.

        Outputs that are far too large saturate the softmax, so that the gradient shows less than there is, or shows
        nothing before a later step.
        """
        shown = float(self.output.get("first_cross_entropy", math.nan))
        is_usual, known = shown <= limit("jump") * entropy, shown * self.loss_unit
        is_all = bool(np.isclose(self.finite_loss[:_FIRST], known, rtol=1e-3).any())
        return is_usual and not is_all and self.first_loss > (1 + limit("same-loss")) * known

    @cached_property
    def broadcast_loss(self) -> float:
        """The part of the first loss that is left if all outputs equal the target that they share; NaN if none is.

        It is the variance of the targets if the loss compares each output with the targets of all nodes.
        """
        target = self.output.get("common_target")
        if target is None or target["loss"] is None or target["step"] not in self.loss.index:
            return math.nan
        if self.has_several_optimizers:
            return math.nan
        loss = float(self.loss[target["step"]])
        left = loss - float(target["loss"])
        return left if left > limit("broadcast") * loss else math.nan

    @cached_property
    def target_variance(self) -> float:
        """Variance of the targets of the inspected steps if the loss is a mean squared error; else NaN."""
        output = self.output
        implied, step = output.get("implied_mse"), int(output.get("implied_step", -1))
        if implied is None or step not in self.loss.index or not math.isclose(self.loss[step], implied, rel_tol=1e-2):
            return math.nan
        return float(output.get("target_variance", output.get("implied_variance", math.nan)))

    @cached_property
    def summed_rows(self) -> float:
        """What the loss is times the mean over its rows, as dL/dout shows: their number for a sum; 1 if not known."""
        if self.signals.get("has_scaled_loss"):
            return 1.0
        output = self.output
        if (scale := output.get("loss_scale")) is not None:
            return float(scale)
        count, implied, step = (
            output.get("implied_entries", 0),
            output.get("implied_mse"),
            output.get("implied_step", -1),
        )
        if implied is None or step not in self.loss.index:
            return 1.0
        return float(count) if math.isclose(self.loss[step] * count, implied, rel_tol=1e-2) else 1.0

    @cached_property
    def loss_unit(self) -> float:
        """What the logged loss is times the mean cross-entropy: the number of rows for a sum; 1 if it is not known."""
        first = float(self.output.get("first_cross_entropy", math.nan))
        known = (self.summed_rows, self.summed_rows * self.undivided_passes)
        return next(
            (unit for unit in known if math.isclose(self.first_loss, first * unit, rel_tol=limit("same-loss"))), 1.0
        )

    @cached_property
    def undivided_passes(self) -> float:
        """Number of backward passes for each step whose gradients are added up, each that of a mean; else 1."""
        loop = self.signals.get("loop") or {}
        passes = loop.get("backward_passes", 0) / max(1, loop.get("recorded_steps", 0))
        return max(1.0, passes) if self.summed_rows > 0.9 and not self.has_several_optimizers else 1.0

    @cached_property
    def baseline_loss(self) -> float:
        """The first loss or that of the best constant prediction, whichever is lower."""
        known = [value for value in (self.first_loss, self.chance_loss) if math.isfinite(value) and value > 0]
        return min(known) if known else math.nan

    @cached_property
    def last_loss(self) -> float:
        """Median of the finite losses of the last tenth of steps, or the last checkpoint's; NaN without a loss."""
        return median(self.finite_loss[-1:]) if self.is_of_checkpoints else last_level(self.finite_loss)

    @property
    def final_loss(self) -> float:
        """The last finite loss, which is what texts quote, as tables do; it is judged by `last_loss`."""
        return float(self.finite_loss[-1]) if len(self.finite_loss) else math.nan

    @cached_property
    def progress(self) -> float:
        """Share of `baseline_loss` that is gone at the end."""
        return 1 - self.last_loss / self.baseline_loss if self.baseline_loss > 0 else math.nan

    @cached_property
    def kept_progress(self) -> float:
        """Share of `chance_loss` that is gone at the end, if most was from the start: of a network trained before.

        NaN unless the loss is the cross-entropy that its gradient shows, not a part of it.
        """
        first = float(self.output.get("first_cross_entropy", math.inf)) * self.loss_unit
        was_trained = first <= (1 - limit("trained")) * self.chance_loss and math.isclose(
            self.first_loss, first, rel_tol=limit("same-loss")
        )
        return 1 - self.last_loss / self.chance_loss if was_trained else math.nan

    @cached_property
    def loss_jump(self) -> float:
        """The largest finite loss over the first, or over `baseline_loss` if that is higher."""
        if not len(self.finite_loss) or not self.baseline_loss > 0:
            return math.nan
        return float(self.finite_loss.max()) / max(self.baseline_loss, self.first_loss)

    @property
    def state(self) -> State:
        """How training went."""
        return self.course.state

    @property
    def moves_by_hand(self) -> bool:
        """No optimizer made a step, and the weights change: steps, and what happens in them, are not known."""
        return bool((self.signals.get("loop") or {}).get("weights_move"))

    @cached_property
    def course(self) -> Course:
        """How training went, and what shows it; see `judge_course`."""
        return self._course_at_once() or self._course_by_kind() or self._course_by_loss()

    def _course_at_once(self) -> Course | None:
        if self.is_preflight:
            return Course("untrained", "")
        if self.is_of_checkpoints:  # they show how far training came, but not whether it is over
            has_come_far = self.progress >= limit("trained") and not self.is_non_finite
            return Course("trained" if has_come_far else "unknown", "checkpoints hold no learning curve: record one")
        if not len(self.run.steps):
            return Course("unknown", "nothing was recorded")
        if self.moves_by_hand:
            return Course("unknown", BY_HAND)
        return Course("failing", "the loss became NaN or infinite") if len(self.loss) and self.is_non_finite else None

    def _course_by_kind(self) -> Course | None:
        """Of a loss that does not tell by its level alone."""
        is_long = self.step_count >= limit("steps")
        if self.learns_nothing_but_a_penalty and is_long:
            return Course("failing", "the loss but for the penalty on weights is that of a constant prediction")
        if self.learns_nothing_of_labels and is_long:
            chance = number(self._entropy_of_labels)
            what = f"the cross-entropy in the loss stays that of a constant prediction, {chance}"
            if self.last_loss <= (1 - limit("trained")) * self.first_loss:  # which may be all that can be learned
                return Course("unknown", f"{what}, while other parts fell, which may outweigh it: log a score of each")
            return Course("failing", f"{what}: of the loss, only other parts fall, which may outweigh it")
        if self.kept_progress >= limit("kept"):
            return Course("trained", "the loss was low from the start")
        if self.maximizes:
            reason = "the optimizer maximizes it, and how high it can get is not known: log a score"
            seen = self.score_shares if is_long and not self.maximizes_on_purpose else ()
            return judge_by_scores(Course("unknown", reason), self.finite_loss, seen)
        return None

    def _course_by_loss(self) -> Course:
        known = (1.0,) if self.kept_progress >= limit("trained") else self.score_shares
        return judge_course(
            self.finite_loss,
            self.step_count,
            chance=self.chance_loss,
            path=self.path,
            scores=known,
            is_open=self.has_open_loss,
            has_opponent=self.has_opponent,
            is_policy=self.is_policy,
            of_tokens=self.predicts_tokens,
            tells_apart=self.tells_rare_apart,
            changes=self.change_of_task,
        )

    @property
    def tells_rare_apart(self) -> bool:
        """Most labels are of one class, and a logged AUC says that it is told from others, as far as clicks can be."""
        is_told = min(self.auc_shares, default=0.0) > 2 * limit("separates") - 1
        return bool(is_told and max(self._labels, default=0) > limit("imbalance-share") * sum(self._labels))

    @cached_property
    def change_of_task(self) -> str:
        """Why losses do not compare: inputs, or their number, change in training, or steps go down a rising loss."""
        inputs = [one for one in (self.signals.get("input_sizes") or {}).values() if not one["rewritten"]]
        if self.has_open_loss and any(_changes(one.get("rows", ())) for one in inputs):
            return "the number of rows changes from step to step"
        if any(_changes(one["sizes"]) for one in inputs):
            return "the size of the inputs changes from step to step"
        is_downhill = len(self.overshoot) >= limit("steps") and 0 < median(self.overshoot) < 1
        rises = self.last_loss > (1 + limit("same-loss")) * self.first_loss
        return "each step goes down its slope, so what the loss measures changes" if is_downhill and rises else ""

    @cached_property
    def path(self) -> float:
        """Sum over all steps of the norm of a step over the norm of the weights; NaN if it was not recorded."""
        known = self.step_ratios[np.isfinite(self.step_ratios)]
        return float(known.mean()) * self.step_count if len(known) else math.nan

    @property
    def predicts_well(self) -> bool:
        """The logged scores of all splits are good, even if the loss is high."""
        return bool(self.score_shares) and min(self.score_shares) >= limit("good-score")

    @cached_property
    def score_shares(self) -> tuple[float, ...]:
        """Where the last accuracy or AUC of each split is on the way from chance (0) to perfect (1), of the better."""
        kinds = [one for one in (self._accuracy_shares(), self.auc_shares) if one]
        return max(kinds, key=min, default=())

    def _accuracy_shares(self) -> tuple[float, ...]:
        """Chance is the accuracy of a constant prediction: the share of the most frequent label, if they were seen."""
        if self.class_count < 2 or compared_score(self.run) != "accuracy":
            return ()
        labels = self.output.get("labels") or [1] * self.class_count
        chance = min(0.99, max(labels) / max(1, sum(labels)))
        logged = [logged_series(self.run, name).to_numpy(float) for name in score_names(self.run).values()]
        return tuple((float(one[-1]) - chance) / (1 - chance) for one in logged if len(one) and math.isfinite(one[-1]))

    @cached_property
    def auc_shares(self) -> tuple[float, ...]:
        """The same of the last AUC alone."""
        logged = [logged_series(self.run, name).dropna().to_numpy(float) for name in scores(self.run).get("AUC", ())]
        return tuple(_share_of_auc(one) for one in logged if len(one))

    @cached_property
    def is_learning(self) -> bool:
        """The network trains or, before training, the first steps clearly lower the loss below `baseline_loss`."""
        best = self.finite_loss.min() if len(self.finite_loss) else math.nan
        has_begun = self.is_preflight and not self.is_non_finite and 1 - best / self.baseline_loss > limit("fall")
        return self.state == "trained" or bool(has_begun)

    @property
    def severity_of_start(self) -> Severity | None:
        """Severity of initial weights: a note once the loss has clearly fallen, as then the network learns."""
        return "note" if self.progress > 2 * limit("fall") and not self.is_non_finite else None

    @cached_property
    def severity(self) -> Severity:
        """Severity of a cause, by how well the network trains; before training the same without an optimizer."""
        return _SEVERITY[self.state]

    @property
    def mild_severity(self) -> Severity:
        """Severity of what may be meant, or weighs little: a note where the network learns."""
        return "note" if self.state == "partly" else "warning"

    def finding(
        self,
        code: str,
        text: str,
        *evidence: Evidence,
        severity: Severity | None = None,
        remedy: Remedy | None = None,
        **given: Any,
    ) -> Finding:
        """Create a finding; what is not given, or empty but for the column, is taken from the code's row in `CAUSES`.

        Args:
            code: The code.
            text: What is wrong, and its effect.
            evidence: The numbers, first the one that is compared with the threshold; NaN are left out.
            severity: How bad it is.
            remedy: What removes it.
            given: Other attributes of `Finding`.
        """
        row = CAUSES[code]
        fix = suit(
            remedy or row.remedy or Remedy(), is_generated=self.is_generated, is_reparametrized=self.is_reparametrized
        )
        known = tuple(one for one in evidence if not math.isnan(one.value))
        more = {name: given.pop(name, "") or getattr(row, name) for name in ("title", "figure", "falsified_by")}
        more["column"] = given.pop("column", row.column)
        if given.get("line") is not None and more["column"] in HEALTHY:
            usual = describe_range(*HEALTHY[more["column"]])
            given["threshold"] += f" {HEALTHY_RANGE[0].upper()}{HEALTHY_RANGE[1:]}: {usual}."
        severity = severity or self._severity_of(row)
        return Finding(code, severity, text=text, evidence=known, remedy=fix.code, actions=fix.actions, **more, **given)

    def _severity_of(self, row: Cause) -> Severity:
        if row.severity == "certain":
            return "warning" if self.state in ("trained", "partly") or self.predicts_well else "error"
        return self.severity if row.severity == "by loss" else row.severity

    # --- what changed -------------------------------------------------------------------------------------------------

    def first_and_last(self, table: TableName, column: str) -> tuple[pd.DataFrame, pd.DataFrame] | str:
        """The rows of the first and the last step at which a column was measured, or the reason why there are not two.

        Expensive columns are measured at few steps.
        """
        frame: pd.DataFrame = getattr(self.run, table)
        steps = frame["step"][self.run.is_measured(table, column)]
        if not len(steps):
            return f"{column} was not recorded"
        first, last = steps.min(), steps.max()
        if first == last:
            return f"{column} was recorded only once"
        return frame[frame["step"] == first], frame[frame["step"] == last]

    # --- parameters by step -------------------------------------------------------------------------------------------

    @cached_property
    def parameter_steps(self) -> NDArray[np.int64]:
        """The steps in the table `parameters`."""
        return self.run.parameters["step"].drop_duplicates().to_numpy(np.int64)

    @cached_property
    def parameter_names(self) -> list[str]:
        """The parameters in the table `parameters`, in order."""
        return [str(name) for name in self.run.parameters["parameter"].drop_duplicates()]

    def parameter_grid(self, column: str) -> Floats:
        """A column of the table `parameters` in shape (steps, parameters); NaN where it was not measured."""
        frame = self.run.parameters
        grid = np.full((len(self.parameter_steps), len(self.parameter_names)), np.nan)
        rows = np.searchsorted(self.parameter_steps, frame["step"].to_numpy())
        grid[rows, pd.factorize(frame["parameter"])[0]] = frame[column].to_numpy(float)
        return grid

    @cached_property
    def weight_count(self) -> int:
        """Number of weights of the parameters in the table `parameters`."""
        known = (self.parameters[name] for name in self.parameter_names if name in self.parameters)
        return sum(math.prod(parameter["shape"]) for parameter in known)

    @cached_property
    def norms(self) -> Floats:
        """Norm of each parameter at each recorded step."""
        return self.parameter_grid("norm")

    @cached_property
    def gradient_norms(self) -> Floats:
        """Norm of each gradient at each recorded step."""
        return self.parameter_grid("gradient_norm")

    @cached_property
    def unmeasured(self) -> set[str]:
        """Parameters that are not measured, whose gradients are therefore unknown: complex and sparse ones."""
        return {name for name, norms in self._by_parameter(self.norms) if np.isnan(norms).all()}

    def _by_parameter(self, grid: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Each parameter with its column of a grid."""
        return zip(self.parameter_names, grid.T, strict=True)

    @cached_property
    def without_gradient(self) -> set[str]:
        """Parameters that got no gradient at any recorded step, neither a number nor NaN."""
        if not self.has_recorded_gradients:
            return set()
        seen = ~np.isnan(self.gradient_norms) | (self.parameter_grid("gradient_non_finite") > 0)
        return {name for name, there in self._by_parameter(seen) if not there.any()} - self.unmeasured

    @cached_property
    def moved(self) -> set[str]:
        """Parameters whose norm changed from one recorded step to another, whatever was seen of their gradients."""
        return {name for name, norms in self._by_parameter(self.norms) if len({*norms[np.isfinite(norms)]}) > 1}

    @cached_property
    def update_ratios(self) -> Floats:
        """Update ratio of each parameter at each recorded step; NaN before training without an optimizer."""
        ratios = self.parameter_grid("update_ratio")
        return np.full_like(ratios, np.nan) if self.is_preflight and not self.groups else ratios

    @cached_property
    def has_recorded_gradients(self) -> bool:
        """Gradients were recorded, whether there were any or not."""
        seen = np.isfinite(self.gradient_norms).any() or np.isfinite(self.update_ratios).any() or self.is_preflight
        return bool(seen) and not self.is_of_checkpoints

    @cached_property
    def clipped_shares(self) -> Floats:
        """Norm of all gradients after over before clipping, at each step; NaN where it was not measured."""
        after, before = (self.run.steps[name].to_numpy(float) for name in _GRADIENT_NORMS)
        with np.errstate(all="ignore"):
            return np.asarray(after / before, float)

    @cached_property
    def total_norm(self) -> Floats:
        """Norm of all parameters at each recorded step."""
        with np.errstate(all="ignore"):
            return np.asarray(np.sqrt(np.nansum(self.norms**2, axis=1)), float)

    @cached_property
    def growth(self) -> float:
        """Norm of all parameters at the last step where it is finite over that at the first; NaN if that is zero."""
        known = self.total_norm[np.isfinite(self.total_norm)].tolist() or [0.0]
        return float(known[-1] / known[0]) if known[0] > 0 else math.nan

    @cached_property
    def step_ratios(self) -> Floats:
        """Norm of each recorded step over the norm of all parameters; NaN where it was not measured."""
        return self.step_ratios_of(self.parameter_names)

    def step_ratios_of(self, names: Iterable[str]) -> Floats:
        """The same for some of the parameters."""
        wanted = {*names}
        own = [place for place, name in enumerate(self.parameter_names) if name in wanted]
        ratios, norms = self.update_ratios[:, own], self.norms[:, own]
        with np.errstate(all="ignore"):
            moved: Floats = np.sqrt(np.nansum((ratios * norms) ** 2, axis=1)) / np.sqrt(np.nansum(norms**2, axis=1))
        moved[np.isnan(ratios).all(axis=1)] = np.nan
        return moved

    def steps_column(self, column: str) -> Floats:
        """A column of the table `steps` without NaN."""
        return self.run.steps[column].dropna().to_numpy(np.float64)

    @cached_property
    def overshoot(self) -> Floats:
        """How far each step went relative to the minimum along it: 0 on a straight slope, 1 at the minimum."""
        return self.steps_column("overshoot")

    @cached_property
    def early_overshoot(self) -> float:
        """Its median over the first steps, which are those that the initial weights and learning rate decide."""
        return median(self.overshoot[:_EARLY])

    @cached_property
    def last_checkpoint(self) -> pd.DataFrame:
        """The rows of the last checkpoint in the table `parameters`; none in a training."""
        rows = self.run.parameters
        return rows[rows["step"] == (self.run.steps["step"].max() if self.is_of_checkpoints else -1)]

    # --- layers -------------------------------------------------------------------------------------------------------

    def profile(self, column: str, *, last: bool = False) -> dict[str, float]:
        """Layer -> value at the first (or last) step at which the column was measured, for `node_layers` in order."""
        found = values_at_step(self.run.layers, "layer", column, last=last)
        rows: dict[str, int] = self.signals.get("rows", {}) if column in _OF_ROWS else {}
        known = [name for name in self.node_layers if rows.get(name, math.inf) >= limit("few")]
        return {name: found[name] for name in known if name in found}

    @cached_property
    def node_layers(self) -> list[str]:
        """Names of the layers whose rows are nodes, as far as it is known.

        Layers after a pooling have other rows, so their norms cannot be compared. In networks with graph convolutions,
        plain layers after the last convolution are therefore left out, and all that are given few rows.
        """
        layers = [layer for layer in self.layers if layer["name"] not in self.score_layers]
        if self.mixes_nodes:
            rows: dict[str, int] = self.signals.get("rows", {})
            in_order = sorted(layers, key=is_conv, reverse=True)  # other layers may be given edges
            least = limit("pooled") * next((rows[one["name"]] for one in in_order if one["name"] in rows), 0)
            layers = [layer for layer in layers if rows.get(layer["name"], least) >= least]
        convolutions = [place for place, layer in enumerate(layers) if is_conv(layer)]
        end = convolutions[-1] + 1 if convolutions else len(layers)
        behind = [layer for layer in layers[end:] if layer.get("kind") not in _GRAPH_LEVEL]
        return [layer["name"] for layer in [*layers[:end], *behind]]

    @cached_property
    def score_layers(self) -> set[str]:
        """Layers of one neuron whose output is not the input of a layer: gates, and the scores of a pooling."""
        found: set[str] = set()
        is_read = True  # the last layer is the prediction
        for layer in reversed(self.layers):
            shapes = list(matrices(layer).values())
            if not is_read and layer["name"] in self.single_units:
                found.add(layer["name"])
            if any(shape != (1, 1) for shape in shapes):
                is_read = any(columns == 1 for _, columns in shapes)
        return found

    @cached_property
    def single_units(self) -> set[str]:
        """Layers of one neuron, and those around them without weights of their own, as of dense convolutions."""
        shapes = {layer["name"]: matrices(layer).values() for layer in self.layers}
        single = {name for name, of_layer in shapes.items() if of_layer and all(rows == 1 for rows, _ in of_layer)}
        inner = {name: [one for one in shapes if one.startswith(f"{name}.")] for name, own in shapes.items() if not own}
        return single | {name for name, within in inner.items() if within and single.issuperset(within)}

    @cached_property
    def gains(self) -> dict[str, float]:
        """Layer -> initial ||W|| over the norm of Glorot's initialization, geometric mean over its feature matrices.

        Glorot's norm of an (m, n) matrix is sqrt(2 m n / (m + n)).
        """
        series = series_of(self.run, "parameters.gain")
        first = last_values(series[series["step"] == series["step"].min()])
        return {layer["name"]: first[layer["name"]] for layer in self._used_layers if layer["name"] in first}


def _changes(sizes: Sequence[float | None]) -> bool:
    """The last ones are several times as large as the first ones, or as small, though not as data that are spoiled."""
    known = [size for size in sizes if size]
    if len(known) < max(len(sizes), limit("drift-sizes")):
        return False
    ratio = abs(math.log(median(known[-3:]) / median(known[:3])))
    return math.log(limit("task-changes")) < ratio < math.log(limit("task-spoiled"))


def _share_of_auc(values: Floats) -> float:
    """Of a medium AUC that has not risen less than half, as that of random weights may be that high."""
    share = 2 * float(values[-1]) - 1
    has_risen = 1 - values[-1] <= (1 - limit("failing")) * (1 - values[0])
    return share if has_risen or values[-1] >= limit("auc") else min(share, limit("good-score") - 0.01)


def _entropy(labels: Sequence[int]) -> float:
    """Cross-entropy of the best constant prediction of labels, given the rows of each class; NaN without any."""
    rows = np.asarray(labels, float)
    share = rows[rows > 0] / rows.sum()
    return float(-(share * np.log(share)).sum()) if len(share) else math.nan


def values_at_step(frame: pd.DataFrame, key: str, column: str, *, last: bool = False) -> dict[str, float]:
    """Layer or parameter -> value at the first (or last) step at which the column was measured."""
    known = frame[frame[column].notna()]
    rows = known[known["step"] == (known["step"].max() if last else known["step"].min())]
    return dict(zip(rows[key].astype(str), rows[column].astype(float), strict=True))


def median(values: Sequence[float] | Floats) -> float:
    """Median of the finite values; NaN if there is none."""
    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else math.nan


def largest(values: Sequence[float] | Floats) -> float:
    """The largest value, infinity included, NaN left out; 0 if there is none."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    return float(known.max()) if len(known) else 0.0

"""Evaluation: on the training data, on other inputs than in training, in training mode, with random numbers."""

from collections.abc import Iterator

import numpy as np

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.summary import logged_series, loss_name, scores, split

_NO_CALLS = "no call of the model without gradients was seen"


def evaluates_badly(facts: Facts) -> str:
    """What is bad about a logged score, or a logged loss of validation, though the network trains; "" if nothing is."""
    if facts.state not in ("trained", "partly"):
        return ""
    if facts.score_shares and min(facts.score_shares) < limit("good-score"):
        return f"A logged score is only {percent(max(0.0, min(facts.score_shares)))} of the way from chance to perfect"
    for name in _losses(facts, ("val", "test")):
        last = median(logged_series(facts.run, name).dropna().to_numpy(float)[-5:])
        if last > facts.baseline_loss:
            return f"{name} is {number(last)}, above the {number(facts.baseline_loss)} of a constant prediction"
    return ""


def _losses(facts: Facts, splits: tuple[str | None, ...]) -> list[str]:
    return [name for name in facts.run.logged_names if "loss" in name.lower() and split(name) in splits]


@cause(
    "evaluation-on-training-data",
    "The validation score is the training score",
    rank=345,
    why="a score of data that was trained on says nothing about others",
    figure="training_curves",
    falsified_by="The scores of the two splits differ once each is computed from rows of its own.",
    remedy=Remedy(
        "assert not (train_mask & val_mask).any()  # and use val_mask, or the validation loader, for its score"
    ),
    severity="warning",
    needs_training=True,
    is_independent=True,
    limits={"equal-scores": Limit(4, "different values, all of them equal in both splits")},
)
def check_same_scores(facts: Facts) -> Finding | str | None:
    """Logged scores, or losses, of two splits that are exactly equal at all steps at which both were logged."""
    compared = 0
    for one, other in _pairs(facts):
        first, second = (logged_series(facts.run, name).dropna() for name in (one, other))
        common = first.index.intersection(second.index)
        values, others = first[common].to_numpy(float), second[common].to_numpy(float)
        compared += len(common) > limit("equal-scores")
        if np.array_equal(values, others) and len(np.unique(values)) >= limit("equal-scores"):
            return facts.finding(
                "evaluation-on-training-data",
                f"{other} equals {one} exactly at all {len(common)} steps at which both were logged: it is computed "
                f"from the same rows, so it does not show how the network does on others.",
                Evidence("steps at which both are equal", len(common), "steps"),
                Evidence("different values", len(np.unique(values)), "values"),
                threshold=f"Flagged from {threshold_text('equal-scores')}.",
            )
    return None if compared else "no score or loss was logged for two splits"


def _pairs(facts: Facts) -> Iterator[tuple[str, str]]:
    """Logged values of the same kind, of the training and of another split."""
    kinds = [*scores(facts.run).values(), [*filter(None, [loss_name(facts.run)]), *_losses(facts, ("val", "test"))]]
    for names in kinds:
        own = [name for name in names if split(name) in ("train", None)]
        others = [name for name in names if split(name) in ("val", "test")]
        yield from ((one, other) for one in own for other in others)


@cause(
    "evaluation-inputs",
    "Inputs of evaluation differ from those of training",
    rank=348,
    why="a network knows only inputs like those it was trained on",
    figure="training_curves",
    falsified_by="x.mean(0) and x.std(0) of the evaluation's inputs are those of the training's, and scores stay bad.",
    remedy=Remedy(
        "mean, std = x_train.mean(0), x_train.std(0)\n"
        "x = (x - mean) / std  # in evaluation as in training, with the same numbers"
    ),
    severity="warning",
    needs_training=True,
    is_independent=True,
    limits={
        "input-moved": Limit(1, "distance of the columns' means from those in training, over the spread of rows there"),
        "input-resized": Limit(3, "times the size of rows in training, or one over it"),
    },
)
def check_inputs(facts: Facts) -> Finding | str | None:
    """An input in evaluation mode has another scale or mean than in training, and scores are bad."""
    found = facts.signals.get("evaluation")
    if not found or not found.get("inputs"):
        return _NO_CALLS
    if not (bad := evaluates_badly(facts)):
        return None
    for name, one in found["inputs"].items():
        shift, size = (np.inf if one[key] is None else float(one[key]) for key in ("shift", "size"))
        if shift > limit("input-moved") or not 1 / limit("input-resized") < size < limit("input-resized"):
            return facts.finding(
                "evaluation-inputs",
                f"In evaluation mode, the rows of the input {name} are {number(size)} times as large as in training, "
                f"and the means of its columns are away from those in training by {number(shift)} times the spread of "
                f"the rows: they are prepared differently. {bad}.",
                Evidence("distance of the columns' means over the spread of rows", shift),
                Evidence("size of rows over that in training", size),
                threshold=f"Flagged above {threshold_text('input-moved')}; or {threshold_text('input-resized')}.",
            )
    return None


@cause(
    "evaluation-in-training-mode",
    "Evaluation in training mode",
    rank=352,
    why="scores are of another model",
    figure="training_curves",
    falsified_by="With model.eval() before each evaluation the scores are the same.",
    remedy=Remedy("model.eval()  # before each evaluation; model.train() after it"),
    severity="note",
    needs_training=True,
    is_independent=True,
    limits={"evaluations": Limit(3, "calls without gradients")},
)
def check_mode(facts: Facts) -> Finding | str | None:
    """All calls without gradients are made in training mode, by a model with dropout or batch normalization."""
    found = facts.signals.get("evaluation")
    if not found:
        return _NO_CALLS
    dropout, norms = facts.signals.get("dropout"), facts.signals.get("batch_norms")
    is_scored = any(split(name) in ("val", "test") for name in facts.run.logged_names)
    if found["calls"] < limit("evaluations") or found["in_training_mode"] < found["calls"] or not is_scored:
        return None
    if not (dropout or norms):
        return None
    effects = ["dropout stays on"] * bool(dropout)
    effects += ["batch normalization uses the batch's statistics, and adds them to its own"] * bool(norms)
    return facts.finding(
        "evaluation-in-training-mode",
        f"The model was called without gradients {found['calls']} times, each time in training mode: "
        f"{' and '.join(effects)}, so the scores are not those of the model that is used later.",
        Evidence("calls without gradients in training mode", found["in_training_mode"], "calls"),
        threshold=f"Flagged from {threshold_text('evaluations')}, if none is in evaluation mode.",
    )


@cause(
    "evaluation-random",
    "Random numbers in evaluation mode",
    rank=354,
    why="scores change from call to call",
    figure="training_curves",
    falsified_by="After model.eval() two calls with the same inputs return the same.",
    remedy=Remedy(
        "x = torch.nn.functional.dropout(x, p, training=self.training)  # without training= it is always on;\n"
        "# in the same way dropout_edge(edge_index, training=self.training), and noise only if self.training"
    ),
    severity="note",
    needs_training=True,
    is_independent=True,
    limits={"random-calls": Limit(2, "calls in evaluation mode")},
)
def check_random(facts: Facts) -> Finding | str | None:
    """A model in evaluation mode draws random numbers, as functional dropout does that is not told the mode."""
    found = facts.signals.get("evaluation")
    if not found or not found["compared"]:
        return _NO_CALLS
    if found["random"] < max(limit("random-calls"), found["compared"]):
        return None
    return facts.finding(
        "evaluation-random",
        "The model draws random numbers though all of its modules are in evaluation mode, as dropout does that is "
        "called without training=self.training. Unless that is meant (sampling, random features), scores are those of "
        "a disturbed model.",
        Evidence("calls in evaluation mode that drew random numbers", found["random"], "calls"),
        threshold=f"Flagged from {threshold_text('random-calls')}, if all do.",
    )

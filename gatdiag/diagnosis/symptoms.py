"""Symptoms of a network that does not train, whatever the cause; listed below the finding that explains them."""

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short
from gatdiag.roles import FEATURE
from gatdiag.summary import last_values, role_series

_TINY_BATCH = Remedy(
    "# train on one batch of a few nodes, long and without dropout: if the loss does not go to zero there,\n"
    "# model, loss or labels are wrong"
)


@cause(
    "loss-not-falling",
    "The loss does not fall",
    rank=330,
    why="a symptom, unless nothing explains it",
    figure="training_curves",
    falsified_by="The loss falls when training goes on.",
    remedy=_TINY_BATCH,
    severity="warning",
    needs_training=True,
    is_symptom=True,
    limits={
        "fall": Limit(0.05, "share of the first loss; healthy runs lost at least 17%, half of them 99%"),
        "steps": Limit(20, "steps before the loss is judged"),
    },
    borrowed=("jump",),
)
def check_loss(facts: Facts) -> Finding | str | None:
    """A loss that has not fallen, or stays far above that of a constant prediction, after enough steps."""
    if len(facts.loss) == 1 and not facts.is_of_checkpoints:
        return "the loss was logged only once"
    if facts.state != "failing" or facts.is_non_finite:
        return None
    best = float(facts.finite_loss.min())
    fall = (facts.first_loss - best) / abs(facts.first_loss) if facts.first_loss else 0.0
    far = best / facts.chance_loss if facts.chance_loss > 0 else 0.0
    if far > limit("jump"):
        return _far_off(facts, best, far)
    if not fall < limit("fall"):
        return None
    return facts.finding(
        "loss-not-falling",
        f"The loss fell by {percent(fall)} in {facts.step_count:,} steps, from {number(facts.first_loss, 4)} to "
        f"{number(best, 4)} at best.",
        Evidence("share of the first loss by which it fell", fall),
        threshold=f"Flagged below {threshold_text('fall')}, after {limit('steps'):g} steps or more.",
        steps=(0, facts.step_count - 1),
    )


def _far_off(facts: Facts, best: float, far: float) -> Finding:
    """A loss that falls, but stays far above that of a constant prediction."""
    is_regression = not facts.class_count
    line = "y = (y - y.mean()) / y.std()  # the targets, before training; undo it for predictions"
    why = ": the network has not even learned the mean of the targets" if is_regression else ""
    return facts.finding(
        "loss-not-falling",
        f"The lowest loss in {facts.step_count:,} steps is {number(best, 4)}, {number(far)} times that of the best "
        f"constant prediction{why}.",
        Evidence("lowest loss over that of the best constant prediction", far),
        title="The loss stays far above that of a constant prediction",
        threshold=f"Flagged above {threshold_text('jump')}, after {limit('steps'):g} steps or more.",
        steps=(0, facts.step_count - 1),
        remedy=Remedy(line) if is_regression else None,
        falsified_by="The loss falls below that of a constant prediction when training goes on.",
    )


@cause(
    "unchanged-checkpoints",
    "Weights that never moved",
    rank=310,
    why="of checkpoints, which do not show why",
    figure="unchanged_fraction",
    column="parameters.unchanged_fraction",
    severity="warning",
    is_independent=True,
    limits={
        "unchanged": Limit(
            0.5, "share of a layer's weights; a ten-layer GAT that trained had 0.26, the same network stuck 0.69"
        )
    },
    is_checked=False,
)
@cause(
    "unchanged-weights",
    "Weights that never moved",
    rank=340,
    why="a symptom",
    figure="unchanged_fraction",
    column="parameters.unchanged_fraction",
    severity="note",
    needs_training=True,
    is_symptom=True,
    borrowed=("unchanged",),
)
def check_unchanged_weights(facts: Facts) -> Finding | str | None:
    """Layers in which half of the feature weights have not changed by a single bit."""
    series = role_series(facts.run, "unchanged_fraction", FEATURE)
    if facts.state == "trained" or not len(series):
        return None
    later = series[series["step"] > facts.run.parameters["step"].min()]
    if not len(later):
        return "unchanged_fraction was recorded only once"
    shares = last_values(later)
    stuck = tuple(layer for layer in shares if shares[layer] >= limit("unchanged"))
    if not stuck:
        return None
    worst = max(stuck, key=shares.__getitem__)
    return facts.finding(
        "unchanged-checkpoints" if facts.is_of_checkpoints else "unchanged-weights",
        f"{percent(shares[worst])} of the feature weights of layer {short(worst)} have not changed by a single bit; in "
        f"{len(stuck)} of {len(shares)} layers half or more have not: {join_names(map(short, stuck))}.",
        Evidence(f"share of unchanged weights, in layer {short(worst)}", shares[worst]),
        threshold=f"Flagged from {threshold_text('unchanged')}.",
        line=limit("unchanged"),
        layers=stuck,
    )


@cause(
    "small-steps",
    "Steps are small",
    rank=350,
    why="a symptom",
    figure="unchanged_fraction",
    column="parameters.update_ratio",
    severity="note",
    needs_training=True,
    is_symptom=True,
)
def check_small_steps(facts: Facts) -> Finding | None:
    """A step changes the weights by less than 0.01% of their norm."""
    ratio = median(facts.step_ratios)
    if facts.state == "trained" or not 0 < ratio < 1e-4:
        return None
    return facts.finding(
        "small-steps",
        f"A step changes the weights by {number(ratio)} of their norm.",
        Evidence("norm of a step over norm of the weights, median", ratio),
        threshold="Flagged below 0.0001; about 0.001 is usual.",
        line=1e-4,
        beyond="below",
    )

"""What is seen of a network that does not train, whatever the cause; listed under the cause that explains it."""

from typing import Final, Literal, TypeAlias

from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.values import last_values
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import listed, short
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series, training_facts

Outcome: TypeAlias = Literal["unknown", "broken", "trains", "too early", "stuck"]

THRESHOLD: Final = limit("fall")


def outcome(run: Run) -> Outcome:
    """What became of the training: a network trains if its loss stayed finite and fell by 5 % of its first value."""
    facts = training_facts(run)
    if facts.loss is None or not facts.steps:
        return "unknown"
    if not facts.is_finite:
        return "broken"
    if facts.best_loss < facts.first_loss - THRESHOLD * abs(facts.first_loss):
        return "trains"
    return "stuck" if facts.steps >= limit("steps") else "too early"


def loss_not_falling(facts: Facts) -> Finding | None:
    """The lowest loss beside the first one. None unless it stayed where it was for long enough to say so."""
    if facts.is_of_checkpoints or outcome(facts.run) != "stuck":
        return None
    known = training_facts(facts.run)
    fall = (known.first_loss - known.best_loss) / abs(known.first_loss) if known.first_loss else 0.0
    return Finding(
        "loss-not-falling",
        "warning",
        "The loss does not fall",
        f"The loss fell by {percent(fall)} in {known.steps:,} recorded steps, from {number(known.first_loss, 4)} to "
        f"{number(known.best_loss, 4)} at best.",
        (Evidence("share of the first loss by which it fell", fall),),
        f"Flagged below {said('fall')}, from {limit('steps'):g} steps on.",
        steps=(0, known.last_step or 0),
        figure="training_curves",
        remedy="# try one batch of a few nodes: a network that cannot overfit it has an error in model, loss or labels",
        falsified_by="The loss falls if training goes on.",
    )


def unchanged_weights(facts: Facts) -> Finding | None:
    """Layers half of whose feature weights are bit for bit what they were."""
    series = role_series(facts.run, "unchanged_fraction", FEATURES)
    if facts.state == "trained" or not len(series):
        return None
    shares = last_values(series[series["step"] > facts.run.parameters["step"].min()])
    stuck = tuple(layer for layer in shares if shares[layer] >= limit("unchanged"))
    if not stuck:
        return None
    worst = max(stuck, key=shares.__getitem__)
    return Finding(
        "unchanged-checkpoints" if facts.is_of_checkpoints else "unchanged-weights",
        "warning" if facts.is_of_checkpoints else "note",
        "Weights that never moved",
        f"{percent(shares[worst])} of the feature weights of layer {short(worst)} are bit for bit what they were; so "
        f"it is in "
        f"{len(stuck)} of {len(shares)} layers: {listed(map(short, stuck))}.",
        (Evidence(f"share of unchanged weights, in layer {short(worst)}", shares[worst]),),
        f"Flagged from {said('unchanged')}.",
        stuck,
        figure="unchanged_fraction",
    )


def small_steps(facts: Facts) -> Finding | None:
    """A step moves less than a thousandth of a percent of the weights."""
    ratio = median(facts.step_ratio) if len(facts.step_ratio) else float("nan")
    if facts.state == "trained" or not 0 < ratio < 1e-4:
        return None
    return Finding(
        "small-steps",
        "note",
        "Steps are small",
        f"A step moves the weights by {number(ratio)} of their size.",
        (Evidence("share of the weights that a step moves, median", ratio),),
        "Flagged below 0.0001; about 0.001 is the custom.",
        figure="unchanged_fraction",
    )

"""What is seen of a network that does not train, whatever the cause; listed under the cause that explains it."""

from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short
from gatdiag.roles import FEATURE
from gatdiag.summary import last_values, role_series


def loss_not_falling(facts: Facts) -> Finding | str | None:
    """The lowest loss beside the first one. None unless it stayed where it was for long enough to say so."""
    if len(facts.loss) == 1 and not facts.is_of_checkpoints:
        return "the loss was logged once only"
    is_short = facts.is_of_checkpoints or facts.count < limit("steps") or not len(facts.loss)
    if is_short or facts.state in ("trained", "partly") or facts.is_broken:
        return None
    best = float(facts.finite_loss.min())
    fall = (facts.first_loss - best) / abs(facts.first_loss) if facts.first_loss else 0.0
    far = best / facts.chance if facts.chance > 0 else 0.0
    if far > limit("jump"):
        return _far_off(facts, best, far)
    if not fall < limit("fall"):
        return None
    return facts.found(
        "loss-not-falling",
        f"The loss fell by {percent(fall)} in {facts.count:,} steps, from {number(facts.first_loss, 4)} to "
        f"{number(best, 4)} at best.",
        Evidence("share of the first loss by which it fell", fall),
        threshold=f"Flagged below {said('fall')}, from {limit('steps'):g} steps on.",
        steps=(0, facts.count - 1),
    )


def _far_off(facts: Facts, best: float, far: float) -> Finding:
    """A loss that falls, but from so far above that of a constant prediction that it does not come near it."""
    line = "y = (y - y.mean()) / y.std()  # the targets, before training; outputs * y.std() + y.mean() predict"
    return facts.found(
        "loss-not-falling",
        f"The loss is {number(best, 4)} at best in {facts.count:,} steps, {number(far)} times that of the best "
        "constant prediction.",
        Evidence("lowest loss over that of the best constant prediction", far),
        title="The loss stays far above that of a constant prediction",
        threshold=f"Flagged above {said('jump')}, from {limit('steps'):g} steps on.",
        steps=(0, facts.count - 1),
        remedy=None if facts.classes else Remedy(line),
        falsified_by="The loss falls below that of a constant prediction if training goes on.",
    )


def unchanged_weights(facts: Facts) -> Finding | str | None:
    """Layers half of whose feature weights are bit for bit what they were."""
    series = role_series(facts.run, "unchanged_fraction", FEATURE)
    if facts.state == "trained" or not len(series):
        return None
    later = series[series["step"] > facts.run.parameters["step"].min()]
    if not len(later):
        return "unchanged_fraction was recorded once only"
    shares = last_values(later)
    stuck = tuple(layer for layer in shares if shares[layer] >= limit("unchanged"))
    if not stuck:
        return None
    worst = max(stuck, key=shares.__getitem__)
    return facts.found(
        "unchanged-checkpoints" if facts.is_of_checkpoints else "unchanged-weights",
        f"{percent(shares[worst])} of the feature weights of layer {short(worst)} are bit for bit what they were; so "
        f"it is in {len(stuck)} of {len(shares)} layers: {join_names(map(short, stuck))}.",
        Evidence(f"share of unchanged weights, in layer {short(worst)}", shares[worst]),
        threshold=f"Flagged from {said('unchanged')}.",
        layers=stuck,
    )


def small_steps(facts: Facts) -> Finding | None:
    """A step moves less than a thousandth of a percent of the weights."""
    ratio = median(facts.step_ratio)
    if facts.state == "trained" or not 0 < ratio < 1e-4:
        return None
    return facts.found(
        "small-steps",
        f"A step moves the weights by {number(ratio)} of their size.",
        Evidence("share of the weights that a step moves, median", ratio),
        threshold="Flagged below 0.0001; about 0.001 is the custom.",
    )

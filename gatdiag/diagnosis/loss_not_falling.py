"""The loss does not fall: the network does not train, whatever else is right."""

from typing import Final, Literal, TypeAlias

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.wording import number, percent
from gatdiag.run import Run
from gatdiag.summary import training_facts

THRESHOLD: Final = 0.05  # of its first value; trainings that went well lost 17 % and more, half of them 99 %
ENOUGH: Final = 20  # recorded steps; over fewer, a loss that stays says nothing

Outcome: TypeAlias = Literal["unknown", "broken", "trains", "too early", "stuck"]


def outcome(run: Run) -> Outcome:
    """What became of the training: a network trains if its loss stayed finite and fell by 5 % of its first value."""
    facts = training_facts(run)
    if facts.loss is None or not facts.steps:
        return "unknown"
    if not facts.is_finite:
        return "broken"
    if facts.best_loss < facts.first_loss - THRESHOLD * abs(facts.first_loss):
        return "trains"
    return "stuck" if facts.steps >= ENOUGH else "too early"


def loss_not_falling(run: Run) -> Finding | None:
    """The lowest loss beside the first one. None unless it stayed where it was for long enough to say so."""
    if outcome(run) != "stuck":
        return None
    facts = training_facts(run)
    fall = (facts.first_loss - facts.best_loss) / abs(facts.first_loss) if facts.first_loss else 0.0
    text = (
        f"The loss fell by {percent(fall)} in {facts.steps:,} recorded steps: {number(facts.first_loss, 4)} at the "
        f"start, {number(facts.best_loss, 4)} at best."
    )
    threshold = f"Flagged below {percent(THRESHOLD)} of the first value, over {ENOUGH} recorded steps or more."
    return Finding(
        "loss-not-falling",
        "warning",
        "The loss does not fall",
        text,
        threshold,
        (Evidence("share of the first loss by which it fell", fall),),
        steps=(0, facts.last_step or 0),
        figure="training_curves",
    )

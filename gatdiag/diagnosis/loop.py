"""The training loop around the model: no step of an optimizer, and an optimizer that is made anew for each step."""

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text

_NOT_SEEN = "the training loop was not watched"


@cause(
    "no-step",
    "The optimizer never makes a step",
    rank=14,
    why="weights that never move learn nothing",
    figure="training_curves",
    falsified_by="optimizer.step() runs after loss.backward(), with an optimizer of model.parameters().",
    remedy=Remedy("optimizer.step()  # in every step, after loss.backward()"),
    severity="error",
    needs_training=True,
    is_independent=True,
    limits={
        "passes": Limit(3, "backward passes: usual accumulation makes a step after them, and is not over yet"),
    },
)
def check_step(facts: Facts) -> Finding | str | None:
    """Backward passes, and no optimizer step that moves this model."""
    loop = facts.signals.get("loop")
    if facts.is_preflight or facts.is_of_checkpoints or loop is None:
        return _NOT_SEEN
    passes = loop.get("backward_passes", 0)
    if passes < limit("passes") or loop.get("weights_move"):
        return None
    return facts.finding(
        "no-step",
        f"There were {passes:,} backward passes and no optimizer step: the weights keep their initial values.",
        Evidence("backward passes", passes),
        Evidence("optimizer steps", 0),
        threshold=f"Flagged from {threshold_text('passes')}.",
    )


@cause(
    "optimizer-recreated",
    "The optimizer is created anew in every step",
    rank=35,
    why="without moments, steps do not become shorter",
    figure="training_curves",
    falsified_by="The same optimizer object makes all steps.",
    severity="certain",
    needs_training=True,
    is_independent=True,
    limits={
        "new-optimizers": Limit(0.5, "share of the recorded steps; an optimizer for each stage or epoch makes many"),
    },
)
def check_recreated(facts: Facts) -> Finding | str | None:
    """An optimizer with momentum or moments that makes one step and is replaced."""
    loop = facts.signals.get("loop")
    if facts.is_preflight or facts.is_of_checkpoints or loop is None or loop["recorded_steps"] < limit("steps"):
        return _NOT_SEEN if loop is None else None
    share = loop["steps_of_new_optimizers"] / loop["recorded_steps"]
    if not share > limit("new-optimizers"):
        return None
    kind = next((group["class"] for group in facts.groups), "optimizer")
    lost = "its moments are lost, and each step is the learning rate times the sign of the gradient"
    if not facts.is_adam:
        lost = "its momentum is lost"
    return facts.finding(
        "optimizer-recreated",
        f"In {loop['steps_of_new_optimizers']:,} of {loop['recorded_steps']:,} recorded steps the {kind} is a "
        f"new one: {lost}; a schedule of an earlier one has no effect.",
        Evidence("share of the steps that a new optimizer makes", share),
        threshold=f"Flagged above {threshold_text('new-optimizers')}.",
        remedy=Remedy(f"{remedy.optimizer_line(facts)}  # once, before the loop"),
    )

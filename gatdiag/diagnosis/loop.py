"""The training loop around the model: no step, an optimizer made anew, parameters in two, overwritten weights."""

import math
from typing import Final

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.training import noise
from gatdiag.names import join_names, short

_AROUND: Final = 3  # losses before and after weights were written


def _needs_the_loop(facts: Facts) -> str:
    is_seen = not facts.is_preflight and not facts.is_of_checkpoints and facts.signals.get("loop") is not None
    return "" if is_seen else "the training loop was not watched"


@cause(
    "no-step",
    "The optimizer never makes a step",
    rank=14,
    why="weights that never move learn nothing",
    figure="training_curves",
    falsified_by="optimizer.step() runs after loss.backward(), with an optimizer of model.parameters().",
    remedy=Remedy("optimizer.step()  # in every step, after loss.backward()"),
    severity="error",
    needs=(_needs_the_loop,),
    needs_training=True,
    is_independent=True,
    limits={
        "passes": Limit(3, "backward passes: usual accumulation makes a step after them, and is not over yet"),
    },
)
def check_step(facts: Facts) -> Finding | str | None:
    """Backward passes, and no optimizer step that moves this model."""
    loop = facts.signals["loop"]
    passes = loop.get("backward_passes", 0)
    if passes < limit("passes") or loop["recorded_steps"] or facts.moves_by_hand:
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
    needs=(_needs_the_loop,),
    needs_training=True,
    is_independent=True,
    limits={
        "new-optimizers": Limit(0.5, "share of the recorded steps; an optimizer for each stage or epoch makes many"),
    },
)
def check_recreated(facts: Facts) -> Finding | str | None:
    """An optimizer with momentum or moments that makes one step and is replaced."""
    loop = facts.signals["loop"]
    if loop["recorded_steps"] < limit("steps"):
        return None
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
        remedy=Remedy(remedy.keep_optimizer(facts)),
    )


@cause(
    "weights-overwritten",
    "Weights are overwritten between steps",
    rank=32,
    why="what steps have moved is undone by something else",
    figure="training_curves",
    falsified_by="Every parameter before a step equals, to the bit, what the step before left.",
    remedy=Remedy(
        "# look for what writes weights inside of the loop: load_state_dict, copy_, reset_parameters, an average of\n"
        "# weights or a target network; do it once, before the loop, or to a copy:\n"
        "averaged = torch.optim.swa_utils.AveragedModel(model)  # averaged.update_parameters(model) leaves model alone"
    ),
    needs=(_needs_the_loop,),
    needs_training=True,
    is_independent=True,
    limits={
        "undone": Limit(2, "times: once may be a checkpoint that is loaded after a first step"),
        "lately": Limit(0.5, "of the training, after which it was done last: else there was time to learn it again"),
        "regular": Limit(3, "times, after which it is expected to go on where nothing was compared any more"),
    },
)
def check_overwritten(facts: Facts) -> Finding | str | None:
    """Weights before a step that are not those which the step before left, but earlier or fresh ones.

    Weights that are clipped, normalized, pruned or averaged a little are none, nor is an average that is swapped in for
    evaluation and back.
    """
    loop = facts.signals["loop"]
    found = loop.get("overwritten") or {}
    if found.get("undone", 0) < limit("undone") or facts.state not in ("failing", "partly"):
        return None
    is_rare = found["undone"] < limit("mostly") * found["compared"]
    is_harmless = facts.state == "partly" and is_rare and _costs_nothing(facts, found["last_undone"])
    is_regular = found["undone"] >= limit("regular")
    until = found.get("last_compared", facts.step_count) if is_regular else facts.step_count
    if found["last_undone"] < limit("lately") * until:
        return None
    return facts.finding(
        "weights-overwritten",
        f"Between steps something else than an optimizer writes the weights: in {found['undone']:,} of "
        f"{found['compared']:,} places that were looked at, first before step {found['first_undone']:,}, they were set "
        "back to earlier values or drawn anew, so what was learned since is lost.",
        Evidence("times that steps were undone", found["undone"]),
        Evidence("times that weights changed between steps", found["changed"]),
        threshold=f"Flagged from {threshold_text('undone')}, the last one after {threshold_text('lately')}.",
        severity="note" if is_harmless else None,
        steps=(found["first_undone"], found["last_undone"]),
    )


def _costs_nothing(facts: Facts, step: int) -> bool:
    """The loss is as low after weights were written as before: these were the best ones, or an average over clients."""
    before, after = facts.loss[facts.loss.index < step], facts.loss[facts.loss.index >= step]
    rise = median(after.to_list()[:_AROUND]) - median(before.to_list()[-_AROUND:])
    error = 1.25 * noise(facts.finite_loss) * math.sqrt(2 / _AROUND)
    return rise < limit("sigmas") * error


@cause(
    "optimizers-share-parameters",
    "Two optimizers hold the same parameters",
    rank=34,
    why="a step for one loss undoes what a step for the other did",
    figure="training_curves",
    falsified_by="No id() of a parameter is in the param_groups of both optimizers.",
    needs=(_needs_the_loop,),
    needs_training=True,
    is_independent=True,
    limits={"turns": Limit(10, "times that another optimizer took the step: fewer are phases of a training")},
)
def check_shared(facts: Facts) -> Finding | str | None:
    """Optimizers that take turns, of which one holds all parameters of another and more.

    As of a generator, whose optimizer holds the discriminator, too. Optimizers that share an encoder, and have a head
    each, are none.
    """
    loop = facts.signals["loop"]
    held = facts.held_by_optimizer
    pairs = [(one, other) for one in held for other in held if other and other < one]
    if not pairs or loop.get("turns", 0) < limit("turns"):
        return None
    larger, smaller = pairs[0]
    shared, own = sorted(smaller), sorted(larger - smaller)
    kinds = [one["class"] for one in facts.run.meta["optimizers"]]
    kind = kinds[held.index(larger)]
    keep = "[p for name, p in model.named_parameters() if name in names]"
    return facts.finding(
        "optimizers-share-parameters",
        f"Of optimizers that take turns ({', '.join(kinds)}), one holds the {len(shared)} parameters of another, "
        f"beside {join_names(map(short, own), 3)}: {join_names(map(short, shared), 3)}. Its steps, for its own loss, "
        "move them, too.",
        Evidence("parameters in two optimizers", len(shared), "parameters"),
        threshold=f"Flagged from the first parameter on, and from {threshold_text('turns')}.",
        severity="note" if facts.state == "trained" else "warning",
        parameters=tuple(shared),
        remedy=Remedy(
            f"names = {own}\noptimizer = torch.optim.{kind}({keep})  # in place of the larger one: only its own"
        ),
    )

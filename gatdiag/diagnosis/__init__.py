"""Diagnosis: run -> why the network does not train, with the evidence and the line of code that removes the cause.

A check looks at one mechanism. It is a function of `Facts` that returns a finding, None where nothing is wrong, or,
as a text, why it could not be made.

    inputs           NaN, scale and constancy of the model's inputs
    wiring           parameters in no optimizer or without a gradient, gradients not cleared, no training signal
    output           probabilities that are given to a loss on logits
    initialization   weights too large, too small, out of balance
    depth            exploding and vanishing gradients, oversmoothing, rank collapse
    units            dead units, saturated attention
    rates            learning rate, clipping, weight decay
    non_finite       the operation that returned the first NaN or infinity
    laws             laws that the training disproves, c that the optimizer moves
    generalization   overfitting
    symptoms         what any of these causes shows: a loss that does not fall, weights that never moved

    causes       the table of all codes: title, figure, what would falsify it, and which stands before which
    thresholds   the table of thresholds, each with its reason
    facts        what checks look at: the course of the loss, sizes by step and by layer; it makes the findings
    finding      Finding, its Evidence and its Remedy
    verdict      Diagnosis: findings, ranked
    remedy       lines of code with the run's own numbers
    wording      numbers in sentences

The report page, `gatdiag inspect` (a checkpoint is a run of one step), `gatdiag compare` and `gatdiag diagnose` all say
what is found here. Never imports torch.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import pandas as pd

from gatdiag.diagnosis import (
    depth,
    generalization,
    initialization,
    inputs,
    laws,
    non_finite,
    output,
    rates,
    symptoms,
    units,
    wiring,
)
from gatdiag.diagnosis.causes import CAUSES
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import HEALTHY, SEVERITIES, Action, Evidence, Finding, Severity
from gatdiag.diagnosis.thresholds import THRESHOLDS
from gatdiag.diagnosis.verdict import Diagnosis, ranked
from gatdiag.run import Run, load

__all__ = [
    "CAUSES",
    "CHECKS",
    "HEALTHY",
    "SEVERITIES",
    "THRESHOLDS",
    "Action",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Severity",
    "diagnose",
]

Check: TypeAlias = Callable[[Facts], Finding | str | None]

CHECKS: Final[Mapping[str, Check]] = {
    "input-nonfinite": inputs.input_non_finite,
    "parameters-not-in-optimizer": wiring.not_in_optimizer,
    "gradients-not-cleared": wiring.not_cleared,
    "no-training-signal": wiring.no_signal,
    "nonfinite-operation": non_finite.non_finite_operation,
    "output-softmax-twice": output.softmax_twice,
    "input-constant": inputs.input_constant,
    "input-scale": inputs.input_scale,
    "init-too-large": initialization.too_large,
    "init-unbalanced": initialization.unbalanced,
    "init-too-small": initialization.too_small,
    "depth-exploding-gradient": depth.exploding,
    "dead-units": units.dead_units,
    "attention-saturated": units.attention_saturated,
    "depth-vanishing-gradient": depth.vanishing,
    "weight-decay-too-strong": rates.weight_decay,
    "lr-too-large": rates.too_large,
    "depth-oversmoothing": depth.oversmoothing,
    "rank-collapse": depth.rank_collapse,
    "parameters-without-gradient": wiring.without_gradient,
    "clipping-too-tight": rates.clipping,
    "lr-too-small": rates.too_small,
    "overfitting": generalization.overfitting,
    "law-broken": laws.law_broken,
    "optimizer-breaks-conservation": laws.conservation,
    "loss-not-falling": symptoms.loss_not_falling,
    "unchanged-weights": symptoms.unchanged_weights,
    "small-steps": symptoms.small_steps,
}

BEFORE_TRAINING: Final = frozenset(code for code in CHECKS if not CAUSES[code].takes_training)
"""Checks that say something before the first step of a training."""


def diagnose(run: Run | str | os.PathLike[str], weights: pd.DataFrame | None = None) -> Diagnosis:
    """Why a recorded training fails, or what is wrong with checkpoints: one cause, ranked first, and its evidence.

    Args:
        run: A run, or the folder of one.
        weights: What stored weights show beyond the run, as `gatdiag.checkpoint.weight_table` gives it.

    Returns:
        `verdict`, the first finding, of code "healthy" where there is none; `findings`, ranked, each with its
        symptoms, a remedy to paste and what would falsify it; `skipped`, the checks that could not be made, and why.

    Raises:
        InputError: The folder holds no run.

    Example:
        >>> diagnose("no such run")
        Traceback (most recent call last):
        gatdiag.errors.InputError: ...
    """
    return judged(Facts(run if isinstance(run, Run) else load(run), weights))


def judged(facts: Facts) -> Diagnosis:
    """The diagnosis of a run of which it is known what it is of: a training, checkpoints, a rehearsal."""
    found: list[Finding] = []
    skipped: dict[str, str] = {}
    for code, check in CHECKS.items():
        result = "it takes training" if facts.is_rehearsal and code not in BEFORE_TRAINING else check(facts)
        if isinstance(result, str):
            skipped[code] = result
        elif result is not None:
            found.append(result)
    if facts.weights is not None:
        found += wiring.without_stored_gradient(facts, facts.weights)
        found += units.dead_weights(facts, facts.weights)
    return Diagnosis(tuple(ranked(found)), skipped, facts.state)


def finds(facts: Facts, codes: Iterable[str]) -> bool:
    """True if one of these checks finds something, be it the symptom of another finding."""
    return any(isinstance(CHECKS[code](facts), Finding) for code in codes)

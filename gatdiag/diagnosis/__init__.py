"""Diagnosis: run -> why the network does not train, with the evidence and the code that removes the cause.

Each check looks for one cause. It is a function of `Facts` that returns a finding, None if nothing is wrong, or a
string: the reason why the check could not be made.

    inputs           NaN, scale and constancy of the model's inputs, missing edges
    messages         weights of edges that cannot be normalized, labeled nodes that no edge reaches
    targets          NaN or a large mean in the targets, a loss of nothing, without a lower bound or of one class
    registration     tensors that look like weights and are no parameters
    loop             no optimizer steps, an optimizer that is made anew
    wiring           parameters in no optimizer or without a gradient, gradients not cleared, no training signal, a loss
                     with broadcasting, evaluation mode
    slope            where the slope ends, if all gradients are zero
    output           what is passed to a loss that expects logits or log-probabilities
    initialization   weights too large, too small, out of balance
    depth            exploding and vanishing gradients, oversmoothing, rank collapse
    units            dead units, dropout, saturated attention
    rates            learning rate, clipping, weight decay
    non_finite       the operation that returned the first NaN or infinity
    laws             laws that the gradients violate, c that the optimizer moves
    generalization   overfitting
    symptoms         effects of any of these causes: a loss that does not fall, weights that never moved

    causes       the table of all codes: title, figure, what would falsify it, and their order
    thresholds   the table of thresholds, each with its reason
    facts        what checks look at: the learning curve, norms by step and by layer; creates the findings
    finding      Finding, its Evidence and its Remedy
    verdict      Diagnosis: the ranked findings
    remedy       code to paste, with the run's own numbers
    wording      numbers as text

To add a finding, write

    its check      `check_...` in the file of its failure mode
    its entry      in `CHECKS` below, by its code
    its row        in `CAUSES`, at its rank: what the findings of this code have in common
    its limits     in `THRESHOLDS`, each with the reason for it
    its test       on either side of its threshold, in `CASES` of ``tests/diagnosis/test_causes.py``

A fault in `tests/bank` then measures how often the finding is right, and how often it is a false alarm.

The report page, `gatdiag inspect` (a checkpoint is a run of one step), `gatdiag compare` and `gatdiag diagnose` all
report these findings. Never imports torch.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from gatdiag.diagnosis import (
    depth,
    generalization,
    initialization,
    inputs,
    laws,
    loop,
    messages,
    non_finite,
    output,
    rates,
    registration,
    symptoms,
    targets,
    units,
    wiring,
)
from gatdiag.diagnosis.causes import CAUSES
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import HEALTHY, SEVERITIES, Action, Evidence, Finding, Severity
from gatdiag.diagnosis.thresholds import THRESHOLDS
from gatdiag.diagnosis.verdict import Diagnosis, rank_findings
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
    "input-nonfinite": inputs.check_non_finite,
    "target-nonfinite": targets.check_non_finite,
    "empty-selection": targets.check_empty,
    "input-edge-weights": messages.check_edge_weights,
    "no-step": loop.check_step,
    "parameters-not-in-optimizer": wiring.check_optimizer,
    "gradients-not-cleared": wiring.check_cleared,
    "optimizer-recreated": loop.check_recreated,
    "loss-broadcast": wiring.check_broadcast,
    "target-is-output": targets.check_is_output,
    "loss-unbounded": targets.check_unbounded,
    "no-training-signal": wiring.check_signal,
    "nonfinite-operation": non_finite.check_non_finite,
    "output-softmax-twice": output.check_softmax_twice,
    "output-softmax-over-nodes": output.check_softmax_over_nodes,
    "evaluation-mode": wiring.check_mode,
    "input-constant": inputs.check_constant,
    "input-scale": inputs.check_scale,
    "target-scale": targets.check_scale,
    "init-too-large": initialization.check_too_large,
    "init-unbalanced": initialization.check_balance,
    "init-too-small": initialization.check_too_small,
    "depth-exploding-gradient": depth.check_exploding,
    "dropout-too-large": units.check_dropout,
    "dead-units": units.check_dead_units,
    "attention-saturated": units.check_attention,
    "depth-vanishing-gradient": depth.check_vanishing,
    "weight-decay-too-strong": rates.check_weight_decay,
    "lr-too-large": rates.check_too_large,
    "depth-oversmoothing": depth.check_oversmoothing,
    "rank-collapse": depth.check_rank_collapse,
    "parameters-without-gradient": wiring.check_gradients,
    "parameters-not-registered": registration.check_registered,
    "clipping-too-tight": rates.check_clipping,
    "lr-too-small": rates.check_too_small,
    "output-relu": output.check_relu,
    "input-without-edges": inputs.check_edges,
    "input-without-messages": messages.check_messages,
    "class-imbalance": targets.check_imbalance,
    "overfitting": generalization.check_overfitting,
    "law-broken": laws.check_laws,
    "optimizer-breaks-conservation": laws.check_conservation,
    "loss-not-falling": symptoms.check_loss,
    "unchanged-weights": symptoms.check_unchanged_weights,
    "small-steps": symptoms.check_small_steps,
}

BEFORE_TRAINING: Final = frozenset(code for code in CHECKS if not CAUSES[code].needs_training)
"""Codes of the checks that can be made before training."""


def diagnose(run: Run | str | os.PathLike[str]) -> Diagnosis:
    """Find out why a recorded training fails, or what is wrong with checkpoints.

    Args:
        run: A run, recorded or made of checkpoints, or its folder.

    Returns:
        `verdict`, the most important finding, with code "healthy" if there is none; `findings`, ranked, each with its
        symptoms, a remedy to paste and what would falsify it; `skipped`, the checks that could not be made, and why.

    Raises:
        InputError: The folder holds no run.

    Example:
        >>> diagnose("no such run")
        Traceback (most recent call last):
        gatdiag.errors.InputError: ...
    """
    return run_checks(Facts(run if isinstance(run, Run) else load(run)))


def run_checks(facts: Facts) -> Diagnosis:
    """Run all checks on a training, on checkpoints, or on the first steps before training."""
    found: list[Finding] = []
    skipped: dict[str, str] = {}
    for code, check in CHECKS.items():
        result = "it shows only during training" if facts.is_preflight and code not in BEFORE_TRAINING else check(facts)
        if isinstance(result, str):
            skipped[code] = result
        elif result is not None:
            found.append(result)
    found += wiring.check_stored_gradients(facts)
    found += units.check_dead_weights(facts)
    return Diagnosis(tuple(rank_findings(found)), skipped, facts.state)


def has_finding(facts: Facts, codes: Iterable[str]) -> bool:
    """True if one of these checks finds something, even a symptom of another finding."""
    return any(isinstance(CHECKS[code](facts), Finding) for code in codes)

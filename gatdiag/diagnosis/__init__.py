"""Diagnosis: run -> why the network does not train, with the evidence and the code that removes the cause.

Each check looks for one cause. It is a function of `Facts` that returns a finding, None if nothing is wrong, or a
string: the reason why the check could not be made.

    inputs           NaN, scale, drift and constancy of the model's inputs; edges that are missing or wrong
    messages         weights of edges that cannot be normalized, labeled nodes that no edge reaches
    relations        relations of a heterogeneous graph without edges
    targets          NaN or a large mean in the targets, a loss of nothing, without a lower bound or of one class
    registration     tensors that look like weights and are no parameters
    loop             no optimizer steps, an optimizer that is made anew, parameters in two of them, overwritten weights
    precision        steps and gradients that half precision rounds to zero
    collapse         outputs that are all alike where a loss that compares them is lowest
    wiring           parameters in no optimizer or without a gradient, gradients not cleared, no training signal, a loss
                     with broadcasting, evaluation mode
    slope            where the slope ends, if all gradients are zero
    output           what is passed to a loss that expects logits or log-probabilities; outputs of several examples
    initialization   weights too large, too small, out of balance
    depth            exploding and vanishing gradients, oversmoothing, rank collapse
    recurrence       the same of time steps, for depth
    units            dead units, no activation, dropout, saturated attention
    rates            learning rate, clipping, weight decay
    schedule         a learning rate that vanishes, or never rises
    non_finite       the operation that returned the first NaN or infinity
    laws             laws that the gradients violate, and how far the optimizer moved c
    generalization   overfitting
    normalization    batch normalization of two rows, or with running statistics of other batches
    evaluation       scores of the training data, other inputs than in training, the mode, random numbers
    classes          batches of one class, weights of classes, ignored classes
    symptoms         effects of any of these causes: a loss that does not fall, weights that never moved

    causes       the decorator `cause`, by which checks are declared, and their order
    thresholds   limits, each declared with its reason where it is used
    training     how a training went: the rule
    facts        what checks look at: the learning curve, norms by step and by layer; creates the findings
    finding      Finding and its Evidence
    fixes        what removes a cause: prints itself, and is executed by `gatdiag.treat`
    verdict      Diagnosis: the ranked findings
    remedy       fixes with the run's own names and numbers
    wording      numbers as text

To add a cause, write its check with the decorator `cause` in the file of its failure mode, and its test on either side
of its limit, in `CASES` of ``tests/diagnosis/test_causes.py``. In a package of your own, an entry point of the group
``gatdiag.causes`` names the module of the check, and nothing else is needed::

    [project.entry-points."gatdiag.causes"]
    few-labels = "few_labels"

``tests/diagnosis/plugin/few_labels.py`` is such a module, in less than 60 lines. Its finding then appears in the
terminal, on the page, in the JSON and in `gatdiag explain few-labels`, and `gatdiag treat` executes its actions.

A fault in `tests/bank` then measures how often the finding is right, and how often it is a false alarm.

The report page, `gatdiag inspect` (a checkpoint is a run of one step), `gatdiag compare` and `gatdiag diagnose` all
report these findings. Never imports torch.
"""

import os
from collections.abc import Iterable
from typing import Final

from gatdiag.diagnosis import (
    classes,
    collapse,
    depth,
    evaluation,
    generalization,
    initialization,
    inputs,
    laws,
    loop,
    messages,
    non_finite,
    normalization,
    output,
    precision,
    rates,
    registration,
    relations,
    schedule,
    symptoms,
    targets,
    units,
    wiring,
)
from gatdiag.diagnosis.causes import CAUSES, Cause, cause, load_plugins
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import (
    HEALTHY,
    SEVERITIES,
    UNDETERMINED,
    UNEXPLAINED,
    Action,
    Evidence,
    Finding,
    Severity,
)
from gatdiag.diagnosis.fixes import Manual, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit
from gatdiag.diagnosis.verdict import Diagnosis, rank_findings, stand_back
from gatdiag.run import Run, load

__all__ = [
    "CAUSES",
    "HEALTHY",
    "SEVERITIES",
    "UNDETERMINED",
    "UNEXPLAINED",
    "Action",
    "Cause",
    "Diagnosis",
    "Evidence",
    "Facts",
    "Finding",
    "Limit",
    "Manual",
    "Remedy",
    "Severity",
    "cause",
    "diagnose",
    "limit",
]

MODULES: Final = (
    inputs, targets, messages, relations, loop, precision, collapse, wiring, registration, output, initialization,
    depth, units, rates, schedule, non_finite, laws, generalization, normalization, evaluation, classes, symptoms,
)  # fmt: skip
"""The files whose checks are known without an entry point."""

BEFORE_TRAINING: Final = frozenset(code for code, one in CAUSES.items() if not one.needs_training)
"""Codes of the checks that can be made before training."""


def diagnose(run: Run | str | os.PathLike[str]) -> Diagnosis:
    """Find out why a recorded training fails, or what is wrong with checkpoints.

    Args:
        run: A run, recorded or made of checkpoints, or its folder.

    Returns:
        `verdict`, the most important finding or, without one, "healthy", "unexplained" (it fails, and no check says
        why) or "undetermined" (too little was recorded to say); `findings`, ranked, each with a remedy to paste and
        what would falsify it; `skipped`, the checks that could not be made, and why.

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
    load_plugins()
    found: list[Finding] = []
    skipped: dict[str, str] = {}
    for code, one in CAUSES.items():
        is_early = facts.is_preflight and one.needs_training and one.check is not None
        result = "it shows only during training" if is_early else one.run(facts)
        if isinstance(result, str):
            skipped[code] = result
        elif isinstance(result, Finding):
            found.append(result)
        else:
            found += result or ()
    kept = stand_back(found)
    skipped |= {one.code: "it says nothing beside what was found" for one in found if one not in kept}
    is_of_optimizer = not any(one.code in CAUSES["law-broken"].gives_way_to for one in found)
    remarks = tuple(filter(None, [laws.drift_of_c(facts) if is_of_optimizer else ""]))
    return Diagnosis(tuple(rank_findings(kept)), skipped, *facts.course, remarks)


def has_finding(facts: Facts, codes: Iterable[str]) -> bool:
    """True if one of these checks finds something, even a symptom of another finding."""
    return any(isinstance(CAUSES[code].run(facts), Finding) for code in codes)

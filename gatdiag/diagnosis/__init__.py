"""Diagnosis: run -> findings, each with its evidence and the threshold it was judged by.

One failure mode a file, each a function of a run's tables with one threshold and the reason for it:

    non_finite           NaN or infinite values
    loss_not_falling     the network does not train
    vanishing_gradients, exploding_gradients
    activations          vanishing and exploding activations
    oversmoothing        the rows of a layer's output become the same
    dead_units           units that put out zero, or that no gradient comes back to
    frozen_parameters    an update ratio that is too small, weights that never moved, layers that hardly changed
    conservation_laws    neurons out of balance, laws that do not hold
    stored_weights       dead weights and parameters without a gradient, in checkpoints

    finding    Finding and Evidence
    values     a series over steps and layers -> one value a layer
    wording    numbers in sentences

The report page, `gatdiag inspect` (a checkpoint is a run of one step), `gatdiag demo` and `gatdiag diagnose` all say
what is found here. Never imports torch.
"""

import os
from collections.abc import Callable
from typing import Final

import pandas as pd

from gatdiag.diagnosis import (
    activations,
    conservation_laws,
    dead_units,
    exploding_gradients,
    frozen_parameters,
    loss_not_falling,
    non_finite,
    oversmoothing,
    stored_weights,
    vanishing_gradients,
)
from gatdiag.diagnosis.finding import SEVERITIES, Evidence, Finding, Severity
from gatdiag.run import Run, load

__all__ = ["MODES", "SEVERITIES", "Evidence", "Finding", "Severity", "diagnose", "examine"]

# What breaks everything first, then what trains, then what becomes of the nodes: a cause before its symptoms.
MODES: Final[tuple[Callable[[Run], Finding | None], ...]] = (
    non_finite.non_finite,
    loss_not_falling.loss_not_falling,
    exploding_gradients.exploding_gradients,
    vanishing_gradients.vanishing_gradients,
    activations.activations,
    dead_units.dead_units,
    oversmoothing.oversmoothing,
    frozen_parameters.small_update_ratio,
    frozen_parameters.unchanged_weights,
    frozen_parameters.still_layers,
    conservation_laws.law_violation,
    conservation_laws.laws_found,
)


def diagnose(run: Run | str | os.PathLike[str], weights: pd.DataFrame | None = None) -> list[Finding]:
    """Problems of a recorded training, or of checkpoints, the most severe first.

    Args:
        run: A run, or the folder of one.
        weights: What stored weights show beyond the run, as `gatdiag.checkpoint.weight_table` gives it.

    Returns:
        The findings of severity "error", "warning" and "note"; empty if nothing crosses a threshold. What was not
        recorded is not judged.

    Raises:
        InputError: The folder holds no run.

    Example:
        >>> diagnose("no such run")
        Traceback (most recent call last):
        gatdiag.errors.InputError: ...
    """
    return [finding for finding in examine(run, weights) if finding.is_problem]


def examine(run: Run | str | os.PathLike[str], weights: pd.DataFrame | None = None) -> list[Finding]:
    """The same with what was measured and is no problem (severity "info") at the end."""
    run = run if isinstance(run, Run) else load(run)
    found = [finding for mode in MODES if (finding := mode(run))]
    if weights is not None:
        found += [*stored_weights.no_gradient(weights), *stored_weights.dead_weights(weights)]
    in_trouble = any(finding.severity in ("error", "warning") for finding in found)
    balance = conservation_laws.imbalance(run, in_trouble=in_trouble)
    found += [balance] if balance else []
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))

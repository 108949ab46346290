"""Summary: run -> tables that figures, reports and diagnoses need; no drawing, no verdicts.

    series     one value a step and layer: parameters of a role combined, neurons of a layer combined
    thinning   few steps out of many, that keep every spike and every pause
    training   what was trained and whether the loss fell
    change     how far the weights have moved, from the snapshots
    comparison several runs, one row each; where two of them differ most

Every function is pure: it reads a `gatdiag.run.Run` and returns a tidy pandas table, or a frozen dataclass of facts.
"""

from gatdiag.summary.change import LEVELS, weight_change
from gatdiag.summary.comparison import (
    compare,
    default_variant,
    depth,
    differences,
    mean_by,
    normalization,
    only_in,
    outcomes,
    ranked,
    score_label,
    width,
)
from gatdiag.summary.series import (
    ATTENTION,
    FEATURES,
    has_role,
    known_layers,
    layer_series,
    neuron_series,
    recorded,
    role_series,
    some_layers,
    weight_scale,
    without_layer,
    zero_norms,
)
from gatdiag.summary.thinning import bin_steps, spaced, stretches, thin, thin_groups
from gatdiag.summary.training import (
    TrainingFacts,
    accuracies,
    logged,
    loss_name,
    score,
    score_kind,
    scores,
    split,
    training_facts,
)

__all__ = [
    "ATTENTION",
    "FEATURES",
    "LEVELS",
    "TrainingFacts",
    "accuracies",
    "bin_steps",
    "compare",
    "default_variant",
    "depth",
    "differences",
    "has_role",
    "known_layers",
    "layer_series",
    "logged",
    "loss_name",
    "mean_by",
    "neuron_series",
    "normalization",
    "only_in",
    "outcomes",
    "ranked",
    "recorded",
    "role_series",
    "score",
    "score_kind",
    "score_label",
    "scores",
    "some_layers",
    "spaced",
    "split",
    "stretches",
    "thin",
    "thin_groups",
    "training_facts",
    "weight_change",
    "weight_scale",
    "width",
    "without_layer",
    "zero_norms",
]

"""Gradient oversmoothing and expansion: mu of outputs and gradients against the layer."""

from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.reproduce.taming import (
    BESIDE,
    COLUMNS,
    FULL,
    GROWTH,
    LEFT_OUT,
    PAPER,
    QUICK,
    SETTINGS,
    judged_layers,
    smoothing,
)

REPRODUCTION = Reproduction(
    name="taming-layers",
    title="mu of outputs and of gradients against the layer, with and without weight normalization",
    paper=f"{PAPER}, representation and gradient similarity by layer",
    claim="Gradients of deep GCNs and GATs become alike over the nodes (mu falls on the way back), those of residual "
    "ones expand; weight normalization limits the expansion.",
    full=FULL,
    quick=QUICK,
    left_out=LEFT_OUT,
    columns=COLUMNS,
    record=True,
    every=1,
    measured=smoothing,
    judged=judged_layers,
    drawings=(Drawing("smoothing_by_layer"),),
    notes=(SETTINGS, BESIDE, GROWTH),
)

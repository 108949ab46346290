"""Gradient oversmoothing and expansion: mu of outputs and gradients over training."""

from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.reproduce.taming import BESIDE, FULL, LEFT_OUT, PAPER, QUICK, SETTINGS, judged_training

REPRODUCTION = Reproduction(
    name="taming-training",
    title="mu of outputs and of gradients over training, with and without weight normalization",
    paper=f"{PAPER}, similarity and accuracy during training",
    claim="A deep residual GAT without normalization ends in NaN; weight normalization with c = 4 trains a residual "
    "GCN of 512 layers.",
    full=FULL,
    quick=QUICK,
    left_out=LEFT_OUT,
    columns=("loss", "last_train_accuracy", "test_accuracy"),
    record=True,
    every=1,
    judged=judged_training,
    drawings=(Drawing("smoothing_over_training"), Drawing("compared_curves")),
    notes=(SETTINGS, BESIDE),
)

"""What the names of "Are GATs Out of Balance?" share: its initializations, seeds and notes."""

from typing import Final

PAPER: Final = "Mustafa, Bojchevski, Burkholz, Are GATs Out of Balance?, NeurIPS 2023"
SEEDS: Final = (0, 1, 2, 3, 4)
XAV: Final = "xavier"
XAV_Z: Final = "xavier_zero_attention"
BAL_X: Final = "balanced_xavier"
BAL_O: Final = "balanced_orthogonal"
THREE: Final = (XAV, BAL_X, BAL_O)
FOUR: Final = (XAV, XAV_Z, BAL_X, BAL_O)
NAMES: Final = (
    "The paper's Xav is xavier, its XavZ xavier_zero_attention, its BalX balanced_xavier, its BalO balanced_orthogonal."
)
STOP: Final = (
    "Training ends at a loss of 1e-4, as the paper's text has it; its code has 1e-5 for citation graphs and 1e-3 for "
    "heterophilic ones."
)

"""Summary: run -> tables that figures, reports and diagnoses need; no drawing, no verdicts.

    series     one value a step and layer: parameters of a role combined, neurons of a layer combined
    thinning   few steps out of many, that keep every spike and every pause
    training   what was trained and whether the loss fell
    change     how far the weights have moved, from the snapshots
    comparison several runs, one row each; where two of them differ most

Every function is pure: it reads a `gatdiag.run.Run` and returns a tidy pandas table, or a frozen dataclass of facts.
"""

from gatdiag.summary.change import *
from gatdiag.summary.comparison import *
from gatdiag.summary.series import *
from gatdiag.summary.thinning import *
from gatdiag.summary.training import *

"""Tables that figures, reports and diagnoses need, computed from runs.

    series      one value per step and layer, from parameters or neurons
    thinning    long series reduced to few points that keep spikes
    training    steps, loss and scores of a training
    change      how far the weights have moved, from the snapshots
    scalars     a step in a few numbers, for trackers
    comparison  several runs, one row each; the largest differences between two

Functions read a `gatdiag.run.Run` and return tidy pandas tables or frozen dataclasses.
"""

from gatdiag.summary.change import *
from gatdiag.summary.comparison import *
from gatdiag.summary.scalars import *
from gatdiag.summary.series import *
from gatdiag.summary.thinning import *
from gatdiag.summary.training import *

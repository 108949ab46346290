"""Figure 3: what changes in a network of five layers."""

from gatdiag.experiments.reproduce.gats import BAL_O, NAMES, ONE_TRAINING, PAPER, XAV, changes
from gatdiag.experiments.reproduce.reproduction import Drawing, Published, Reproduction
from gatdiag.experiments.sweep import grid

REPRODUCTION = Reproduction(
    name="figure-3",
    title="Five layers: how much of each layer changes, relative gradient norms, and the training curve",
    paper=f"{PAPER}, figure 3",
    claim="Five layers train from both; from balanced weights more of the parameters change, and the test accuracy is "
    "higher (79.9 % against 75.5 %).",
    full=grid(layers=5, initialization=(XAV, BAL_O)),
    quick=grid(layers=5, initialization=(XAV, BAL_O), epochs=1000),
    left_out="4000 of 5000 epochs.",
    published=(
        Published({"initialization": XAV}, 75.5, source="caption of figure 3, one training"),
        Published({"initialization": BAL_O}, 79.9, source="caption of figure 3, one training"),
    ),
    columns=("test_accuracy", "epochs_to_best", "changed_by_005"),
    record=True,
    measured=changes,
    drawings=(Drawing("changed_fraction"), Drawing("gradient_norms")),
    notes=(NAMES, ONE_TRAINING, "Gradient descent at 0.1; the threshold of the paper's panel is 0.05."),
)

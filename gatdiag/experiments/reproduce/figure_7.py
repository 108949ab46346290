"""Figure 7: depth under Adam."""

from gatdiag.experiments.reproduce.gats import BAL_O, FOUR, SEEDS, XAV, drawn_by_depth, of_paper
from gatdiag.experiments.sweep import grid

REPRODUCTION = of_paper(
    "figure 7",
    title="Cora, Adam: accuracy and epochs to the best model by depth and initialization",
    claim="Under Adam, too, balanced initializations train deeper networks, and in fewer epochs.",
    full=grid(optimizer="Adam", layers=(2, 5, 10, 20), initialization=FOUR, seed=SEEDS),
    quick=grid(optimizer="Adam", layers=(2, 5, 10), initialization=(XAV, BAL_O), epochs=1000),
    columns=("test_accuracy", "epochs_to_best"),
    drawings=drawn_by_depth(),
)

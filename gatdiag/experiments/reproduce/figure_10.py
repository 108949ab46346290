"""Figure 10: omega-GAT."""

from gatdiag.experiments.reproduce.gats import BAL_O, DEPTHS, FOUR, SEEDS, XAV, drawn_by_depth, of_paper
from gatdiag.experiments.sweep import grid

REPRODUCTION = of_paper(
    "figure 10",
    title="Cora, gradient descent, omega-GAT: accuracy and epochs to the best model by depth and initialization",
    claim="Balance helps another attention network, omega-GAT, in the same way.",
    full=grid(model="omega-gat", layers=DEPTHS, initialization=FOUR, seed=SEEDS),
    quick=grid(model="omega-gat", layers=(2, 5, 10), initialization=(XAV, BAL_O), epochs=1000),
    columns=("test_accuracy", "epochs_to_best"),
    drawings=drawn_by_depth(),
    notes=("The paper's code has no omega-GAT; here each layer has one omega, which begins at 1: attention alone.",),
)

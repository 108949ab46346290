"""Figure 10: omega-GAT."""

from gatdiag.experiments.reproduce.gats import BAL_O, DEPTHS, FOUR, NAMES, PAPER, SEEDS, STOP, XAV, by_depth
from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.sweep import grid

REPRODUCTION = Reproduction(
    name="figure-10",
    title="Cora, gradient descent, omega-GAT: accuracy and epochs to the best model by depth and initialization",
    paper=f"{PAPER}, figure 10",
    claim="Balance helps another attention network, omega-GAT, in the same way.",
    full=grid(model="omega-gat", layers=DEPTHS, initialization=FOUR, seed=SEEDS),
    quick=grid(model="omega-gat", layers=(2, 5, 10), initialization=(XAV, BAL_O), epochs=1000),
    left_out="20 and 40 layers, two of four initializations, 4000 of 5000 epochs, seeds 1 to 4.",
    columns=("test_accuracy", "epochs_to_best"),
    drawings=(Drawing("accuracy_by_depth", table=by_depth),),
    notes=(
        NAMES,
        STOP,
        "The paper's code has no omega-GAT; here each layer has one omega, which begins at 1: attention alone.",
    ),
)

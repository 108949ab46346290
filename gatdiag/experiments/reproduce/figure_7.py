"""Figure 7: depth under Adam."""

from gatdiag.experiments.reproduce.gats import BAL_O, FOUR, NAMES, PAPER, SEEDS, STOP, XAV, by_depth
from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.sweep import grid

REPRODUCTION = Reproduction(
    name="figure-7",
    title="Cora, Adam: accuracy and epochs to the best model by depth and initialization",
    paper=f"{PAPER}, figure 7",
    claim="Under Adam, too, balanced initializations train deeper networks, and in fewer epochs.",
    full=grid(optimizer="Adam", layers=(2, 5, 10, 20), initialization=FOUR, seed=SEEDS),
    quick=grid(optimizer="Adam", layers=(2, 5, 10), initialization=(XAV, BAL_O), epochs=1000),
    left_out="20 layers, two of four initializations, 4000 of 5000 epochs, seeds 1 to 4.",
    columns=("test_accuracy", "epochs_to_best"),
    drawings=(Drawing("accuracy_by_depth", table=by_depth),),
    notes=(NAMES, STOP),
)

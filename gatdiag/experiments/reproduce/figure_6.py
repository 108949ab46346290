"""Figure 6: depth and width."""

from gatdiag.experiments.reproduce.gats import BAL_O, DEPTHS, FOUR, NAMES, PAPER, SEEDS, STOP, XAV, by_depth, by_width
from gatdiag.experiments.reproduce.reproduction import Drawing, Published, Reproduction
from gatdiag.experiments.sweep import grid

_PRINTED = {(XAV, 64): 24.7, (XAV, 512): 68.7, (BAL_O, 64): 79.7, (BAL_O, 512): 80.9}

REPRODUCTION = Reproduction(
    name="figure-6",
    title="Cora, gradient descent: accuracy and epochs to the best model by depth, width and initialization",
    paper=f"{PAPER}, figure 6",
    claim="Width helps Xavier's initialization (from 24.7 % at 64 to 68.7 % at 512 in ten layers) and does not make up "
    "for balance (79.7 % and 80.9 %).",
    full=grid(layers=DEPTHS, width=(64, 128, 256, 512), initialization=FOUR, seed=SEEDS),
    quick=grid(layers=(2, 5, 10), initialization=(XAV, BAL_O), epochs=1000),
    left_out="20 and 40 layers, widths beyond 64, two of four initializations, 4000 of 5000 epochs, seeds 1 to 4.",
    published=tuple(
        Published({"layers": 10, "width": width, "initialization": scheme}, value, source="figure 6")
        for (scheme, width), value in _PRINTED.items()
    ),
    columns=("test_accuracy", "epochs_to_best"),
    drawings=(
        Drawing("accuracy_by_depth", {"width": 64}, table=by_depth),
        Drawing("accuracy_by_width", {"layers": 10}, table=by_width),
    ),
    notes=(NAMES, STOP, "Which depths and widths besides 64, 512 and 10 the paper drew is not known to us."),
)

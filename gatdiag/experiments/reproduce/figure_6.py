"""Figure 6: depth and width."""

from gatdiag.experiments.reproduce.gats import BAL_O, DEPTHS, FOUR, SEEDS, XAV, by_depth, by_width, of_paper
from gatdiag.experiments.reproduce.reproduction import Drawing, published
from gatdiag.experiments.sweep import grid

_PRINTED = {(10, XAV, 64): 24.7, (10, XAV, 512): 68.7, (10, BAL_O, 64): 79.7, (10, BAL_O, 512): 80.9}

REPRODUCTION = of_paper(
    "figure 6",
    title="Cora, gradient descent: accuracy and epochs to the best model by depth, width and initialization",
    claim="Width helps Xavier's initialization (from 24.7 % at 64 to 68.7 % at 512 in ten layers) and does not make up "
    "for balance (79.7 % and 80.9 %).",
    full=grid(layers=DEPTHS, width=(64, 128, 256, 512), initialization=FOUR, seed=SEEDS),
    quick=grid(layers=(2, 5, 10), initialization=(XAV, BAL_O), epochs=1000),
    published=published(_PRINTED, "layers", "initialization", "width", source="figure 6"),
    columns=("test_accuracy", "epochs_to_best"),
    drawings=(
        Drawing("accuracy_by_depth", {"width": 64}, table=by_depth),
        Drawing("accuracy_by_width", {"layers": 10}, table=by_width),
    ),
    notes=("Which depths and widths besides 64, 512 and 10 the paper drew is not known to us.",),
)

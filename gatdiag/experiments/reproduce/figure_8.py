"""Figure 8: weights that never change."""

from gatdiag.experiments.reproduce.gats import FOUR, NAMES, ONE_TRAINING, PAPER, RATE_OF_20, RATES, THREE, changes
from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.sweep import grid

REPRODUCTION = Reproduction(
    name="figure-8",
    title="The part of each layer's parameters that is exactly what it was at first",
    paper=f"{PAPER}, figure 8",
    claim="Parameters that never change at all are those of unbalanced deep networks.",
    full=(
        *grid(layers=(5, 10), initialization=FOUR),
        *grid(layers=20, learning_rate=RATE_OF_20, initialization=FOUR),
    ),
    quick=grid(layers=(5, 10), initialization=THREE, epochs=1000),
    left_out="20 layers, xavier_zero_attention, and 4000 of 5000 epochs.",
    columns=("never_changed", "test_accuracy"),
    record=True,
    measured=changes,
    drawings=tuple(Drawing("unchanged_fraction", {"layers": layers}) for layers in (5, 10, 20)),
    notes=(
        NAMES,
        ONE_TRAINING,
        RATES,
        "No change at all is a matter of the number format: float32, as in the paper.",
    ),
)

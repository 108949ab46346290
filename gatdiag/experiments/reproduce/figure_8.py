"""Figure 8: weights that never change."""

from gatdiag.experiments.reproduce.gats import FOUR, RATE_OF_20, RATES, THREE, changes, of_one_training
from gatdiag.experiments.reproduce.reproduction import Drawing
from gatdiag.experiments.sweep import grid

REPRODUCTION = of_one_training(
    "figure 8",
    title="The part of each layer's parameters that is exactly what it was at first",
    claim="Parameters that never change at all are those of unbalanced deep networks.",
    full=(*grid(layers=(5, 10), initialization=FOUR), *grid(layers=20, learning_rate=RATE_OF_20, initialization=FOUR)),
    quick=grid(layers=(5, 10), initialization=THREE, epochs=1000),
    columns=("never_changed", "test_accuracy"),
    measured=changes,
    drawings=tuple(Drawing("unchanged_fraction", {"layers": layers}) for layers in (5, 10, 20)),
    notes=(RATES, "No change at all is a matter of the number format: float32, as in the paper."),
)

"""Figure 11: how far the weights of each layer move."""

from gatdiag.experiments.reproduce.gats import FOUR, RATE_OF_20, RATES, THREE, changes, of_one_training
from gatdiag.experiments.reproduce.reproduction import Drawing
from gatdiag.experiments.sweep import grid

REPRODUCTION = of_one_training(
    "figure 11",
    title="Distribution of the relative change of feature weights and the absolute change of attention, by layer",
    claim="From balanced weights the parameters of all layers move farther than from Xavier's.",
    full=(*grid(layers=10, initialization=FOUR), *grid(layers=20, learning_rate=RATE_OF_20, initialization=FOUR)),
    quick=grid(layers=10, initialization=THREE, epochs=1000),
    columns=("median_change", "test_accuracy"),
    measured=changes,
    drawings=tuple(Drawing("change_boxes", {"layers": layers}) for layers in (10, 20)),
    notes=(RATES, "Changes are relative to the trained weight, of weights of at least 1e-4, as there."),
)

"""Figure 11: how far the weights of each layer move."""

from gatdiag.experiments.reproduce.gats import FOUR, NAMES, ONE_TRAINING, PAPER, RATE_OF_20, RATES, THREE, changes
from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.sweep import grid

REPRODUCTION = Reproduction(
    name="figure-11",
    title="Distribution of the relative change of feature weights and the absolute change of attention, by layer",
    paper=f"{PAPER}, figure 11",
    claim="From balanced weights the parameters of all layers move farther than from Xavier's.",
    full=(
        *grid(layers=10, initialization=FOUR),
        *grid(layers=20, learning_rate=RATE_OF_20, initialization=FOUR),
    ),
    quick=grid(layers=10, initialization=THREE, epochs=1000),
    left_out="20 layers, xavier_zero_attention, and 4000 of 5000 epochs.",
    columns=("median_change", "test_accuracy"),
    record=True,
    measured=changes,
    drawings=tuple(Drawing("change_boxes", {"layers": layers}) for layers in (10, 20)),
    notes=(
        NAMES,
        ONE_TRAINING,
        RATES,
        "Changes are relative to the trained weight, of weights of at least 1e-4, as there.",
    ),
)

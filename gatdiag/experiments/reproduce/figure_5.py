"""Figure 5: gradients of features and of attention in three of ten layers."""

from gatdiag.experiments.reproduce.gats import NAMES, ONE_TRAINING, PAPER, THREE, gradients
from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.sweep import grid

_SETTINGS = {"layers": 10, "learning_rate": 0.1, "initialization": THREE}

REPRODUCTION = Reproduction(
    name="figure-5",
    title="Ten layers: relative gradient norms of feature weights and attention vectors of layers 1, 5 and 10",
    paper=f"{PAPER}, figure 5",
    claim="From weights that are not balanced, the relative gradients of ten layers are too small to train them, and "
    "are not alike in features and attention.",
    full=grid(**_SETTINGS),
    quick=grid(**_SETTINGS, epochs=1000),
    left_out="4000 of 5000 epochs.",
    columns=("least_relative_gradient", "largest_relative_gradient", "test_accuracy"),
    record=True,
    measured=gradients,
    drawings=(Drawing("chosen_layers", options={"layers": ("convs.0", "convs.4", "convs.9")}),),
    notes=(NAMES, ONE_TRAINING, "Gradient descent at 0.1. The paper has a point every 25 epochs."),
)

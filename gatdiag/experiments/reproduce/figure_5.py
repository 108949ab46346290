"""Figure 5: gradients of features and of attention in three of ten layers."""

from gatdiag.experiments.reproduce.gats import THREE, gradients, of_one_training
from gatdiag.experiments.reproduce.reproduction import Drawing
from gatdiag.experiments.sweep import grid

REPRODUCTION = of_one_training(
    "figure 5",
    title="Ten layers: relative gradient norms of feature weights and attention vectors of layers 1, 5 and 10",
    claim="From weights that are not balanced, the relative gradients of ten layers are too small to train them, and "
    "are not alike in features and attention.",
    full=grid(layers=10, learning_rate=0.1, initialization=THREE),
    columns=("least_relative_gradient", "largest_relative_gradient", "test_accuracy"),
    measured=gradients,
    drawings=(Drawing("chosen_layers", options={"layers": ("convs.0", "convs.4", "convs.9")}),),
    notes=("Gradient descent at 0.1. The paper has a point every 25 epochs.",),
)

"""Figure 3: what changes in a network of five layers."""

from gatdiag.experiments.reproduce.gats import BAL_O, XAV, changes, of_one_training
from gatdiag.experiments.reproduce.reproduction import Drawing, published
from gatdiag.experiments.sweep import grid

REPRODUCTION = of_one_training(
    "figure 3",
    title="Five layers: how much of each layer changes, relative gradient norms, and the training curve",
    claim="Five layers train from both; from balanced weights more of the parameters change, and the test accuracy is "
    "higher (79.9 % against 75.5 %).",
    full=grid(layers=5, initialization=(XAV, BAL_O)),
    published=published({XAV: 75.5, BAL_O: 79.9}, "initialization", source="caption of figure 3, one training"),
    columns=("test_accuracy", "epochs_to_best", "changed_by_005"),
    measured=changes,
    drawings=(Drawing("changed_fraction"), Drawing("gradient_norms")),
    notes=("Gradient descent at 0.1; the threshold of the paper's panel is 0.05.",),
)

"""Figure 12: relative gradients under Adam."""

import pandas as pd

from gatdiag.experiments.reproduce.gats import FOUR, gradients, of_one_training
from gatdiag.experiments.reproduce.reproduction import Drawing, published, shorter
from gatdiag.experiments.sweep import grid

_PRINTED = {5: (71.6, 76.2, 77.3, 80.5), 10: (63.2, 68.8, 71.8, 78.0)}
_FULL = (
    *grid(optimizer="Adam", layers=5, learning_rate=0.005, initialization=FOUR),
    *grid(optimizer="Adam", layers=10, learning_rate=0.0001, initialization=FOUR),
)
_CLAIMED = {
    "test_accuracy": ("test accuracy", ".1%"),
    "largest_relative_gradient": ("largest relative gradient", ".2g"),
}


def judged(results: pd.DataFrame) -> list[str]:
    """Balanced orthogonal weights beside Xavier's, at each depth."""
    said = []
    for layers, rows in results.groupby("layers"):
        found = rows.drop_duplicates("initialization").set_index("initialization")
        if not {"xavier", "balanced_orthogonal"} <= {*found.index}:
            continue
        for column, (label, form) in _CLAIMED.items():
            xavier, balanced = found[column]["xavier"], found[column]["balanced_orthogonal"]
            said.append(
                f"{'Reproduced' if balanced > xavier else 'NOT reproduced'}: {layers} layers, {label}: {xavier:{form}} "
                f"from Xavier's weights, {balanced:{form}} from balanced orthogonal ones."
            )
    return said


REPRODUCTION = of_one_training(
    "figure 12",
    title="Cora, Adam: relative gradient norms by layer",
    claim="Under Adam, too, balanced networks have the higher accuracy (80.5 % against 71.6 % of five layers, 78.0 % "
    "against 63.2 % of ten), and the larger relative gradients.",
    full=_FULL,
    quick=shorter(_FULL, 800),
    published=published(
        {(layers, scheme): value for layers in _PRINTED for scheme, value in zip(FOUR, _PRINTED[layers], strict=True)},
        *("layers", "initialization"),
        source="figure 12, order of panels presumed",
    ),
    columns=("test_accuracy", "least_relative_gradient", "largest_relative_gradient"),
    measured=gradients,
    judged=judged,
    drawings=(Drawing("gradient_norms"),),
    notes=(
        "Ten layers: the rate of the figure, 0.0001; the paper's table of rates has 0.0005.",
        "Relative gradients are medians over a training, which ends where the loss is below 0.0001.",
    ),
)

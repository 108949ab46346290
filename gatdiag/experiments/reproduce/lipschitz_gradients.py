"""LipschitzNorm: the evolution of the gradient in a GAT of 25 layers."""

import numpy as np
import pandas as pd

from gatdiag.experiments.reproduce.lipschitz import DEEP_GAT, of_paper
from gatdiag.experiments.reproduce.reproduction import Drawing, shorter
from gatdiag.experiments.sweep import grid
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import role_series


def gradients(run: Run) -> dict[str, float]:
    """Size of the feature weights' gradients, and over how many decades the layers' spread; medians are over steps."""
    table = role_series(run, "gradient_norm", FEATURE)
    norms = table[np.isfinite(table["value"])].groupby("step")["value"]
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.log10(norms.max() / norms.min())
    return {
        "largest_gradient": float(norms.max().max()),
        "median_gradient": float(norms.median().median()),
        "decades_between_layers_at_first": float(decades.iloc[0]),
        "decades_between_layers": float(decades.median()),
    }


def judged(results: pd.DataFrame) -> list[str]:
    """With LipschitzNorm beside without it."""
    rows = results.drop_duplicates("lipschitz").set_index("lipschitz")
    if not {"none", "paper"} <= {*rows.index}:
        return []
    bare, normalized = rows.loc["none"], rows.loc["paper"]
    less = (
        normalized["largest_gradient"] < bare["largest_gradient"] / 10
        and normalized["decades_between_layers"] < bare["decades_between_layers"]
    )
    said = [
        f"{'Reproduced' if less else 'NOT reproduced'}: without LipschitzNorm the largest gradient norm is "
        f"{bare['largest_gradient']:.3g}, with it {normalized['largest_gradient']:.3g}; the layers are "
        f"{bare['decades_between_layers']:.2g} and {normalized['decades_between_layers']:.2g} decades apart in the "
        "median."
    ]
    accuracies = bare["last_train_accuracy"], normalized["last_train_accuracy"]
    if max(accuracies) < 0.5:
        said.append(
            "Even gradients are not all there is to training: neither network has learned its training nodes "
            f"({accuracies[0]:.1%} right without LipschitzNorm, {accuracies[1]:.1%} with it)."
        )
    return said


REPRODUCTION = of_paper(
    "evolution of the gradient",
    title="Evolution of the gradient in a GAT of 25 layers, with and without LipschitzNorm",
    claim="Gradients of a GAT of 25 layers explode or vanish without LipschitzNorm, and do not with it.",
    full=grid(**DEEP_GAT, layers=25, heads=8, lipschitz=("none", "paper")),
    quick=shorter(grid(**DEEP_GAT, layers=25, lipschitz=("none", "paper")), 100),
    columns=(
        *("largest_gradient", "median_gradient", "decades_between_layers_at_first", "decades_between_layers"),
        *("last_train_accuracy", "last_test_accuracy"),
    ),
    record=True,
    every=1,
    measured=gradients,
    judged=judged,
    drawings=(Drawing("gradient_evolution"), Drawing("compared_curves")),
    notes=(
        "Data set, heads and number of epochs of the paper's figure are not known to us; it is Cora here.",
        "A decade is a factor of ten between the largest and the smallest gradient norm of a layer's feature weights, "
        "in the median over the recorded steps or at the first.",
    ),
)

"""What the names of "Are GATs Out of Balance?" share: initializations, depths, seeds, notes, tables for figures."""

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction, by_size, shorter
from gatdiag.experiments.settings import Experiment
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import role_series, weight_change

PAPER: Final = "Mustafa, Bojchevski, Burkholz, Are GATs Out of Balance?, NeurIPS 2023"
SEEDS: Final = (0, 1, 2, 3, 4)
XAV: Final = "xavier"
BAL_X: Final = "balanced_xavier"
BAL_O: Final = "balanced_orthogonal"
THREE: Final = (XAV, BAL_X, BAL_O)
FOUR: Final = (XAV, "xavier_zero_attention", BAL_X, BAL_O)
DEPTHS: Final = (2, 5, 10, 20, 40)
NAMES: Final = (
    "The paper's Xav is xavier, its XavZ xavier_zero_attention, its BalX balanced_xavier, its BalO balanced_orthogonal."
)
STOP: Final = (
    "Training ends at a loss of 1e-4, as the paper's text has it; its code has 1e-5 for citation graphs and 1e-3 for "
    "heterophilic ones."
)
RATE_OF_20: Final = 0.01
RATES: Final = (
    "Gradient descent at 0.1, 0.05 and 0.01 for 5, 10 and 20 layers, as in the figures of the paper's appendix; its "
    "table of rates has 0.05 for 20."
)
_ONE_TRAINING: Final = "The paper's figure shows one training, of a seed that is not known; here it is seed 0."


def of_paper(where: str, *, notes: Sequence[str] = (), **stated: Any) -> Reproduction:
    """A name of the paper, by default of many trainings, of which accuracies are compared."""
    return Reproduction(paper=f"{PAPER}, {where}", notes=(NAMES, STOP, *notes), **stated)


def of_one_training(
    where: str, *, full: tuple[Experiment, ...], notes: Sequence[str] = (), **stated: Any
) -> Reproduction:
    """A figure of the paper that shows what happens in single trainings, which are watched; quick: for 1000 epochs."""
    stated = {"quick": shorter(full, 1000), **stated}
    return of_paper(where, full=full, record=True, notes=(_ONE_TRAINING, *notes), **stated)


def changes(run: Run) -> dict[str, float]:
    """How far feature weights have moved: means over layers of what `gatdiag.summary.weight_change` says of each."""
    table = weight_change(run)
    columns = {
        "changed_by_005": "changed_fraction_005",
        "changed_by_050": "changed_fraction_050",
        "never_changed": "unchanged_fraction",
        "median_change": "q50",
    }
    features = table[table["role"] == FEATURE]
    return {name: float(features[column].mean()) for name, column in columns.items()}


def gradients(run: Run) -> dict[str, float]:
    """Relative gradient norms of feature weights, medians over training: the least and the largest of any layer."""
    medians = role_series(run, "relative_gradient_norm", FEATURE).groupby("layer", observed=True)["value"].median()
    return {"least_relative_gradient": float(medians.min()), "largest_relative_gradient": float(medians.max())}


_PANELS: Final = {"accuracy": "test_accuracy", "epochs to best": "epochs_to_best"}


def by_depth(results: pd.DataFrame) -> pd.DataFrame:
    """Accuracy and epochs to the best against depth."""
    return by_size(results, _PANELS, "depth", results["layers"], results["initialization"])


def by_width(results: pd.DataFrame) -> pd.DataFrame:
    """The same against width."""
    return by_size(results, _PANELS, "width", results["width"], results["initialization"])


def drawn_by_depth(*data: str) -> tuple[Drawing, ...]:
    """Accuracies by depth, of each of these graphs; of all trainings, if none is named."""
    return tuple(Drawing("accuracy_by_depth", {"data": name} if name else {}, table=by_depth) for name in data or ("",))

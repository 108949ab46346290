"""A figure of "Lipschitz Normalization for Self-Attention Layers", and the divisor of its released code."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv
from torch_geometric.utils import scatter

from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import grid
from gatdiag.remedies.applied import add_mixin
from gatdiag.remedies.lipschitz_layers import LipschitzGAT
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import role_series
from reports.papers.study import Drawing, Study, with_epochs

_PAPER: Final = "Dasoulas, Scaman, Virmaux, Lipschitz Normalization for Self-Attention Layers, ICML 2021"
DEEP_GAT: Final[Mapping[str, Any]] = {
    "bias": True,
    "initialization": "default",
    "transform": "none",
    "optimizer": "Adam",
    "learning_rate": 0.005,
    "weight_decay": 5e-4,
    "schedule": "plateau",
    "epochs": 1000,
    "stop_below": 0.0,
    "model": "deep-gat",
    "activation": "elu",
    "dropout": 0.6,
    "attention_dropout": 0.3,
}
LIPSCHITZ_SCRIPT: Final = (
    "As released, the depth script of LipschitzNorm never applies it, since it asks for a name that the model does not "
    "know. Whether that affects published numbers is unknown."
)


# --- the evolution of the gradient in a GAT of 25 layers --------------------------------------------------------------


def gradient_spread(run: Run) -> dict[str, float]:
    """Gradient norms of feature weights, and log10 of the ratio of the largest to the smallest layer, over steps."""
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


def judge_gradients(results: pd.DataFrame) -> list[str]:
    """Compare gradients with and without LipschitzNorm."""
    rows = results.drop_duplicates("lipschitz").set_index("lipschitz")
    if not {"none", "paper"} <= {*rows.index}:
        return []
    bare, normalized = rows.loc["none"], rows.loc["paper"]
    is_reproduced = (
        normalized["largest_gradient"] < bare["largest_gradient"] / 10
        and normalized["decades_between_layers"] < bare["decades_between_layers"]
    )
    sentences = [
        f"{'Reproduced' if is_reproduced else 'NOT reproduced'}: without LipschitzNorm the largest gradient norm is "
        f"{bare['largest_gradient']:.3g}, with it {normalized['largest_gradient']:.3g}; the layers are "
        f"{bare['decades_between_layers']:.2g} and {normalized['decades_between_layers']:.2g} decades apart (median)."
    ]
    accuracies = bare["last_train_accuracy"], normalized["last_train_accuracy"]
    if max(accuracies) < 0.5:
        sentences.append(
            "Neither network fits its training nodes "
            f"(accuracy {accuracies[0]:.1%} without LipschitzNorm, {accuracies[1]:.1%} with it)."
        )
    return sentences


LIPSCHITZ_GRADIENTS: Final = Study(
    name="lipschitz-gradients",
    paper=f"{_PAPER}, evolution of the gradient",
    title="Evolution of the gradient in a GAT of 25 layers, with and without LipschitzNorm",
    claim="Gradients of a GAT of 25 layers explode or vanish without LipschitzNorm, and do not with it.",
    full=grid(**DEEP_GAT, layers=25, heads=8, lipschitz=("none", "paper")),
    quick=with_epochs(grid(**DEEP_GAT, layers=25, lipschitz=("none", "paper")), 100),
    columns=(
        "largest_gradient",
        "median_gradient",
        "decades_between_layers_at_first",
        "decades_between_layers",
        "last_train_accuracy",
        "last_test_accuracy",
    ),
    record=True,
    every=1,
    measure=gradient_spread,
    judge=judge_gradients,
    drawings=(Drawing("gradient_evolution"), Drawing("compared_curves")),
    notes=(
        "The settings are those of the released scripts, since the paper's text was not available. They report the "
        "test accuracy of the last epoch (last test accuracy), without selection by validation.",
        "`lipschitz paper` divides scores as in the paper.",
        "The data set, heads and number of epochs of the paper's figure are unknown; here it is Cora.",
        "A decade is a factor of ten between the largest and the smallest gradient norm of a layer's feature "
        "weights, as the median over the recorded steps or at the first step.",
    ),
)

# --- the divisor of the released code ---------------------------------------------------------------------------------


class _Released(LipschitzGAT):
    """Scores of `GATConv` divided as in the released code.

    The divisor is 4 ||a|| sqrt(max_j ||x_j||^2 + ||x_j||^2) with one norm ||a|| for all heads, x_j of the edge instead
    of x_i and, with several heads, the maxima of other nodes: those of shape (nodes, heads) are flattened and indexed
    by node.
    """

    lipschitz_alpha = math.inf  # scores have no bound, so that their softmax subtracts the largest

    def linear_divisor(self: Any, a: Tensor, edge: Tensor | None, index: Tensor, size: int | None) -> Any:
        _, norm_j = self._norms
        maxima = scatter(norm_j, index, dim_size=size, reduce="max")
        return 4 * torch.linalg.vector_norm(a) * torch.hypot(maxima.reshape(-1, 1)[index], norm_j) + 1e-12


def normalize_as_released_(model: nn.Module) -> None:
    """Divide the scores of all layers of `GATConv` as the released code of LipschitzNorm does, in place.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> model = GAT(4, 8, num_layers=2, heads=2)
        >>> normalize_as_released_(model)
        >>> model(torch.ones(2, 4), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 8])
    """
    for layer in model.modules():
        if isinstance(layer, GATConv):
            add_mixin(layer, _Released)


@dataclass(frozen=True)
class ReleasedCode(Experiment):
    """A training in which ``lipschitz`` may also be ``code``: the divisor of the released code."""

    lipschitz: Literal["none", "paper", "code"] = "none"  # type: ignore[assignment]

    def change_(self, model: nn.Module) -> None:
        """Normalize the initialized network."""
        if self.lipschitz == "code":
            normalize_as_released_(model)


def as_released(cells: Iterable[Experiment]) -> tuple[ReleasedCode, ...]:
    """The same trainings with LipschitzNorm as in the released code."""
    return tuple(ReleasedCode(**{**vars(cell), "lipschitz": "code"}) for cell in cells)


STUDIES: Final = (LIPSCHITZ_GRADIENTS,)

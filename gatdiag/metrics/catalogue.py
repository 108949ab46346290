"""The catalogue: the facts about each recorded quantity, for whoever stores, prints or draws it.

Plain data without tensors. `dataclasses.asdict(quantity)` is what a run keeps in its `meta.json`, so that figures can
label an axis without importing this package.
"""

from dataclasses import dataclass, replace
from typing import Literal

_OUT_OF_BALANCE = "Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023"
_GRADIENTS = "Park & Kim, arXiv 2410.04824"
_LIPSCHITZ = "Dasoulas et al., ICML 2021"
_RANKS = "Zhang et al., arXiv 2502.04591"
_MAD = "Chen et al., AAAI 2020"
_GRADIENT = r"\nabla_{X}\mathcal{L}"


@dataclass(frozen=True)
class Quantity:
    """One recorded quantity.

    Attributes:
        name: Its column in the run's tables.
        function: The function of `gatdiag.metrics` that computes it.
        label: What an axis or a table head says.
        unit: "" if it has none; "X", "X^2", "W" where it scales like that tensor, or that power of it.
        equation: LaTeX, without dollar signs.
        paper: Where it comes from.
        per: What it has one value for.
        high: What a high value means.
        low: What a low value means.
        gradient_name: Its column when it is measured on dLoss/dX instead; "" if it is not.
    """

    name: str
    function: str
    label: str
    unit: str
    equation: str
    paper: str
    per: Literal["layer", "parameter", "node", "network"]
    high: str
    low: str
    gradient_name: str = ""


def of_gradient(quantity: Quantity) -> Quantity | None:
    """The same quantity measured on dLoss/dX in place of a layer's output X; None where that has no name.

    Example:
        >>> of_gradient(next(q for q in QUANTITIES if q.name == "relative_mu")).name
        'relative_gradient_mu'
    """
    if not quantity.gradient_name:
        return None
    return replace(
        quantity,
        name=quantity.gradient_name,
        label=f"{quantity.label} of the gradient",
        unit=quantity.unit.replace("X", "(dLoss/dX)"),
        equation=quantity.equation.replace("X", _GRADIENT),
        gradient_name="",
    )


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "relative_gradient_norm",
        "relative_gradient_norm",
        "relative gradient norm",
        "",
        r"\|\nabla_W\mathcal{L}\|_F / \|W\|_F",
        _OUT_OF_BALANCE,
        "parameter",
        "the parameter moves far at each step",
        "the parameter hardly trains",
    ),
    Quantity(
        "update_ratio",
        "update_ratio",
        "update-to-weight ratio",
        "",
        r"\|W_{t+1} - W_t\|_F / \|W_t\|_F",
        "",
        "parameter",
        "steps overwrite the parameter",
        "the optimiser hardly moves the parameter",
    ),
    Quantity(
        "unchanged_fraction",
        "unchanged_fraction",
        "unchanged parameters",
        "",
        r"\#\{w^* = w_0\} / \#\{w\}",
        _OUT_OF_BALANCE,
        "parameter",
        "no gradient arrives",
        "every weight has moved",
    ),
    Quantity(
        "changed_fraction",
        "changed_fraction",
        "changed parameters",
        "",
        r"\#\{|(w^* - w_0) / w^*| > \tau, |w^*| \geq 10^{-4}\} / \#\{|w^*| \geq 10^{-4}\}",
        _OUT_OF_BALANCE,
        "parameter",
        "the layer has trained",
        "the layer is as it was initialised",
    ),
    Quantity(
        "spectral_norm",
        "spectral_norm",
        "spectral norm",
        "W",
        r"\|W\|_2",
        _GRADIENTS,
        "parameter",
        "the layer can stretch differences, and gradients",
        "the layer shrinks differences, and gradients",
    ),
    Quantity(
        "output_norm",
        "frobenius_norm",
        "norm",
        "X",
        r"\|X\|_F",
        _GRADIENTS,
        "layer",
        "it explodes",
        "it vanishes",
        "output_gradient_norm",
    ),
    Quantity(
        "mu",
        "mu",
        "mu",
        "X",
        r"\mu(X) = \|X - \mathbf{1}\gamma_{X}\|_F",
        _GRADIENTS,
        "layer",
        "nodes differ",
        "nodes are alike, or everything vanishes",
        "gradient_mu",
    ),
    Quantity(
        "relative_mu",
        "relative_mu",
        "relative mu",
        "",
        r"\mu(X) / \|X\|_F",
        _GRADIENTS,
        "layer",
        "nodes differ",
        "nodes are alike",
        "relative_gradient_mu",
    ),
    Quantity(
        "dirichlet_energy",
        "dirichlet_energy",
        "Dirichlet energy",
        "X^2",
        r"\mathrm{tr}(X^\top L X)",
        "Cai & Wang, arXiv 2006.13318",
        "layer",
        "neighbours differ",
        "neighbours are alike, or everything vanishes",
        "gradient_dirichlet_energy",
    ),
    Quantity(
        "rayleigh_quotient",
        "rayleigh_quotient",
        "Rayleigh quotient",
        "",
        r"\mathrm{tr}(X^\top L X) / \|X\|_F^2",
        "Cai & Wang, arXiv 2006.13318",
        "layer",
        "neighbours differ",
        "neighbours are alike",
        "gradient_rayleigh_quotient",
    ),
    Quantity(
        "mad",
        "mad",
        "mean cosine distance",
        "",
        r"\mathrm{mean}_i\,\mathrm{mean}_j\,(1 - \cos(X_i, X_j))",
        _MAD,
        "layer",
        "nodes point in different directions",
        "nodes point the same way",
        "gradient_mad",
    ),
    Quantity(
        "mad_gap",
        "mad_gap",
        "MADGap",
        "",
        r"\mathrm{MAD}_{remote}(X) - \mathrm{MAD}_{near}(X)",
        _MAD,
        "layer",
        "distant nodes stay distinct",
        "distant nodes are as alike as near ones",
        "gradient_mad_gap",
    ),
    Quantity(
        "effective_rank",
        "effective_rank",
        "effective rank",
        "",
        r"\exp(-\sum_k p_k \log p_k),\ p_k = \sigma_k(X) / \sum_j \sigma_j(X)",
        _RANKS,
        "layer",
        "all directions are used",
        "all rows are proportional",
        "gradient_effective_rank",
    ),
    Quantity(
        "numerical_rank",
        "numerical_rank",
        "numerical rank",
        "",
        r"\|X\|_F^2 / \|X\|_2^2",
        _RANKS,
        "layer",
        "all directions are used",
        "all rows are proportional",
        "gradient_numerical_rank",
    ),
    Quantity(
        "dead_fraction",
        "dead_fraction",
        "dead units",
        "",
        r"\#\{i : X_{:,i} = 0\} / d",
        "",
        "layer",
        "most units are never active",
        "every unit is active at some node",
        "gradient_dead_fraction",
    ),
    Quantity(
        "non_finite_counts",
        "non_finite_counts",
        "NaN and infinities",
        "",
        r"\#\{X_{ij} \notin \mathbb{R}\}",
        "",
        "layer",
        "the numbers are broken",
        "zero: all is finite",
        "gradient_non_finite_counts",
    ),
    Quantity(
        "attention_entropy",
        "attention_entropy",
        "attention entropy",
        "nat",
        r"-\sum_j \alpha_{ij} \log \alpha_{ij}",
        "",
        "node",
        "attention is spread evenly",
        "attention is on one neighbour",
    ),
    Quantity(
        "largest_score",
        "largest_score",
        "largest attention score",
        "",
        r"\max_{ij} |e_{ij}|",
        _LIPSCHITZ,
        "layer",
        "the softmax saturates, gradients may explode",
        "attention is close to uniform",
    ),
    Quantity(
        "attention_alpha",
        "attention_alpha",
        "smallest alpha of the attention bound",
        "",
        r"\alpha,\ L_F(\mathrm{Att}) \leq e^\alpha \sqrt{m/n} + \alpha\sqrt{8}",
        _LIPSCHITZ,
        "layer",
        "attention can stretch differences, and gradients",
        "attention is safely Lipschitz",
    ),
    Quantity(
        "network_log_bound",
        "network_log_bound",
        "log Lipschitz bound",
        "",
        r"\sum_l \log L_l",
        _GRADIENTS,
        "network",
        "gradients may expand with depth",
        "gradients must vanish with depth",
    ),
)

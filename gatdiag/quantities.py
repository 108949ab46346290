"""The catalogue: every recorded column, described once. No torch.

The schema of a run, what `metrics=` selects, the labels of figures, the tables of the report and the documentation all
come from here. To record another quantity, write its function in `gatdiag.metrics`, a line below, and a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

TableName: TypeAlias = Literal["steps", "layers", "parameters", "neurons"]

LEVELS: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)  # quantiles of change that are recorded
SIGNIFICANT: Final = 1e-4  # the relative change of smaller weights does not count: the papers' cutoff
THRESHOLDS: Final[Mapping[str, float]] = {"changed_fraction_005": 0.05, "changed_fraction_050": 0.5}

_BALANCE = "Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023"
_TAMING = "Park & Kim, arXiv 2410.04824"
_ENERGY = "Cai & Wang, arXiv 2006.13318"
_RANK = "Zhang et al., arXiv 2502.04591"
_MAD = "Chen et al., AAAI 2020"


@dataclass(frozen=True)
class Quantity:
    """One recorded column.

    Attributes:
        name: The column.
        table: The table it is in.
        group: What it is measured with, and what `metrics=` may call it; "" in the table `steps`.
        label: What an axis or a table head says.
        unit: "" if it has none; "X", "W" or "L" where it scales like a layer's output, a weight or the loss.
        equation: LaTeX, without dollar signs.
        meaning: What it is, in words.
        high: What a high value means.
        low: What a low value means.
        paper: Where it comes from.
        metric: The function of `gatdiag.metrics` that computes it.
        symbol: The equation in plain characters, for an axis; the label where there is none.
    """

    name: str
    table: TableName
    group: str = ""
    label: str = ""
    unit: str = ""
    equation: str = ""
    meaning: str = ""
    high: str = ""
    low: str = ""
    paper: str = ""
    metric: str = ""
    symbol: str = ""


@dataclass(frozen=True)
class Group:
    """Columns of one table that are measured together.

    Attributes:
        name: What `metrics=` calls it.
        table: The table its columns are in.
        columns: Its columns.
        cost: What one record takes, in percent of a training step of a ten-layer GATv2 of width 64 on Cora (2 CPU
            cores). That of "weights" includes what any recording costs.
    """

    name: str
    table: TableName
    columns: tuple[str, ...]
    cost: float


def change_quantile(kind: str, level: float) -> str:
    """The column of a quantile of the relative or the absolute change.

    Example:
        >>> change_quantile("relative", 0.05)
        'relative_change_q5'
    """
    return f"{kind}_change_q{round(100 * level)}"


def gradient_name(column: str) -> str:
    """The column of the same quantity measured on dLoss/dX in place of a layer's output X.

    Example:
        >>> [gradient_name(column) for column in ("mu", "relative_mu", "output_norm")]
        ['gradient_mu', 'relative_gradient_mu', 'output_gradient_norm']
    """
    if column == "output_norm":
        return "output_gradient_norm"
    return column.replace("relative_", "relative_gradient_") if "relative_" in column else f"gradient_{column}"


def _of_gradient(quantity: Quantity) -> Quantity:
    return replace(
        quantity,
        name=gradient_name(quantity.name),
        label=f"{quantity.label} of the gradient",
        unit=quantity.unit.replace("X", "(dL/dX)"),
        equation=quantity.equation.replace("X", r"\nabla_{X}\mathcal{L}"),
        meaning=quantity.meaning.replace("X", "dL/dX"),
        symbol=quantity.symbol.replace("X", "∂L/∂X"),
    )


def _with_gradients(*of_output: Quantity) -> tuple[Quantity, ...]:
    """What is measured of each layer's output X, then the same of dL/dX."""
    return (*of_output, *map(_of_gradient, of_output))


def _quantiles(kind: str, unit: str, change: str, equation: str, of: str = "") -> tuple[Quantity, ...]:
    return tuple(
        Quantity(
            change_quantile(kind, level),
            "parameters",
            group="quantiles",
            label=f"{kind} change{of}, {round(100 * level)} % quantile",
            unit=unit,
            equation=equation,
            meaning=f"{round(100 * level)} % quantile of {change}",
            high="weights have moved far",
            low="weights are as they were initialized",
            paper=_BALANCE,
            metric=f"{kind}_change",
        )
        for level in LEVELS
    )


_STEPS = (
    Quantity(
        "time",
        "steps",
        label="time",
        unit="s",
        meaning="time since recording began",
    ),
    Quantity(
        "gradient_norm",
        "steps",
        label="gradient norm",
        unit="L/W",
        equation=r"\|\nabla\mathcal{L}\|",
        meaning="norm of the gradients of all parameters together, as the optimizer used them",
    ),
    Quantity(
        "gradient_norm_before_clipping",
        "steps",
        label="gradient norm before clipping",
        unit="L/W",
        equation=r"\|\nabla\mathcal{L}\|",
        meaning="the same before gradients were clipped",
    ),
    Quantity(
        "learning_rate",
        "steps",
        label="learning rate",
        equation=r"\eta",
        meaning="learning rate of the first parameter group; learning_rate_1, ... of the further ones, optimizers "
        "in the order in which they first made a step",
    ),
)
_LAYERS = (
    *_with_gradients(
        Quantity(
            "output_norm",
            "layers",
            group="outputs",
            label="norm",
            unit="X",
            equation=r"\|X\|_F",
            meaning="Frobenius norm of X",
            high="it explodes",
            low="it vanishes",
            paper=_TAMING,
            metric="frobenius_norm",
            symbol="‖X‖",
        ),
        Quantity(
            "mu",
            "layers",
            group="outputs",
            label="mu",
            unit="X",
            equation=r"\mu(X) = \|X - \mathbf{1}\gamma_{X}\|_F",
            meaning="distance of X from its mean over the nodes",
            high="nodes differ",
            low="nodes are alike, or everything vanishes",
            paper=_TAMING,
            metric="mu",
            symbol="μ(X)",
        ),
        Quantity(
            "relative_mu",
            "layers",
            group="outputs",
            label="relative mu",
            equation=r"\mu(X) / \|X\|_F",
            meaning="mu over the norm of X",
            high="nodes differ",
            low="nodes are alike: oversmoothing",
            paper=_TAMING,
            metric="relative_mu",
            symbol="μ(X) / ‖X‖",
        ),
        Quantity(
            "dead_fraction",
            "layers",
            group="outputs",
            label="dead units",
            equation=r"\#\{i : X_{:,i} = 0\} / d",
            meaning="share of the columns of X that are zero at every node",
            high="most units are never active",
            low="every unit is active at some node",
            metric="dead_fraction",
        ),
        Quantity(
            "non_finite",
            "layers",
            group="outputs",
            label="NaN and infinities",
            equation=r"\#\{X_{ij} \notin \mathbb{R}\}",
            meaning="how many entries of X are NaN or infinite",
            high="the numbers are broken",
            low="zero: all is finite",
            metric="non_finite_counts",
        ),
    ),
    Quantity(
        "attention_entropy",
        "layers",
        group="attention",
        label="mean attention entropy",
        unit="nat",
        equation=r"-\sum_j \alpha_{ij} \log \alpha_{ij}",
        meaning="mean entropy of the attention of a node; null where a note says why",
        high="attention is spread evenly",
        low="attention is on one neighbor",
        metric="attention_entropy",
    ),
    Quantity(
        "relative_attention_entropy",
        "layers",
        group="attention",
        label="mean attention entropy relative to uniform attention",
        equation=r"-\sum_j \alpha_{ij} \log \alpha_{ij} / \log d_i",
        meaning="the same over its largest possible value",
        high="attention is spread evenly",
        low="attention is on one neighbor",
        metric="relative_attention_entropy",
    ),
    *_with_gradients(
        Quantity(
            "dirichlet_energy",
            "layers",
            group="energies",
            label="Dirichlet energy",
            unit="X^2",
            equation=r"\mathrm{tr}(X^\top (I - D^{-1/2} A D^{-1/2}) X)",
            meaning="Dirichlet energy of X",
            high="neighbors differ",
            low="neighbors are alike, or everything vanishes",
            paper=_ENERGY,
            metric="dirichlet_energy",
        ),
        Quantity(
            "rayleigh_quotient",
            "layers",
            group="energies",
            label="Rayleigh quotient of the symmetric Laplacian",
            equation=r"\mathrm{tr}(X^\top (I - D^{-1/2} A D^{-1/2}) X) / \|X\|_F^2",
            meaning="Dirichlet energy over the squared norm of X",
            high="neighbors differ",
            low="neighbors are alike",
            paper=_ENERGY,
            metric="rayleigh_quotient",
        ),
    ),
    *_with_gradients(
        Quantity(
            "mad",
            "layers",
            group="cosine_distances",
            label="mean cosine distance",
            equation=r"\mathrm{mean}_i\,\mathrm{mean}_j\,(1 - \cos(X_i, X_j))",
            meaning="mean cosine distance between the rows of X",
            high="nodes point in different directions",
            low="nodes point the same way",
            paper=_MAD,
            metric="mad",
        ),
    ),
    *_with_gradients(
        Quantity(
            "effective_rank",
            "layers",
            group="ranks",
            label="effective rank",
            equation=r"\exp(-\sum_k p_k \log p_k),\ p_k = \sigma_k(X) / \sum_j \sigma_j(X)",
            meaning="exponential of the entropy of the singular values of X",
            high="all directions are used",
            low="all rows are proportional",
            paper=_RANK,
            metric="effective_rank",
        ),
        Quantity(
            "numerical_rank",
            "layers",
            group="ranks",
            label="numerical rank",
            equation=r"\|X\|_F^2 / \|X\|_2^2",
            meaning="squared Frobenius norm of X over its squared spectral norm",
            high="all directions are used",
            low="all rows are proportional",
            paper=_RANK,
            metric="numerical_rank",
        ),
    ),
)
_PARAMETERS = (
    Quantity(
        "norm",
        "parameters",
        group="weights",
        label="norm",
        unit="W",
        equation=r"\|W\|_F",
        meaning="Frobenius norm of the parameter W",
        high="the weight grows",
        low="the weight shrinks",
        metric="norms",
    ),
    Quantity(
        "gradient_norm",
        "parameters",
        group="weights",
        label="gradient norm",
        unit="L/W",
        equation=r"\|\nabla_W\mathcal{L}\|_F",
        meaning="Frobenius norm of its gradient",
        high="gradients explode",
        low="gradients vanish",
        metric="norms",
    ),
    Quantity(
        "relative_gradient_norm",
        "parameters",
        group="weights",
        label="relative gradient norm",
        equation=r"\|\nabla_W\mathcal{L}\|_F / \|W\|_F",
        meaning="gradient_norm over norm",
        high="the parameter moves far at each step",
        low="the parameter hardly trains",
        paper=_BALANCE,
        metric="relative_gradient_norm",
    ),
    Quantity(
        "update_ratio",
        "parameters",
        group="weights",
        label="update-to-weight ratio",
        equation=r"\|W_{t+1} - W_t\|_F / \|W_t\|_F",
        meaning="norm of the change of W by this optimizer step over norm",
        high="steps overwrite the parameter",
        low="the optimizer hardly moves the parameter",
        metric="update_ratio",
    ),
    Quantity(
        "unchanged_fraction",
        "parameters",
        group="changes",
        label="unchanged parameters",
        equation=r"\#\{w^* = w_0\} / \#\{w\}",
        meaning="share of entries that equal their initial value",
        high="no gradient arrives",
        low="every weight has moved",
        paper=_BALANCE,
        metric="unchanged_fraction",
    ),
    *(
        Quantity(
            name,
            "parameters",
            group="changes",
            label=f"weights (of at least 1e-4) changed by more than {threshold:.0%}".replace("%", " %"),
            equation=rf"\#\{{|(w^* - w_0) / w^*| > {threshold}, |w^*| \geq 10^{{-4}}\}} / \#\{{|w^*| \geq 10^{{-4}}\}}",
            meaning=f"share of the entries with |w| >= 1e-4 whose |w - w_0| / |w| exceeds {threshold}; "
            "of attention vectors, share of all entries whose |w - w_0| does",
            high="the layer has trained",
            low="the layer is as it was initialized",
            paper=_BALANCE,
            metric="changed_fraction",
        )
        for name, threshold in THRESHOLDS.items()
    ),
    Quantity(
        "non_finite",
        "parameters",
        group="health",
        label="NaN and infinities",
        equation=r"\#\{W_{ij} \notin \mathbb{R}\}",
        meaning="how many entries of W are NaN or infinite",
        high="the numbers are broken",
        low="zero: all is finite",
        metric="non_finite_counts",
    ),
    Quantity(
        "gradient_non_finite",
        "parameters",
        group="health",
        label="NaN and infinities of the gradient",
        equation=r"\#\{(\nabla_W\mathcal{L})_{ij} \notin \mathbb{R}\}",
        meaning="how many entries of its gradient are NaN or infinite",
        high="the numbers are broken",
        low="zero: all is finite",
        metric="non_finite_counts",
    ),
    *_quantiles(
        "relative",
        "",
        "|w - w_0| / |w| over the entries with |w| >= 1e-4",
        r"|(w_t - w_0) / w_t|, \quad |w_t| \geq 10^{-4}",
        " of the weights of at least 1e-4",
    ),
    *_quantiles("absolute", "W", "|w - w_0| over all entries", r"|w_t - w_0|"),
    Quantity(
        "spectral_norm",
        "parameters",
        group="spectral_norms",
        label="spectral norm",
        unit="W",
        equation=r"\|W\|_2",
        meaning="largest singular value of W, all its axes but the first flattened; null for vectors",
        high="the layer can stretch differences, and gradients",
        low="the layer shrinks differences, and gradients",
        paper=_TAMING,
        metric="spectral_norm",
    ),
)
_NEURONS = (
    Quantity(
        "delta",
        "neurons",
        group="balance",
        label="delta",
        unit="L",
        equation=r"\delta = \sum_k e_k \langle w_k, \partial\mathcal{L}/\partial w_k \rangle",
        meaning="sum_k e_k <w_k, dL/dw_k>, zero where the law holds",
        high="the gradients are not those of the function whose laws these are",
        low="the law holds",
        paper=_BALANCE,
    ),
    Quantity(
        "c",
        "neurons",
        group="balance",
        label="c",
        unit="W^2",
        equation=r"c = \sum_k e_k \|w_k\|^2",
        meaning="sum_k e_k |w_k|^2, constant under gradient flow",
        high="incoming weights outweigh attention and outgoing weights, which can hardly train",
        low="outgoing weights outweigh incoming ones",
        paper=_BALANCE,
    ),
    Quantity(
        "predicted_c",
        "neurons",
        group="balance",
        label="predicted c",
        unit="W^2",
        equation=r"c_{t} = (1 - \eta\lambda)^2 c_{t-1} + \eta^2 \sum_k e_k \|g_k\|^2",
        meaning="what the optimizer's previous step makes of c if delta is zero",
        high="as c",
        low="as c",
        paper=_BALANCE,
    ),
)

QUANTITIES: Final[tuple[Quantity, ...]] = (*_STEPS, *_LAYERS, *_PARAMETERS, *_NEURONS)

_COSTS: Final[Mapping[str, float]] = {
    "weights": 4.0,
    "health": 0.5,
    "changes": 1.0,
    "outputs": 4.0,
    "balance": 2.0,
    "attention": 7.0,
    "quantiles": 7.0,
    "spectral_norms": 5.0,
    "energies": 160.0,
    "ranks": 140.0,
    "cosine_distances": 70.0,
}


def columns(table: TableName) -> tuple[Quantity, ...]:
    """The columns of a table, in order."""
    return tuple(quantity for quantity in QUANTITIES if quantity.table == table)


def quantity(table: TableName, column: str) -> Quantity:
    """The entry of a column of a table.

    Raises:
        KeyError: There is no such column.
    """
    return _BY_NAME[table, column]


_BY_NAME: Final[Mapping[tuple[str, str], Quantity]] = {(each.table, each.name): each for each in QUANTITIES}


def _group(name: str, cost: float) -> Group:
    members = [q for q in QUANTITIES if q.group == name]
    return Group(name, members[0].table, tuple(q.name for q in members), cost)


GROUPS: Final[Mapping[str, Group]] = {name: _group(name, cost) for name, cost in _COSTS.items()}

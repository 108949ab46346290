"""The catalog: every recorded column, described once. No torch.

The schema of a run, what `metrics=` selects, what recorders and checkpoints measure, the labels of figures and the
documentation all come from here. To add a quantity of a layer's output, or of a parameter's weight, gradient or update,
write

    its function    in a file of `gatdiag.metrics`; it may return several columns at once, as a NamedTuple with their
                    names
    its entry       in a group below: ``function`` names the function, ``of`` what it is called with, ``reduction`` how
                    the numbers of one layer's parameters are reduced to one
    its test        of the function, against an independent computation; the tests that hold for every column (its
                    schema, that it is recorded and described, how it scales) read this catalog

and it is recorded, stored, compared and documented. To show its values on a page, name it in `gatdiag.page.tables`,
whose columns have to fit a screen, or draw it in a figure. A new group also needs a place in the presets of
`gatdiag.recorder.settings`. The recorder computes the quantities without a function. `STORED` are the few that only a
run made of checkpoints has; `gatdiag.checkpoint.measures` computes them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast

TableName: TypeAlias = Literal["steps", "layers", "parameters", "neurons"]
Of: TypeAlias = Literal["", "output", "output gradient", "attention", "weight", "gradient", "update"]
Side: TypeAlias = Literal["above", "below"]
Needs: TypeAlias = Literal["", "edges", "matrix"]

LEVELS: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)  # recorded quantiles of weight changes
SIGNIFICANT: Final = 1e-4  # relative changes of smaller weights are ignored, as in the papers
THRESHOLDS: Final[Mapping[str, float]] = {"changed_fraction_005": 0.05, "changed_fraction_050": 0.5}

HEALTHY_RANGE: Final = "nine in ten layers of healthy trainings"
HEALTHY: Final[Mapping[str, tuple[float, float]]] = {
    "parameters.relative_gradient_norm": (1e-5, 3.0),
    "parameters.update_ratio": (5e-5, 0.4),
    "parameters.unchanged_fraction": (0.0, 0.05),
    "layers.relative_mu": (0.05, 1.0),
    "layers.relative_gradient_mu": (0.75, 1.0),
    "layers.gradient_dead_fraction": (0.0, 0.6),
    "layers.relative_attention_entropy": (0.4, 1.0),
    "layers.output_norm": (0.08, 20.0),
    "layers.output_gradient_norm": (0.02, 3.0),
    "layers.effective_rank": (1.6, math.inf),
    "layers.dead_fraction": (0.0, 0.05),
    "layers.zero_inputs": (0.0, 0.2),
    "layers.attention_peak": (0.0, 0.25),
    "parameters.attention_pace": (0.02, 120.0),
    "parameters.gain": (0.4, 2.0),
    "parameters.spectral_share": (0.25, 0.7),
}
"""The range of nine tenths of the layers of trainings in which nothing is wrong, for quantities that do not depend much
on the model: 5th to 95th percentile, rounded outwards, at the first step, of the medians over the recorded steps and,
for steps, of the largest of the first 20, whichever is further out, in the controls and repaired twins of tests/bank
(`python -m tests.bank ranges`). Of what training makes of a layer, at the end. Ranks have no upper end, which depends
on the width."""

COMPARED_WITH: Final[Mapping[str, Literal["first", "last"]]] = {
    "layers.output_norm": "first",
    "layers.output_gradient_norm": "last",
}
"""Quantities that mean something only beside those of another layer, and which one."""

_BALANCE = "Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023"
_TAMING = "Park & Kim, arXiv 2410.04824"
_ENERGY = "Cai & Wang, arXiv 2006.13318"
_RANK = "Zhang et al., arXiv 2502.04591"
_MAD = "Chen et al., AAAI 2020"


@dataclass(frozen=True, repr=False)
class Quantity:
    """One recorded column.

    Attributes:
        name: The column.
        table: Its table.
        group: The group it is measured with, a name that `metrics=` accepts; "" in the table `steps`.
        label: Label of an axis or a table column.
        unit: "" if it has none; "X", "W" or "L" if it scales like a layer's output, a weight or the loss.
        equation: The definition in symbols, as Unicode text; ∇W is the gradient of the loss L with respect to W.
        meaning: The definition in words.
        high: What a high value means.
        low: What a low value means.
        paper: The source.
        of: What it is measured of: each layer's output X, dL/dX or attention coefficients; each parameter's weight,
            gradient or update, which is the change of the weight by the optimizer step; "" for other things.
        function: The function of `gatdiag.metrics` of that tensor that computes it; "" if the recorder does.
        field: Its name in the NamedTuple that the function returns, if that is not the name of the column.
        needs: "edges" if the function's second argument is the edges between the rows of X, without which it is null;
            "matrix" if it is null for attention vectors and for parameters with less than two axes.
        reduction: How the weights of one layer are reduced to one number: largest, smallest, mean weighted by the
            number of entries that count, norm of all entries together, or ratio of two such norms (the largest ratio if
            these were not recorded).
        counted: Column of the fraction of a weight's entries that count; "" if all do.
        symbol: A short form of the equation, for an axis; the label is used if it is "".
        relative_to: Column of the norm that it is divided by, which makes it 0 / 0 if that is zero; "" if none.
        is_share: Whether it is a fraction from 0 to 1.
        is_compared: Whether a comparison of two runs includes it.
        is_of_end: Whether the value at the end counts, and not that of a typical step: what training made of a layer.
    """

    name: str
    table: TableName = "steps"
    group: str = ""
    label: str = ""
    unit: str = ""
    equation: str = ""
    meaning: str = ""
    high: str = ""
    low: str = ""
    paper: str = ""
    of: Of = ""
    function: str = ""
    field: str = ""
    needs: Needs = ""
    reduction: Literal["largest", "smallest", "mean", "norm", "gradient_norm / norm"] = "largest"
    counted: str = ""
    symbol: str = ""
    relative_to: str = ""
    is_share: bool = False
    is_compared: bool = True
    is_of_end: bool = False

    def __repr__(self) -> str:
        """For example ``Quantity(layers.output_norm)``."""
        return f"Quantity({self.table}.{self.name})"

    @property
    def is_over_orders(self) -> bool:
        """Whether its values differ by orders of magnitude: all but shares that are no ratios of norms."""
        return not self.is_share or bool(self.relative_to)


@dataclass(frozen=True)
class Metric:
    """A function of `gatdiag.metrics`, with the columns that it fills.

    Attributes:
        function: Its name.
        of: As for `Quantity`.
        needs: As for `Quantity`.
        quantities: Its columns, which are of one group.
    """

    function: str
    of: Of
    needs: Needs
    quantities: tuple[Quantity, ...]

    @property
    def group(self) -> str:
        """The group of its columns."""
        return self.quantities[0].group

    @property
    def label(self) -> str:
        """The labels of its columns."""
        return " and ".join(each.label for each in self.quantities)

    def by_column(self, result: Any) -> dict[str, Any]:
        """What the function returned, by column."""
        if not isinstance(result, tuple):
            return {self.quantities[0].name: result}
        return {each.name: getattr(result, each.field or each.name) for each in self.quantities}


@dataclass(frozen=True)
class Group:
    """Columns of one table that are measured together.

    Attributes:
        name: Its name in `metrics=`.
        table: The table of its columns.
        columns: Its columns.
        cost: Time of one record, in percent of a training step of a ten-layer GATv2 of width 64 on Cora (2 CPU cores).
            That of "weights" includes the fixed cost of recording.
    """

    name: str
    table: TableName
    columns: tuple[str, ...]
    cost: float


def change_quantile(kind: str, level: float) -> str:
    """The column of a quantile of the relative or absolute change.

    Example:
        >>> change_quantile("relative", 0.05)
        'relative_change_q5'
    """
    return f"{kind}_change_q{round(100 * level)}"


def gradient_name(column: str) -> str:
    """The column of the same quantity measured on dLoss/dX instead of the layer's output X.

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
        equation=quantity.equation.replace("X", "∇X"),
        meaning=quantity.meaning.replace("X", "dL/dX"),
        symbol=quantity.symbol.replace("X", "∇X"),
        relative_to=gradient_name(quantity.relative_to) if quantity.relative_to else "",
        of="output gradient",
        field=quantity.field or quantity.name,
    )


def _with_gradients(*of_output: Quantity) -> tuple[Quantity, ...]:
    """The quantities of each layer's output X, then the same of dL/dX."""
    return (*(replace(quantity, of="output") for quantity in of_output), *map(_of_gradient, of_output))


def _non_finite(matrix: str, described: str) -> Quantity:
    return Quantity(
        "non_finite",
        label="NaN and infinities",
        equation=f"#{{{matrix}ᵢⱼ ∉ ℝ}}",
        meaning=f"number of entries of {described} that are NaN or infinite",
        high="the values are unusable",
        low="zero: all values are finite",
        is_compared=False,
    )


def _quantiles(
    kind: str, unit: str, change: str, equation: str, of: str = "", counted: str = ""
) -> tuple[Quantity, ...]:
    return tuple(
        Quantity(
            change_quantile(kind, level),
            label=f"{kind} change{of}, {round(100 * level)}% quantile",
            unit=unit,
            equation=equation,
            meaning=f"{round(100 * level)}% quantile of {change}",
            high="weights have moved far",
            low="weights are still at their initial values",
            paper=_BALANCE,
            counted=counted,
            is_compared=False,
        )
        for level in LEVELS
    )


def _group(name: str, table: TableName, cost: float, *members: Quantity) -> tuple[Group, tuple[Quantity, ...]]:
    group = Group(name, table, tuple(quantity.name for quantity in members), cost)
    return group, tuple(replace(quantity, table=table, group=name) for quantity in members)


_STEPS = (
    Quantity(
        "time",
        label="time",
        unit="s",
        equation="Δt",
        meaning="time since recording began",
    ),
    Quantity(
        "gradient_norm",
        label="gradient norm",
        unit="L/W",
        equation="‖∇L‖",
        meaning="norm of the gradients of all parameters of the model together, recorded or not, as the optimizer used "
        "them",
    ),
    Quantity(
        "gradient_norm_before_clipping",
        label="gradient norm before clipping",
        unit="L/W",
        equation="‖∇L‖",
        meaning="the same before gradient clipping",
    ),
    Quantity(
        "learning_rate",
        label="learning rate",
        equation="η",
        meaning="learning rate of the first parameter group; learning_rate_1, ... of the others, with optimizers "
        "in the order of their first steps",
    ),
    Quantity(
        "overshoot",
        label="overshoot of the previous step",
        equation="1 − ⟨∇Lₜ, wₜ − wₜ₋₁⟩ / ⟨∇Lₜ₋₁, wₜ − wₜ₋₁⟩",
        meaning="how far the previous step went: 0 if the slope along it did not change, 1 if it reached the minimum "
        "along it; at each recorded step after a recorded one on the same batches, if gradients were cleared before "
        "both",
        high="above 2, gradient descent diverges: the learning rate is too large",
        low="the learning rate could be larger",
    ),
    Quantity(
        "stale_gradient",
        label="leftover gradient",
        equation="‖∇L_left‖ / ‖∇Lₜ₋₁‖",
        meaning="norm of the gradients at the start of the step's first backward pass, over that of the gradients that "
        "the last step used; 0 if any of its backward passes starts without; of the parameters that the model's output "
        "depends on, at each recorded step after a recorded one",
        high="1: gradients were not cleared",
        low="0: gradients were cleared",
    ),
)
_GROUPS = (
    _group(
        "weights",
        "parameters",
        4.0,
        Quantity(
            "norm",
            label="norm",
            unit="W",
            equation="‖W‖_F",
            meaning="Frobenius norm of the parameter W",
            high="the weight grows",
            low="the weight shrinks",
            of="weight",
            reduction="norm",
        ),
        Quantity(
            "gradient_norm",
            label="gradient norm",
            unit="L/W",
            equation="‖∇W‖_F",
            meaning="Frobenius norm of its gradient",
            high="gradients explode",
            low="gradients vanish",
            of="gradient",
            reduction="norm",
            symbol="‖∇W‖",
        ),
        Quantity(
            "relative_gradient_norm",
            label="relative gradient norm",
            equation="‖∇W‖_F / ‖W‖_F",
            meaning="gradient_norm divided by norm",
            high="each step changes the parameter a lot",
            low="the parameter hardly trains",
            paper=_BALANCE,
            reduction="gradient_norm / norm",
            symbol="‖∇W‖ / ‖W‖",
        ),
        Quantity(
            "update_ratio",
            label="update-to-weight ratio",
            equation="‖Wₜ₊₁ − Wₜ‖_F / ‖Wₜ‖_F",
            meaning="norm of the change of W by this optimizer step, divided by norm",
            high="steps overwrite the parameter",
            low="the optimizer hardly moves the parameter",
            of="update",
        ),
    ),
    _group(
        "changes",
        "parameters",
        1.0,
        Quantity(
            "unchanged_fraction",
            label="unchanged weights",
            equation="#{w = w₀} / #{w}",
            meaning="fraction of entries that equal their initial value",
            high="no gradient arrives",
            low="every weight has moved",
            paper=_BALANCE,
            reduction="mean",
            is_share=True,
            is_of_end=True,
        ),
        *(
            Quantity(
                name,
                label=f"weights (of at least 1e-4) changed by more than {threshold:.0%}",
                equation=f"#{{|w − w₀| / |w| > {threshold}, |w| ≥ 10⁻⁴}} / #{{|w| ≥ 10⁻⁴}}",
                meaning=f"fraction of the entries with |w| >= 1e-4 for which |w - w_0| / |w| exceeds {threshold}; "
                "for attention vectors, fraction of all entries for which |w - w_0| does",
                high="the layer has trained",
                low="the layer is still at its initial values",
                paper=_BALANCE,
                reduction="mean",
                counted="significant_fraction",
                is_share=True,
            )
            for name, threshold in THRESHOLDS.items()
        ),
        Quantity(
            "significant_fraction",
            label="weights of at least 1e-4",
            equation="#{|w| ≥ 10⁻⁴} / #{w}",
            meaning="fraction of entries with |w| >= 1e-4, which are those that count in the fractions that changed; 1 "
            "for attention vectors, of which all entries count",
            high="all weights count",
            low="most weights are close to zero",
            paper=_BALANCE,
            reduction="mean",
            is_share=True,
            is_compared=False,
        ),
    ),
    _group(
        "health",
        "parameters",
        0.5,
        replace(_non_finite("W", "W"), of="weight"),
        replace(
            _non_finite("∇W", "its gradient"),
            of="gradient",
            name="gradient_non_finite",
            label="NaN and infinities of the gradient",
        ),
    ),
    _group(
        "quantiles",
        "parameters",
        7.0,
        *_quantiles(
            "relative",
            "",
            "|w - w_0| / |w| over the entries with |w| >= 1e-4",
            "|w − w₀| / |w|, |w| ≥ 10⁻⁴",
            " of the weights of at least 1e-4",
            "significant_fraction",
        ),
        *_quantiles("absolute", "W", "|w - w_0| over all entries", "|w − w₀|"),
    ),
    _group(
        "spectral_norms",
        "parameters",
        5.0,
        Quantity(
            "spectral_norm",
            label="spectral norm",
            unit="W",
            equation="‖W‖₂",
            meaning="largest singular value of W, with all axes but the first flattened; null for vectors",
            high="the layer can amplify differences and gradients",
            low="the layer shrinks differences and gradients",
            paper=_TAMING,
            of="weight",
            function="spectral_norm",
            needs="matrix",
        ),
    ),
    _group(
        "outputs",
        "layers",
        4.0,
        *_with_gradients(
            Quantity(
                "output_norm",
                label="norm",
                unit="X",
                equation="‖X‖_F",
                meaning="Frobenius norm of X, which has a column for each channel, and a row for each node of each "
                "signal or each place of each sample",
                high="values explode",
                low="values vanish",
                paper=_TAMING,
                symbol="‖X‖",
                function="output_statistics",
            ),
            Quantity(
                "mu",
                label="mu",
                unit="X",
                equation="μ(X) = ‖X − 1γᵀ‖_F, γ = Xᵀ1 / N",
                meaning="distance of X from its mean over the nodes",
                high="nodes differ",
                low="nodes are alike, or everything vanishes",
                paper=_TAMING,
                is_compared=False,
                symbol="μ(X)",
                function="output_statistics",
            ),
            Quantity(
                "relative_mu",
                label="relative mu",
                equation="μ(X) / ‖X‖_F",
                meaning="mu divided by the norm of X",
                high="nodes differ",
                low="nodes are alike: oversmoothing",
                paper=_TAMING,
                is_share=True,
                symbol="μ(X) / ‖X‖",
                relative_to="output_norm",
                function="output_statistics",
            ),
            Quantity(
                "dead_fraction",
                label="dead units",
                equation="#{i : X[:, i] = 0} / d",
                meaning="fraction of the columns (channels) of X that are zero at every node",
                high="many units are never active",
                low="every unit is active at some node",
                is_share=True,
                is_of_end=True,
                function="output_statistics",
            ),
            replace(_non_finite("X", "X"), function="output_statistics"),
        ),
    ),
    _group(
        "attention",
        "layers",
        7.0,
        Quantity(
            "attention_entropy",
            label="mean attention entropy",
            unit="nat",
            equation="meanᵢ(−Σⱼ αᵢⱼ log αᵢⱼ)",
            meaning="mean over the nodes of the entropy of their attention; if null, a note says why",
            high="attention is spread evenly",
            low="attention is on one neighbor",
            is_compared=False,
            of="attention",
            function="attention_spread",
        ),
        Quantity(
            "relative_attention_entropy",
            label="relative attention entropy",
            equation="meanᵢ(−Σⱼ αᵢⱼ log αᵢⱼ / log dᵢ), dᵢ ≥ 2",
            meaning="the same divided by its maximum, that of uniform attention",
            high="attention is spread evenly",
            low="attention is on one neighbor",
            is_share=True,
            of="attention",
            function="attention_spread",
        ),
        Quantity(
            "attention_peak",
            label="nodes that attend to one neighbor",
            equation="#{i : maxⱼ αᵢⱼ > 0.99, dᵢ ≥ 2} / #{i : dᵢ ≥ 2}",
            meaning="fraction of the nodes with at least two neighbors whose largest coefficient exceeds 0.99",
            high="attention is saturated and cannot learn",
            low="attention is spread over several neighbors",
            is_share=True,
            is_of_end=True,
            of="attention",
            function="attention_spread",
        ),
    ),
    _group(
        "energies",
        "layers",
        160.0,
        *_with_gradients(
            Quantity(
                "dirichlet_energy",
                label="Dirichlet energy",
                unit="X^2",
                equation="½ Σᵢⱼ Aᵢⱼ ‖Xᵢ − Xⱼ‖²",
                meaning="Dirichlet energy of X: half the sum of |x_i - x_j|^2 over the edges, each in both directions; "
                "summed over all signals if X is a batch of signals on one graph",
                high="neighbors differ",
                low="neighbors are alike, or everything vanishes",
                paper=_ENERGY,
                function="energies",
                needs="edges",
                is_compared=False,
            ),
            Quantity(
                "rayleigh_quotient",
                label="Rayleigh quotient of the symmetric Laplacian",
                equation="½ Σᵢⱼ Aᵢⱼ ‖Xᵢ/√dᵢ − Xⱼ/√dⱼ‖² / ‖X‖_F²",
                meaning="symmetrically normalized Dirichlet energy divided by the squared norm of X, both of all "
                "signals together; the degrees d count a self loop at each node",
                high="neighbors differ",
                low="neighbors are alike",
                paper=_ENERGY,
                function="energies",
                needs="edges",
                relative_to="output_norm",
            ),
        ),
    ),
    _group(
        "cosine_distances",
        "layers",
        70.0,
        *_with_gradients(
            Quantity(
                "mad",
                label="mean cosine distance",
                equation="meanᵢ meanⱼ (1 − cos(Xᵢ, Xⱼ)), Aᵢⱼ ≠ 0",
                meaning="mean cosine distance between the rows of X that edges join, in each signal apart; distances "
                "of the size of rounding errors are left out",
                high="nodes point in different directions",
                low="nodes point the same way",
                paper=_MAD,
                function="mad",
                needs="edges",
            ),
        ),
    ),
    _group(
        "ranks",
        "layers",
        140.0,
        *_with_gradients(
            Quantity(
                "effective_rank",
                label="effective rank",
                equation="exp(−Σₖ pₖ log pₖ), pₖ = σₖ(X) / Σⱼ σⱼ(X)",
                meaning="exponential of the entropy of the singular values of X",
                high="all directions are used",
                low="all rows are proportional",
                paper=_RANK,
                function="ranks",
            ),
            Quantity(
                "numerical_rank",
                label="numerical rank",
                equation="‖X‖_F² / ‖X‖₂²",
                meaning="squared Frobenius norm of X divided by its squared spectral norm",
                high="all directions are used",
                low="all rows are proportional",
                paper=_RANK,
                function="ranks",
            ),
        ),
    ),
    _group(
        "balance",
        "neurons",
        2.0,
        Quantity(
            "delta",
            label="delta",
            unit="L",
            equation="δ = Σₖ eₖ ⟨wₖ, ∂L/∂wₖ⟩",
            meaning="sum_k e_k <w_k, dL/dw_k>, zero if the law holds",
            high="the law is violated: the gradients are not those of this function",
            low="the law holds",
            paper=_BALANCE,
            symbol="δ",
        ),
        Quantity(
            "c",
            label="c",
            unit="W^2",
            equation="c = Σₖ eₖ ‖wₖ‖²",
            meaning="sum_k e_k |w_k|^2, constant under gradient flow",
            high="incoming weights outweigh attention and outgoing weights, which can hardly train",
            low="outgoing weights outweigh incoming ones",
            paper=_BALANCE,
        ),
        Quantity(
            "predicted_c",
            label="predicted c",
            unit="W^2",
            equation="cₜ = (1 − ηλ)² cₜ₋₁ + η² Σₖ eₖ ‖∂L/∂wₖ‖²",
            meaning="c after the previous optimizer step if delta is zero; the equation is that of plain SGD",
            high="as for c",
            low="as for c",
            paper=_BALANCE,
        ),
    ),
)

QUANTITIES: Final[tuple[Quantity, ...]] = (
    *_STEPS,
    *(quantity for _, members in _GROUPS for quantity in members),
)
STORED: Final = (
    Quantity(
        "dead_rows",
        "parameters",
        label="rows of zeros",
        equation="#{i : W[i, :] = 0}",
        meaning="number of rows of a feature weight that are all zero: neurons without incoming weights",
    ),
    Quantity(
        "dead_columns",
        "parameters",
        label="columns of zeros",
        equation="#{j : W[:, j] = 0}",
        meaning="number of columns of a feature weight that are all zero: inputs that are not used",
    ),
    Quantity(
        "second_moment",
        "parameters",
        label="second moment",
        unit="(L/W)^2",
        equation="‖v‖_F",
        meaning="Frobenius norm of Adam's exp_avg_sq; zero if no gradient ever arrived",
    ),
)
"""Columns of the last checkpoint in a run made of checkpoints; null in a training, where no recorder measures them."""

DERIVED: Final = (
    Quantity(
        "gain",
        "parameters",
        label="norm of the weights over Glorot's",
        equation="‖W‖_F / √(2mn / (m + n))",
        meaning="norm of an (m, n) matrix divided by that of Glorot's initialization; geometric mean over those of a "
        "layer",
        high="outputs and gradients grow",
        low="outputs and gradients shrink",
    ),
    Quantity(
        "attention_pace",
        "parameters",
        label="update ratio of attention over that of features",
        equation="(‖Δa‖ / ‖a‖) / (‖ΔW‖ / ‖W‖)",
        meaning="update-to-weight ratio of a layer's attention vectors divided by that of its feature weights",
        high="attention moves faster than features",
        low="attention stands still",
        paper=_BALANCE,
    ),
    Quantity(
        "spectral_share",
        "parameters",
        label="spectral over Frobenius norm of the weights",
        equation="‖W‖₂ / ‖W‖_F",
        meaning="largest singular value of a matrix over its norm: 1 if it has rank one",
        high="the neurons of a layer are alike",
        low="the neurons of a layer differ",
        is_share=True,
    ),
    Quantity(
        "zero_inputs",
        "layers",
        label="inputs that are zero at every node",
        equation="#{i : X[:, i] = 0} / d",
        meaning="fraction of the columns of a layer's input, behind an activation, that are zero at every node",
        high="many units are never active",
        low="every unit is active at some node",
        is_share=True,
        is_of_end=True,
    ),
)
"""Quantities by layer that `gatdiag.summary.series_of` computes from what was recorded."""

GROUPS: Final[Mapping[str, Group]] = {group.name: group for group, _ in _GROUPS}


def columns(table: TableName) -> tuple[Quantity, ...]:
    """The columns of a table, in order."""
    return tuple(quantity for quantity in QUANTITIES if quantity.table == table)


def metric_functions(table: TableName) -> tuple[Metric, ...]:
    """The functions of `gatdiag.metrics` that fill a table, called with what each is `of`.

    Example:
        >>> [(each.function, each.of) for each in metric_functions("layers") if each.group == "ranks"]
        [('ranks', 'output'), ('ranks', 'output gradient')]
    """
    found: dict[tuple[str, Of], list[Quantity]] = {}
    for each in columns(table):
        if each.function:
            found.setdefault((each.function, each.of), []).append(each)
    return tuple(Metric(function, of, each[0].needs, tuple(each)) for (function, of), each in found.items())


def quantity(table: TableName, column: str) -> Quantity:
    """The catalog entry of a column.

    Raises:
        KeyError: There is no such column.
    """
    return _BY_NAME[table, column]


def compared_label(column: str, over: str = "") -> str:
    """The label of a "table.column", and of what it is divided by to be compared between layers.

    Args:
        column: The quantity.
        over: The layer whose value the others are divided by; by default that of `COMPARED_WITH`.
    """
    other = f"that of {over}" if over else f"the {COMPARED_WITH[column]} layer's" if column in COMPARED_WITH else ""
    return get_quantity(column).label + (f", over {other}" if other else "")


def healthy_range(column: str, line: float | None = None, beyond: Side = "above") -> tuple[float, float]:
    """The range of healthy trainings, without what is beyond a threshold.

    Example:
        >>> healthy_range("layers.effective_rank", 3.0, "below"), healthy_range("layers.relative_mu", 0.01, "below")
        ((3.0, inf), (0.05, 1.0))
    """
    low, high = HEALTHY[column]
    if line is None or not low < line < high:
        return low, high
    return (low, line) if beyond == "above" else (line, high)


def get_quantity(column: str) -> Quantity:
    """The catalog entry of a "table.column"."""
    table, name = column.split(".", 1)
    return quantity(cast("TableName", table), name)


_BY_NAME: Final[Mapping[tuple[str, str], Quantity]] = {
    (each.table, each.name): each for each in (*QUANTITIES, *DERIVED)
}

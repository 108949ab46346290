"""Facts about the recorded columns, as a run's meta.json keeps them, so that figures need not import the metrics."""

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from gatdiag.metrics import QUANTITIES, Quantity, of_gradient
from gatdiag.recorder.groups import GROUPS, LEVELS, change_quantile

_PAPER = "Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023"
_KEPT = ("name", "label", "unit", "equation", "paper", "high", "low")
_BASE = {quantity.name: quantity for quantity in QUANTITIES}


def _parameter(name: str, label: str, unit: str, equation: str, high: str, low: str, paper: str = "") -> Quantity:
    return Quantity(name, "", label, unit, equation, paper, "parameter", high, low)


def _further() -> list[Quantity]:
    """Columns that are not, under their own name, a metric of the catalogue."""
    changed, count = _BASE["changed_fraction"], _BASE["non_finite_counts"]
    quantities = [
        _parameter("norm", "norm", "W", r"\|W\|_F", "the weight grows", "the weight shrinks"),
        _parameter(
            "gradient_norm",
            "gradient norm",
            "L/W",
            r"\|\nabla_W\mathcal{L}\|_F",
            "gradients explode",
            "gradients vanish",
        ),
        replace(count, name="non_finite", gradient_name="gradient_non_finite"),
        replace(_BASE["attention_entropy"], label="mean attention entropy"),
        replace(
            _BASE["rayleigh_quotient"],
            label="Rayleigh quotient of the symmetric Laplacian",
            equation=r"\mathrm{tr}(X^\top (I - D^{-1/2} A D^{-1/2}) X) / \|X\|_F^2",
        ),
        replace(
            _BASE["attention_entropy"],
            name="relative_attention_entropy",
            label="mean attention entropy relative to uniform attention",
            unit="",
            equation=r"-\sum_j \alpha_{ij} \log \alpha_{ij} / \log d_i",
        ),
    ]
    for percent in (5, 50):
        equation = changed.equation.replace(r"\tau", str(percent / 100))
        label = f"weights (of at least 1e-4) changed by more than {percent} %"
        quantities.append(replace(changed, name=f"changed_fraction_{percent:03d}", label=label, equation=equation))
    for kind, equation, of, unit in (
        ("relative", r"|(w_t - w_0) / w_t|, \quad |w_t| \geq 10^{-4}", " of the weights of at least 1e-4", ""),
        ("absolute", r"|w_t - w_0|", "", "W"),
    ):
        for level in LEVELS:
            percent = round(100 * level)
            label = f"{kind} change{of}, {percent} % quantile"
            high, low = "weights have moved far", "weights are as they were initialised"
            quantities.append(_parameter(change_quantile(kind, level), label, unit, equation, high, low, _PAPER))
    return quantities


_LAWS = (
    Quantity(
        "delta",
        "",
        "delta",
        "L",
        r"\delta = \sum_k e_k \langle w_k, \partial\mathcal{L}/\partial w_k \rangle",
        _PAPER,
        "layer",
        "the gradients are not those of the function whose laws these are",
        "the law holds",
    ),
    Quantity(
        "c",
        "",
        "c",
        "W^2",
        r"c = \sum_k e_k \|w_k\|^2",
        _PAPER,
        "layer",
        "incoming weights outweigh attention and outgoing weights, which can hardly train",
        "outgoing weights outweigh incoming ones",
    ),
    Quantity(
        "predicted_c",
        "",
        "predicted c",
        "W^2",
        r"c_{t} = (1 - \eta\lambda)^2 c_{t-1} + \eta^2 \sum_k e_k \|g_k\|^2",
        _PAPER,
        "layer",
        "as c: what the optimiser's last step makes of it if delta is zero",
        "as c",
    ),
)


def described(columns: Collection[str]) -> list[dict[str, Any]]:
    """One entry a recorded column, in the order of the tables: `table` and the facts of `Quantity`."""
    quantities = [*QUANTITIES, *_further(), *_LAWS]
    known = {quantity.name: quantity for quantity in quantities}
    known |= {gradient.name: gradient for quantity in quantities if (gradient := of_gradient(quantity)) is not None}
    entries = []
    for group in GROUPS.values():
        for column in group.columns:
            if column in columns:
                facts = asdict(known[column])
                entries.append({"table": group.table, **{key: facts[key] for key in _KEPT}})
    return entries

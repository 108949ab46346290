"""Gradient oversmoothing and expansion: mu of outputs and gradients against the layer."""

from typing import Any

import numpy as np
import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Drawing
from gatdiag.experiments.reproduce.taming import network, normalization, of_deep_networks
from gatdiag.run import Run
from gatdiag.summary import layer_series


def smoothing(run: Run) -> dict[str, float]:
    """At the first step, how gradients grow from the last but one layer to the first, and how smooth the ends are."""
    norm, mu, relative_gradient_mu, relative_mu = (
        _at_first(layer_series(run, name))
        for name in ("output_gradient_norm", "gradient_mu", "relative_gradient_mu", "relative_mu")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "gradient_decades": float(np.log10(norm[0] / norm[-2])),
            "gradient_mu_decades": float(np.log10(mu[0] / mu[-2])),
            "relative_gradient_mu": float(relative_gradient_mu[0]),
            "relative_mu": float(relative_mu[-2]),
        }


def _at_first(table: pd.DataFrame) -> Any:
    return table[table["step"] == table["step"].min()].sort_values("layer")["value"].to_numpy(np.float64)


def judged(results: pd.DataFrame) -> list[str]:
    """What becomes of gradients on the way back, of each network as it is and normalized."""
    said = []
    for (_, residual, _), rows in results.groupby(["model", "residual", "layers"]):
        by_norm = {row["weight_norm"]: row for _, row in rows.sort_values("weight_norm").iterrows()}
        said += [f"{network(row)}, {normalization(row)}: {_way_back(row)}" for row in by_norm.values()]
        if residual and {0.0, 4.0} <= {*by_norm}:
            free, held = (by_norm[c]["gradient_decades"] for c in (0.0, 4.0))
            limits = "limits" if abs(held) < abs(free) else "does NOT limit"
            said.append(
                f"{network(by_norm[0.0])}: weight normalization {limits} the expansion"
                f" ({free:+.1f} decades without, {held:+.1f} with c = 4)."
            )
    return said


def _way_back(row: pd.Series) -> str:
    grown, mu, relative = row["gradient_decades"], row["gradient_mu_decades"], row["relative_gradient_mu"]
    if not np.isfinite(grown):
        return "gradients of the first layer are zero or not finite."
    moved = f"on the way back mu of the gradient changes by {mu:+.1f} decades, its norm by {grown:+.1f}"
    if mu > 0:
        return f"{moved}: expansion."
    if relative > 0.5:
        return f"{moved}; relative to the norm mu is still {relative:.2f}: the norm falls, gradients vanish."
    return f"{moved}; relative to the norm mu is {relative:.2g}: gradients become alike."


REPRODUCTION = of_deep_networks(
    "representation and gradient similarity by layer",
    title="mu of outputs and of gradients against the layer, with and without weight normalization",
    claim="Gradients of deep GCNs and GATs become alike over the nodes (mu falls on the way back), those of residual "
    "ones expand; weight normalization limits the expansion.",
    columns=(
        *("gradient_decades", "gradient_mu_decades", "relative_gradient_mu", "relative_mu"),
        *("last_train_accuracy", "test_accuracy"),
    ),
    measured=smoothing,
    judged=judged,
    drawings=(Drawing("smoothing_by_layer"),),
    notes=(
        "gradient decades: log10 of the gradient norm at the first layer's output over that at the last but one, so "
        "that positive is expansion and negative vanishing on the way back; relative gradient mu and relative mu are "
        "of the first and of the last but one layer. At the first step, that is, of the initial weights.",
    ),
)

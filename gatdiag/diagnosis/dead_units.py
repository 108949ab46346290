"""Dead units: columns of a layer's output that are zero at every node, or that no gradient comes back to."""

from typing import Final

import pandas as pd

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import ends, last_whole
from gatdiag.diagnosis.wording import percent
from gatdiag.names import listed, short
from gatdiag.run import Run
from gatdiag.summary import layer_series

# Of a layer's units: in trainings that went well up to 0.69 were dead, and all where dead units stopped them.
THRESHOLD: Final = 0.9


def dead_units(run: Run) -> Finding | None:
    """The largest share of dead units of a layer, where all was finite. None if it was not recorded."""
    found = last_whole(_finite(run, "dead_fraction", "non_finite"))
    if found is None:
        return None
    step, shares = found
    untrained = _without_gradient(run, step)
    shares = {layer: max(share, untrained.get(layer, 0.0)) for layer, share in shares.items()}
    dead = tuple(layer for layer in shares if shares[layer] >= THRESHOLD)
    _, worst = ends(shares)
    what = "0 at every node, or that no gradient comes back to" if untrained else "0 at every node"
    text = f"No dead units: none puts out {what}."
    if shares[worst]:
        text = f"Units that put out {what}: at most {percent(shares[worst])}, in layer {short(worst)}."
    if not untrained:
        text += " An activation that follows a layer is not seen."
    if dead:
        text = f"{len(dead)} of {len(shares)} layers: {listed(map(short, dead))}. {text}"
    return Finding(
        "dead-units",
        "warning" if dead else "info",
        "Dead units" if dead else "Units are alive",
        text,
        f"At step {step:,}; flagged from {percent(THRESHOLD)} of a layer's units.",
        (Evidence(f"largest share of dead units, in layer {short(worst)}", shares[worst]),),
        dead,
        steps=(step,),
        figure="overview",
    )


def _without_gradient(run: Run, step: int) -> dict[str, float]:
    """Share of each layer's units that no gradient comes back to at a step, as where an activation kills them.

    Empty where that was not recorded, and where no layer gets any gradient: that says nothing of units.
    """
    series = _finite(run, "gradient_dead_fraction", "gradient_non_finite")
    found = last_whole(series[series["step"] == step])
    return found[1] if found is not None and min(found[1].values()) < 1 else {}


def _finite(run: Run, column: str, counted: str) -> pd.DataFrame:
    """A column without the rows of layers that put out NaN or infinity: such a unit is neither alive nor dead."""
    series, counts = layer_series(run, column), layer_series(run, counted)
    broken = counts[~(counts["value"] == 0).to_numpy()].set_index(["step", "layer"]).index
    return series[~series.set_index(["step", "layer"]).index.isin(broken)]

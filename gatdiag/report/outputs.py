"""Facts about what the layers put out: whether nodes stay distinct, whether units live, whether numbers are numbers."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from gatdiag.names import listed, short
from gatdiag.report.finding import Finding
from gatdiag.report.latest import last_whole
from gatdiag.report.wording import count, number, percent
from gatdiag.run import Run
from gatdiag.summary import layer_series, training_facts

ALIKE = 1e-2  # two orders of magnitude: of the norm of the outputs, or of the first layer's mu
DEAD = 0.5  # of a layer's units


def output_facts(run: Run) -> Iterator[Finding]:
    """Mu from the first to the last layer, and dead units. What was not recorded is not mentioned."""
    yield from _smoothing(run)
    yield from _dead(run)


def broken_facts(run: Run) -> Iterator[Finding]:
    """Whether all numbers are numbers, and where the first was that is none."""
    first = run.meta.get("first_non_finite")
    counts = list(_non_finite_counts(run))
    if first:
        parameter = f", parameter {short(str(first['parameter']))}" if first.get("parameter") else ""
        place = f"the {first['where']} of layer {short(str(first['layer']))}{parameter}"
        text = f"The first {first['kind']} appeared at step {count(int(first['step']))}, in {place}."
        if "gradient" in str(first["where"]) and _loss_is_broken(run, int(first["step"])):
            text += " The loss itself was not finite at that step, so its gradients are not either."
        yield Finding("NaN or infinite values", text, "Flagged from the first one.", notable=True)
    elif any(counts):
        text = f"{count(int(sum(counts)))} recorded entries of outputs, gradients and weights are NaN or infinite."
        yield Finding("NaN or infinite values", text, "Flagged from the first one.", notable=True)
    elif counts:
        yield Finding("All values are finite", "No NaN and no infinity in outputs, gradients or weights.")


def _loss_is_broken(run: Run, step: int) -> bool:
    name = training_facts(run).loss
    if name is None:
        return False
    values = run.steps.loc[run.steps["step"] == step, name].to_numpy(np.float64)
    return bool(len(values)) and not bool(np.isfinite(values).any())


def _non_finite_counts(run: Run) -> Iterator[float]:
    """The sum of each column that counts them, of those that were recorded."""
    for frame in (run.layers, run.parameters):
        for name in ("non_finite", "gradient_non_finite"):
            if name in frame.columns and frame[name].notna().any():
                yield float(frame[name].sum())


def _smoothing(run: Run) -> Iterator[Finding]:
    found = last_whole(layer_series(run, "mu"))
    if found is None or len(found[1]) < 2:
        return
    step, last = found
    layers, values = list(last), list(last.values())
    start, end = (f"{number(values[place])} at layer {short(layers[place])}" for place in (0, -1))
    ratio = values[-1] / values[0] if values[0] else math.nan
    text = f"The spread of the nodes' outputs, μ(X), goes from {start} to {end}: a factor of {number(ratio)}."
    relative = _at(run, "relative_mu", step)
    if len(relative) > 1:
        text += f" Relative to the norm of the outputs: from {number(relative[0])} to {number(relative[-1])}."
    heading, notable = _spread(values, ratio, relative)
    threshold = (
        f"{_place(run, step)} flagged where the last layer's spread is less than {percent(ALIKE)} of its outputs' "
        f"norm, or less than {percent(ALIKE)} of the first layer's, or more than {1 / ALIKE:.0f} times it."
    )
    yield Finding(heading, text, threshold, notable)


def _spread(values: list[float], ratio: float, relative: list[float]) -> tuple[str, bool]:
    """What mu says, and whether it is flagged. Outputs that vanish as a whole have a small mu and distinct nodes."""
    if not any(values) or (relative and relative[-1] < ALIKE):
        return "Oversmoothing", True
    if ratio < ALIKE:
        return "Vanishing activations" if relative else "Vanishing activations or oversmoothing", True
    if ratio > 1 / ALIKE:
        return "Exploding activations", True
    return "Nodes stay distinct", False


def _at(run: Run, column: str, step: int) -> list[float]:
    """The finite values of a column at a step, in the order of the layers."""
    series = layer_series(run, column)
    found = last_whole(series[series["step"] == step])
    return list(found[1].values()) if found else []


def _place(run: Run, step: int) -> str:
    """Where in the run something was measured: at its end, or else at which step."""
    return "Last recorded step;" if step == run.layers["step"].max() else f"Last at step {count(step)};"


def _dead(run: Run) -> Iterator[Finding]:
    found = last_whole(_without_broken(run, layer_series(run, "dead_fraction")))
    if found is None:
        return
    step, last = found
    untrained = _without_gradient(run, step)
    last = {layer: max(share, untrained.get(layer, 0.0)) for layer, share in last.items()}
    dead = [layer for layer in last if last[layer] >= DEAD]
    worst = max(last, key=last.__getitem__)
    what = "0 at every node, or that no gradient comes back to" if untrained else "0 at every node"
    text = f"No dead units: none puts out {what}."
    if last[worst]:
        text = f"Units that put out {what}: at most {percent(last[worst])}, in layer {short(worst)}."
    if not untrained:
        text += " An activation that follows a layer is not seen."
    if dead:
        text = f"{len(dead)} of {len(last)} layers: {listed(map(short, dead))}. {text}"
    heading = "Dead units" if dead else "Units are alive"
    threshold = f"{_place(run, step)} flagged above {percent(DEAD)} of a layer's units."
    yield Finding(heading, text, threshold, bool(dead))


def _without_gradient(run: Run, step: int) -> dict[str, float]:
    """Share of each layer's units that no gradient comes back to at a step, as where an activation kills them.

    Empty where that was not recorded, and where no layer gets any gradient: that says nothing of units.
    """
    series = _without_broken(run, layer_series(run, "gradient_dead_fraction"), "gradient_non_finite")
    found = last_whole(series[series["step"] == step])
    return found[1] if found is not None and min(found[1].values()) < 1 else {}


def _without_broken(run: Run, series: pd.DataFrame, counted: str = "non_finite") -> pd.DataFrame:
    """Without the rows at which a layer put out NaN or infinity: such a unit is neither alive nor dead."""
    counts = layer_series(run, counted)
    broken = counts[~(counts["value"] == 0).to_numpy()].set_index(["step", "layer"]).index
    return series[~series.set_index(["step", "layer"]).index.isin(broken)]

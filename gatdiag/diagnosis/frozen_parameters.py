"""Frozen parameters: steps too small to matter, weights that never moved, layers nearly as they were initialized."""

import math
from typing import Final

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import SHARE, early_median, ends, last_values, span
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import listed, short
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series

SMALL_STEP: Final = 1e-4  # of a weight's size a step, in the fastest layer; about 1e-3 is the custom
UNCHANGED: Final = 0.5  # of a layer's weights; a ten-layer GAT that trained had 0.26, the same one stuck 0.69
HARDLY_CHANGED: Final = 0.05  # of a layer's weights moved by more than 5 % ("Are GATs Out of Balance?", figure 3a)

_LAST = "Last finite step;"


def small_update_ratio(run: Run) -> Finding | None:
    """The update ratio ||W_t+1 - W_t|| / ||W_t|| of the fastest layer, early in the run. None unless flagged."""
    pace = early_median(role_series(run, "update_ratio", FEATURES))
    if not pace or not 0 < max(pace.values()) < SMALL_STEP:
        return None
    _, high = ends(pace)
    text = (
        f"A step moves the feature weights by {number(pace[high])} of their size even in the fastest layer, "
        f"{short(high)}: at that pace it takes {number(1 / pace[high])} steps to move them by their own size."
    )
    return Finding(
        "update-ratio-too-small",
        "warning",
        "Update ratio too small",
        text,
        f"Median of ‖ΔW‖ / ‖W‖ over the first {percent(SHARE)} of the recorded steps; flagged below {SMALL_STEP:g}.",
        (Evidence(f"largest update ratio, in layer {short(high)}", pace[high]),),
        tuple(pace),
        figure="unchanged_fraction",
    )


def unchanged_weights(run: Run) -> Finding | None:
    """The share of a layer's feature weights that are bit for bit what they were. None if it was not recorded."""
    shares = _after_start(run, "unchanged_fraction")
    if not shares:
        return None
    sizes = {
        layer["name"]: sum(math.prod(p["shape"]) for p in layer["parameters"] if p["role"] == FEATURES)
        for layer in run.meta["structure"]["layers"]
    }
    overall = sum(shares[layer] * sizes[layer] for layer in shares) / max(1, sum(sizes[layer] for layer in shares))
    stuck = tuple(layer for layer in shares if shares[layer] >= UNCHANGED)
    _, worst = ends(shares)
    text = f"{percent(overall)} of all feature weights are bit for bit what they were at the start"
    if shares[worst]:
        text += f", most of all in layer {short(worst)} ({percent(shares[worst])})"
    if stuck:
        text += f". Layers: {listed(map(short, stuck))}"
    return Finding(
        "unchanged-weights",
        "warning" if stuck else "info",
        "Weights that never moved" if stuck else "Every layer's weights have moved",
        f"{text}.",
        f"{_LAST} flagged from {percent(UNCHANGED)} of a layer's weights.",
        (Evidence(f"largest share of unchanged weights, in layer {short(worst)}", shares[worst]),),
        stuck,
        figure="unchanged_fraction",
    )


def still_layers(run: Run) -> Finding | None:
    """The share of a layer's feature weights that changed by more than 5 %. None if it was not recorded."""
    changed = _after_start(run, "changed_fraction_005")
    if not changed:
        return None
    still = tuple(layer for layer in changed if changed[layer] < HARDLY_CHANGED)
    low, _ = ends(changed)
    text = f"Share of feature weights that changed by more than 5 % of their size: {span(changed, percent)}."
    if still:
        are = "is" if len(still) == 1 else "are"
        text = f"{len(still)} of {len(changed)} layers {are} nearly as initialized: {listed(map(short, still))}. {text}"
    return Finding(
        "still-layers",
        "warning" if still else "info",
        "Layers that hardly changed" if still else "Change of the weights",
        text,
        f"{_LAST} flagged below {percent(HARDLY_CHANGED)} of a layer.",
        (Evidence(f"smallest share of changed weights, in layer {short(low)}", changed[low]),),
        still,
        figure="changed_fraction",
    )


def _after_start(run: Run, column: str) -> dict[str, float]:
    """Layer -> its last value, of those after the first recorded step: until then no weight can have moved."""
    series = role_series(run, column, FEATURES)
    return last_values(series[series["step"] > run.parameters["step"].min()])

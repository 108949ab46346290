"""How far the weights of each layer have moved since initialization (paper 1, figures 3a, 4a, 8, 11).

`gatdiag.weight_change` defines the change. The trained weights are the best snapshot, or the final one if there is no
best snapshot or it was taken early.
"""

from typing import Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag import quantities
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.summary.series import role_series
from gatdiag.summary.training import training_facts
from gatdiag.weight_change import FRACTIONS, change_fractions, change_quantiles

__all__ = ["LEVELS", "weight_change"]

EARLY = 0.05  # share of the run; a best model from before it shows little of what training did to the weights
LEVELS = tuple(round(100 * level) for level in quantities.LEVELS)  # in percent

_KINDS: Final[dict[str, Literal["relative", "absolute"]]] = {FEATURE: "relative", ATTENTION: "absolute"}
COLUMNS = ("layer", "role", "source", *FRACTIONS, *(f"q{level}" for level in LEVELS))


def weight_change(run: Run) -> pd.DataFrame:
    """The change of feature weights and attention vectors in each layer.

    Without snapshots, the last recorded rows of the table `parameters` are used. The quantiles of a layer with several
    parameters of a role are then the largest of theirs.

    Returns:
        One row per layer and role: layer (categorical), role, source (what is compared with the initial weights: "best
        model, after step 120", "final model" or "step 120"), unchanged_fraction, changed_fraction_005,
        changed_fraction_050, significant_fraction, and the quantiles q0, q5, ... q100. NaN where undefined. Empty if
        neither snapshots nor columns were recorded.
    """
    rows = _from_snapshots(run, _trained_snapshot(run)) or _from_table(run) or _from_snapshots(run, "best")
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table["layer"] = pd.Categorical(table["layer"], categories=list(run.layer_names), ordered=True)
    return table.sort_values(["role", "layer"], ascending=[False, True], kind="stable").reset_index(drop=True)


def _trained_snapshot(run: Run) -> Literal["best", "final"]:
    if run.snapshot("best") is None:
        return "final"
    step, last = _best_step(run), training_facts(run).last_step
    early = step is not None and (step == 0 or (last is not None and step < EARLY * last))
    return "final" if early else "best"


def _best_step(run: Run) -> int | None:
    step = (run.meta.get("best") or {}).get("step")
    return None if step is None else int(step)


def _from_snapshots(run: Run, name: Literal["best", "final"]) -> list[dict[str, object]]:
    initial, trained, step = run.snapshot("initial"), run.snapshot(name), _best_step(run)
    if initial is None or trained is None:
        return []
    source = f"{name} model" + (f", after step {step}" if name == "best" and step is not None else "")
    rows: list[dict[str, object]] = []
    for layer in run.meta["structure"]["layers"]:
        for role in (FEATURE, ATTENTION):
            names = [p["name"] for p in layer["parameters"] if p["role"] == role]
            pairs = [(initial[n].ravel(), trained[n].ravel()) for n in names if n in initial and n in trained]
            if pairs:
                before, after = (np.concatenate(side).astype(np.float64) for side in zip(*pairs, strict=True))
                rows.append({"layer": layer["name"], "role": role, "source": source, **_change(before, after, role)})
    return rows


def _change(before: NDArray[np.float64], after: NDArray[np.float64], role: str) -> dict[str, float]:
    absolute = np.arange(len(after) if role == ATTENTION else 0)
    fractions = change_fractions(before, after, [len(after)], absolute)
    found = change_quantiles(before, after, _KINDS[role]) | {name: float(value) for name, (value,) in fractions.items()}
    return {name: found[column] for name, column in _recorded_columns(role).items()}


def _recorded_columns(role: str) -> dict[str, str]:
    """Column of the result -> column of the table `parameters`."""
    return {name: name for name in FRACTIONS} | {f"q{level}": f"{_KINDS[role]}_change_q{level}" for level in LEVELS}


def _from_table(run: Run) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for role in _KINDS:
        by_layer: dict[str, dict[str, object]] = {}
        for target, column in _recorded_columns(role).items():
            last = role_series(run, column, role).groupby("layer", observed=True).tail(1)
            for step, layer, value in last.itertuples(index=False):
                row = by_layer.setdefault(layer, {"layer": layer, "role": role, "source": f"step {step}"})
                row[target] = value
        rows += by_layer.values()
    return rows

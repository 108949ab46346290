"""NaN or infinite values. Flagged from the first one: nothing computed from it means anything."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.names import listed, short
from gatdiag.run import Run
from gatdiag.summary import logged, loss_name


def non_finite(run: Run) -> Finding | None:
    """Where the first NaN or infinite value appeared. None if nothing that would show it was recorded."""
    counts, loss = _counts(run), broken_loss(run)
    first = run.meta.get("first_non_finite")
    broken = counts[counts["count"] > 0]
    if first:
        return _noted(first, loss)
    if len(broken):
        return _counted(broken[broken["step"] == broken["step"].min()])
    if loss:
        step, kind = loss
        return _problem(f"The {short(str(loss_name(run)))} became {kind} at step {step:,}.", step)
    if len(counts):
        text = "No NaN and no infinity in outputs, gradients or weights."
        return Finding("non-finite", "info", "All values are finite", text)
    return None


def _problem(
    text: str, step: int, layers: Iterable[str] = (), parameters: Iterable[str] = (), count: int = 0
) -> Finding:
    return Finding(
        "non-finite",
        "error",
        "NaN or infinite values",
        text,
        "Flagged from the first one.",
        (Evidence("NaN or infinite values", count, "entries"),) if count else (),
        tuple(layers),
        tuple(parameters),
        (step,),
        figure="overview",
    )


def _noted(first: dict[str, object], loss: tuple[int, str] | None) -> Finding:
    """As the recorder has noted it in the moment it happened."""
    layer, parameter, step = str(first["layer"]), first.get("parameter"), int(str(first["step"]))
    place = f"the {first['where']} of layer {short(layer)}" + (f", parameter {short(str(parameter))}" * bool(parameter))
    text = f"The first {first['kind']} appeared at step {step:,}, in {place}."
    if "gradient" in str(first["where"]) and loss and loss[0] <= step:
        text += " The loss itself was not finite at that step, so its gradients are not either."
    return _problem(text, step, [layer], [str(parameter)] * bool(parameter))


def _counted(rows: pd.DataFrame) -> Finding:
    """As the counts of one step show it."""
    step, total = int(rows["step"].iloc[0]), int(rows["count"].sum())
    layers, parameters = (list(dict.fromkeys(rows[name].dropna())) for name in ("layer", "parameter"))
    what, verb = listed(dict.fromkeys(rows["what"])), "is" if total == 1 else "are"
    where = listed(map(short, parameters or layers))
    text = f"At step {step:,}, {total:,} of the {what} {verb} NaN or infinite: {where}."
    return _problem(text, step, layers, parameters, total)


def _counts(run: Run) -> pd.DataFrame:
    """How many entries are not finite: step, layer, parameter, what, count; a row for each that was counted."""
    found = [pd.DataFrame(columns=["step", "layer", "parameter", "what", "count"])]
    for frame, of in ((run.layers, "outputs"), (run.parameters, "weights")):
        for column, what in (("non_finite", of), ("gradient_non_finite", f"gradients of {of}")):
            if column in frame.columns:
                rows = frame[frame[column].notna()]
                parameter = rows["parameter"].astype(str) if "parameter" in rows else None
                counts = rows[["step"]].assign(layer=rows["layer"].astype(str), parameter=parameter, what=what)
                found.append(counts.assign(count=rows[column].astype(float)))
    known = [counts for counts in found if len(counts)]
    return pd.concat(known) if known else found[0]


def broken_loss(run: Run) -> tuple[int, str] | None:
    """The step at which the loss was first not finite, and what it was."""
    name = loss_name(run)
    values = logged(run, name) if name else pd.Series(dtype=np.float64)
    lost = values[~np.isfinite(values)]
    return (int(lost.index[0]), "NaN" if np.isnan(lost.iloc[0]) else "infinite") if len(lost) else None

"""The first NaN or infinity: an operation that is not defined there, or a size that overflowed."""

import math
from typing import Any

import numpy as np
import pandas as pd

from gatdiag.diagnosis.facts import Facts, largest
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number
from gatdiag.names import join_names, short
from gatdiag.run import Run

_MOST = 1e18  # entries: a damaged count may be infinite
_CAUSES_FIRST = ("weight", "output", "gradient of the output", "gradient of the weight")


def non_finite_operation(facts: Facts) -> Finding | str | None:
    """The first value that is not finite: "nonfinite-operation", or "overflow" where sizes grew before."""
    first = _first(facts)
    if first is None:
        columns = [*facts.run.layers.columns, *facts.run.parameters.columns]
        return None if "non_finite" in columns or len(facts.loss) else "nothing that would show it was recorded"
    size = _size_before(facts, first["step"])
    overflows = size > limit("size") or _blew_up(facts, first["step"])
    named = join_names(map(short, (first["parameters"] or first["layers"])[:3])) or "the loss"
    place = named if first["where"] == "loss" else f"the {first['where']} of {named}"
    is_after = first["where"] in ("output gradient", "gradient of the output")  # which what comes after it computes
    if facts.is_of_checkpoints:
        code = "non-finite"
        text = f"{first['count']:,} of {place} {'is' if first['count'] == 1 else 'are'} NaN or infinite."
    elif overflows:
        code = "overflow"
        text = f"Values grew to {number(size)} and overflowed at step {first['step']:,}, first in {place}."
    else:
        code = "nonfinite-operation"
        text = (
            f"At step {first['step']:,} {place} became {first['kind']} though no value before it was large: an "
            f"operation {'after it, or in the loss,' if is_after else 'there'} is not defined at its input (the "
            "logarithm or root of zero, 0 / 0), in the forward or in the backward pass."
        )
    counted = [Evidence("NaN or infinite values", first["count"], "entries")] if first["count"] else []
    return facts.found(
        code,
        text,
        *counted,
        Evidence("largest value before", size),
        threshold=f"Flagged from the first one; an overflow above {said('size')}.",
        layers=tuple(first["layers"]),
        parameters=tuple(first["parameters"]),
        steps=(first["step"],),
        remedy=Remedy(
            "x = torch.log(x.clamp(min=1e-6))  # or torch.sqrt(x + 1e-6), a / (b + 1e-6): "
            f"{'after' if is_after else 'in'} {named}\n"
            "torch.autograd.set_detect_anomaly(True)  # names the operation"
        ),
    )


def _first(facts: Facts) -> dict[str, Any] | None:
    """Step, place and kind: as the recorder noted it when it happened, as counts show it, or as the loss does."""
    noted = facts.run.meta.get("first_non_finite")
    if noted and not facts.is_of_checkpoints:  # of those all is counted
        named = [str(noted["parameter"])] if noted.get("parameter") else []
        return {"step": int(noted["step"]), "where": noted["where"], "kind": noted["kind"], "count": 0,
                "layers": [str(noted["layer"])], "parameters": named}  # fmt: skip
    broken = _counts(facts.run)
    if len(broken):
        rows = broken[broken["step"] == broken["step"].min()]
        where = next(what for what in _CAUSES_FIRST if what in set(rows["what"]))
        rows = rows[rows["what"] == where]
        layers, parameters = (list(dict.fromkeys(rows[name].dropna())) for name in ("layer", "parameter"))
        count = int(min(rows["count"].sum(), _MOST))
        return {"step": int(rows["step"].iloc[0]), "where": where, "kind": "NaN or infinite", "count": count,
                "layers": layers, "parameters": parameters}  # fmt: skip
    lost = facts.loss[~np.isfinite(facts.loss)]
    if not len(lost):
        return None
    kind = "NaN" if math.isnan(lost.iloc[0]) else "infinite"
    return {"step": int(lost.index[0]), "where": "loss", "kind": kind, "count": 0, "layers": [], "parameters": []}


def _size_before(facts: Facts, step: int) -> float:
    """The largest norm of an output, a weight or a gradient, and the largest loss, before that step or at it."""
    losses = facts.finite_loss[: step + 1]
    sizes = [float(np.abs(losses).max())] if len(losses) else [0.0]
    of_layers, of_parameters = ("output_norm", "output_gradient_norm"), ("norm", "gradient_norm")
    for frame, columns in ((facts.run.layers, of_layers), (facts.run.parameters, of_parameters)):
        for column in columns:
            if column in frame:
                values = frame[column][frame["step"] <= step].to_numpy(float)
                sizes.append(largest(values[np.isfinite(values)]))
    return max(sizes)


def _blew_up(facts: Facts, step: int) -> bool:
    """The loss or the weights jumped before."""
    return facts.worst > 100 or largest(facts.step_ratio[facts.table_steps < step]) > 1


def _counts(run: Run) -> pd.DataFrame:
    """How many entries are not finite: step, layer, parameter, what, count; a row for each count that is not zero."""
    found = [pd.DataFrame(columns=["step", "layer", "parameter", "what", "count"])]
    for frame, of in ((run.layers, "output"), (run.parameters, "weight")):
        for column, what in (("non_finite", of), ("gradient_non_finite", f"gradient of the {of}")):
            if column in frame.columns:
                rows = frame[frame[column] > 0]
                parameter = rows["parameter"].astype(str) if "parameter" in rows else None
                counts = rows[["step"]].assign(layer=rows["layer"].astype(str), parameter=parameter, what=what)
                found.append(counts.assign(count=rows[column].astype(float)))
    known = [counts for counts in found if len(counts)]
    return pd.concat(known) if known else found[0]

"""The first NaN or infinity: an operation that is undefined for its input, or values that overflowed."""

import math
from typing import Any

import numpy as np
import pandas as pd

from gatdiag.diagnosis.facts import Facts, largest
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit, threshold_text
from gatdiag.diagnosis.wording import number
from gatdiag.names import join_names, short
from gatdiag.run import Run

_MAX_COUNT = 1e18  # a count in a damaged file may be infinite
_IN_ORDER = ("weight", "output", "gradient of the output", "gradient of the weight")
# Where the operation is: inputs of layers are not recorded, so an output may be NaN because its input is.
_BEFORE, _BEHIND, _ANYWHERE = "in or before {}", "after {}, or in the loss,", "that {} depends on"
_OPERATION = {"output": _BEFORE, "output gradient": _BEHIND, "gradient of the output": _BEHIND}
_ANOMALY = "torch.autograd.set_detect_anomaly(True)  # names an operation whose gradient is NaN"
_PRINT_INPUTS = (
    "model.get_submodule({0!r}).register_forward_pre_hook(lambda _, args: print(\n"
    "    [bool(x.isfinite().all()) for x in args if torch.is_tensor(x)]))  # False: it is before {0}"
)
_FINITE = "The inputs or the weights of the model are NaN or infinite already."


def check_non_finite(facts: Facts) -> Finding | str | None:
    """The first value that is not finite: code "nonfinite-operation", or "overflow" if values had grown before."""
    first = _first(facts)
    if first is None:
        columns = [*facts.run.layers.columns, *facts.run.parameters.columns]
        is_recorded = "non_finite" in columns or len(facts.loss)
        return None if is_recorded else "neither a loss nor counts of non-finite values were recorded"
    size = _size_before(facts, first["step"])
    overflows = size > limit("size") or _blew_up(facts, first["step"])
    named = join_names(map(short, (first["parameters"] or first["layers"])[:3])) or "the loss"
    places = {"loss": named, "weight": f"the parameter {named}", "gradient of the weight": f"the gradient of {named}"}
    place = places.get(first["where"], f"the {first['where']} of {named}")
    operation = _OPERATION.get(first["where"], _ANYWHERE)
    look, falsified_by = _ANOMALY, ""
    if operation == _BEFORE:
        look, falsified_by = _PRINT_INPUTS.format(first["layers"][0]), _FINITE
    if facts.is_of_checkpoints:
        code = "non-finite"
        entries = "entry" if first["count"] == 1 else "entries"
        are = "is" if first["count"] == 1 else "are"
        text = f"{first['count']:,} {entries} of {place} {are} NaN or infinite."
    elif overflows:
        code = "overflow"
        text = f"Values grew to {number(size)} and overflowed at step {first['step']:,}, first in {place}."
    else:
        code = "nonfinite-operation"
        text = (
            f"At step {first['step']:,} {place} became {first['kind']} although no earlier value was large: an "
            f"operation {operation.format('it')} is undefined for its input (log or sqrt of zero, 0 / 0), in the "
            f"forward {'pass' if operation == _BEFORE else 'or the backward pass'}."
        )
    counts = [Evidence("NaN or infinite values", first["count"], "entries")] if first["count"] else []
    return facts.finding(
        code,
        text,
        *counts,
        Evidence("largest value before it", size),
        threshold=f"Flagged from the first value on; an overflow above {threshold_text('size')}.",
        layers=tuple(first["layers"]),
        parameters=tuple(first["parameters"]),
        steps=(first["step"],),
        remedy=Remedy(
            "x = torch.log(x.clamp(min=1e-6))  # or torch.sqrt(x + 1e-6), a / (b + 1e-6): "
            f"{operation.format(named).rstrip(',')}\n{look}"
        ),
        falsified_by=falsified_by,
    )


def _first(facts: Facts) -> dict[str, Any] | None:
    """Step, place and kind: as noted by the recorder, else from the counts of non-finite values, else from the loss."""
    noted = facts.run.meta.get("first_non_finite")
    if noted and not facts.is_of_checkpoints:  # there, everything is counted
        named = [str(noted["parameter"])] if noted.get("parameter") else []
        return {"step": int(noted["step"]), "where": noted["where"], "kind": noted["kind"], "count": 0,
                "layers": [str(noted["layer"])], "parameters": named}  # fmt: skip
    broken = _counts(facts.run)
    if len(broken):
        rows = broken[broken["step"] == broken["step"].min()]
        where = next(what for what in _IN_ORDER if what in set(rows["what"]))
        rows = rows[rows["what"] == where]
        layers, parameters = (list(dict.fromkeys(rows[name].dropna())) for name in ("layer", "parameter"))
        count = int(min(rows["count"].sum(), _MAX_COUNT))
        return {"step": int(rows["step"].iloc[0]), "where": where, "kind": "NaN or infinite", "count": count,
                "layers": layers, "parameters": parameters}  # fmt: skip
    lost = facts.loss[~np.isfinite(facts.loss)]
    if not len(lost):
        return None
    kind = "NaN" if math.isnan(lost.iloc[0]) else "infinite"
    return {"step": int(lost.index[0]), "where": "loss", "kind": kind, "count": 0, "layers": [], "parameters": []}


def _size_before(facts: Facts, step: int) -> float:
    """The largest norm of an output, weight or gradient, or the largest loss, up to that step."""
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
    """The loss or the weights had jumped before that step."""
    return facts.loss_jump > 100 or largest(facts.step_ratios[facts.parameter_steps < step]) > 1


def _counts(run: Run) -> pd.DataFrame:
    """Counts of non-finite entries: step, layer, parameter, what, count; a row for each that is not zero."""
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

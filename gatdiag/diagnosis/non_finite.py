"""The first NaN or infinity: an operation that is undefined for its input, or values that overflowed."""

import math
from typing import NamedTuple

import numpy as np

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import BY_HAND, Facts, largest
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number
from gatdiag.names import join_names, short

_NO_ANOMALY = "torch.autograd.set_detect_anomaly(True) reports no operation, or the inputs contain NaN."

_COUNTS = {  # place, in the order of a step -> table and column in which its NaN and infinities are counted
    "weight": ("parameter", "non_finite"),
    "output": ("layer", "non_finite"),
    "gradient of the output": ("layer", "gradient_non_finite"),
    "gradient of the weight": ("parameter", "gradient_non_finite"),
}
# Where the operation is: inputs of layers are not recorded, so an output may be NaN because its input is.
_BEFORE, _BEHIND, _ANYWHERE = "in or before {}", "after {}, or in the loss,", "that {} depends on"
_OPERATION = {"output": _BEFORE, "output gradient": _BEHIND, "gradient of the output": _BEHIND}
_ANOMALY = "torch.autograd.set_detect_anomaly(True)  # names an operation whose gradient is NaN"
_PRINT_INPUTS = (
    "model.get_submodule({0!r}).register_forward_pre_hook(lambda _, args: print(\n"
    "    [bool(x.isfinite().all()) for x in args if torch.is_tensor(x)]))  # False: it is before {0}"
)
_FINITE = "The inputs or the weights of the model are NaN or infinite already."


class _First(NamedTuple):
    """The first value that is not finite: at which step, where, what it was, and how many were counted."""

    step: int
    where: str
    kind: str
    layers: list[str]
    parameters: list[str]
    entries: int = 0


@cause(
    "nonfinite-operation",
    "An operation returned NaN or infinity",
    rank=60,
    why="after the first NaN no measurement means anything",
    figure="overview",
    falsified_by=_NO_ANOMALY,
    severity="error",
    limits={"size": Limit(1e6, "values before the first NaN: an overflow has another cause than an invalid operation")},
)
@cause(
    "non-finite",
    "NaN or infinite values",
    rank=70,
    why="of checkpoints, which do not show where it came from",
    figure="overview",
    falsified_by=_NO_ANOMALY,
    severity="error",
    is_checked=False,
)
@cause(
    "overflow",
    "Overflow",
    rank=320,
    why="a symptom of large values, unless nothing explains them",
    figure="overview",
    falsified_by=_NO_ANOMALY,
    severity="error",
    is_symptom=True,
    borrowed=("size",),
    is_checked=False,
)
def check_non_finite(facts: Facts) -> Finding | str | None:
    """The first value that is not finite: code "nonfinite-operation", or "overflow" if values had grown before."""
    first = _first(facts)
    if first is None:
        return None
    if first.where == "loss" and facts.moves_by_hand:
        return BY_HAND
    size = _size_before(facts, first.step)
    overflows = size > limit("size") or _blew_up(facts, first.step)
    named = join_names(map(short, (first.parameters or first.layers)[:3])) or "the loss"
    places = {"loss": named, "weight": f"the parameter {named}", "gradient of the weight": f"the gradient of {named}"}
    place = places.get(first.where, f"the {first.where} of {named}")
    operation = _OPERATION.get(first.where, _ANYWHERE)
    look, falsified_by = _ANOMALY, ""
    if operation == _BEFORE:
        look, falsified_by = _PRINT_INPUTS.format(first.layers[0]), _FINITE
    if facts.is_of_checkpoints:
        code = "non-finite"
        entries, are = ("entry", "is") if first.entries == 1 else ("entries", "are")
        text = f"{first.entries:,} {entries} of {place} {are} NaN or infinite."
    elif overflows:
        code = "overflow"
        text = f"Values grew to {number(size)} and overflowed at step {first.step:,}, first in {place}."
    else:
        code = "nonfinite-operation"
        text = (
            f"At step {first.step:,} {place} became {first.kind} although no earlier value was large: an "
            f"operation {operation.format('it')} is undefined for its input (log or sqrt of zero, 0 / 0, exp of more "
            f"than 88), in the forward {'pass' if operation == _BEFORE else 'or the backward pass'}."
        )
    counts = [Evidence("NaN or infinite values", first.entries, "entries")] if first.entries else []
    return facts.finding(
        code,
        text,
        *counts,
        Evidence("largest value before it", size),
        threshold=f"Flagged from the first value on; an overflow above {threshold_text('size')}.",
        layers=tuple(first.layers),
        parameters=tuple(first.parameters),
        steps=(first.step,),
        remedy=Remedy(
            "x = torch.log(x.clamp(min=1e-6))  # or torch.sqrt(x + 1e-6), a / (b + 1e-6): "
            f"{operation.format(named).rstrip(',')}\n"
            f"# torch.sigmoid(-x) instead of 1 / (1 + x.exp()), torch.logsumexp(x, -1) of x.exp().sum(-1).log()\n{look}"
        ),
        falsified_by=falsified_by,
    )


def _first(facts: Facts) -> _First | None:
    """As noted by the recorder, else from the counts of non-finite values, else from the loss."""
    noted = facts.run.meta["first_non_finite"]
    if noted and not facts.is_of_checkpoints:  # there, everything is counted
        named = [str(noted["parameter"])] if noted.get("parameter") else []
        return _First(int(noted["step"]), noted["where"], noted["kind"], [str(noted["layer"])], named)
    tables = {"layer": facts.run.layers, "parameter": facts.run.parameters}
    counted = [(where, column, tables[of][tables[of][column] > 0]) for where, (of, column) in _COUNTS.items()]
    if found := [one for one in counted if len(one[2])]:
        where, column, rows = min(found, key=lambda one: int(one[2]["step"].min()))
        rows = rows[rows["step"] == rows["step"].min()]
        layers, parameters = (list(dict.fromkeys(map(str, rows.get(name, ())))) for name in tables)
        count = int(rows[column].sum())
        return _First(int(rows["step"].iloc[0]), where, "NaN or infinite", layers, parameters, count)
    lost = facts.loss[~np.isfinite(facts.loss)]
    if not len(lost):
        return None
    return _First(int(lost.index[0]), "loss", "NaN" if math.isnan(lost.iloc[0]) else "infinite", [], [])


def _size_before(facts: Facts, step: int) -> float:
    """The largest norm of an output, weight or gradient, or the largest loss, up to that step."""
    sizes = [np.abs(facts.finite_loss[: step + 1])]
    of_layers, of_parameters = ("output_norm", "output_gradient_norm"), ("norm", "gradient_norm")
    for frame, columns in ((facts.run.layers, of_layers), (facts.run.parameters, of_parameters)):
        sizes.append(frame.loc[frame["step"] <= step, [*columns]].to_numpy(float).ravel())
    known = np.concatenate(sizes)
    return largest(known[np.isfinite(known)])


def _blew_up(facts: Facts, step: int) -> bool:
    """The loss or the weights had jumped before that step."""
    return facts.loss_jump > 100 or largest(facts.step_ratios[facts.parameter_steps < step]) > 1

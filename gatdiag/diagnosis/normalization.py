"""Normalization of two rows or of one value, and running statistics that are not those of the batches."""

import math
from typing import Any

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.evaluation import evaluates_badly
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short

_USUAL_MOMENTUM = 0.1
_UPDATE = "torch.optim.swa_utils.update_bn(loader, model)  # or: the statistics of all batches, before evaluation"


@cause(
    "normalization-statistics",
    "Running statistics are not those of the batches",
    rank=102,
    why="what batch normalization does is part of the model",
    figure="training_curves",
    falsified_by="With model.train() the scores of the same data are as bad.",
    needs_training=True,
    is_independent=True,
    limits={
        "two-rows": Limit(2, "rows: each entry becomes 1 or -1, whatever the rows are"),
        "enough-rows": Limit(8, "rows: a mean of fewer is noise"),
        "norm-shift": Limit(1, "median over channels of a batch's mean in evaluation mode; in training mode it is 0"),
        "norm-scale": Limit(
            0.7, "median over channels of the log of a batch's standard deviation in evaluation mode; in training 0"
        ),
        "initial-share": Limit(0.1, "share of the running statistics that are their initial values"),
    },
)
def check_statistics(facts: Facts) -> Finding | str | None:
    """Batch normalization of two rows, or running statistics far from those of the batches where scores are bad.

    With two rows each entry becomes 1 or -1. Running statistics that were updated too little, or that average batches
    of several kinds, make evaluation mode another model than training mode.
    """
    if of_one_value := _of_one_value(facts):
        return of_one_value
    norms = facts.signals.get("normalization")
    if not norms:
        return "no batch normalization was seen in training mode"
    return _of_few_rows(facts, norms) or _far_off(facts, norms)


def _of_one_value(facts: Facts) -> Finding | None:
    """Layer normalization over a single feature, which is its own mean."""
    norms = [layer for layer in facts.layers if layer["kind"] == "LayerNorm"]
    names = [layer["name"] for layer in norms if any(one["shape"] == [1] for one in layer["parameters"])]
    if not names or facts.state == "trained":
        return None
    return facts.finding(
        "normalization-statistics",
        f"{join_names([*map(short, names)], 3)} normalize{'s' * (len(names) == 1)} over a single value, which is its "
        "own mean: the result is the bias, whatever the input is, and no gradient passes.",
        Evidence("values that are normalized together", 1, "values"),
        title="Layer normalization of a single value",
        threshold="Exact: no threshold.",
        falsified_by="Without this normalization the learning curve is the same.",
        layers=tuple(names),
        steps=(0,),
        remedy=Remedy("# no normalization behind a layer with one output; before it, over all features"),
    )


def _of_few_rows(facts: Facts, norms: dict[str, Any]) -> Finding | None:
    few = {name: one["most_rows"] for name, one in norms.items() if one["most_rows"] <= limit("two-rows")}
    if not few or facts.state == "trained":
        return None
    return facts.finding(
        "normalization-statistics",
        f"{join_names([*map(short, few)], 3)} normalize{'s' if len(few) == 1 else ''} batches of "
        f"{max(few.values())} rows: of two rows one becomes 1 and the other -1 in each channel, so that only their "
        "order is left, and hardly any gradient passes.",
        Evidence("rows of a batch, most", max(few.values()), "rows"),
        title="Batch normalization of two rows",
        threshold=f"Flagged up to {threshold_text('two-rows')}.",
        falsified_by="With batches of 32 rows the learning curve is the same.",
        layers=_layers(facts, few),
        steps=(0,),
        remedy=Remedy(Action("replace_batch_norms", {"norms": tuple(few)}), "# or larger batches, or drop_last=True"),
    )


def _far_off(facts: Facts, norms: dict[str, Any]) -> Finding | str | None:
    off = {name: one for name, one in norms.items() if _is_off(one)}
    if not off or facts.state not in ("trained", "partly") or not (bad := evaluates_badly(facts)):
        return None
    name, one = max(off.items(), key=lambda item: max(item[1]["shift"], item[1]["scale"]))
    share = _share_of_initial(facts, name, one)
    is_late = share > limit("initial-share")
    why = (
        f"with a momentum of {one['momentum']:g} {percent(share)} of them are still their initial values"
        if is_late
        else "batches differ from each other, or change faster than the statistics (several kinds of data in turn, the "
        "first steps of a training)"
    )
    fix = Action("norm_momentum", {"value": _USUAL_MOMENTUM})
    if not is_late or one["momentum"] >= _USUAL_MOMENTUM:
        fix = Action("replace_batch_norms", {"norms": tuple(off)})
    return facts.finding(
        "normalization-statistics",
        f"In evaluation mode the batches that {join_names([*map(short, off)], 3)} saw in training have a mean of "
        f"{number(one['shift'])} and a standard deviation of {number(math.exp(one['scale']))} or one over it, not "
        f"0 and 1, as running statistics take the place of the batch's own: {why}. {bad}.",
        Evidence(f"mean of a batch in evaluation mode, {short(name)}", one["shift"]),
        Evidence("log of its standard deviation", one["scale"]),
        Evidence("share of initial values in the running statistics", share),
        threshold=f"Flagged above {threshold_text('norm-shift')}; or {threshold_text('norm-scale')}.",
        severity="warning",
        layers=_layers(facts, off),
        remedy=Remedy(fix, f"# {_UPDATE}"),
    )


def _is_off(one: dict[str, Any]) -> bool:
    shift, scale = one.get("shift"), one.get("scale")
    if shift is None or scale is None or one["rows"] < limit("enough-rows"):
        return False
    return bool(shift > limit("norm-shift") or scale > limit("norm-scale"))


def _share_of_initial(facts: Facts, name: str, one: dict[str, Any]) -> float:
    if one.get("momentum") is None or name in (facts.signals.get("copied_statistics") or ()):
        return 0.0
    before = (facts.signals.get("batch_norms") or {}).get(name, 0)
    return float((1 - one["momentum"]) ** (facts.step_count + before))


def _layers(facts: Facts, norms: dict[str, Any]) -> tuple[str, ...]:
    names = [layer["name"] for layer in facts.run.meta["structure"]["layers"]]
    return tuple(name for name in names if any(norm == name or norm.startswith(f"{name}.") for norm in norms))

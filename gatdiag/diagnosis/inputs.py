"""What is wrong with the inputs of the model: NaN, scale, no variation. From what the recorder saw of them once."""

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number

_UNSEEN = "the recorder did not look at the model's inputs"


def input_non_finite(facts: Facts) -> Finding | str | None:
    """NaN or infinity in an input of the model, at the first forward pass or later."""
    if not facts.inputs:
        return _UNSEEN
    bad = next((one for one in facts.inputs if one["non_finite"]), None)
    if bad is None:
        return None
    row, column = (*bad.get("first", ()), 0, 0)[:2]
    return facts.found(
        "input-nonfinite",
        f"{bad['non_finite']:,} {'entry' if bad['non_finite'] == 1 else 'entries'} of the input {bad['name']} "
        f"{'is' if bad['non_finite'] == 1 else 'are'} NaN or infinite, the first in row {row}, "
        f"column {column}: every node near them becomes NaN, then every weight.",
        Evidence(f"NaN or infinite entries of {bad['name']}", bad["non_finite"], "entries"),
        threshold="Flagged from the first one.",
        steps=(int(bad.get("step", 0)),),
        remedy=Remedy(
            "low, high = data.x[data.x.isfinite()].aminmax()  # and find the origin of NaN and infinity\n"
            "data.x = torch.nan_to_num(data.x, nan=0.0, posinf=high.item() + 1, neginf=low.item() - 1)",
            (Action("replace_non_finite_inputs", {"names": (bad["name"],)}),),
        ),
    )


def input_constant(facts: Facts) -> Finding | str | None:
    """All rows of all inputs are the same."""
    if not facts.inputs:
        return _UNSEEN
    known = [one for one in facts.inputs if not one["non_finite"] and one["rows"] > 1]
    if not known or any(one["relative_mu"] >= limit("input-constant") for one in known):
        return None
    one = known[0]
    return facts.found(
        "input-constant",
        f"All {one['rows']:,} rows of the input {one['name']} are the same, so that features cannot tell nodes apart.",
        Evidence(f"relative mu of the input {one['name']}", one["relative_mu"]),
        threshold=f"Flagged below {said('input-constant')}.",
    )


def input_scale(facts: Facts) -> Finding | str | None:
    """A column of an input that is huge, or rows that are next to zero."""
    if not facts.inputs:
        return _UNSEEN
    trained = facts.state == "trained"
    threshold = "input-huge" if trained else "input-large"
    for one in facts.inputs:
        if one["non_finite"] or one["rows"] < 2:
            continue
        if one["largest_column"] > limit(threshold):
            text = (
                f"A column of the input {one['name']} has a root mean square of {number(one['largest_column'])}, the "
                f"smallest {number(one['smallest_column'])}: the curvature of layer 1 grows with its square, and "
                "no learning rate suits all columns."
            )
            size = Evidence(f"root mean square of the largest column of {one['name']}", one["largest_column"])
            return _scale(facts, one["name"], text, size, f"above {said(threshold)}")
        if 0 < one["row_norm"] < limit("input-small") and not trained:
            text = (
                f"The rows of the input {one['name']} have a norm of {number(one['row_norm'])}: beside biases nothing "
                "of them is left, and gradients of the first weights are as small."
            )
            size = Evidence(f"norm of a row of {one['name']}", one["row_norm"])
            return _scale(facts, one["name"], text, size, f"below {said('input-small')}")
    return None


def _scale(facts: Facts, name: str, text: str, size: Evidence, flagged: str) -> Finding:
    line = "data.x = (data.x - data.x.mean(0)) / data.x.std(0).clamp(min=1e-6)  # before training"
    cure = Remedy(line, (Action("standardize_inputs", {"names": (name,)}),))
    return facts.found("input-scale", text, size, threshold=f"Flagged {flagged}.", remedy=cure)

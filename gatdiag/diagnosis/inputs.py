"""The inputs of the model: NaN, scale, no variation, no edges. Rests on what the recorder noted about them once."""

from gatdiag.diagnosis.facts import Facts, is_conv
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit, threshold_text
from gatdiag.diagnosis.wording import number

_NOT_RECORDED = "the model's inputs were not recorded"


def check_non_finite(facts: Facts) -> Finding | str | None:
    """NaN or infinity in an input of the model, at the first forward pass or later."""
    if not facts.inputs:
        return _NOT_RECORDED
    bad = next((one for one in facts.inputs if one["non_finite"]), None)
    if bad is None:
        return None
    row, column = (*bad.get("first", ()), 0, 0)[:2]
    entries = "entry" if bad["non_finite"] == 1 else "entries"
    return facts.finding(
        "input-nonfinite",
        f"The input {bad['name']} has {bad['non_finite']:,} NaN or infinite {entries}, the first in row {row}, column "
        f"{column}. The outputs of all nodes nearby become NaN, and after one step every weight.",
        Evidence(f"NaN or infinite entries of {bad['name']}", bad["non_finite"], "entries"),
        threshold="Flagged from the first entry on.",
        steps=(int(bad.get("step", 0)),),
        remedy=Remedy(Action("replace_non_finite_inputs", {"names": (bad["name"],)})),
    )


def check_constant(facts: Facts) -> Finding | str | None:
    """All rows of each input are the same."""
    if not facts.inputs:
        return _NOT_RECORDED
    known = [one for one in facts.inputs if not one["non_finite"] and one["rows"] > 1]
    if not known or any(one["relative_mu"] >= limit("input-constant") for one in known):
        return None
    one = known[0]
    return facts.finding(
        "input-constant",
        f"All {one['rows']:,} rows of the input {one['name']} are the same, so the features cannot tell nodes apart.",
        Evidence(f"relative mu of the input {one['name']}", one["relative_mu"]),
        threshold=f"Flagged below {threshold_text('input-constant')}.",
    )


def check_scale(facts: Facts) -> Finding | str | None:
    """A huge column of an input, or rows that are nearly zero."""
    if not facts.inputs:
        return _NOT_RECORDED
    trained = facts.state == "trained"
    threshold = "input-huge" if trained else "input-large"
    for one in facts.inputs:
        if one["non_finite"] or one["rows"] < 2:
            continue
        if one["largest_column"] > limit(threshold):
            text = (
                f"The largest column of the input {one['name']} has a root mean square of "
                f"{number(one['largest_column'])}, the smallest {number(one['smallest_column'])}: the curvature of the "
                "first layer grows with its square, so no learning rate suits all columns."
            )
            size = Evidence(f"root mean square of the largest column of {one['name']}", one["largest_column"])
            return _scale(facts, one["name"], text, size, f"above {threshold_text(threshold)}")
        if 0 < one["row_norm"] < limit("input-small") and not trained:
            text = (
                f"The rows of the input {one['name']} have a norm of {number(one['row_norm'])}: they are negligible "
                "beside the biases, and the gradients of the first layer's weights are just as small."
            )
            size = Evidence(f"norm of a row of {one['name']}", one["row_norm"])
            return _scale(facts, one["name"], text, size, f"below {threshold_text('input-small')}")
    return None


def check_edges(facts: Facts) -> Finding | str | None:
    """No layer is given an edge between two nodes, or all convolutions are given edges between few of the nodes."""
    known = {name: one for name, one in facts.signals.get("edges", {}).items() if one["connected"] is not None}
    if not known:
        return "no layer was given an edge_index"
    best = max(known.values(), key=lambda one: float(one["connected"]))
    share = float(best["connected"])
    evidence = Evidence("share of nodes with an edge to another node", share)
    if share == 0:
        what = "holds only self-loops" if best["edges"] else "is empty"
        return facts.finding(
            "input-without-edges",
            f"The edge_index {what}, so that no node gets a message from another: the network is an MLP.",
            evidence,
            threshold="Exact: no threshold.",
            severity="error" if facts.state == "failing" else "warning",
            layers=tuple(known),
        )
    if share >= limit("edges") or not {*known} <= {one["name"] for one in facts.layers if is_conv(one)}:
        return None
    return facts.finding(
        "input-without-edges",
        f"Only {number(100 * share)} % of the nodes have an edge to another one. For the others the network is an MLP.",
        evidence,
        title="Few nodes have edges",
        threshold=f"Flagged below {threshold_text('edges')}.",
        severity="note" if facts.state == "trained" else "warning",
        layers=tuple(known),
    )


def _scale(facts: Facts, name: str, text: str, size: Evidence, flagged: str) -> Finding:
    fix = Remedy(Action("standardize_inputs", {"names": (name,)}))
    return facts.finding("input-scale", text, size, threshold=f"Flagged {flagged}.", remedy=fix)

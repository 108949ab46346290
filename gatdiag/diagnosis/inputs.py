"""The inputs of the model: NaN, scale, no variation, no edges. Rests on what the recorder noted about them once."""

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, is_conv
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number

_POSITIONS = Remedy(
    "data.x = torch.nn.functional.one_hot(\n"
    "    torch_geometric.utils.degree(data.edge_index[1], data.num_nodes).long().clamp(max=63), 64).float()\n"
    "# or: data = torch_geometric.transforms.AddLaplacianEigenvectorPE(16, attr_name='x')(data)"
)


def _needs_inputs(facts: Facts) -> str:
    return "" if facts.inputs else "the model's inputs were not recorded"


def _needs_a_step(facts: Facts) -> str:
    return "" if facts.step_count else "no step was recorded"


@cause(
    "input-nonfinite",
    "NaN or infinity in the inputs",
    rank=10,
    needs=(_needs_inputs,),
    why="NaN spreads from the inputs to everything",
    figure="training_curves",
    falsified_by="torch.isfinite(data.x).all() is True for the inputs that the model is called with.",
    severity="error",
    is_independent=True,
)
def check_non_finite(facts: Facts) -> Finding | None:
    """NaN or infinity in an input of the model, at the first forward pass or later."""
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


@cause(
    "input-constant",
    "All nodes have the same features",
    rank=110,
    needs=(_needs_inputs, _needs_a_step),
    why="rows that start alike stay alike",
    figure="smoothing_by_layer",
    column="layers.relative_mu",
    falsified_by="The rows of the input differ: (data.x != data.x[0]).any() is True.",
    remedy=_POSITIONS,
    is_independent=True,
    limits={"input-constant": Limit(1e-6, "relative mu of the inputs; healthy runs 0.64 to 1, faulty runs 0")},
)
def check_constant(facts: Facts) -> Finding | None:
    """All rows of each input are the same."""
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


@cause(
    "input-scale",
    "Inputs have an unusual scale",
    rank=120,
    needs=(_needs_inputs,),
    why="outputs, gradients and curvature scale with the inputs",
    figure="training_curves",
    falsified_by="With standardized features the learning curve is the same.",
    limits={
        "input-large": Limit(
            30,
            "rms of the largest column; the curvature of the first layer grows with its square; healthy runs 0.65 to "
            "4.5, faulty runs 3e3",
        ),
        "input-huge": Limit(100, "the same if the network trains: 1e4 times the curvature of standardized inputs"),
        "input-small": Limit(1e-3, "rms norm of a row: negligible beside a usual bias"),
    },
)
def check_scale(facts: Facts) -> Finding | None:
    """A huge column of an input, or rows that are nearly zero."""
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


@cause(
    "input-without-edges",
    "No edges",
    rank=290,
    why="an MLP trains, too",
    figure="smoothing_by_layer",
    column="layers.relative_mu",
    falsified_by="edge_index[:, edge_index[0] != edge_index[1]].unique() holds most of the nodes in the forward pass.",
    remedy=Remedy(
        "print(x.shape, edge_index.shape, edge_index.unique().numel())  # in forward: edge_index is [2, edges]\n"
        "data = torch_geometric.data.Batch.from_data_list(graphs)  # joins graphs with the right node numbers"
    ),
    is_independent=True,
    limits={"edges": Limit(0.1, "share of nodes with an edge to another node; healthy runs 0.5 to 1")},
)
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

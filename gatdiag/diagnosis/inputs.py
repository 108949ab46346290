"""The inputs of the model: NaN, scale, drift, no variation, edges that are missing or wrong."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy, Severity
from gatdiag.diagnosis.fixes import OF_DATA, variable
from gatdiag.diagnosis.rates import suits_standardized_inputs
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.training import Floats
from gatdiag.diagnosis.wording import number
from gatdiag.names import is_mask, short
from gatdiag.roles import ROOT, is_conv
from gatdiag.summary import matrices

_POSITIONS = Remedy(
    "data.x = torch.nn.functional.one_hot(\n"
    "    torch_geometric.utils.degree(data.edge_index[1], data.num_nodes).long().clamp(max=63), 64).float()\n"
    "# or: data = torch_geometric.transforms.AddLaplacianEigenvectorPE(16, attr_name='x')(data)"
)

_FEW_NUMBERS = 8


def _needs_inputs(facts: Facts) -> str:
    return "" if facts.inputs else "the model's inputs were not recorded"


_OVER_ROWS = ("LayerNorm", "RMSNorm", "GroupNorm")


def _needs_a_step(facts: Facts) -> str:
    return "" if facts.step_count else "no step was recorded"


def _needs_features(facts: Facts) -> str:
    return "" if facts.signals.get("embedded") else _needs_inputs(facts)


def _called(name: str) -> str:
    """The name of an input after the word input, unless it is that word."""
    return "" if name == "input" else f" {name}"


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
        f"The input{_called(bad['name'])} has {bad['non_finite']:,} NaN or infinite {entries}, the first in row {row}, "
        f"column {column}. The outputs of all nodes nearby become NaN, and after one step every weight.",
        Evidence(f"NaN or infinite entries of {bad['name']}", bad["non_finite"], "entries"),
        threshold="Flagged from the first entry on.",
        steps=(int(bad.get("step", 0)),),
        remedy=_change(facts, Action("replace_non_finite_inputs", {"names": (bad["name"],)})),
    )


def _has_rows(one: Mapping[str, Any]) -> bool:
    """Whether rows can be compared: a few numbers may be one example, and equal by chance."""
    return bool(one["rows"] > (1 if one["columns"] > 1 else _FEW_NUMBERS))


@cause(
    "input-constant",
    "All nodes have the same features",
    rank=110,
    needs=(_needs_features, _needs_a_step),
    why="rows that start alike stay alike",
    figure="smoothing_by_layer",
    column="layers.relative_mu",
    falsified_by="The rows of the input differ: (data.x != data.x[0]).any() is True.",
    remedy=_POSITIONS,
    is_independent=True,
    limits={
        "input-constant": Limit(1e-6, "relative mu of the inputs; healthy runs 0.64 to 1, faulty runs 0"),
        "ids": Limit(20, "embedded ids: fewer may be equal by chance"),
    },
)
def check_constant(facts: Facts) -> Finding | None:
    """All rows of each input are the same, of features and of what is embedded; features of edges do not count."""
    edges = {one["edges"] for one in facts.signals.get("edges", {}).values()}
    known = [one for one in facts.inputs if not one["non_finite"] and _has_rows(one) and not is_mask(one["name"])]
    embedded = facts.signals.get("embedded") or {}
    differ = any(one["relative_mu"] >= limit("input-constant") for one in known)
    if differ or any(not one["are_alike"] for one in embedded.values()):
        return None
    of_nodes = [one for one in known if one["rows"] not in edges]
    if not of_nodes and (embedded or not known):
        return _embeds_one_row(facts, embedded)
    known = of_nodes or known  # there may be as many nodes as edges
    one, is_of_nodes = known[0], facts.mixes_nodes or bool(edges)
    return facts.finding(
        "input-constant",
        f"All {one['rows']:,} rows of the input{_called(one['name'])} are the same, so the features cannot tell "
        f"{'nodes' if is_of_nodes else 'examples'} apart.",
        Evidence(f"relative mu of the input {one['name']}", one["relative_mu"]),
        title="" if is_of_nodes else "All examples have the same features",
        threshold=f"Flagged below {threshold_text('input-constant')}.",
        severity=_severity_of_constant(facts),
        remedy=None if is_of_nodes else Remedy(f"print({variable(one['name'])})  # find out where it is made"),
    )


def _severity_of_constant(facts: Facts) -> Severity | None:
    """A note for a network that learns: from edges, as those of molecules tell them apart by degrees and cycles."""
    return "note" if facts.state == "partly" and facts.mixes_nodes else None


def _embeds_one_row(facts: Facts, embedded: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    """All rows of the tokens that the model embeds are the same, in each step that was looked at."""
    layer = max(embedded, key=lambda name: int(embedded[name]["entries"]), default="")
    if not layer or embedded[layer]["rows"] < 2 or embedded[layer]["entries"] < limit("ids"):
        return None
    return facts.finding(
        "input-constant",
        f"All {embedded[layer]['rows']:,} rows of the ids that layer {short(layer)} embeds are the same in each step "
        "that was looked at, so that no example, or node, can be told from another.",
        Evidence("rows of ids that are the same", embedded[layer]["rows"], "rows"),
        title="All rows have the same ids",
        severity=_severity_of_constant(facts),
        threshold=f"Exact, from {threshold_text('ids')} on.",
        layers=(layer,),
        remedy=Remedy("print(ids.unique(return_counts=True))  # ids: what is embedded; look at the vocabulary"),
        falsified_by="(ids != ids[0]).any() is True for the ids that are embedded.",
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
            10,
            "rms of the largest column; the curvature of the first layer grows with its square; healthy runs 0.65 to "
            "4.5, faulty runs 3e3",
        ),
        "input-huge": Limit(
            100,
            "the same if the network may have trained, or all columns are as large, as pixels to 255 are: 1e4 times "
            "the curvature of standardized inputs",
        ),
        "alike-columns": Limit(3, "times the smallest column is the largest: columns of one scale"),
        "row-outlier": Limit(
            50, "norm of the largest row over the median; of usual features up to 10, divided by sums near zero 300"
        ),
        "input-small": Limit(1e-3, "rms norm of a row: negligible beside a usual bias"),
    },
)
def check_scale(facts: Facts) -> Finding | None:
    """A huge column of an input, rows that are nearly zero, or a few rows that are huge beside the others.

    Where it was recorded, what counts is what the first weights are given, behind a normalization or a division.
    """
    for one in facts.inputs:
        if one["non_finite"] or one["rows"] < 2:
            continue
        are_alike = one["largest_column"] < limit("alike-columns") * one["smallest_column"]
        largest = min(one["largest_column"] * _later(facts, one["name"]), _largest_given(facts, "largest_column"))
        may_be_unsuited = facts.state == "failing" and largest > limit("input-large")
        is_unsuited = may_be_unsuited and suits_standardized_inputs(facts, one["largest_column"])
        is_usual = (facts.state in ("trained", "unknown") or are_alike) and not is_unsuited
        threshold = "input-huge" if is_usual else "input-large"
        if largest > limit(threshold):
            text = _describe_columns(one, are_alike=are_alike)
            size = Evidence(f"root mean square of the largest column of {one['name']}", one["largest_column"])
            # below, networks that learn may have learned all there is, and of others labels may be wrong as well
            is_sure = largest > limit("input-huge") or facts.is_preflight or is_unsuited
            severity = None if is_sure else facts.mild_severity
            return _scale(facts, one["name"], text, size, f"above {threshold_text(threshold)}", severity)
        is_small = max(one["row_norm"], _smallest_given_row(facts)) < limit("input-small")
        if one["row_norm"] > 0 and is_small and facts.state != "trained":
            text = (
                f"The rows of the input{_called(one['name'])} have a norm of {number(one['row_norm'])}: they are "
                "negligible beside the biases, and the gradients of the first layer's weights are just as small."
            )
            size = Evidence(f"norm of a row of {one['name']}", one["row_norm"])
            return _scale(facts, one["name"], text, size, f"below {threshold_text('input-small')}")
        largest_row = min(one.get("largest_row") or 0.0, _largest_given(facts, "largest_row"))
        if limit("row-outlier") < largest_row < math.inf:
            return _uneven(facts, one)
    return None


def _given(facts: Facts) -> list[Mapping[str, float]]:
    """Sizes of the data that the first layers with weights are given, in which nothing of the inputs was lost.

    Empty where the model has weights of its own, or a norm over rows, behind which a huge column leaves nothing of the
    others.
    """
    is_seen = not any(layer["name"] == ROOT and matrices(layer) for layer in facts.run.meta["structure"]["layers"])
    is_seen = is_seen and not any(str(layer.get("kind")) in _OVER_ROWS for layer in facts.layers[:1])
    return [*(facts.signals.get("given") or {}).values()] if is_seen else []


def _largest_given(facts: Facts, name: str) -> float:
    known = [one.get(name) for one in _given(facts)]
    return max((math.inf if value is None else value for value in known), default=math.inf)


def _smallest_given_row(facts: Facts) -> float:
    return min((one["row_norm"] for one in _given(facts) if one.get("row_norm") is not None), default=0.0)


def _describe_columns(one: Mapping[str, Any], *, are_alike: bool) -> str:
    largest = number(one["largest_column"])
    if are_alike:
        return (
            f"The columns of the input{_called(one['name'])} have a root mean square of {largest}, standardized ones "
            f"1: the curvature of the first layer is {number(one['largest_column'] ** 2)} times as large, and the "
            "learning rates that suit it are as much smaller than those of the other layers."
        )
    return (
        f"The largest column of the input{_called(one['name'])} has a root mean square of {largest}, the smallest "
        f"{number(one['smallest_column'])}: the curvature of the first layer grows with its square, so no learning "
        "rate suits all columns."
    )


def _uneven(facts: Facts, one: Mapping[str, Any]) -> Finding:
    """A few rows of an input decide on all gradients."""
    x = variable(one["name"])
    return facts.finding(
        "input-scale",
        f"The largest row of the input{_called(one['name'])} is {number(one['largest_row'])} times as large as most: a "
        "few rows outweigh all others, as where rows are divided by their sums, and some of these are nearly zero.",
        Evidence(f"norm of the largest row of {one['name']} over the median", one["largest_row"]),
        title="A few rows of the inputs are huge",
        threshold=f"Flagged above {threshold_text('row-outlier')}.",
        severity=None if facts.state in ("failing", "trained") else "warning",
        falsified_by="Without the largest rows the learning curve is the same.",
        remedy=Remedy(
            f"{x} = ({x} - {x}.mean(0)) / {x}.std(0)"
            "  # from the features before they were divided by sums of rows; keep those sums away from zero"
        ),
    )


@cause(
    "input-without-edges",
    "No edges",
    rank=13.7,
    why="without messages, or with those of all graphs in one, nothing that follows is what it would be",
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
    """No layer is given an edge between two nodes, or all convolutions are given edges between few of the nodes.

    In a batch of graphs whose node numbers begin anew for each graph, all edges are among the first nodes.
    """
    known = {name: one for name, one in facts.signals.get("edges", {}).items() if one["connected"] is not None}
    if not known:
        return "no layer was given an edge_index"
    if of_one_graph := _edges_of_one_graph(facts, tuple(known)):
        return of_one_graph
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
        f"Only {number(100 * share)}% of the nodes have an edge to another one. For the others the network is an MLP.",
        evidence,
        title="Few nodes have edges",
        threshold=f"Flagged below {threshold_text('edges')}.",
        severity="note" if facts.state == "trained" else "warning",
        layers=tuple(known),
    )


def _edges_of_one_graph(facts: Facts, layers: tuple[str, ...]) -> Finding | None:
    """Edges of a batch of graphs that all join nodes of the first one, as their numbers begin anew for each graph."""
    found = facts.signals.get("graphs") or {}
    if not found or found["within_first"] < found["batches"]:
        return None
    return facts.finding(
        "input-without-edges",
        f"The last batch holds {found['graphs']:,} graphs with {found['nodes']:,} nodes, but its edges join only "
        f"the first {found['needed']:,}, no more than the largest graph has: node numbers begin at 0 in each graph, so "
        "that all edges are those of the first nodes, and the other graphs have none.",
        Evidence("nodes that edges reach, by their numbers", found["needed"], "nodes"),
        Evidence("nodes of the batch", found["nodes"], "nodes"),
        title="All edges of a batch are in its first graph",
        threshold="Exact: no threshold.",
        severity="error" if facts.state == "failing" else "warning",
        layers=layers,
    )


def _later(facts: Facts, name: str) -> float:
    """The usual size of an input over that of the first one, if it becomes smaller, as noise does that is annealed."""
    sizes = ((facts.signals.get("input_sizes") or {}).get(name) or {}).get("sizes") or ()
    known = [math.inf if size is None else size for size in sizes]
    return min(1.0, median(known) / known[0]) if known and known[0] > 0 and len(known) >= limit("drift-sizes") else 1.0


def _scale(
    facts: Facts, name: str, text: str, size: Evidence, flagged: str, severity: Severity | None = None
) -> Finding:
    fix = _change(facts, Action("standardize_inputs", {"names": (name,)}))
    if name == "edge_weight":  # without a sign, as its sums are divided by
        fix = Remedy("data.edge_weight = data.edge_weight / data.edge_weight.mean()  # before training")
    return facts.finding("input-scale", text, size, threshold=f"Flagged {flagged}.", severity=severity, remedy=fix)


@cause(
    "input-changes",
    "Inputs are changed from step to step",
    rank=115,
    why="weights cannot follow inputs that drift",
    figure="training_curves",
    falsified_by="x.norm() before the first epoch and after the last are the same.",
    needs_training=True,
    is_independent=True,
    limits={
        "input-drift": Limit(30, "times the size of the first inputs, or one over it, in one direction all the way"),
        "drift-in-place": Limit(2, "the same of a tensor that is changed in place between the steps"),
        "drift-sizes": Limit(6, "sizes of an input: with fewer, one direction may be chance"),
    },
)
def check_changes(facts: Facts) -> Finding | str | None:
    """An input grows or shrinks from step to step, as data that are scaled or shifted anew in each epoch."""
    known = facts.signals.get("input_sizes") or {}
    for name, one in known.items():
        sizes = np.array([np.inf if size is None else size for size in one["sizes"]], float)
        if len(sizes) < limit("drift-sizes") or not sizes[0] > 0 or not np.isfinite(sizes[0]):
            continue
        is_in_place = one["rewritten"] >= (len(sizes) - 1) / 2
        threshold = "drift-in-place" if is_in_place else "input-drift"
        ratio = float(sizes[-1] / sizes[0])
        if not (ratio > limit(threshold) or ratio < 1 / limit(threshold)) or not _is_one_way(sizes):
            continue
        how = "It is one tensor that is changed in place" if is_in_place else "It is made anew for each step"
        return facts.finding(
            "input-changes",
            f"The input{_called(name)} has {number(ratio)} times its size at step {one['steps'][0]:,} at step "
            f"{one['steps'][-1]:,}, and changes in this direction all the way. {how}: a change that belongs before "
            "training (x / 255, x - x.mean()) is made in each epoch.",
            Evidence(f"size of {name} at the end over that at the start", ratio),
            Evidence("inspections between which it was changed in place", one["rewritten"], "inspections"),
            threshold=f"Flagged above {threshold_text(threshold)}, or below one over it.",
            remedy=Remedy(
                f"{variable(name)} = {variable(name)} / scale  # once, before the loop, and not in it or in forward"
            ),
            severity="note" if facts.state == "trained" or (facts.state == "unknown" and not is_in_place) else None,
        )
    return None if known else "the model's inputs were not recorded"


def _is_one_way(sizes: Floats) -> bool:
    """Whether they never fall, or never rise, and change in most steps until they are zero or infinite."""
    with np.errstate(invalid="ignore"):
        steps = np.nan_to_num(np.diff(sizes), nan=0.0)
    live = steps[(sizes[:-1] > 0) & np.isfinite(sizes[:-1])]
    return bool((live >= 0).all() or (live <= 0).all()) and bool((live != 0).mean() >= 0.5)


@cause(
    "input-permuted",
    "The entries of the inputs are in another order each time",
    rank=114,
    why="no weight belongs to a column that is another one in each step",
    figure="training_curves",
    falsified_by="An example that is given again has its entries in the same order.",
    remedy=Remedy("order = torch.randperm(x.shape[1])  # once, before the loop\nx = x[:, order]  # in each step"),
    needs_training=True,
    is_independent=True,
    limits={
        "permuted": Limit(
            0.2,
            "of the rows that came again are in an order that keeps no neighbors; flips and shifts 0, faults 0.5 to 1",
        ),
        "came-again": Limit(8, "rows that came again: with fewer, equal entries may be chance"),
    },
)
def check_permuted(facts: Facts) -> Finding | str | None:
    """Rows come again with the same entries in another order, and it is no flip and no shift."""
    known = {name: one for name, one in (facts.signals.get("input_orders") or {}).items() if one["repeated"]}
    if not known:
        return "no row of an input was seen twice"
    name = max(known, key=lambda name: known[name]["permuted"])
    again, permuted = known[name]["repeated"], known[name]["permuted"]
    if again < limit("came-again") or permuted < limit("permuted") * again or facts.state == "trained":
        return None
    return facts.finding(
        "input-permuted",
        f"Of {again:,} rows of the input{_called(name)} that came again, {permuted:,} have the same entries in another "
        "order: a permutation is drawn anew in each step, so that no column keeps its meaning.",
        Evidence("share of the rows that came again in another order", permuted / again),
        Evidence("rows that came again", again, "rows"),
        threshold=f"Flagged from {threshold_text('permuted', 'came-again')}.",
        severity="note" if _learns_steadily(facts) else "warning" if facts.state == "unknown" else None,
    )


def _learns_steadily(facts: Facts) -> bool:
    """The loss clearly falls, and never rose far: the entries may be exchangeable, as equal sensors are."""
    return facts.progress > 1.5 * limit("fall") and facts.loss_jump < 1 + limit("same-loss")


@cause(
    "input-edges-rearranged",
    "Pairs of nodes were reshaped instead of transposed",
    rank=13.5,
    why="messages go between nodes that no edge joins",
    figure="smoothing_by_layer",
    falsified_by="(edge_index[0, :3], edge_index[1, :3]) are the ends of the first three edges.",
    remedy=Remedy("edge_index = pairs.t().contiguous()  # instead of pairs.view(2, -1) or pairs.reshape(2, -1)"),
    severity="certain",
    is_independent=True,
)
def check_rearranged(facts: Facts) -> Finding | str | None:
    """An edge_index that becomes a graph with all edges in both directions once it is read as a list of pairs."""
    known = facts.signals.get("edges") or {}
    layers = tuple(name for name, one in known.items() if one.get("is_rearranged"))
    if not layers:
        return None if known else "no layer was given an edge_index"
    edges = max(int(known[name]["edges"]) for name in layers)
    return facts.finding(
        "input-edges-rearranged",
        f"Read row by row as pairs of nodes, the {edges:,} edges of edge_index all have a reverse edge; as they are "
        "given, they do not. A list of pairs [E, 2] was reshaped to [2, E] instead of transposed, so that edges join "
        "nodes at random.",
        Evidence("edges that have a reverse if they are read as pairs", edges, "edges"),
        threshold="Exact: no threshold.",
        layers=layers,
    )


@cause(
    "input-complete-graph",
    "Every node is joined with every other",
    rank=112,
    why="the mean over all nodes is the same for each node",
    figure="smoothing_by_layer",
    falsified_by="With the edges of each node to its nearest others only, the learning curve is the same.",
    remedy=Remedy(
        "edge_index = torch_geometric.nn.knn_graph(x, k=8)  # or the edges that carry information; or\n"
        "conv = torch_geometric.nn.SAGEConv(in_channels, out_channels)  # which adds a node's own features"
    ),
    is_independent=True,
    limits={
        "complete": Limit(0.99, "share of the pairs of nodes that are joined"),
        "complete-edges": Limit(30, "edges: graphs of a few nodes are often complete"),
        "same-rows": Limit(1e-2, "relative mu of a convolution's output: rows are the same"),
    },
)
def check_complete(facts: Facts) -> Finding | str | None:
    """All pairs of nodes are joined, and a convolution therefore gives all nodes the same output."""
    known = facts.signals.get("edges") or {}
    full = [one for one in known.values() if (one.get("pairs") or 0.0) >= limit("complete")]
    if not full or full[0]["edges"] < limit("complete-edges"):
        return None if known else "no layer was given an edge_index"
    convolutions = {layer["name"] for layer in facts.layers if is_conv(layer)}
    alike = {name: mu for name, mu in facts.profile("relative_mu").items() if name in convolutions}
    same = tuple(name for name, mu in alike.items() if mu < limit("same-rows"))
    if not same or facts.state == "trained":
        return None
    return facts.finding(
        "input-complete-graph",
        f"Edges join {number(100 * full[0]['pairs'])}% of all pairs of nodes, so that each node gets the same mean "
        f"over all nodes: the rows of the output of {short(same[0])} are the same, and the nodes cannot be told apart.",
        Evidence("share of the pairs of nodes that are joined", full[0]["pairs"]),
        Evidence(f"relative mu of the output of {short(same[0])}", alike[same[0]]),
        threshold=f"Flagged from {threshold_text('complete', 'complete-edges')}; below {threshold_text('same-rows')}.",
        layers=same,
        steps=(0,),
    )


def _change(facts: Facts, action: Action) -> Remedy:
    """An action on an input; text if the model is given the input in an object, in which it has another name."""
    known = facts.signals.get("arguments")
    (name,) = action.settings["names"]
    is_known = (
        known is None or name.partition("[")[0] in (*known, *facts.signals.get("keywords", ())) or name in OF_DATA
    )
    return Remedy(action if is_known else f"# of the data that the model is given:\n{action.code}")

"""What the edges do to the messages: weights that a normalization cannot take, and labeled nodes that get none."""

from collections.abc import Mapping

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.names import join_names, short


@cause(
    "input-edge-weights",
    "Edge weights cannot be normalized",
    rank=13,
    why="the root of a negative degree is NaN",
    figure="overview",
    falsified_by="torch_geometric.utils.scatter(edge_weight, edge_index[1]).min() is above -1, and no weight is NaN.",
    remedy=Remedy(
        "edge_weight = edge_weight.abs()  # in forward; or keep the sign in edge_attr, for layers that take features"
    ),
    severity="error",
    is_independent=True,
)
def check_edge_weights(facts: Facts) -> Finding | str | None:
    """Edge weights that are NaN, or so negative that the degree of a node, whose root is taken, is negative."""
    known = facts.signals.get("edge_weights")
    if not known:
        return "no layer was given weights of edges"
    if zeros := tuple(name for name, one in known.items() if one.get("zeros") == one["count"] > 0):
        return _weights_of_zero(facts, zeros, known[zeros[0]]["count"])
    if not facts.is_non_finite and facts.run.meta["first_non_finite"] is None:
        return None
    bad = {name: one for name, one in known.items() if one["negative_degrees"] or one["non_finite"]}
    if not bad:
        return None
    one = next(iter(bad.values()))
    if one["non_finite"]:
        what = f"{one['non_finite']:,} of the {one['count']:,} edge weights are NaN or infinite"
    else:
        what = (
            f"{one['negative']:,} of the {one['count']:,} edge weights are negative, so that the weights of "
            f"{one['negative_degrees']:,} nodes add up to less than zero, and the layer divides by the root of that sum"
        )
    return facts.finding(
        "input-edge-weights",
        f"{what[0].upper()}{what[1:]}: their messages are NaN ({join_names([*map(short, bad)])}).",
        Evidence("nodes whose weights add up to less than zero", one["negative_degrees"], "nodes"),
        Evidence("negative edge weights", one["negative"], "edges"),
        Evidence("edge weights that are NaN or infinite", one["non_finite"], "edges"),
        threshold="Exact: no threshold.",
        layers=tuple(bad),
        remedy=_repair_weights(facts, is_finite=not one["non_finite"]),
    )


def _weights_of_zero(facts: Facts, layers: tuple[str, ...], count: int) -> Finding:
    return facts.finding(
        "input-edge-weights",
        f"All {count:,} edge weights are zero ({join_names([*map(short, layers)])}): no node gets anything of another, "
        "and the network is an MLP.",
        Evidence("edge weights that are zero", count, "edges"),
        title="All edge weights are zero",
        threshold="Exact: no threshold.",
        falsified_by="edge_weight.any() is True in the forward pass.",
        layers=layers,
        severity="error" if facts.state == "failing" else "warning",
        remedy=Remedy("print(edge_weight.unique())  # in forward; without weights, each edge counts as one"),
    )


def _repair_weights(facts: Facts, *, is_finite: bool) -> Remedy | None:
    """Weights without a sign, or with zero for NaN, where they are an input of the model."""
    if "edge_weight" not in (*facts.signals.get("arguments", ()), *facts.signals.get("keywords", ())):
        return None
    return Remedy(Action("absolute_inputs" if is_finite else "replace_non_finite_inputs", {"names": ("edge_weight",)}))


@cause(
    "input-without-messages",
    "Labeled nodes get no messages",
    rank=245,
    why="weights of neighbors get no gradient",
    figure="smoothing_by_layer",
    column="layers.relative_mu",
    falsified_by="Most of the labeled nodes are in edge_index[1], with another node in edge_index[0].",
    remedy=Remedy("edge_index = edge_index.flip(0)  # or torch_geometric.utils.to_undirected(edge_index)"),
    is_independent=True,
    limits={
        "reached": Limit(0.1, "share of labeled nodes that an edge reaches; reversed edges reach none"),
        "reached-others": Limit(0.3, "more of all nodes are reached: then edges are not missing, but point elsewhere"),
        "of-others": Limit(1e-6, "share of the gradient of a node's output that is at the inputs of other nodes"),
        "featureless": Limit(0.3, "share of labeled nodes without a message that all get one output"),
    },
)
def check_messages(facts: Facts) -> Finding | str | None:
    """Nodes whose outputs the loss counts get no message, though other nodes do: edges point the other way.

    Or they get none and lose their own features, too; or, before training, messages carry nothing of neighbors.
    """
    if no_neighbors := _depend_on_themselves(facts):
        return no_neighbors
    counts = facts.signals.get("messages")
    if not counts:
        return "the loss counts no outputs of single nodes, or no layer was given an edge_index"
    share, of_all = counts["reached"] / counts["labeled"], counts["reached_nodes"] / counts["nodes"]
    if share >= limit("reached") or of_all - share < limit("reached-others"):
        return _without_features(facts, counts["alike"], counts["labeled"]) if loses_features(facts) else None
    return facts.finding(
        "input-without-messages",
        f"Of the {counts['labeled']:,} nodes that the loss counts only {counts['reached']:,} get a message from "
        f"another node; of all {counts['nodes']:,} nodes {counts['reached_nodes']:,} do. For the labeled ones the "
        "network is an MLP. Messages go from edge_index[0] to edge_index[1]; the edges may point the other way, or "
        "be numbered in another order than the nodes.",
        Evidence("share of the labeled nodes that an edge reaches", share),
        Evidence("share of all nodes that an edge reaches", of_all),
        threshold=f"Flagged below {threshold_text('reached', 'reached-others')}.",
        severity="note" if facts.state == "trained" else "warning",
    )


def _depend_on_themselves(facts: Facts) -> Finding | None:
    """Before training: the outputs of nodes that edges reach have no gradient at the inputs of other nodes."""
    found = facts.mixing if isinstance(facts.mixing, Mapping) else {}
    if found.get("others") != "nodes" or found["share"] > limit("of-others"):
        return None
    return facts.finding(
        "input-without-messages",
        f"The outputs of {found['nodes']:,} nodes that edges reach have no gradient at the inputs of other nodes, in "
        "evaluation mode: nothing of a neighbor is in them, and the network is an MLP.",
        Evidence("share of the gradient of a node's output at the inputs of other nodes", found["share"]),
        title="Messages carry nothing of the neighbors",
        severity="warning",
        threshold=f"Flagged up to {threshold_text('of-others')}.",
        falsified_by="In evaluation mode, the output of a node changes if the features of a neighbor change.",
        remedy=Remedy("# in message(): x_j are the features of the neighbor, x_i those of the node itself"),
    )


def loses_features(facts: Facts) -> bool:
    """Whether many nodes get no message and, without a self-loop, not their own features either."""
    counts = facts.signals.get("messages") or {}
    return bool(counts) and counts.get("alike", 0) >= limit("featureless") * counts["labeled"]


def _without_features(facts: Facts, alike: int, labeled: int) -> Finding:
    return facts.finding(
        "input-without-messages",
        f"{alike:,} of the {labeled:,} nodes that the loss counts get no message, and all have the same output: the "
        "convolutions use what neighbors send and not a node's own features, so that nothing is left of a node "
        "without neighbors. Give each node an edge to itself.",
        Evidence("share of the labeled nodes that get no message and have one output", alike / labeled),
        title="Nodes without neighbors lose their features",
        threshold=f"Flagged from {threshold_text('featureless')}.",
        falsified_by="model(x, edge_index)[n] differs between two nodes n that are not in edge_index[1].",
        severity="note" if facts.state == "trained" else "error" if facts.state == "failing" else "warning",
        remedy=Remedy(
            "edge_index, _ = torch_geometric.utils.add_self_loops(edge_index, num_nodes=len(x))  # in forward\n"
            "# or add_self_loops=True of the convolutions, or a skip connection"
        ),
    )


@cause(
    "input-edges-cached",
    "The edges of the first batch are used for all",
    rank=13.6,
    why="messages go between nodes that no edge joins",
    figure="smoothing_by_layer",
    falsified_by="Each batch has the same edge_index.",
    severity="certain",
    needs_training=True,
    is_independent=True,
    limits={"others": Limit(0.1, "share of the calls with other edges than the first; a fixed graph has none")},
)
def check_cached(facts: Facts) -> Finding | str | None:
    """A convolution with cached=True keeps the edges of its first call, but is given others later."""
    known = facts.signals.get("cached_edges")
    if not known:
        return "no layer keeps the edges of its first call (cached=True)"
    stale = {name: one for name, one in known.items() if one["others"] >= limit("others") * one["calls"]}
    if not stale:
        return None
    name, one = next(iter(stale.items()))
    names = join_names([*map(short, stale)], 3)
    return facts.finding(
        "input-edges-cached",
        f"With cached=True, {names} keep{'s' * (len(stale) == 1)} the normalized edges of the first call for ever, but "
        f"{one['others']:,} of {one['calls']:,} inspected calls came with other edges: these are ignored.",
        Evidence(f"share of the calls of {short(name)} with other edges", one["others"] / one["calls"]),
        threshold=f"Flagged from {threshold_text('others')}.",
        layers=tuple(stale),
        remedy=Remedy(f"cached=False  # of {names}: only a single graph, which never changes, may be cached"),
    )

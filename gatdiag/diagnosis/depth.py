"""Depth: gradients explode or vanish, rows become alike (oversmoothing) or multiples of one vector (rank collapse)."""

import math
from collections.abc import Container, Sequence
from statistics import median_high
from typing import NamedTuple

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, values_at_step
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.fixes import GLOROT
from gatdiag.diagnosis.messages import loses_features
from gatdiag.diagnosis.recurrence import exploding_in_time, vanishing_in_time
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit, threshold_text
from gatdiag.diagnosis.training import STILL_FALLS
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import short
from gatdiag.summary import matrices

_SHALLOW = "A network of two layers, or one with skip connections, does not train either."

declare_limits(
    {
        "arrives": Limit(
            1,
            "gradient of the first over that of the last hidden layer, before training: with skips 1.8 "
            "to 21, without them and of low rank up to 0.3",
        ),
        "deep": Limit(4, "layers or more"),
    }
)

_WIDER = Remedy("hidden_channels = 64  # a layer with one neuron passes on one number per node")
_FEWER_HOPS = Remedy("conv = type(conv)(in_channels, out_channels, K=2)  # two hops instead of many")
_OWN_WEIGHT = Remedy(
    "conv = torch_geometric.nn.SAGEConv(in_channels, out_channels)  # with a weight for the node itself; or fewer edges"
)
_LITTLE = 0.97  # of the size of an output is left in each layer: a layer alone hardly shrinks it
_LAST = 3  # layers, of which the smallest value counts: in the very last, rounding alone may make nodes differ


@cause(
    "depth-exploding-gradient",
    "Gradients explode with depth",
    rank=160,
    why="a usual learning rate is too large for gradients that grow with depth",
    figure="gradient_norms",
    column="layers.output_gradient_norm",
    falsified_by="With scaled branches, or a normalization after each layer, the first loss is just as high.",
    limits={
        "explode": Limit(30, "growth of the hidden outputs from first to last; faulty runs 7.8 to 3e7"),
        "explode-back": Limit(1e3, "growth of the gradients from the last layer to the first"),
        "jump": Limit(5, "times the loss of the best constant prediction; 100 if the network trains"),
        "grows": Limit(10, "growth of outputs or gradients, together with such a first loss"),
    },
    borrowed=("explode-time", "each-run"),
)
def check_exploding(facts: Facts) -> Finding | str | None:
    """Hidden outputs, or gradients on their way back, grow from layer to layer though each weight has a usual norm."""
    has_usual_weights = (median_high(facts.gains.values()) if facts.gains else 1.0) < limit("gain-large")
    if (in_time := exploding_in_time(facts, has_usual_weights=has_usual_weights)) is not None:
        return in_time
    if facts.is_learning or not has_usual_weights:
        return None
    forward, backward = _growths(facts)
    if len(forward.by_layer) < 5:
        count = len(forward.by_layer) + 1
        return f"this check needs 6 layers with a recorded output and no normalization between, got {count}"
    if (threshold := _exceeded(facts, forward, backward)) is None:
        return None
    shown = _larger(facts, forward, backward) if threshold == "grows" else forward
    shown = backward if threshold == "explode-back" else shown
    count = len(forward.by_layer)
    fix = remedy.insert_modules(facts, *(_modules(facts) if facts.laws else ("LayerNorm",)))
    scale = f"x = x + {1 / math.sqrt(count):.2g} * out  # in forward: branches times 1 / sqrt(their number)"
    summed = ": a sum of that many residual branches has to be scaled" if facts.has_residual_streams else ""
    back = f", and the gradients on their way back {number(backward.most)} times"
    returning = back if math.isfinite(backward.most) else ""
    evidence = (
        Evidence("norm of the last hidden output over the first's", forward.most),
        Evidence("gradient of the first over the last hidden layer", backward.most),
    )
    high = Evidence("first loss over that of a constant prediction", facts.first_loss / facts.baseline_loss)
    return facts.finding(
        "depth-exploding-gradient",
        f"Over {count + 1} layers the outputs grow {number(forward.most)} times{returning}, although each weight has a "
        f"usual norm{summed}.",
        *(evidence if shown is forward else evidence[::-1]),
        *([high] if threshold == "grows" else []),
        threshold=f"Flagged above {threshold_text('explode', 'explode-back')}; or above {threshold_text('grows')}, "
        f"above {threshold_text('jump')}.",
        layers=tuple(name for name, growth in shown.by_layer.items() if growth > limit(threshold)),
        column=shown.column,
        line=limit(threshold),
        over=shown.over,
        steps=(0,),
        remedy=Remedy(*fix.fixes, f"# or: {scale}") if fix else Remedy(scale),
    )


class _Growth(NamedTuple):
    """How far a column grows from hidden layer to hidden layer of a stack: values over that of the layer `over`."""

    column: str
    over: str
    by_layer: dict[str, float]
    most: float


def _growths(facts: Facts) -> tuple[_Growth, _Growth]:
    """The growth of the outputs from the first layer on, and of their gradients from the last layer back."""
    stack = _without_normalization(facts)
    norms, grads = (_of_hidden(facts, column, stack) for column in ("output_norm", "output_gradient_norm"))
    first, last = next(iter(norms), ""), next(reversed(grads), "")
    forward = {name: _ratio(value, norms[first]) for name, value in norms.items()}
    backward = {name: _ratio(value, grads[last]) for name, value in grads.items()}
    return (
        _Growth("layers.output_norm", first, forward, next(reversed(forward.values()), math.nan)),
        _Growth("layers.output_gradient_norm", last, backward, next(iter(backward.values()), math.nan)),
    )


def _larger(facts: Facts, forward: _Growth, backward: _Growth) -> _Growth:
    """The larger one; normalizations scale gradients of networks that train."""
    return backward if backward.most > forward.most and not facts.is_preflight else forward


def _exceeded(facts: Facts, forward: _Growth, backward: _Growth) -> str | None:
    """The name of the limit that is exceeded."""
    if forward.most > limit("explode"):
        return "explode"
    if backward.most > limit("explode-back"):
        return "explode-back"
    came_back = facts.course.reason.endswith(STILL_FALLS)  # of a network that is learning, only far growth tells
    is_high = facts.first_loss > limit("jump") * facts.baseline_loss and not came_back
    return "grows" if is_high and _larger(facts, forward, backward).most > limit("grows") else None


def _without_normalization(facts: Facts) -> list[str]:
    """The longest stack of layers, with the output layer, in which no normalization resets the scale."""
    stacks: list[list[str]] = [[]]
    kinds = {layer["name"]: str(layer.get("kind")) for layer in facts.layers}
    for name in facts.node_layers:
        if "Norm" in kinds[name]:
            stacks.append([])
        else:
            stacks[-1].append(name)
    return max(stacks, key=len)


@cause(
    "depth-vanishing-gradient",
    "Gradients vanish with depth",
    rank=200,
    why="without a gradient only weight decay moves weights",
    figure="gradient_norms",
    column="layers.output_gradient_norm",
    falsified_by="With skip connections around the hidden layers and everything else unchanged, the learning curve is "
    "the same.",
    limits={
        "vanish": Limit(1e-3, "gradient of the first layer's output over the last's; faulty runs 3e-5"),
        "vanish-alike": Limit(1e-5, "the same if rows are alike, which shrinks it, too"),
    },
    borrowed=("vanish-time",),
)
def check_vanishing(facts: Facts) -> Finding | str | None:
    """The gradient at the first layer's output is orders of magnitude below that at the last layer's."""
    if (in_time := vanishing_in_time(facts)) is not None:
        return in_time
    known = {name: value for name, value in facts.profile("output_gradient_norm").items() if math.isfinite(value)}
    grads = [*known.values()]
    if len(grads) < limit("deep"):
        return f"this check needs 4 layers with a recorded gradient, got {len(grads)}"
    if facts.is_learning:
        return None
    threshold = "vanish-alike" if facts.mixes_nodes and _alike(facts) else "vanish"
    ratio = _left_of_gradient(grads)
    if not 0 < ratio < limit(threshold):
        return None
    has_sigmoids = len(facts.signals.get("after_sigmoid", ())) > len(grads) / 2
    slope = "; the slope of a sigmoid is at most 1/4" if has_sigmoids else ""
    return facts.finding(
        "depth-vanishing-gradient",
        f"On its way back over {len(grads)} layers the gradient shrinks to {number(ratio)} of its size "
        f"({number(ratio ** (1 / (len(grads) - 1)))} times per layer{slope}), so the first layers cannot learn.",
        Evidence("gradient of the first over that of the last layer's output", ratio),
        threshold=f"Flagged below {threshold_text(threshold)}.",
        severity="warning" if facts.is_non_finite else facts.severity,  # small gradients make nothing infinite
        layers=tuple(name for name in known if _ratio(known[name], grads[-1]) < limit(threshold)),
        line=limit(threshold),
        beyond="below",
        over=[*known][-1],
        steps=(0,),
        remedy=_relu(facts) if has_sigmoids else _skips(facts),
        falsified_by="With ReLU instead of the sigmoids the learning curve is the same." if has_sigmoids else "",
    )


def _left_of_gradient(grads: Sequence[float]) -> float:
    """Gradient of the first layer's output over the last's; those that depth rounds to zero are left out."""
    return _ratio(next((size for size in grads if size > 0), 0.0), grads[-1])


def is_rounded_away(facts: Facts) -> bool:
    """Depth shrinks the gradient until it is rounded to zero in the first layers, which no dead unit is needed for."""
    grads = [size for size in facts.profile("output_gradient_norm").values() if math.isfinite(size)]
    return len(grads) >= limit("deep") and grads[0] == 0 and 0 < _left_of_gradient(grads) < limit("vanish-alike")


@cause(
    "depth-oversmoothing",
    "Oversmoothing",
    rank=230,
    why="gradients of similar rows cancel",
    figure="smoothing_by_layer",
    column="layers.relative_mu",
    falsified_by=_SHALLOW,
    limits={
        "alike": Limit(1e-2, "relative mu of the last layers; faulty runs 7e-8 to 9e-4"),
        "hops": Limit(8, "hops within one convolution, without weights between them"),
        "hops-left": Limit(
            0.2, "effective rank above one that is left of many hops; healthy runs 0.21 and more, faulty runs 0 to 0.15"
        ),
        "rank-low": Limit(2.5, "effective rank of the first hidden output; usually 10 or more"),
        "rank-one": Limit(1.25, "effective rank: sigma_2 is 5% of sigma_1; faulty runs 1.00 to 1.05"),
        "rank-few": Limit(3, "effective rank, and an eighth of the first layer's, over at least eight layers"),
        "left": Limit(1e-2, "differences between nodes, output over input; usual 0.29 to 3.5, all linked 4e-9 to 2e-8"),
        "differ": Limit(0.1, "relative mu of the inputs: with less they are alike from the start"),
        "weights-alike": Limit(0.99, "spectral over Frobenius norm of initial weights; usual 0.2 to 0.5, rank one: 1"),
    },
)
def check_oversmoothing(facts: Facts) -> Finding | str | None:
    """Rows become alike, or multiples of one vector, over graph convolutions, while they keep their norm."""
    if not facts.profile("relative_mu"):
        return "relative mu was not recorded"
    if facts.is_learning or layers_of_rank_one(facts):
        return None
    if (of_data := _data_alike(facts)) is not None or not facts.mixes_nodes:
        return of_data
    if unclear := _has_constant_kind(facts):
        return unclear
    if (found := _alike(facts) or _alike_at_once(facts) or over_hops(facts)) is not None:
        return found
    return _one_direction(facts, "depth-oversmoothing") if _is_deep(facts) else _within_a_layer(facts)


@cause(
    "rank-collapse",
    "Rank collapse",
    rank=240,
    why="as for oversmoothing",
    figure="smoothing_by_layer",
    column="layers.relative_mu",
    falsified_by=_SHALLOW,
    borrowed=("rank-one", "rank-few", "weights-alike"),
)
def check_rank_collapse(facts: Facts) -> Finding | str | None:
    """All rows become multiples of one vector, without graph convolutions or within few layers."""
    if not facts.profile("effective_rank"):
        return f"the effective rank was not recorded, or of less than {limit('few'):g} rows"
    if (of_weights := _weights_of_rank_one(facts)) is not None:
        return of_weights
    if facts.is_learning or (facts.mixes_nodes and _is_deep(facts)):
        return None
    return _has_constant_kind(facts) or _one_direction(facts, "rank-collapse")


def layers_of_rank_one(facts: Facts) -> dict[str, float]:
    """Hidden layer whose initial weights have rank one -> spectral over Frobenius norm of its weights."""
    norms, spectral = (
        values_at_step(facts.run.parameters, "parameter", column) for column in ("norm", "spectral_norm")
    )
    shares: dict[str, float] = {}
    weighted = [layer for layer in facts.layers if matrices(layer)]  # behind the last may be a normalization
    for layer in weighted[:-1]:
        if layer["name"] in facts.score_layers:
            continue
        is_wide = any(rows > 1 for rows, _ in matrices(layer).values())  # one row beside it is a vector of attention
        for key, (rows, columns) in matrices(layer).items():
            is_telling = columns > 1 if rows > 1 else not is_wide  # one column has rank one anyway
            if (norm := norms.get(key, 0.0)) > 0 and is_telling:
                share = 1.0 if rows == 1 else spectral.get(key, 0.0) / norm
                shares[layer["name"]] = max(shares.get(layer["name"], 0.0), share)
    return {name: share for name, share in shares.items() if share > limit("weights-alike")}


def _weights_of_rank_one(facts: Facts) -> Finding | None:
    shares = layers_of_rank_one(facts)
    if not shares:
        return None
    alike = tuple(shares)
    is_narrow = any(_is_narrow(facts, name) for name in alike)
    return _smoothing(
        facts,
        "rank-collapse",
        f"The neurons of layer {short(alike[0])} all start with the same weights, or there is only one (rank one): all "
        "of its output rows are multiples of one vector, and gradients keep it that way.",
        Evidence(f"spectral over Frobenius norm of the weights of layer {short(alike[0])}", shares[alike[0]]),
        "weights-alike",
        alike,
        ("layers.effective_rank", None) if is_narrow else ("parameters.spectral_share", limit("weights-alike")),
        _WIDER if all(_is_narrow(facts, name) for name in alike) else GLOROT,
    )


def _is_narrow(facts: Facts, layer: str) -> bool:
    return any(rows == 1 for one in facts.layers if one["name"] == layer for rows, _ in matrices(one).values())


def is_smoothed(facts: Facts) -> bool:
    """Rows become alike or multiples of one vector with depth."""
    rank = _hidden(facts, "effective_rank")
    has_fallen = len(rank) > 2 and rank[-1] < limit("rank-one") and rank[0] > 2
    return _alike(facts) is not None or (has_fallen and _keeps_size(facts))


def _keeps_size(facts: Facts) -> bool:
    """Hidden outputs do not vanish with depth, or over hundreds of layers hardly shrink in each."""
    norms = _hidden(facts, "output_norm")
    return bool(norms) and norms[-1] > min(limit("norm-stays"), _LITTLE ** len(norms)) * norms[0]


def _describe_size(facts: Facts) -> str:
    norms = _hidden(facts, "output_norm")
    kept = _ratio(norms[-1], norms[0])
    change = f"shrink to {percent(kept)} of" if kept <= 0.5 else "keep"
    return f"hidden outputs {change} their size"


def _is_deep(facts: Facts) -> bool:
    return len(facts.profile("output_norm")) >= limit("deep")


def _alike(facts: Facts) -> Finding | None:
    """Relative mu of the last layers is small, and far below that of the first."""
    mu = {name: value for name, value in facts.profile("relative_mu").items() if math.isfinite(value)}
    if len(mu) < limit("deep") or not _keeps_size(facts):
        return None
    names, values = list(mu), list(mu.values())
    low = min(values[-_LAST:])
    if low >= limit("alike") or low >= values[0] / 30:
        return None
    alike = tuple(name for name in mu if mu[name] < limit("alike"))
    return _smoothing(
        facts,
        "depth-oversmoothing",
        f"Over {len(mu)} graph convolutions the nodes become alike: relative mu falls from {number(values[0])} at "
        f"{short(names[0])} to {number(low)}, while {_describe_size(facts)}. The last layer can no longer tell nodes "
        "apart.",
        Evidence("smallest relative mu of the last layers", low),
        "alike",
        alike,
        ("layers.relative_mu", limit("alike")),
    )


def _alike_at_once(facts: Facts) -> Finding | None:
    """Nodes that differ are alike behind the first convolution, as where each is given the mean of all."""
    mu = [*facts.profile("relative_mu").items()]
    if not mu or not _is_of_nodes(facts) or not _is_given_data(facts, mu[0][0]):
        return None
    (name, behind), given = mu[0], facts.inputs[0]
    norm = facts.profile("output_norm").get(name, 0.0) / facts.gains.get(name, 1.0)
    left = _ratio(behind * norm, given["relative_mu"] * given["row_norm"] * math.sqrt(given["rows"]))
    if not given["relative_mu"] > limit("differ") or not norm > 0 or not left < limit("left"):
        return None
    return _smoothing(
        facts,
        "depth-oversmoothing",
        f"Within the single layer {short(name)} the nodes become alike: of the differences between them {number(left)} "
        "is left. It gives each node a mean of others, which is the same for all where most nodes are linked.",
        Evidence(f"differences between nodes behind over before layer {short(name)}", left),
        "left",
        (name,),
        ("layers.relative_mu", None),
        _OWN_WEIGHT,
    )


def _is_of_nodes(facts: Facts) -> bool:
    """There is an output for each node: where one is wanted of a graph, its nodes may be alike."""
    return bool(facts.signals.get("messages"))


def _is_given_data(facts: Facts, layer: str) -> bool:
    """The layer takes as many columns as the model's first input has."""
    inputs = facts.inputs
    takes = [columns for one in facts.layers if one["name"] == layer for _, columns in matrices(one).values()]
    return bool(inputs) and not inputs[0]["non_finite"] and inputs[0]["columns"] in takes


def _has_constant_kind(facts: Facts) -> str:
    """The reason why rows are not compared if those of some node types are alike from the start."""
    spreads = [one["relative_mu"] for one in facts.inputs if one["rows"] > 1]
    is_constant = any(spread < limit("input-constant") for spread in spreads)
    if not facts.signals.get("has_several_kinds") or not is_constant:
        return ""
    return "nodes of one type have the same features, and what is recorded of a layer may be of these"


def over_hops(facts: Facts) -> Finding | None:
    """Many hops within one convolution, or runs of one without weights, whose output has rank one."""
    hops: dict[str, int] = facts.signals.get("hops", {}) | _runs(facts)
    ranks = facts.profile("effective_rank")
    widths = {name: _columns(facts, name) for name in hops if hops[name] >= limit("hops") and name in ranks}
    left = {name: (ranks[name] - 1) / (width - 1) for name, width in widths.items() if width > 2}
    name = min(left, key=left.__getitem__, default="")
    if not name or not left[name] < limit("hops-left"):
        return None
    return _smoothing(
        facts,
        "depth-oversmoothing",
        f"Over the {hops[name]} hops within layer {short(name)} the nodes become alike: an effective rank of "
        f"{number(ranks[name])} is left of {widths[name]} columns.",
        Evidence(f"effective rank of the output of {short(name)}, less one, over its columns, less one", left[name]),
        "hops-left",
        (name,),
        ("layers.effective_rank", 1 + limit("hops-left") * (widths[name] - 1)),
        _FEWER_HOPS,
    )


def _runs(facts: Facts) -> dict[str, int]:
    """Layer without weights that is given edges -> how often it runs in a pass."""
    repeats, edges = facts.signals.get("repeats") or {}, facts.signals.get("edges") or {}
    with_weights = {one["name"] for one in facts.layers if one["parameters"]}
    return {name: one["runs"] for name, one in repeats.items() if name in edges and name not in with_weights}


def _data_alike(facts: Facts) -> Finding | None:
    """The data are multiplied by a matrix of edges many times before the first weights, until few directions are left.

    There is one for each connected part of the graph.
    """
    found = facts.signals.get("data_hops") or {}
    before, after = found.get("before") or 0.0, found.get("after") or 0.0
    if found.get("hops", 0) < limit("hops") or not before > limit("rank-few"):
        return None
    left = (after - 1) / (before - 1)
    if not left < limit("hops-left"):
        return None
    return _smoothing(
        facts,
        "depth-oversmoothing",
        f"Before the first weights the data are multiplied {found['hops']} times by a matrix of edges, and the nodes "
        f"become alike: of an effective rank of {number(before)}, {number(after)} is left.",
        Evidence("effective rank behind, less one, over that before, less one", left),
        "hops-left",
        tuple(one["name"] for one in facts.layers[:1]),
        ("layers.effective_rank", None),
        Remedy("for _ in range(2):  # two hops instead of many\n    x = adj @ x"),
    )


def _columns(facts: Facts, name: str) -> int:
    """The width of the output of a layer: that of its weights, or of the last ones before it."""
    width = 0
    for layer in facts.layers:
        width = next((rows for rows, _ in matrices(layer).values()), width)
        if layer["name"] == name:
            return width
    return width


def _within_a_layer(facts: Facts) -> Finding | str | None:
    """Many hops within one convolution (SGC, APPNP): low rank of its output, but not of its input."""
    ranks = list(facts.profile("effective_rank").items())
    inputs = facts.inputs
    if len(facts.layers) == 1:
        return "there is no hidden layer, and the rank of a few outputs does not show whether nodes became alike"
    if not ranks or not _is_of_nodes(facts) or _width(facts) < 8:
        return None
    name, rank = ranks[0]
    if not _is_given_data(facts, name) or loses_features(facts):
        return None  # it is given something else, or nothing of many nodes
    differ = inputs[0]["relative_mu"] > limit("differ") and inputs[0]["largest_column"] < 0.9 * inputs[0]["row_norm"]
    if not differ or inputs[0]["columns"] < 8 or rank >= limit("rank-low"):
        return None
    return _smoothing(
        facts,
        "depth-oversmoothing",
        f"Within the single layer {short(name)} the nodes become alike: of {inputs[0]['columns']:,} input columns an "
        f"effective rank of {number(rank)} is left. Use fewer hops.",
        Evidence(f"effective rank of the output of layer {short(name)}", rank),
        "rank-low",
        (name,),
        ("layers.effective_rank", limit("rank-low")),
        _FEWER_HOPS,
    )


def _one_direction(facts: Facts, code: str) -> Finding | None:
    """Effective rank of the last hidden layer is low, and far below that of the first."""
    first, last = (facts.profile("relative_mu", last=is_last) for is_last in (False, True))
    alike = {name for name, mu in first.items() if mu < limit("input-constant")}
    for_a_moment = {name for name in alike if last.get(name, 0.0) > limit("alike")}
    ranks = list(facts.profile("effective_rank").items())[:-1]
    rank = {name: value for name, value in ranks if math.isfinite(value) and name not in for_a_moment}
    if len(rank) < 2 or not _keeps_size(facts):
        return None
    values = list(rank.values())
    has_fallen = len(values) >= 8 and values[-1] < limit("rank-few") and values[-1] < values[0] / 8
    if (
        not (values[-1] < limit("rank-one") or has_fallen)
        or values[0] <= limit("rank-few")
        or _carries_gradients(facts)
    ):
        return None
    threshold = "rank-few" if has_fallen else "rank-one"
    return _smoothing(
        facts,
        code,
        f"The rows become multiples of one vector: the effective rank falls from {number(values[0])} to "
        f"{number(values[-1], 4)} over {len(rank) + 1} layers, while {_describe_size(facts)}. Nodes differ only by a "
        "factor.",
        Evidence("effective rank of the last hidden output", values[-1]),
        threshold,
        tuple(name for name in rank if rank[name] < limit(threshold)),
        ("layers.effective_rank", limit(threshold)),
    )


def _modules(facts: Facts) -> tuple[str, ...]:
    """Modules to insert after each hidden layer; no skips if the network has some.

    With a ReLU before the skip, what is added is never negative, so the network's own ReLU after the sum lets all of it
    pass: x + relu(norm(conv(x))).
    """
    return ("LayerNorm",) if facts.has_residual_streams else ("LayerNorm", "ReLU", "Skip")


def _skips(facts: Facts) -> Remedy:
    """A skip connection around each hidden layer, and a normalization, which bounds their sum."""
    general = Remedy(f"x = x + torch.relu({_layer(facts)})  # in forward: a skip around each hidden layer")
    return remedy.insert_modules(facts, *_modules(facts)) or general


def _relu(facts: Facts) -> Remedy:
    return Remedy(f"x = torch.relu({_layer(facts)})  # in forward, in each hidden layer: instead of the sigmoid")


def _layer(facts: Facts) -> str:
    """A call of a layer, as code."""
    return "conv(x, edge_index)" if facts.has_convolutions else "layer(x)"


def _carries_gradients(facts: Facts) -> bool:
    """Before training: gradients reach the first layer undiminished, for example through skips, so it can learn."""
    grads = _hidden(facts, "output_gradient_norm")
    return facts.is_preflight and len(grads) > 1 and grads[0] > limit("arrives") * grads[-1]


def _smoothing(
    facts: Facts,
    code: str,
    text: str,
    evidence: Evidence,
    threshold: str,
    layers: tuple[str, ...],
    shown: tuple[str, float | None],
    fix: Remedy | None = None,
) -> Finding:
    """A finding about a column, and the threshold as a value of it."""
    beyond = "above" if threshold == "weights-alike" else "below"
    return facts.finding(
        code,
        text,
        evidence,
        threshold=f"Flagged {beyond} {threshold_text(threshold)}.",
        beyond=beyond,
        layers=layers,
        column=shown[0],
        line=shown[1],
        steps=(0,),
        remedy=fix or _skips(facts),
    )


def _hidden(facts: Facts, column: str) -> list[float]:
    """Finite values of all layers but the last, whose width is the number of classes."""
    return [*_of_hidden(facts, column, facts.profile(column)).values()]


def _of_hidden(facts: Facts, column: str, names: Container[str]) -> dict[str, float]:
    """The same of the layers with these names."""
    found = [(name, value) for name, value in facts.profile(column).items() if name in names]
    return {name: value for name, value in found[:-1] if math.isfinite(value)}


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


def _width(facts: Facts) -> int:
    shapes = [p["shape"] for layer in facts.layers[:-1] for p in layer["parameters"] if len(p["shape"]) == 2]
    return int(shapes[-1][0]) if shapes else 0

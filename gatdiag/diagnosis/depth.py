"""What depth does: rows become alike, gradients vanish or explode on their way, all rows become multiples of one."""

import math
from statistics import median_high

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import GLOROT
from gatdiag.diagnosis.facts import Facts, matrices
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import short

_WIDER = Remedy("hidden_channels = 64  # a layer of one neuron passes on one number for each node")
_FEWER_HOPS = Remedy("conv = type(conv)(in_channels, out_channels, K=2)  # fewer hops: two in place of many")
_RELU = Remedy("x = torch.relu(conv(x, edge_index))  # in forward: in place of the sigmoid, in each hidden layer")
_LAST = 3  # layers, of which the smallest counts: the very last may tell nodes apart by rounding alone


def exploding(facts: Facts) -> Finding | str | None:
    """Hidden outputs, or gradients on their way back, grow from layer to layer though each weight is of usual size."""
    norms, grads = _hidden(facts, "output_norm"), _hidden(facts, "output_gradient_norm")
    if len(norms) < 5:
        return f"it takes 6 layers to speak of depth, and {len(norms) + 1} have a recorded output"
    gain = median_high(facts.gains.values()) if facts.gains else 1.0
    if facts.learns or not gain < limit("gain-large"):
        return None
    grow = _ratio(norms[-1], norms[0])
    back = _ratio(grads[0], grads[-1]) if grads else math.nan
    most = grow if facts.is_rehearsal else max(grow, back)  # normalizations scale gradients, and it may train
    is_hot = facts.first_loss > limit("jump") * facts.base and most > 10
    if not (grow > limit("explode") or back > limit("explode-back") or is_hot):
        return None
    cure = remedy.inserted(facts, *(_modules(facts) if facts.has_laws else ("LayerNorm",)))
    scale = f"x = x + {1 / math.sqrt(len(norms)):.2g} * out  # in forward: branches over the root of their number"
    summed = ": a sum of that many residual branches has to be scaled" if facts.has_streams else ""
    high = Evidence("first loss over that of a constant prediction", facts.first_loss / facts.base)
    return facts.found(
        "depth-exploding-gradient",
        f"Over {len(norms) + 1} layers the outputs grow {number(grow)} times and the gradients {number(back)} times on "
        f"their way back, though each weight is of usual size{summed}.",
        Evidence("norm of the last hidden output over the first's", grow),
        Evidence("gradient of the first over the last hidden layer", back),
        *([high] if is_hot else []),
        threshold=f"Flagged above {said('explode', 'explode-back')}; or above 10 together with a first loss above "
        f"{said('jump')}.",
        layers=tuple(facts.profile("output_norm")),
        steps=(0,),
        remedy=Remedy(f"{cure.code}\n# or: {scale}", cure.actions) if cure else Remedy(scale),
    )


def vanishing(facts: Facts) -> Finding | str | None:
    """The gradient that reaches the first layer's output is orders of magnitude below that of the last's."""
    grads = [value for value in facts.profile("output_gradient_norm").values() if math.isfinite(value)]
    if len(grads) < limit("deep"):
        return f"it takes 4 layers to speak of depth, and {len(grads)} have a recorded gradient"
    if facts.learns:
        return None
    threshold = "vanish-alike" if facts.passes_messages and _alike(facts) else "vanish"
    ratio = _ratio(grads[0], grads[-1])
    if not 0 < ratio < limit(threshold):
        return None
    has_sigmoids = len(facts.signals.get("after_sigmoid", ())) > len(grads) / 2
    slope = ": behind a sigmoid it is a quarter of what it was, at most" if has_sigmoids else ""
    return facts.found(
        "depth-vanishing-gradient",
        f"On its way back over {len(grads)} layers the gradient shrinks to {number(ratio)} of its size "
        f"({number(ratio ** (1 / (len(grads) - 1)))} times in each layer{slope}), so that the first layers cannot "
        "learn.",
        Evidence("gradient of the first over that of the last layer's output", ratio),
        threshold=f"Flagged below {said(threshold)}.",
        layers=tuple(facts.profile("output_gradient_norm")),
        steps=(0,),
        remedy=_RELU if has_sigmoids else _skips(facts),
        falsified_by="With ReLU in place of the sigmoids the loss takes the same course." if has_sigmoids else "",
    )


def oversmoothing(facts: Facts) -> Finding | str | None:
    """Rows become alike, or multiples of one vector, over graph convolutions, while their norm stays."""
    if not facts.profile("relative_mu"):
        return "relative mu was not recorded"
    if facts.learns or not facts.passes_messages or layers_of_rank_one(facts):
        return None
    return _alike(facts) or (
        _one_direction(facts, "depth-oversmoothing") if _is_deep(facts) else _within_a_layer(facts)
    )


def rank_collapse(facts: Facts) -> Finding | str | None:
    """All rows become multiples of one vector without graph convolutions, or already within few layers."""
    if not facts.profile("effective_rank"):
        return "the effective rank was not recorded"
    if (of_weights := _weights_of_rank_one(facts)) is not None:
        return of_weights
    if facts.learns or (facts.passes_messages and _is_deep(facts)):
        return None
    return _one_direction(facts, "rank-collapse")


def layers_of_rank_one(facts: Facts) -> dict[str, float]:
    """Hidden layers of one neuron, or of neurons that begin alike: spectral over Frobenius norm of their weights."""
    norms, spectral = facts.first_values("norm"), facts.first_values("spectral_norm")
    shares: dict[str, float] = {}
    for layer in facts.layers[:-1]:
        if layer["name"] in facts.scorers:
            continue
        for key, (rows, columns) in matrices(layer).items():
            if (norm := norms.get(key, 0.0)) > 0 and (rows == 1 or columns > 1):  # one column has rank one anyway
                share = 1.0 if rows == 1 else spectral.get(key, 0.0) / norm
                shares[layer["name"]] = max(shares.get(layer["name"], 0.0), share)
    return {name: share for name, share in shares.items() if share > limit("weights-alike")}


def _weights_of_rank_one(facts: Facts) -> Finding | None:
    """Exact, and there before the first step: where the network trains all the same, a note."""
    shares = layers_of_rank_one(facts)
    if not shares:
        return None
    alike = tuple(shares)
    return _smoothing(
        facts,
        "rank-collapse",
        f"The neurons of layer {short(alike[0])} have the same weights from the start, or it has only one (rank one): "
        "whatever goes through it comes out as multiples of one vector, and gradients keep it so.",
        Evidence(f"spectral over Frobenius norm of the weights of layer {short(alike[0])}", shares[alike[0]]),
        "weights-alike",
        alike,
        _WIDER if all(_is_narrow(facts, name) for name in alike) else GLOROT,
    )


def _is_narrow(facts: Facts, layer: str) -> bool:
    return any(rows == 1 for one in facts.layers if one["name"] == layer for rows, _ in matrices(one).values())


def is_smoothed(facts: Facts) -> bool:
    """Rows become alike with depth, or multiples of one vector."""
    rank = _hidden(facts, "effective_rank")
    has_fallen = len(rank) > 2 and rank[-1] < limit("rank-one") and rank[0] > 2
    return _alike(facts) is not None or (has_fallen and _keeps_size(facts))


def _keeps_size(facts: Facts) -> bool:
    """The hidden outputs do not vanish on their way."""
    norms = _hidden(facts, "output_norm")
    return bool(norms) and norms[-1] > limit("norm-stays") * norms[0]


def _size(facts: Facts) -> str:
    """What became of the hidden outputs, in words."""
    norms = _hidden(facts, "output_norm")
    kept = _ratio(norms[-1], norms[0])
    did = f"shrink to {percent(kept)} of" if kept <= 0.5 else "keep"
    return f"hidden outputs {did} their size"


def _is_deep(facts: Facts) -> bool:
    return len(facts.profile("output_norm")) >= limit("deep")


def _alike(facts: Facts) -> Finding | None:
    """Relative mu of the last layers, and of the middle one, beside that of the first."""
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
        f"{short(names[0])} to {number(low)}, while {_size(facts)}. The last layer has nothing left to tell nodes "
        "apart by.",
        Evidence("smallest relative mu of the last layers", low),
        "alike",
        alike,
    )


def _within_a_layer(facts: Facts) -> Finding | None:
    """Many hops within one convolution (SGC, APPNP): its output has next to no rank although its input differs."""
    ranks = list(facts.profile("effective_rank").items())
    inputs = facts.inputs
    if not ranks or not inputs or inputs[0]["non_finite"] or _width(facts) < 8:
        return None
    name, rank = ranks[0]
    differ = inputs[0]["relative_mu"] > 0.1 and inputs[0]["largest_column"] < 0.9 * inputs[0]["row_norm"]
    if not differ or inputs[0]["columns"] < 8 or rank >= limit("rank-low"):
        return None
    return _smoothing(
        facts,
        "depth-oversmoothing",
        f"Within the one layer {short(name)} the nodes become alike: of {inputs[0]['columns']:,} columns an "
        f"effective rank of {number(rank)} is left. It takes fewer hops.",
        Evidence(f"effective rank of the output of layer {short(name)}", rank),
        "rank-low",
        (name,),
        _FEWER_HOPS,
    )


def _one_direction(facts: Facts, code: str) -> Finding | None:
    """Effective rank of the last hidden layer beside that of the first."""
    rank = {name: value for name, value in list(facts.profile("effective_rank").items())[:-1] if math.isfinite(value)}
    if len(rank) < 2 or not _keeps_size(facts):
        return None
    values = list(rank.values())
    has_fallen = len(values) >= 8 and values[-1] < limit("rank-few") and values[-1] < values[0] / 8
    if not (values[-1] < limit("rank-one") or has_fallen) or values[0] <= 2 or _carries_gradients(facts):
        return None
    return _smoothing(
        facts,
        code,
        f"The rows become multiples of one vector: the effective rank falls from {number(values[0])} to "
        f"{number(values[-1], 4)} over {len(rank) + 1} layers, while {_size(facts)}. Nodes differ in length only.",
        Evidence("effective rank of the last hidden output", values[-1]),
        "rank-few" if has_fallen else "rank-one",
        tuple(name for name in rank if rank[name] < limit("rank-few" if has_fallen else "rank-one")),
    )


def _modules(facts: Facts) -> tuple[str, ...]:
    """A network that has skips gets none.

    With a ReLU before them what a skip adds is never negative, so that the network's own ReLU, behind the sum, lets
    all of it pass: x + relu(norm(conv(x))), a stream that nothing cuts.
    """
    return ("LayerNorm",) if facts.has_streams else ("LayerNorm", "ReLU", "Skip")


def _skips(facts: Facts) -> Remedy:
    """A skip around each hidden layer and a normalization, which bounds what the skips add up to."""
    by_hand = Remedy("x = x + torch.relu(conv(x, edge_index))  # in forward: a skip around each hidden layer")
    return remedy.inserted(facts, *_modules(facts)) or by_hand


def _carries_gradients(facts: Facts) -> bool:
    """Before training: gradients reach the first layer undiminished, as skips carry them, so that it can learn."""
    grads = _hidden(facts, "output_gradient_norm")
    return facts.is_rehearsal and len(grads) > 1 and grads[0] > limit("arrives") * grads[-1]


def _smoothing(
    facts: Facts,
    code: str,
    text: str,
    evidence: Evidence,
    threshold: str,
    layers: tuple[str, ...],
    cure: Remedy | None = None,
) -> Finding:
    return facts.found(
        code,
        text,
        evidence,
        threshold=f"Flagged {'above' if threshold == 'weights-alike' else 'below'} {said(threshold)}.",
        layers=layers,
        steps=(0,),
        remedy=cure or _skips(facts),
    )


def _hidden(facts: Facts, column: str) -> list[float]:
    """Values of all layers but the last, whose width is that of the classes."""
    return [value for value in list(facts.profile(column).values())[:-1] if math.isfinite(value)]


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


def _width(facts: Facts) -> int:
    shapes = [p["shape"] for layer in facts.layers[:-1] for p in layer["parameters"] if len(p["shape"]) == 2]
    return int(shapes[-1][0]) if shapes else 0

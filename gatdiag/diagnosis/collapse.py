"""Collapse: a loss whose lowest value needs no information, and outputs that are all alike once it is reached."""

from typing import Final

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.rates import check_too_large, check_weight_decay
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import short

_NORMS: Final = ("LinalgVectorNorm", "Norm", "CosineSimilarity")  # operations of a loss of directions
_CUT_OFF: Final = frozenset({"Relu", "Clamp", "ClampMin", "Maximum"})  # operations of a loss with a margin


@cause(
    "representation-collapse",
    "Representation collapse",
    rank=46,
    why="the loss is lowest where all outputs are alike, whatever the network is",
    figure="training_curves",
    falsified_by="The outputs of different inputs differ at the end: (out - out.mean(0)).norm() is no smaller.",
    remedy=Remedy(
        "# compare with negatives, too: similarity of other pairs has to cost something (InfoNCE, a margin),\n"
        "# or stop the gradient at the target, z.detach(), and predict it by another layer (SimSiam),\n"
        "# or keep the outputs apart: loss = loss + torch.relu(1 - out.std(0)).mean()"
    ),
    severity="error",
    needs_training=True,
    is_independent=True,
    limits={
        "alike-outputs": Limit(
            0.05, "spread of the outputs, end over start; healthy runs 0.4 and more, faulty 0 to 0.04, one 0.14"
        ),
        "alike-directions": Limit(
            0.2, "spread of the directions, 1 if they point everywhere; healthy runs 0.55 to 1, faulty 0.03 to 0.17"
        ),
        "targets-met": Limit(0.01, "of the distance of the first loss from the lowest of a cosine: targets are met"),
        "parts": Limit(2, "last layers, of a model whose parts are called one by one"),
        "parts-differ": Limit(0.35, "relative mu of their outputs at the start; usual 0.38 to 0.95"),
        "parts-alike": Limit(0.3, "the same at the end, norms may differ; healthy runs 0.6 to 1, faulty 0.1 to 0.28"),
        "settled": Limit(0.1, "of its fall by which a loss still moves in the last half"),
    },
    borrowed=("input-constant", "trained"),
)
def check_collapse(facts: Facts) -> Finding | str | None:
    """The loss compares outputs with each other, fell to a lowest value, and there all outputs are alike.

    So it does without negative pairs, or without a stopped gradient, or where the targets are those of an average of
    the network. Where outputs are compared with fixed targets, as in classification and regression, it is no collapse.
    """
    first, last = (facts.output.get(name) or {} for name in ("first_rows", "last_rows"))
    if not first or not last:
        return _collapse_of_parts(facts)
    name = _alike(facts, first, last)
    latents = facts.signals.get("latents") or {}  # of which a divergence compares means and variances
    compares = facts.signals.get("compares_outputs") and not latents.get("has_divergence")
    is_of_outputs = compares or _follows_itself(facts, first, last)
    if not name or not is_of_outputs or not _has_settled(facts) or facts.loss_graph.get("bootstraps"):
        return None
    if (
        _are_inputs_alike(facts)
        or isinstance(check_weight_decay(facts), Finding)
        or isinstance(check_too_large(facts), Finding)
    ):
        return None  # that makes outputs alike, too
    share, what = float(last[name]) / float(first[name]), "outputs" if name == "size" else "directions of the outputs"
    has_margin = _stays_at_margin(facts)
    why = (
        "is the margin there: where all distances are zero, every pair is as wrong as the next, and nothing leads away"
        if has_margin
        else "is lowest where they do not depend on the input"
    )
    return facts.finding(
        "representation-collapse",
        f"The loss went from {number(facts.first_loss)} to {number(facts.final_loss)}, and the {what} of all rows are "
        f"alike: their spread is {number(float(last[name]))}, {percent(share)} of that at the start. The loss compares "
        f"outputs with each other, and {why}.",
        Evidence(f"spread of the {what}, end over start", share),
        Evidence("spread at the start", float(first[name])),
        Evidence("spread at the end", float(last[name])),
        threshold=f"Flagged below {threshold_text('alike-outputs', 'alike-directions')}.",
        remedy=_slower(facts) if has_margin else None,
    )


def _collapse_of_parts(facts: Facts) -> Finding | str | None:
    """The model is not called itself: its last layers are alike in all rows where a loss of cosines is lowest."""
    first, last = (facts.profile("relative_mu", last=is_last) for is_last in (False, True))
    if facts.output or len(last) < limit("parts") or not _has_settled(facts):
        return "the outputs of the model were not recorded"
    left = {
        name: last[name] for name in [*last][-int(limit("parts")) :] if first.get(name, 0.0) > limit("parts-differ")
    }
    if not left or max(left.values()) >= limit("parts-alike") or not _has_reached_lowest(facts):
        return None
    name = max(left, key=left.__getitem__)
    return facts.finding(
        "representation-collapse",
        f"The loss went from {number(facts.first_loss)} to {number(facts.final_loss)}, as low as minus a cosine can be,"
        f" and the rows of layer {short(name)} are alike: their differences are {percent(left[name])} of their size, "
        f"{percent(first[name])} at the start. A loss that compares outputs with each other is lowest where they do "
        "not depend on the input.",
        Evidence(f"relative mu of layer {short(name)} at the end", left[name]),
        Evidence("the same at the start", first[name]),
        threshold=f"Flagged below {threshold_text('parts-alike')}.",
        severity="warning",
        layers=tuple(left),
    )


def _has_reached_lowest(facts: Facts) -> bool:
    """The loss is that of a cosine, which is negative, at minus its number."""
    lowest = round(facts.last_loss)
    return lowest < 0 and facts.last_loss - lowest < limit("targets-met") * (facts.first_loss - lowest)


def _follows_itself(facts: Facts, first: dict[str, float], last: dict[str, float]) -> bool:
    """Directions are compared with targets that became alike with them, as those of an average of the network do.

    No fixed targets that differ are reached by outputs that do not.
    """
    operations = facts.loss_operations
    known = first.get("direction", 0.0)  # there is none where a row is zero
    if operations.isdisjoint(_NORMS) or not last.get("direction", 1.0) < limit("alike-outputs") * known:
        return False
    lowest = -1.0 if facts.finite_loss.min() < 0 else 0.0
    return bool(facts.last_loss - lowest < limit("targets-met") * (facts.first_loss - lowest))


def _stays_at_margin(facts: Facts) -> bool:
    """The loss is cut off at zero, as those with a margin are, and ends far above it."""
    is_cut = not _CUT_OFF.isdisjoint(facts.loss_operations)
    return is_cut and facts.last_loss > limit("settled") * abs(facts.first_loss)


def _slower(facts: Facts) -> Remedy:
    rate = remedy.initial_learning_rate(facts)
    slower = remedy.change_learning_rate(facts, remedy.round_to_one_digit(rate / 10)).fixes if rate > 0 else ()
    return Remedy(*slower, "# and begin with all triplets, or semi-hard ones, instead of the hardest of each batch")


def _alike(facts: Facts, first: dict[str, float], last: dict[str, float]) -> str:
    """What is alike in all rows, "size" or "direction"; "" if neither is."""
    known = [name for name in first if first[name] and last.get(name) is not None]
    name = min(known, key=lambda name: last[name] / first[name], default="")
    if name and last[name] < limit("alike-outputs") * first[name]:
        return name
    fall = facts.first_loss - facts.last_loss
    is_narrow = "direction" in known and last["direction"] < limit("alike-directions")
    return "direction" if is_narrow and fall > limit("trained") * abs(facts.first_loss) else ""


def _are_inputs_alike(facts: Facts) -> bool:
    known = [one for one in facts.inputs if not one["non_finite"] and one["rows"] > 1]
    return bool(known) and all(one["relative_mu"] < limit("input-constant") for one in known)


def _has_settled(facts: Facts) -> bool:
    """The loss fell, and hardly moved any more in the last part."""
    losses = facts.finite_loss
    if len(losses) < limit("steps"):
        return False
    fall = float(losses[0]) - facts.last_loss
    middle = median(losses[len(losses) // 2 : len(losses) // 2 + max(3, len(losses) // 10)])
    moved = abs(fall) if _stays_at_margin(facts) else fall
    return moved > 0 and abs(middle - facts.last_loss) <= limit("settled") * moved


@cause(
    "posterior-collapse",
    "Posterior collapse",
    rank=46.5,
    why="a decoder that is given noise alone can only return a mean",
    figure="training_curves",
    falsified_by="At the end the latent means of two inputs differ by more than a tenth.",
    remedy=Remedy(
        "loss = errors.sum(1).mean() + divergence.sum(1).mean()  # both summed over an example, not errors.mean()\n"
        "# or: loss = reconstruction + beta * divergence  # beta from 0 to 1 over the first third of the training"
    ),
    needs_training=True,
    is_independent=True,
    limits={
        "as-prior": Limit(0.1, "root mean square of latent means and log-variances: the prior, for each input"),
        "shrunk-latents": Limit(0.5, "spread of the latents, end over start: it is training that makes them alike"),
    },
)
def check_posterior(facts: Facts) -> Finding | str | None:
    """A divergence wins over the reconstruction: means and log-variances of all latents become those of the prior."""
    found = facts.signals.get("latents") or {}
    if not found.get("has_divergence") or "last" not in found:
        return "the loss holds no exponential of something that the model returns beside its output"
    first, last = found["first"], found["last"]
    is_prior = last["size"] < limit("as-prior") and last["spread"] < limit("shrunk-latents") * first["spread"]
    if not is_prior or facts.state == "trained" or facts.path < limit("frozen"):
        return None
    return facts.finding(
        "posterior-collapse",
        "The loss holds a divergence of what the model returns beside its output, and at the end all of that is zero "
        f"for every input (root mean square {number(last['size'])}): the latent distribution is the prior, and the "
        "decoder is given noise. The divergence weighs more than the reconstruction, as where errors are averaged over "
        "many outputs.",
        Evidence("root mean square of the latents at the end", last["size"]),
        Evidence("spread of the latents, end over start", last["spread"] / first["spread"]),
        threshold=f"Flagged below {threshold_text('as-prior', 'shrunk-latents')}.",
        severity="warning" if facts.state == "unknown" else None,
    )

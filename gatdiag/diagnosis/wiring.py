"""Parameters that cannot move: in no optimizer, without a gradient; leftover gradients; no signal at all."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy, Severity
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.names import join_names, short

_FEW = 3  # names in a sentence
_NO_GRADIENT = Evidence("largest gradient norm of a parameter", 0.0)
_WITHOUT = "print([name for name, p in model.named_parameters() if p.grad is None])  # after loss.backward()"


def not_in_optimizer(facts: Facts) -> Finding | str | None:
    """Trainable parameters that take part in the output and that no optimizer holds."""
    if facts.is_of_checkpoints or not facts.run.meta.get("optimizers"):
        return "no optimizer was seen"
    trainable, missing = _trainable(facts), _not_held(facts)
    foreign = facts.signals.get("foreign_leaves", 0)
    if not missing and not foreign:
        return None
    fix = remedy.optimizer(facts)
    if missing:
        among = f"{len(trainable) - len(missing)} of the model's {len(trainable)}"
        share = among if facts.held else "none of the model's"
        text = (
            f"The optimizer holds {share} trainable parameters; those it does not hold stay as initialized: "
            f"{join_names(map(short, missing), _FEW)}."
        )
    else:
        text = (
            f"{foreign} tensors that the output depends on and that take gradients are no parameters of the model "
            "(layers in a plain list or dict are not registered), so that the optimizer does not move them."
        )
        fix = "self.layers = torch.nn.ModuleList(self.layers)  # in __init__, in place of a plain list or dict\n" + fix
    return facts.found(
        "parameters-not-in-optimizer",
        text,
        Evidence("trainable parameters in no optimizer", len(missing) + foreign, "parameters"),
        threshold="Flagged from the first one.",
        layers=_layers_of(facts, missing),
        parameters=tuple(missing),
        remedy=Remedy(f"{fix}  # after the model is complete, and on its device"),
    )


def _trainable(facts: Facts) -> list[str]:
    return [name for name, one in facts.parameters.items() if one.get("trainable", True)]


def _not_held(facts: Facts) -> list[str]:
    """Trainable parameters that take part in the output and that no optimizer holds."""
    known = {*facts.held, *facts.signals.get("unreached", ())}
    return [name for name in _trainable(facts) if known.isdisjoint(facts.parameters[name].get("names") or [name])]


def without_gradient(facts: Facts) -> Finding | str | None:
    """Parameters that no gradient reaches: detached, frozen, unused.

    An error where the network does not train, unless a branch is unused, as are the last weights of the other types of
    nodes in heterogeneous graphs: that is no reason for it.
    """
    if not facts.saw_gradients:
        return "no gradient was recorded"
    frozen = [name for name, one in facts.parameters.items() if not one.get("trainable", True)]
    grads = dict(zip(facts.table_names, facts.gradients.T, strict=True))
    never = [name for name, values in grads.items() if name not in frozen and np.isnan(values).all()]
    zero = [name for name, values in grads.items() if name not in frozen and len(values) > 2 and (values == 0).all()]
    total = len(facts.parameters)
    if len(zero) >= total:
        return None  # every gradient is zero: there is no signal at all
    if never:
        is_error = facts.state in ("failing", "unknown") and _is_cut_off(facts, never)
        severity: Severity = "error" if is_error else "note" if facts.state == "trained" else "warning"
        text = f"No gradient ever reaches {len(never)} of {total} parameters (detached, or not used by the loss)"
        return _no_gradient(facts, never, text, severity, _look_behind(never))
    thawed = Remedy("model.requires_grad_(True)  # before the optimizer is made", (Action("unfreeze"),))
    if frozen and facts.is_rehearsal:
        text = f"{len(frozen)} of {total} parameters are frozen, so that only the others can learn"
        return _no_gradient(facts, frozen, text, "note", thawed)
    if frozen and facts.state in ("failing", "partly"):
        text = f"{len(frozen)} of {total} parameters are frozen, and the loss does not fall as it could"
        return _no_gradient(facts, frozen, text, facts.severity, thawed)
    if len(zero) >= 0.2 * total and facts.state != "trained":
        text = f"The gradient of {len(zero)} of {total} parameters is exactly zero at every step"
        return _no_gradient(facts, zero, text, "warning", _look_behind(zero))
    return None


def _is_cut_off(facts: Facts, never: Sequence[str]) -> bool:
    """All that the first layer has gets no gradient though an optimizer holds it, and layers behind it get some.

    Unlike a branch that the loss does not use, that is never meant so: something between them detaches.
    """
    known = [[p["name"] for p in layer["parameters"] if p.get("trainable", True)] for layer in facts.layers]
    first, *others = [names for names in known if names] or [[]]
    is_behind = any(name not in never for names in others for name in names)
    return bool(first) and is_behind and facts.held.issuperset(first) and {*never}.issuperset(first)


def _look_behind(names: Sequence[str]) -> Remedy:
    module = names[0].rpartition(".")[0] or names[0]
    look = f"# look for .detach(), .data, torch.no_grad(), .argmax() or .item() between {module} and the loss:"
    return Remedy(f"{look}\n{_WITHOUT}")


def without_stored_gradient(facts: Facts, weights: pd.DataFrame) -> Iterator[Finding]:
    """Parameters whose second moment in Adam, a sum of squared gradients, is zero: no gradient ever reached them.

    Args:
        facts: Of the run that was made of the checkpoints.
        weights: One row a parameter: layer, parameter, second_moment (NaN where the optimizer keeps none).
    """
    known = weights.dropna(subset=["second_moment"])
    never = known[known["second_moment"] == 0]
    if len(never):
        text = f"No gradient ever reached {len(never)} of {len(known)} parameters, for Adam's second moment is zero"
        found = _no_gradient(facts, never["parameter"].tolist(), text, "warning", Remedy(_WITHOUT))
        layers = tuple(dict.fromkeys(never["layer"]))
        yield replace(found, layers=layers, threshold="Flagged from the first one.", figure="")


def _no_gradient(facts: Facts, names: Sequence[str], text: str, severity: Severity, cure: Remedy) -> Finding:
    return facts.found(
        "parameters-without-gradient",
        f"{text}: {join_names(map(short, names), _FEW)}.",
        Evidence("parameters without a gradient", len(names), "parameters"),
        threshold="Flagged where it is so at every recorded step.",
        severity=severity,
        layers=_layers_of(facts, names),
        parameters=tuple(names),
        remedy=cure,
    )


def not_cleared(facts: Facts) -> Finding | str | None:
    """The gradients of the step before are still there when the backward pass begins."""
    if facts.takes_turns:
        return "several optimizers make steps, and what one leaves may be cleared before it is used"
    if facts.groups and _not_held(facts):
        return "gradients of parameters that are in no optimizer are left over, and never used"
    stale = facts.steps_column("stale_gradient")
    if len(stale) < 3:
        return "leftover gradients were not recorded, which takes recorded steps in a row"
    share = float((stale > limit("stale")).mean())
    if share <= 0.9:
        return None
    return facts.found(
        "gradients-not-cleared",
        "Each backward pass adds to the gradients of all steps before, because nothing clears them: the optimizer "
        "follows their sum, which turns round late and swings.",
        Evidence("norm of the leftover gradient over that of the last step, median", float(np.median(stale))),
        threshold=f"Flagged above {said('stale')} in 90 % of the steps.",
    )


def no_signal(facts: Facts) -> Finding | str | None:
    """No gradient enters at the output: a loss that does not depend on it, or labels of one class."""
    output = facts.output
    if output.get("has_graph") is False:
        return _no_signal(
            facts, "The model's output has no graph, so that no gradient can come back to its parameters."
        )
    labels = [] if facts.takes_turns else output.get("labels") or []
    seen = sum(labels)
    # dL/dout of one sign is also that of an L1 loss whose targets lie far off: its first loss is no cross-entropy's
    is_far = len(labels) == 2 and facts.first_loss > limit("chance") * math.log(2)
    if len(labels) > 1 and seen >= limit("labels") and max(labels) == seen and not is_far:
        text = f"All {seen:,} labels that the loss saw are of class {labels.index(seen)}: nothing is to be told apart."
        is_early = facts.count < limit("steps")  # the first batches of a rare class hold none of it
        return _no_signal(facts, text, Evidence("classes among the labels", 1.0), "warning" if is_early else "error")
    known = facts.gradients[np.isfinite(facts.gradients)]
    if not facts.saw_gradients:
        return "no gradient was recorded"
    if not len(known) and not facts.is_broken and not facts.run.meta.get("first_non_finite"):
        return _no_signal(facts, "No gradient ever arrives at any parameter: the loss does not depend on the model.")
    if len(known) and (known == 0).all():
        return _no_signal(facts, "The gradient of every parameter is exactly zero at every step.")
    return None


def _no_signal(facts: Facts, text: str, evidence: Evidence = _NO_GRADIENT, severity: Severity = "error") -> Finding:
    exact = "No threshold: it is exactly so."
    return facts.found("no-training-signal", text, evidence, threshold=exact, severity=severity)


def _layers_of(facts: Facts, names: Sequence[str]) -> tuple[str, ...]:
    wanted = {*names}
    layers = facts.run.meta["structure"]["layers"]
    return tuple(layer["name"] for layer in layers if any(p["name"] in wanted for p in layer["parameters"]))

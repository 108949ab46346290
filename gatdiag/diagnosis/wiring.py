"""Parameters that cannot move: in no optimizer, without a gradient; leftover gradients; no signal at all."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Severity
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.names import listed, short

_FEW = 3  # names in a sentence


def not_in_optimizer(facts: Facts) -> Finding | str | None:
    """Trainable parameters that take part in the output and that no optimizer holds."""
    if facts.is_of_checkpoints or not facts.run.meta.get("optimizers"):
        return "no optimizer was seen"
    held = facts.held
    unreached = {*facts.signals.get("unreached", ())}
    trainable = [name for name, one in facts.parameters.items() if one.get("trainable", True)]
    missing = [
        name
        for name in trainable
        if name not in unreached and held.isdisjoint(facts.parameters[name].get("names") or [name])
    ]
    foreign = facts.signals.get("foreign_leaves", 0)
    if not missing and not foreign:
        return None
    fix = remedy.optimizer(facts)
    if missing:
        among = f"{len(trainable) - len(missing)} of the model's {len(trainable)}"
        share = among if held else "none of the model's"
        text = (
            f"The optimizer holds {share} trainable parameters; those it does not hold stay as initialized: "
            f"{listed(map(short, missing), _FEW)}."
        )
    else:
        text = (
            f"{foreign} tensors that the output depends on and that take gradients are no parameters of the model "
            "(layers in a plain list or dict are not registered), so that the optimizer does not move them."
        )
        fix = "self.layers = torch.nn.ModuleList(self.layers)  # in __init__, in place of a plain list or dict\n" + fix
    return Finding(
        "parameters-not-in-optimizer",
        "warning" if facts.state == "trained" else "error",
        "Parameters are not in the optimizer",
        text,
        (Evidence("trainable parameters in no optimizer", len(missing) + foreign, "parameters"),),
        "Flagged from the first one.",
        _layers_of(facts, missing),
        tuple(missing),
        figure="unchanged_fraction",
        remedy=f"{fix}  # after the model is complete, and on its device",
        falsified_by="Every id(p) of model.parameters() is among those of optimizer.param_groups.",
    )


def without_gradient(facts: Facts) -> Finding | str | None:
    """Parameters that no gradient reaches: detached, frozen, unused. An error where the network does not train."""
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
        is_error = facts.state == "failing" or (facts.state == "unknown" and _is_cut_off(facts, never))
        severity: Severity = "error" if is_error else "note" if facts.state == "trained" else "warning"
        text = f"No gradient ever reaches {len(never)} of {total} parameters (detached, or not used by the loss)"
        return _no_gradient(facts, never, text, severity)
    if frozen and facts.is_rehearsal:
        text = f"{len(frozen)} of {total} parameters are frozen, so that only the others can learn"
        return _no_gradient(facts, frozen, text, "note")
    if frozen and facts.state in ("failing", "partly"):
        text = f"{len(frozen)} of {total} parameters are frozen, and the loss does not fall as it could"
        return _no_gradient(facts, frozen, text, facts.severity)
    if len(zero) >= 0.2 * total and facts.state != "trained":
        text = f"The gradient of {len(zero)} of {total} parameters is exactly zero at every step"
        return _no_gradient(facts, zero, text, "warning")
    return None


def _is_cut_off(facts: Facts, never: Sequence[str]) -> bool:
    """All that the first layer has gets no gradient though an optimizer holds it, and layers behind it get some.

    Unlike a branch that the loss does not use, that is never meant so: something between them detaches.
    """
    known = [[p["name"] for p in layer["parameters"] if p.get("trainable", True)] for layer in facts.layers]
    first, *others = [names for names in known if names] or [[]]
    is_behind = any(name not in never for names in others for name in names)
    return bool(first) and is_behind and facts.held.issuperset(first) and {*never}.issuperset(first)


def _no_gradient(facts: Facts, names: Sequence[str], text: str, severity: Severity) -> Finding:
    frozen = not facts.parameters[names[0]].get("trainable", True)
    module = names[0].rpartition(".")[0] or names[0]
    found = _without_gradient(names, text, severity, _layers_of(facts, names))
    if frozen:
        fix = "model.requires_grad_(True)  # before the optimizer is made"
        return replace(found, remedy=fix, actions=(Action("unfreeze"),))
    look = f"# look for .detach(), .data, torch.no_grad(), .argmax() or .item() between {module} and the loss:"
    return replace(found, remedy=f"{look}\n{found.remedy}")


def without_stored_gradient(weights: pd.DataFrame) -> Iterator[Finding]:
    """Parameters whose second moment in Adam, a sum of squared gradients, is zero: no gradient ever reached them.

    Args:
        weights: One row a parameter: layer, parameter, second_moment (NaN where the optimizer keeps none).
    """
    known = weights.dropna(subset=["second_moment"])
    never = known[known["second_moment"] == 0]
    if len(never):
        text = f"No gradient ever reached {len(never)} of {len(known)} parameters, for Adam's second moment is zero"
        found = _without_gradient(never["parameter"].tolist(), text, "warning", tuple(dict.fromkeys(never["layer"])))
        yield replace(found, threshold="Flagged from the first one.", figure="")


def _without_gradient(names: Sequence[str], text: str, severity: Severity, layers: tuple[str, ...]) -> Finding:
    return Finding(
        "parameters-without-gradient",
        severity,
        "Parameters without a gradient",
        f"{text}: {listed(map(short, names), _FEW)}.",
        (Evidence("parameters without a gradient", len(names), "parameters"),),
        "Flagged where it is so at every recorded step.",
        layers,
        tuple(names),
        figure="gradient_norms",
        remedy="print([name for name, p in model.named_parameters() if p.grad is None])  # after loss.backward()",
        falsified_by="p.grad of these parameters is not None and not zero after loss.backward().",
    )


def not_cleared(facts: Facts) -> Finding | str | None:
    """The gradients of the step before are still there when the backward pass begins."""
    if facts.takes_turns:
        return "several optimizers make steps, and what one leaves may be cleared before it is used"
    stale = facts.steps_column("stale_gradient")
    if len(stale) < 3:
        return "leftover gradients were not recorded, which takes recorded steps in a row"
    share = float((stale > limit("stale")).mean())
    if share <= 0.9:
        return None
    return Finding(
        "gradients-not-cleared",
        "error" if facts.state != "trained" else "warning",
        "Gradients are not cleared",
        "Each backward pass adds to the gradients of all steps before, because nothing clears them: the optimizer "
        "follows their sum, which turns round late and swings.",
        (Evidence("norm of the leftover gradient over that of the last step, median", float(np.median(stale))),),
        f"Flagged above {said('stale')} in 90 % of the steps.",
        figure="training_curves",
        remedy="optimizer.zero_grad()  # in each step, before loss.backward()",
        actions=(Action("clear_gradients"),),
        falsified_by="All p.grad are None or zero when loss.backward() is called.",
    )


def no_signal(facts: Facts) -> Finding | str | None:
    """No gradient enters at the output: a loss that does not depend on it, or labels of one class."""
    output = facts.output
    if output.get("has_graph") is False:
        return _no_signal("The model's output has no graph, so that no gradient can come back to its parameters.", 0.0)
    labels = [] if facts.takes_turns else output.get("labels") or []
    seen = sum(labels)
    # dL/dout of one sign is also that of an L1 loss whose targets lie far off: its first loss is no cross-entropy's
    is_far = len(labels) == 2 and facts.first_loss > limit("chance") * math.log(2)
    if len(labels) > 1 and seen >= limit("labels") and max(labels) == seen and not is_far:
        text = f"All {seen:,} labels that the loss saw are of class {labels.index(seen)}: nothing is to be told apart."
        is_early = facts.count < limit("steps")  # the first batches of a rare class hold none of it
        return _no_signal(text, 1.0, "classes among the labels", "warning" if is_early else "error")
    known = facts.gradients[np.isfinite(facts.gradients)]
    if not facts.saw_gradients:
        return "no gradient was recorded"
    if not len(known) and not facts.is_broken and not facts.run.meta.get("first_non_finite"):
        return _no_signal("No gradient ever arrives at any parameter: the loss does not depend on the model.", 0.0)
    if len(known) and (known == 0).all():
        return _no_signal("The gradient of every parameter is exactly zero at every step.", 0.0)
    return None


def _no_signal(
    text: str, value: float, what: str = "largest gradient norm of a parameter", severity: Severity = "error"
) -> Finding:
    return Finding(
        "no-training-signal",
        severity,
        "No training signal",
        text,
        (Evidence(what, value),),
        "No threshold: it is exactly so.",
        figure="gradient_norms",
        remedy="print(mask.sum(), y[mask].unique(return_counts=True), loss.requires_grad)  # what the loss sees",
        falsified_by="The loss changes when a weight of the last layer does, and its labels are of several classes.",
    )


def _layers_of(facts: Facts, names: Sequence[str]) -> tuple[str, ...]:
    wanted = {*names}
    layers = facts.run.meta["structure"]["layers"]
    return tuple(layer["name"] for layer in layers if any(p["name"] in wanted for p in layer["parameters"]))

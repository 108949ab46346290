"""Code to paste, with the numbers of a run, and the actions that `gatdiag.treat` takes for it."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.fixes import GLOROT, OF_TORCH, REPLACES, Action, Remedy, optimizer_code, variable
from gatdiag.roles import ATTENTION, FEATURE, ROOT, SCALE, STACKED
from gatdiag.summary import matrices

_SAFE: Final = 0.3  # overshoot of steps that may become larger
_NOT_ORTHOGONAL: Final = ("MultiheadAttention", "PNAConv")  # whose laws are not of all inputs of a matrix
_ADAM_RATE: Final = 0.01
_DEEP_RATE: Final = 0.04  # of Adam, over the number of layers, for deep networks
USUAL_STEP: Final = 0.04
"""Norm of an early step over norm of the weights, at a usual learning rate."""


def optimizer_line(facts: Facts, **changed: float) -> str:
    """The line that creates the run's optimizer with some settings changed; if it is unknown, only these settings."""
    return optimizer_code(describe_optimizer(facts, **changed))


def describe_optimizer(facts: Facts, **changed: float) -> dict[str, Any]:
    """The run's optimizer with some settings changed, as an action holds it; its rate is that before schedules."""
    group = facts.groups[-1] if facts.groups else {"class": ""}
    known = {name: value for name, value in group.items() if isinstance(value, int | float | list | str)}
    for name in ("parameters", "class"):
        known.pop(name, None)
    if isinstance(base := known.pop("initial_lr", None), int | float):  # before a schedule scaled it
        known["lr"] = known["initial_lr"] = base
    return {"class": group["class"], "settings": known, "changed": changed}


def change_optimizer(facts: Facts, action: str, changed: dict[str, float], **settings: Any) -> Action:
    """An action that changes settings of the optimizer.

    It prints the line that creates it, if that can be told: it is of torch, and the only one, with one group.
    """
    if len(facts.groups) != 1 or facts.groups[0]["class"] not in OF_TORCH:
        return Action(action, settings)
    return Action(action, {**settings, "optimizer": describe_optimizer(facts, **changed)})


def optimize_all(facts: Facts) -> Action | str:
    """The optimizer with all parameters of the model; text where there are several, of which one may be meant."""
    line = f"{optimizer_line(facts)}  # once the model is complete and on its device"
    made = change_optimizer(facts, "optimize_all", {})
    has_scaler = facts.signals.get("has_scaled_loss")  # which unscales the gradients of what the optimizer holds
    return made if made.settings and not has_scaler else line


def keep_optimizer(facts: Facts) -> Action | str:
    """One optimizer for all steps; text where there are several."""
    made = change_optimizer(facts, "keep_optimizer", {})
    return made if made.settings else f"{optimizer_line(facts)}  # once, before the loop"


def use_adam(facts: Facts) -> Action:
    """Adam with the run's weight decay, at a rate at which balanced stacks of 16 to 40 train."""
    lr = round_to_one_digit(min(_ADAM_RATE, _DEEP_RATE / max(1, len(facts.gains))))
    decay = facts.setting("weight_decay")
    changed = {"lr": lr, **({"weight_decay": decay} if decay else {})}
    return Action("adam", {**changed, "optimizer": {"class": "Adam", "settings": {}, "changed": changed}})


def initial_learning_rate(facts: Facts) -> float:
    """The first learning rate that is not zero; NaN if none is known."""
    rates = facts.steps_column("learning_rate")
    if len(rates):
        return float(next(iter(rates[rates > 0]), 0.0))
    return next((float(group["lr"]) for group in facts.groups if isinstance(group.get("lr"), int | float)), math.nan)


def first_step_by_gradient(facts: Facts, lr: float) -> float:
    """Norm of the first step over that of the weights, as the first gradient makes it; NaN if that is not known."""
    if not len(facts.norms) or not facts.total_norm[0] > 0:
        return math.nan
    gradient = float(np.sqrt(np.nansum(facts.gradient_norms[0] ** 2)))
    if facts.is_adam:  # its first step moves each weight by the learning rate
        gradient = math.sqrt(facts.weight_count) * (gradient > 0)
    return lr * gradient / float(facts.total_norm[0])


def room_for_larger_steps(facts: Facts, part: slice) -> float:
    """How many times larger steps may be: of a usual size, and not past the minimum along them.

    Args:
        facts: Of the run.
        part: The recorded steps that are judged.
    """
    ratio, over = median(facts.step_ratios[part]), median(facts.overshoot[part])
    bounds = [USUAL_STEP / ratio] if ratio > 0 else []
    bounds += [_SAFE / over] if over > 0 and not facts.is_adam else []
    return min(bounds, default=1.0)


def change_learning_rate(facts: Facts, lr: float, why: str = "") -> Remedy:
    """Another learning rate. The action scales that of all groups, so that schedules and their ratios stay."""
    factor = lr / (initial_learning_rate(facts) or math.nan)
    if not (math.isfinite(factor) and factor > 0):
        return Remedy(f"{optimizer_line(facts, lr=lr)}  # {REPLACES}", why)
    base = describe_optimizer(facts)["settings"].get("initial_lr")
    created = lr if base is None else base * factor
    return Remedy(change_optimizer(facts, "learning_rate", {"lr": created}, factor=factor), why)


def set_in_optimizer(facts: Facts, name: str, value: float) -> Action:
    """Another value of a setting of the optimizer."""
    return change_optimizer(facts, "setting", {name: value}, name=name, value=value)


def balanced_initialization(facts: Facts) -> Action:
    """Fresh balanced weights, before training; by the model's own laws unless it is a plain stack.

    They are of the usual size where no laws are known, and not orthogonal where that is not defined.
    """
    if _is_plain_stack(facts):
        return Action("initialize", {"scheme": "balanced_orthogonal"})
    if not facts.laws:
        return GLOROT.actions[0]
    roles = {one["role"] for one in facts.parameters.values()}
    is_usual = SCALE not in roles and all(layer.get("kind") not in _NOT_ORTHOGONAL for layer in facts.layers)
    has_kernels = any(one["role"] == FEATURE and len(one["shape"]) > 2 for one in facts.parameters.values())
    scheme = "balanced_orthogonal" if is_usual and not has_kernels else "balanced_xavier"
    return Action("initialize", {"scheme": scheme, "inputs": tuple(_forward_arguments(facts))})


def _is_plain_stack(facts: Facts) -> bool:
    is_tied = any(len(one.get("names") or ()) > 1 for one in facts.parameters.values())
    kinds = {layer.get("kind") for layer in facts.layers}
    return kinds <= {*STACKED} and not facts.has_residual_streams and not is_tied


def _forward_arguments(facts: Facts) -> list[str]:
    """What the model is called with, as code."""
    given = facts.signals.get("arguments")
    if given and all(name.isidentifier() for name in given):
        return [*map(variable, given), *(f"{name}={variable(name)}" for name in facts.signals.get("keywords", ()))]
    named = [variable(one["name"]) for one in facts.inputs if one["name"].isidentifier()]
    return [*(named or ["x"]), *(["edge_index"] if facts.has_convolutions and "edge_index" not in named else [])]


def insert_modules(facts: Facts, *modules: str) -> Remedy | None:
    """Modules after each hidden layer that keeps its width, in this order; None if there is no such layer.

    Skips weigh the layer by one over the root of the number of layers, so that their sum keeps its size.

    Args:
        facts: Of the run.
        modules: "LayerNorm", "ReLU" or "Skip".
    """
    widths = {layer["name"]: _kept_width(layer) for layer in facts.layers[:-1] if layer["name"] != ROOT}
    width = Counter(width for width in widths.values() if width).most_common(1)
    names = tuple(name for name in widths if width and widths[name] == width[0][0])
    if not names:
        return None
    scale = float(f"{len(names) ** -0.5:.2g}")
    settings: dict[str, dict[str, Any]] = {"LayerNorm": {"width": width[0][0]}, "Skip": {"scale": scale}}
    return Remedy(
        *(Action("insert_after", {"layers": names, "module": one, **settings.get(one, {})}) for one in modules)
    )


def _kept_width(layer: dict[str, Any]) -> int:
    """Number of inputs of a layer that has as many outputs; else 0."""
    shapes = [*matrices(layer).values()]
    return shapes[0][1] if shapes and shapes[0][1] == shapes[-1][0] else 0


def reinitialize_attention(facts: Facts, layers: Sequence[str]) -> Action | None:
    """Fresh attention vectors of some layers, or else fresh query weights; None if they have neither."""
    chosen = [one for layer in facts.layers if layer["name"] in layers for one in layer["parameters"]]
    drawn = [one for one in chosen if one["role"] == ATTENTION]
    return draw(drawn or [one for one in chosen if one["name"].endswith("lin_query.weight")])


def draw(parameters: Sequence[dict[str, Any]]) -> Action | None:
    """Fresh weights of these entries of the structure; None without any. A vector is drawn as a matrix of one row."""
    matrices, vectors = (
        tuple(str(one["name"]) for one in parameters if (len(one["shape"]) < 2) == is_vector)
        for is_vector in (False, True)
    )
    return Action("draw", {"parameters": matrices, **({"vectors": vectors} if vectors else {})}) if parameters else None


def round_to_one_digit(value: float) -> float:
    """One significant digit, as learning rates are written."""
    return float(f"{value:.0e}") if math.isfinite(value) else value

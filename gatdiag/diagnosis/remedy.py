"""Code to paste, with the numbers of a run, and the actions that `gatdiag.treat` takes for it."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from gatdiag.diagnosis.facts import Facts, matrices
from gatdiag.diagnosis.finding import Action, Remedy
from gatdiag.roles import ATTENTION, STACKED

REPLACES: Final = "instead of yours, before schedulers are created"
USUAL_EPS: Final = 1e-8
_ADAM_RATE: Final = 0.01
_DEEP_RATE: Final = 0.04  # of Adam, over the number of layers, for deep networks
_DEFAULTS: Final[dict[str, Any]] = {  # of torch's optimizers, in the order in which settings are written
    "lr": None, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "betas": [0.9, 0.999], "eps": USUAL_EPS,
    "weight_decay": 0.0, "amsgrad": False, "maximize": False,
}  # fmt: skip
_OTHER_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "AdamW": {"weight_decay": 0.01},
    "RMSprop": {"alpha": 0.99, "centered": False},
    "Adagrad": {"eps": 1e-10},
    "Adadelta": {"eps": 1e-6},
}
_OF_TORCH: Final = frozenset({
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD", "SparseAdam",
})  # fmt: skip


def optimizer_line(facts: Facts, **changed: float) -> str:
    """The line that creates the run's optimizer with some settings changed; if it is unknown, only these settings.

    Settings that have torch's default value are left out.
    """
    if not facts.groups:
        return f"# in the optimizer: {', '.join(f'{name}={value:g}' for name, value in changed.items())}"
    group = facts.groups[-1]
    defaults = _DEFAULTS | _OTHER_DEFAULTS.get(group["class"], {})
    known = {name: value for name, value in group.items() if isinstance(value, int | float | list)}
    kept = {name for name in defaults if name in known and known[name] != defaults[name]} | {*changed}
    return _constructor(group["class"], {name: (known | changed)[name] for name in defaults if name in kept})


def adam_line(facts: Facts) -> str:
    """The line that creates Adam with the run's weight decay, at a rate at which balanced stacks of 16 to 40 train."""
    lr = round_to_one_digit(min(_ADAM_RATE, _DEEP_RATE / max(1, len(facts.gains))))
    decay = facts.setting("weight_decay")
    return _constructor("Adam", {"lr": lr, **({"weight_decay": decay} if decay else {})})


def _constructor(name: str, settings: dict[str, Any]) -> str:
    arguments = ["model.parameters()", *(f"{key}={_literal(value)}" for key, value in settings.items())]
    return f"optimizer = {'torch.optim.' if name in _OF_TORCH else ''}{name}({', '.join(arguments)})"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_literal, value))})"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


def initial_learning_rate(facts: Facts) -> float:
    """The learning rate at the start; NaN if it is not known."""
    rates = facts.steps_column("learning_rate")
    if len(rates):
        return float(rates[0])
    return next((float(group["lr"]) for group in facts.groups if isinstance(group.get("lr"), int | float)), math.nan)


def change_learning_rate(facts: Facts, lr: float) -> Remedy:
    """Another learning rate. The action scales that of all groups, so that schedules and their ratios stay."""
    factor = lr / initial_learning_rate(facts)
    actions = (Action("learning_rate", {"factor": factor}),) if math.isfinite(factor) and factor > 0 else ()
    return Remedy(f"{optimizer_line(facts, lr=lr)}  # {REPLACES}", actions)


def balanced_initialization(facts: Facts) -> Remedy:
    """Fresh balanced weights, before training; by the model's own laws unless it is a plain stack."""
    with_inputs = facts.has_residual_streams or any(layer.get("kind") not in STACKED for layer in facts.layers)
    arguments = f", {', '.join(_forward_arguments(facts))}" if with_inputs else ""
    settings = {"scheme": "balanced_orthogonal", **({"with_inputs": True} if with_inputs else {})}
    line = f'gatdiag.remedies.initialize_(model, "balanced_orthogonal"{arguments})  # before training'
    return Remedy(line, (Action("initialize", settings),))


def _forward_arguments(facts: Facts) -> list[str]:
    named = [one["name"] for one in facts.inputs if one["name"].isidentifier()]
    return [*(named or ["x"]), *(["edge_index"] if facts.has_convolutions and "edge_index" not in named else [])]


def insert_modules(facts: Facts, *modules: str) -> Remedy | None:
    """Modules after each hidden layer that keeps its width, in this order; None if there is no such layer.

    Skips weigh the layer by one over the root of the number of layers, so that their sum keeps its size.

    Args:
        facts: Of the run.
        modules: "LayerNorm", "ReLU" or "Skip".
    """
    widths = {layer["name"]: _kept_width(layer) for layer in facts.layers[:-1]}
    width = Counter(width for width in widths.values() if width).most_common(1)
    names = tuple(name for name in widths if width and widths[name] == width[0][0])
    if not names:
        return None
    scale = float(f"{len(names) ** -0.5:.2g}")
    code = {
        "LayerNorm": f"torch.nn.LayerNorm({width[0][0]})",
        "ReLU": "torch.nn.ReLU()",
        "Skip": f"gatdiag.remedies.Skip({scale:g})",
    }
    loop, name = _loop(names)
    lines = [
        f"{loop}  # before the optimizer is created",
        *(f"    gatdiag.remedies.insert_after_(model, {name}, {code[module]})" for module in modules),
    ]
    settings: dict[str, dict[str, Any]] = {"LayerNorm": {"width": width[0][0]}, "Skip": {"scale": scale}}
    actions = [Action("insert_after", {"layers": names, "module": one, **settings.get(one, {})}) for one in modules]
    return Remedy("\n".join(lines), tuple(actions))


def _kept_width(layer: dict[str, Any]) -> int:
    """Number of inputs of a layer that has as many outputs; else 0."""
    shapes = [*matrices(layer).values()]
    return shapes[0][1] if shapes and shapes[0][1] == shapes[-1][0] else 0


def _loop(names: Sequence[str]) -> tuple[str, str]:
    """The head of a loop over layers, and the expression for their names in its body."""
    stem, _, first = names[0].rpartition(".")
    if stem and first.isdecimal() and names == tuple(f"{stem}.{int(first) + n}" for n in range(len(names))):
        return f"for i in range({first}, {int(first) + len(names)}):", f'f"{stem}.{{i}}"'
    return f"for name in {[*names]}:", "name"


def reinitialize_attention(facts: Facts, layers: Sequence[str]) -> Remedy | None:
    """Fresh attention vectors of some layers, or else fresh query weights; None if they have neither."""
    chosen = [one for layer in facts.layers if layer["name"] in layers for one in layer["parameters"]]
    names = tuple(one["name"] for one in chosen if one["role"] == ATTENTION)
    names = names or tuple(one["name"] for one in chosen if one["name"].endswith("lin_query.weight"))
    if not names:
        return None
    line = f"for name in {[*names]}:  # before training\n    torch.nn.init.xavier_normal_(model.get_parameter(name))"
    return Remedy(line, (Action("draw", {"parameters": names}),))


def round_to_one_digit(value: float) -> float:
    """One significant digit, as learning rates are written."""
    return float(f"{value:.0e}") if math.isfinite(value) else value

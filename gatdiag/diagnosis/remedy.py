"""Lines of code to paste, with the numbers of a run, and what `gatdiag.treat` does for them by itself."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from gatdiag.diagnosis.facts import Facts, matrices
from gatdiag.diagnosis.finding import Action, Remedy
from gatdiag.roles import ATTENTION, STACKED

_DEEP_RATE: Final = 0.04  # of Adam, over the number of layers, for deep attention networks
_SHOWN = ("lr", "momentum", "eps", "weight_decay")
USUAL_EPS: Final = 1e-8  # torch's own, which need not be written


def optimizer(facts: Facts, **changed: float) -> str:
    """The line that makes the run's optimizer, with some of its settings changed; of an unknown one, only these."""
    if not facts.groups:
        return f"# in the optimizer: {', '.join(f'{name}={value:g}' for name, value in changed.items())}"
    group = facts.groups[-1]
    settings = {name: group[name] for name in _SHOWN if isinstance(group.get(name), int | float) and group[name]}
    if settings.get("eps", 0.0) <= USUAL_EPS:
        settings.pop("eps", None)
    settings |= {name: value for name, value in changed.items() if value or name in settings}
    return _made(group["class"], **settings)


def adam(facts: Facts) -> str:
    """The line that makes Adam, with the run's weight decay, at a rate at which balanced stacks of 16 to 40 train."""
    decay, lr = facts.setting("weight_decay"), rounded(_DEEP_RATE / len(facts.gains))
    return _made("Adam", lr=lr, **({"weight_decay": decay} if decay else {}))


def _made(name: str, **settings: float) -> str:
    shown = ", ".join(["model.parameters()", *(f"{key}={value:g}" for key, value in settings.items())])
    return f"optimizer = torch.optim.{name}({shown})"


def learning_rate(facts: Facts) -> float:
    """The learning rate at the start; NaN if it is not known."""
    rates = facts.steps_column("learning_rate")
    if len(rates):
        return float(rates[0])
    return next((float(group["lr"]) for group in facts.groups if isinstance(group.get("lr"), int | float)), math.nan)


def scaled_rate(facts: Facts, lr: float) -> Remedy:
    """Another learning rate; of all groups, in proportion: so that schedules and rates of their own stay."""
    factor = lr / learning_rate(facts)
    actions = (Action("learning_rate", {"factor": factor}),) if math.isfinite(factor) and factor > 0 else ()
    return Remedy(f"{optimizer(facts, lr=lr)}  # in place of yours, before schedulers are made", actions)


def balanced(facts: Facts) -> Remedy:
    """Fresh balanced weights, before training; by the model's own laws where it is no plain stack."""
    with_inputs = facts.has_streams or any(layer.get("kind") not in STACKED for layer in facts.layers)
    given = f", {', '.join(_arguments(facts))}" if with_inputs else ""
    settings = {"scheme": "balanced_orthogonal", **({"with_inputs": True} if with_inputs else {})}
    line = f'gatdiag.remedies.initialize_(model, "balanced_orthogonal"{given})  # before training'
    return Remedy(line, (Action("initialize", settings),))


def _arguments(facts: Facts) -> list[str]:
    """Of a forward pass, as far as their names are known."""
    named = [one["name"] for one in facts.inputs if one["name"].isidentifier()]
    return [*(named or ["x"]), *(["edge_index"] if facts.passes_messages and "edge_index" not in named else [])]


def inserted(facts: Facts, *modules: str) -> Remedy | None:
    """Modules after each hidden layer that keeps its width, in this order; None where there is none.

    Skips weigh the layer by one over the root of their number, so that what they add up to keeps its size.

    Args:
        facts: Of the run.
        modules: "LayerNorm", "ReLU" or "Skip".
    """
    widths = {name: width for layer in facts.layers[:-1] for name, width in [(layer["name"], _kept_width(layer))]}
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
        f"{loop}  # before the optimizer is made",
        *(f"    gatdiag.remedies.insert_after_(model, {name}, {code[module]})" for module in modules),
    ]
    sizes: dict[str, dict[str, Any]] = {"LayerNorm": {"width": width[0][0]}, "Skip": {"scale": scale}}
    actions = [Action("insert_after", {"layers": names, "module": one, **sizes.get(one, {})}) for one in modules]
    return Remedy("\n".join(lines), tuple(actions))


def _kept_width(layer: dict[str, Any]) -> int:
    """Columns that go into a layer, if as many come out; 0 if not."""
    shapes = [*matrices(layer).values()]
    return shapes[0][1] if shapes and shapes[0][1] == shapes[-1][0] else 0


def _loop(names: Sequence[str]) -> tuple[str, str]:
    """The head of a loop over layers, and the name of each inside of it."""
    stem, _, first = names[0].rpartition(".")
    if stem and first.isdecimal() and names == tuple(f"{stem}.{int(first) + n}" for n in range(len(names))):
        return f"for i in range({first}, {int(first) + len(names)}):", f'f"{stem}.{{i}}"'
    return f"for name in {[*names]}:", "name"


def attention_anew(facts: Facts, layers: Sequence[str]) -> Remedy | None:
    """Fresh attention of some layers: their attention vectors, or else what makes queries; None without either."""
    chosen = [one for layer in facts.layers if layer["name"] in layers for one in layer["parameters"]]
    names = tuple(one["name"] for one in chosen if one["role"] == ATTENTION)
    names = names or tuple(one["name"] for one in chosen if one["name"].endswith("lin_query.weight"))
    if not names:
        return None
    line = f"for name in {[*names]}:  # before training\n    torch.nn.init.xavier_normal_(model.get_parameter(name))"
    return Remedy(line, (Action("draw", {"parameters": names}),))


def rounded(value: float) -> float:
    """One digit of it, as one writes a learning rate."""
    return float(f"{value:.0e}") if math.isfinite(value) else value

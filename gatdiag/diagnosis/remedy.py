"""Lines of code to paste, with the numbers of a run, and what `gatdiag.treat` does for them by itself."""

import math
from typing import Any

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action

_SHOWN = ("lr", "momentum", "weight_decay")


def optimizer(facts: Facts, parameters: str = "model.parameters()", **changed: float) -> str:
    """The line that makes the run's optimizer, with some of its settings changed."""
    group: dict[str, Any] = facts.groups[-1] if facts.groups else {"class": "Adam"}
    settings = {name: group[name] for name in _SHOWN if isinstance(group.get(name), int | float) and group[name]}
    settings |= {name: value for name, value in changed.items() if value or name in settings}
    shown = ", ".join(f"{name}={value:g}" for name, value in settings.items())
    return f"optimizer = torch.optim.{group['class']}({parameters}{', ' if shown else ''}{shown})"


def learning_rate(facts: Facts) -> float:
    """The learning rate at the start; NaN if it is not known."""
    rates = facts.steps_column("learning_rate")
    if len(rates):
        return float(rates[0])
    return next((float(group["lr"]) for group in facts.groups if isinstance(group.get("lr"), int | float)), math.nan)


def scaled_rate(facts: Facts, lr: float) -> tuple[Action, ...]:
    """The learning rate of all groups, in proportion: so that schedules and groups with rates of their own stay."""
    factor = lr / learning_rate(facts)
    return (Action("learning_rate", {"factor": factor}),) if math.isfinite(factor) and factor > 0 else ()


def rounded(value: float) -> float:
    """One digit of it, as one writes a learning rate."""
    return float(f"{value:.0e}") if math.isfinite(value) else value

"""The words in which the rows of the bank are written: a row is what is planted, and the training without it."""

from typing import Any, Final, TypeAlias

Row: TypeAlias = tuple[dict[str, Any], dict[str, Any]]


def row(plant: dict[str, Any], **usual: Any) -> Row:
    """The planted change, and the training without it, which is the repaired twin."""
    return plant, usual


def control(**usual: Any) -> Row:
    """A training without a fault."""
    return {}, usual


def init(name: str, number: float) -> dict[str, Any]:
    """A change of the initial weights: a key of `network.INITS` and its argument."""
    return {"init": ((name, number),)}


def by(optimizer: str, lr: float) -> dict[str, Any]:
    """Settings of the optimizer."""
    return {"optimizer": optimizer, "lr": lr}


SGD: Final = by("SGD", 0.5)
SLOW: Final = by("SGD", 0.2)
RESIDUAL: Final = {"residual": True, "norm": "layer"}
DEEP: Final = {"optimizer": "SGD", "steps": 200, **init("balanced", 1)}
OVER_NODES: Final = {"output": "log-softmax over rows", "loss": "negative log-likelihood"}
GAT10: Final = {"layer": "gatv2", "depth": 10, **DEEP}
SORTED: Final = {"layer": "gin", "depth": 3, "task": "graphs", "nodes": 600, "batch": 12, "steps": 200}

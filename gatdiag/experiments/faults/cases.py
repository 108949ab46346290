"""The bank: which fault is planted in which training. New rows go to the end of their cause, to keep the numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults.recipe import Recipe

_HELD_OUT: Final = 100  # the first number

Row: TypeAlias = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A training with a planted fault, and the same training without it.

    Attributes:
        cause: Code of the finding that is right; "healthy" for a control.
        number: Position among the cases of its cause, also the seed of the recipes.
        faulty: The training that is diagnosed; for a control, the healthy one.
        repaired: The twin, which has to train clearly better; None for a control.
    """

    cause: str
    number: int
    faulty: Recipe
    repaired: Recipe | None

    @property
    def name(self) -> str:
        """Such as ``lr-too-large-03``."""
        return f"{self.cause}-{self.number:02}"

    @property
    def is_held_out(self) -> bool:
        """Whether it is a row of `HELD_OUT`."""
        return self.number >= _HELD_OUT


def cases() -> Iterator[Case]:
    """All cases in the order of causes, controls last; numbers of held-out cases start at 100."""
    for cause in CALIBRATION:
        for number, (plant, usual) in [*enumerate(CALIBRATION[cause]), *enumerate(HELD_OUT[cause], _HELD_OUT)]:
            repaired = Recipe(**usual, seed=number)
            yield Case(cause, number, replace(repaired, **plant), None if cause == HEALTHY else repaired)


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


_SGD: Final = by("SGD", 0.5)
_SLOW: Final = by("SGD", 0.2)
_RESIDUAL: Final = {"residual": True, "norm": "layer"}
_DEEP: Final = {"optimizer": "SGD", "steps": 200, **init("balanced", 1)}
_OVER_NODES: Final = {"output": "log-softmax over rows", "loss": "negative log-likelihood"}
_GAT10: Final = {"layer": "gatv2", "depth": 10, **_DEEP}

CALIBRATION: Final[Mapping[str, tuple[Row, ...]]] = {
    "init-unbalanced": (
        row(init("xavier", 1), **{**_GAT10, "depth": 12}, lr=0.02),
        row(init("xavier", 1), **{**_GAT10, "depth": 14}, lr=0.02, features="words"),
        row(init("alternating", 30), layer="gcn", depth=4, **_SGD),
        row(init("alternating", 30), layer="sage", depth=4, **_SGD),
        row(init("alternating", 40), layer="mlp", depth=4, task="graphs", nodes=300, steps=200, **_SGD),
        row(init("alternating", 40), layer="gatv2", depth=4, width=48, **_SGD),
        row(init("xavier", 1), **{**_GAT10, "width": 64}, lr=0.02, features="words"),
        row(init("alternating", 30), layer="gin", depth=2, **by("SGD", 0.05), classes=3),
    ),
    "init-too-small": (
        row(init("scaled", 0.01), layer="gcn", depth=3, steps=60, **_SGD),
        row(init("scaled", 0.01), layer="sage", depth=4, **_SGD),
        row(init("normal", 1e-3), layer="gatv2", depth=4, **_SGD),
        row(init("normal", 1e-3), layer="mlp", depth=5, **by("momentum", 0.05), activation="tanh"),
        row(init("scaled", 0.02), layer="gin", task="graphs", depth=3, nodes=300, **by("SGD", 0.1)),
        row(init("scaled", 0.003), layer="transformer", depth=3, **_SGD),
    ),
    "init-too-large": (
        row(init("scaled", 25), layer="gcn", depth=4, **_SGD),
        row(init("scaled", 20), layer="sage", depth=3, **_SLOW),
        row(init("normal", 3), layer="gatv2", depth=4),
        row(init("normal", 2), layer="mlp", depth=4, optimizer="AdamW"),
        row(init("scaled", 15), layer="gin", depth=3, task="graphs", nodes=300, **by("momentum", 0.01)),
        row(init("scaled", 30), layer="transformer", depth=3, classes=3),
        row(init("normal", 3), layer="sage", task="regression", depth=3),
        row(init("normal", 3), layer="gcn", task="links", depth=2, steps=200),
    ),
    "depth-oversmoothing": (
        row({"residual": False}, layer="gcn", depth=32, **_RESIDUAL, steps=60),
        row({"depth": 24}, layer="gat", depth=2),
        row({"depth": 24}, layer="gatv2", depth=2, **_SGD),
        row({"depth": 40}, layer="gcn", depth=3, **init("he", 1), nodes=300, **_SGD),
        row({"layer": "sgc-32", "depth": 2}, layer="gcn", depth=2, lr=0.01, nodes=300),
        row({"depth": 64, "residual": False}, layer="gcn", depth=12, **_RESIDUAL, width=16, steps=60),
        row({"depth": 16}, layer="gcn", depth=2, task="regression", **init("he", 1), steps=150),
        row({"depth": 32}, layer="gat", depth=2, nodes=160, optimizer="AdamW", columns=16, width=16),
    ),
    "depth-vanishing-gradient": (
        row({"depth": 24}, layer="mlp", depth=3),
        row({"depth": 20, "residual": False}, layer="sage", depth=20, **_RESIDUAL),
        row({"depth": 10, "activation": "sigmoid"}, layer="mlp", depth=10, norm="", **init("he", 1)),
        row({"depth": 16}, layer="sage", depth=3, activation="tanh", **_SGD),
        row({"depth": 12, "activation": "sigmoid"}, layer="sage", depth=3, **init("he", 1), nodes=260),
        row({"depth": 32}, layer="mlp", depth=4, activation="elu", **by("momentum", 0.05)),
        row({"depth": 24}, layer="mlp", depth=3, task="graphs", nodes=300, steps=150),
        row({"depth": 48, "residual": False}, layer="mlp", depth=48, **_RESIDUAL, width=16, steps=60),
    ),
    "depth-exploding-gradient": (
        row({"norm": ""}, layer="sage", depth=20, **_RESIDUAL, **init("he", 1), **_SGD),
        row({"norm": ""}, layer="sage-sum", depth=12, **_RESIDUAL, **by("SGD", 0.05)),
        row({"norm": ""}, layer="gcn", depth=40, residual=True, norm="batch", width=16, steps=60, **_SGD),
        row({"norm": ""}, layer="gatv2", depth=32, **_RESIDUAL, **by("SGD", 0.05), width=16),
        row({"depth": 20}, layer="sage-sum", depth=2, **init("he", 1), **by("SGD", 0.01), nodes=160),
        row({"norm": ""}, layer="sage", depth=32, **_RESIDUAL, **init("he", 1), lr=0.005),
        row({"norm": ""}, layer="sage-sum", depth=24, **_RESIDUAL, **by("SGD", 0.02), width=16),
        row({"norm": ""}, layer="transformer", depth=24, **_RESIDUAL, **by("SGD", 0.1), steps=60),
    ),
    "rank-collapse": (
        row(init("constant", 1), layer="gcn", depth=3),
        row(init("constant", 1), layer="gatv2", depth=3, **_SGD),
        row({"width": 1}, layer="mlp", depth=4, width=24),
        row({"width": 1}, layer="sage", depth=4, width=24, nodes=240),
        row({"depth": 64}, layer="mlp", depth=4, **init("he", 1), **by("SGD", 0.05), steps=60),
        row({"depth": 48}, layer="mlp", depth=3, **init("he", 1), **by("SGD", 0.1), steps=150),
    ),
    "dead-units": (
        row(init("biases", -6), layer="gcn", depth=3),
        row(init("biases", -8), layer="sage", depth=3, **_SGD),
        row({"init": (("negative", 1), ("biases", -0.5))}, layer="mlp", depth=3, features="words"),
        row(init("biases", -6), layer="gcn", depth=4, norm="batch", optimizer="AdamW"),
        row({"inputs": ("shifted", -6), **init("negative", -1)}, layer="mlp", depth=3, **_SGD),
        row(init("biases", -10), layer="gatv2", depth=3, features="words", classes=3),
        row(init("biases", -8), layer="sage", depth=3, task="graphs", nodes=300),
        row(init("biases", -6), layer="transformer", depth=3, task="regression", steps=150),
    ),
    "lr-too-large": (
        row({"lr": 60.0}, layer="gcn", depth=3, **_SGD),
        row({"lr": 2.0}, layer="sage", depth=3),
        row({"lr": 3.0}, layer="gatv2", depth=3, optimizer="AdamW"),
        row({"lr": 30.0}, layer="mlp", depth=3, **by("momentum", 0.1)),
        row({"lr": 3.0}, layer="gin", depth=3, task="graphs", nodes=300, batch=20),
        row({"lr": 40.0}, layer="gat", depth=2, **_SGD, steps=150),
        row({"lr": 2.0}, layer="transformer", depth=3, batch=32),
        row({"lr": 5.0}, layer="sage", depth=2, task="regression", **by("momentum", 0.02)),
        row({"lr": 20.0}, layer="gcn", depth=8, residual=True, **_SGD),
        row({"lr": 2.0}, layer="gcn", depth=3, task="links"),
    ),
    "lr-too-small": (
        row({"lr": 1e-4}, layer="gcn", depth=3, **_SGD),
        row({"lr": 1e-6}, layer="sage", depth=3),
        row({"lr": 1e-6}, layer="gatv2", depth=3, optimizer="AdamW"),
        row({"lr": 1e-5}, layer="mlp", depth=3, **by("momentum", 0.1)),
        row({"lr": 1e-6}, layer="gin", depth=3, task="graphs", nodes=300, batch=20),
        row({"schedule": "collapse"}, layer="gat", depth=2, **_SGD, steps=150),
        row({"lr": 3e-6}, layer="transformer", depth=3, batch=32),
        row({"lr": 1e-5}, layer="sage", depth=2, task="regression", **by("momentum", 0.05)),
        row({"lr": 1e-6}, layer="gcn", depth=16, **_RESIDUAL),
        row({"schedule": "collapse"}, layer="gcn", depth=3, task="links", lr=0.005, steps=150),
    ),
    "parameters-not-in-optimizer": (
        row({"optimizes": "of a copy"}, layer="gcn", depth=3),
        row({"optimizes": "last"}, layer="sage", depth=4, width=4, **_SGD),
        row({"optimizes": "before rebuilding"}, layer="gatv2", depth=4, width=6, lr=0.02),
        row({"optimizes": "layers in a list"}, layer="gcn", depth=4, width=8, lr=0.02),
        row({"optimizes": "last"}, layer="gin", depth=3, width=8, task="graphs", nodes=300),
        row({"optimizes": "biases"}, layer="transformer", depth=3, steps=60),
        row({"optimizes": "layers in a list"}, layer="mlp", depth=4, width=8, **by("momentum", 0.1)),
        row({"optimizes": "of a copy"}, layer="sage", depth=3, task="regression", optimizer="AdamW"),
    ),
    "parameters-without-gradient": (
        row({"activation": "detached"}, layer="gcn", depth=4, width=6, lr=0.02),
        row({"frozen": "*weight"}, layer="sage", depth=3, width=16, **_SGD),
        row({"frozen": "encoder.convs.[01]*"}, layer="gatv2", depth=3, width=3, lr=0.02),
        row({"activation": "detached"}, layer="mlp", depth=4, width=6, **by("momentum", 0.1)),
        row({"frozen": "encoder.*"}, layer="gin", depth=4, width=6, task="graphs", nodes=300, steps=150),
        row({"activation": "detached"}, layer="transformer", depth=4, width=6, batch=40, lr=0.02),
        row({"frozen": "encoder.*"}, layer="gcn", depth=3, width=6, task="links", steps=150),
        row({"activation": "detached"}, layer="sage", depth=4, width=4, task="regression", lr=0.02, steps=150),
    ),
    "gradients-not-cleared": (
        row({"clears": False}, layer="gcn", depth=3, **by("SGD", 2.0)),
        row({"clears": False}, layer="sage", depth=4, lr=0.03),
        row({"clears": False}, layer="gatv2", depth=4, **by("momentum", 0.1)),
        row({"clears": False}, layer="mlp", depth=4, **by("momentum", 0.2)),
        row({"clears": False}, layer="gin", depth=3, task="graphs", nodes=300, batch=20, **by("SGD", 0.1)),
        row({"clears": False}, layer="sage", depth=3, task="regression", **by("SGD", 0.3)),
        row({"clears": False}, layer="transformer", depth=4, batch=32, **_SGD),
        row({"clears": False}, layer="gcn", depth=6, residual=True, **by("AdamW", 0.03)),
    ),
    "clipping-too-tight": (
        row({"clip": 1e-3}, layer="gcn", depth=3, **_SGD),
        row({"clip": 1e-4}, layer="sage", depth=3, **by("momentum", 0.1)),
        row({"clip": 1e-10}, layer="gatv2", depth=3),
        row({"clip": 1e-3}, layer="mlp", depth=4, **_SGD),
        row({"clip": 1e-3}, layer="gin", depth=3, task="graphs", nodes=300, batch=20, **by("SGD", 0.1)),
        row({"disturb": "values clipped at 1e-5"}, layer="gcn", depth=2, **_SGD),
        row({"clip": 1e-4}, layer="sage", depth=2, task="regression", **by("SGD", 0.1)),
        row({"clip": 1e-10}, layer="transformer", depth=3, optimizer="AdamW"),
    ),
    "weight-decay-too-strong": (
        row({"decay": 0.3}, layer="gcn", depth=3, **_SGD),
        row({"decay": 0.2}, layer="sage", depth=3),
        row({"decay": 20.0}, layer="gatv2", depth=3, optimizer="AdamW"),
        row({"decay": 0.3}, layer="mlp", depth=4, **by("momentum", 0.1)),
        row({"decay": 0.5}, layer="gin", depth=3, task="graphs", nodes=300, steps=150),
        row({"decay": 30.0}, layer="transformer", depth=3, optimizer="AdamW"),
        row({"decay": 0.5}, layer="sage", depth=3, task="regression"),
        row({"decay": 0.3}, layer="gcn", depth=3, task="links"),
    ),
    "input-nonfinite": (
        row({"inputs": ("NaN in rows", 2)}, layer="gcn", depth=2),
        row({"inputs": ("infinity in rows", 1)}, layer="sage", depth=3, **_SGD),
        row({"inputs": ("log", 1)}, layer="gatv2", depth=2),
        row({"inputs": ("NaN in rows", 60)}, layer="gin", depth=3, task="graphs", nodes=300, batch=10),
        row({"inputs": ("log", 1)}, layer="mlp", depth=3, features="words", optimizer="AdamW"),
        row({"inputs": ("NaN in rows", 1)}, layer="transformer", depth=3, task="regression"),
    ),
    "input-scale": (
        row({"inputs": ("scaled", 3e3)}, layer="gcn", depth=3, **_SGD),
        row({"inputs": ("one column scaled", 1e4)}, layer="sage", depth=3, **_SGD),
        row({"inputs": ("one column scaled", 1e5)}, layer="gatv2", depth=3),
        row({"inputs": ("scaled", 1e4)}, layer="mlp", depth=4, **by("momentum", 0.05)),
        row({"inputs": ("scaled", 3e3)}, layer="gin", depth=3, task="graphs", nodes=300, **by("SGD", 0.1)),
        row({"inputs": ("scaled", 1e-5)}, layer="gcn", depth=2, **_SGD),
        row({"inputs": ("one column scaled", 1e4)}, layer="transformer", depth=3, optimizer="AdamW"),
        row({"inputs": ("one column scaled", 1e4)}, layer="sage", task="regression", **by("SGD", 0.05)),
    ),
    "input-constant": (
        row({"inputs": ("all equal", 1)}, layer="gatv2", depth=2),
        row({"inputs": ("rows equal", 1)}, layer="sage", depth=3, **_SGD),
        row({"inputs": ("all equal", 1)}, layer="mlp", depth=3, **by("momentum", 0.05)),
        row({"inputs": ("all equal", 1)}, layer="transformer", depth=3, optimizer="AdamW"),
        row({"inputs": ("rows equal", 1)}, layer="gat", depth=3, batch=40),
        row({"inputs": ("all equal", 0)}, layer="gcn", depth=2),
        row({"inputs": ("all equal", 1)}, layer="sage", depth=2, task="regression"),
        row({"inputs": ("all equal", 1)}, layer="gat", depth=2, task="graphs", nodes=300),
    ),
    "output-softmax-twice": (
        row({"output": "softmax"}, layer="gcn", depth=3, classes=8, nodes=320, columns=64, **_SGD),
        row({"output": "softmax"}, layer="sage", depth=4, classes=8, **_SLOW, columns=64),
        row({"output": "sigmoid"}, layer="gcn", depth=3, task="links", **by("SGD", 0.1), steps=300),
        row({"output": "softmax"}, layer="mlp", depth=4, **by("momentum", 0.05)),
        row({"output": "softmax"}, layer="gin", depth=3, task="graphs", nodes=300, **by("SGD", 0.02)),
        row({"output": "sigmoid"}, layer="transformer", depth=4, classes=8, columns=64, **_SLOW),
        row({"output": "softmax"}, layer="gatv2", depth=4, classes=8, columns=64, lr=0.003, steps=60),
        row({"output": "softmax", "loss": "negative log-likelihood"}, layer="gcn", depth=4, classes=8, **_SGD),
    ),
    "output-softmax-over-nodes": (
        row(_OVER_NODES, layer="gcn", depth=2),
        row(_OVER_NODES, layer="gatv2", depth=3, **_SGD),
        row(_OVER_NODES, layer="sage", depth=3, classes=8),
        row(_OVER_NODES, layer="mlp", depth=4, **by("momentum", 0.05)),
    ),
    "output-relu": (
        row({"output": "relu"}, layer="gcn", depth=2),
        row({"output": "relu"}, layer="gat", depth=3, classes=8, columns=64),
        row({"output": "relu"}, layer="sage", depth=3, classes=8, columns=64, **_SLOW),
        row({"output": "relu"}, layer="gin", depth=3, task="graphs", nodes=300),
    ),
    "loss-broadcast": (
        row({"loss": "broadcast"}, layer="gcn", depth=2, task="regression"),
        row({"loss": "broadcast"}, layer="sage", depth=3, task="regression", **by("SGD", 0.05)),
        row({"loss": "broadcast, absolute"}, layer="gatv2", depth=3, task="regression"),
        row({"loss": "broadcast"}, layer="sage", depth=3, task="regression", batch=40, optimizer="AdamW"),
    ),
    "dropout-too-large": (
        row({"dropout": 0.99}, layer="gcn", depth=3),
        row({"dropout": 0.98}, layer="sage", depth=3, **_SGD),
        row({"dropout": 0.99}, layer="gatv2", depth=3, optimizer="AdamW"),
        row({"dropout": 0.98}, layer="mlp", depth=4, **by("momentum", 0.05)),
    ),
    "nonfinite-operation": (
        row({"activation": "root of zero"}, layer="gcn", depth=3),
        row({"activation": "log"}, layer="sage", depth=3, **_SGD),
        row({"activation": "unit rows"}, layer="gatv2", depth=3),
        row({"activation": "softmax by hand"}, layer="mlp", depth=3, norm="batch", optimizer="AdamW"),
        row({"activation": "root of zero"}, layer="gin", depth=3, task="graphs", nodes=300, batch=20),
        row({"activation": "unit rows"}, layer="sage", depth=3, task="regression"),
    ),
    "attention-saturated": (
        row(init("attention", 3e3), layer="gat", depth=3, **_SGD),
        row(init("attention", 3e3), layer="gatv2", depth=3),
        row(init("attention", 1e4), layer="gat", depth=3, task="regression", steps=150),
        row(init("attention", 1e4), layer="gatv2", depth=5, nodes=300, **_SGD),
        row(init("attention", 1e4), layer="gat", depth=4, optimizer="AdamW"),
        row(init("attention", 1e4), layer="gatv2", depth=4, task="regression", steps=150),
        row(init("attention", 1e4), layer="gatv2", depth=3, **by("momentum", 0.02), nodes=240),
        row(init("attention", 1e4), layer="gat", depth=6, classes=3),
    ),
    "no-training-signal": (
        row({"labels": "all one"}, layer="gcn", depth=3),
        row({"loss": "times zero"}, layer="sage", depth=3, **_SGD),
        row({"loss": "empty mask"}, layer="gatv2", depth=3),
        row({"output": "detached"}, layer="mlp", depth=3, **by("momentum", 0.05)),
        row({"labels": "all one"}, layer="gin", depth=3, task="graphs", nodes=300),
        row({"labels": "all one"}, layer="transformer", depth=3, batch=40, optimizer="AdamW"),
        row({"loss": "times zero"}, layer="sage", depth=2, task="regression"),
        row({"loss": "empty mask"}, layer="gcn", depth=6, residual=True),
    ),
    "law-broken": (
        row({"loss": "penalized later"}, layer="gcn", depth=3, **by("SGD", 0.1)),
        row({"disturb": "gradient scaled later"}, layer="sage", depth=3, **by("SGD", 0.1)),
        row({"disturb": "gradient noisy later"}, layer="gatv2", depth=3, **by("SGD", 0.05)),
        row({"loss": "penalized later"}, layer="mlp", depth=3, **by("SGD", 0.3), steps=150),
    ),
    "optimizer-breaks-conservation": (
        row({"optimizer": "Adam", "lr": 0.02}, layer="gcn", depth=3, **by("SGD", 0.1)),
        row({"optimizer": "AdamW", "lr": 0.02, "decay": 1.0}, layer="sage", depth=3, **by("SGD", 0.1)),
        row({"decay": 0.02}, layer="gatv2", depth=3, **by("SGD", 0.02), steps=200),
        row({"optimizer": "momentum", "lr": 0.2}, layer="gcn", depth=2, **_SLOW),
    ),
    "overfitting": (
        row({"labels": "random"}, layer="gcn", depth=2, width=64, steps=200),
        row({"train_share": 0.06, "layer": "mlp"}, layer="gcn", depth=2, steps=150, nodes=300, width=64),
        row({"labels": "random"}, layer="sage", depth=2, width=64, steps=150, classes=3),
        row({"labels": "random"}, layer="transformer", depth=2, width=64, steps=150),
        row({"train_share": 0.03}, layer="sage", depth=2, steps=150, nodes=300, width=64),
        row({"labels": "random"}, layer="gcn", depth=3, width=64, steps=200, optimizer="AdamW", nodes=300),
    ),
    HEALTHY: (  # many look suspicious
        control(layer="gcn"),
        control(layer="gcn", features="words", decay=5e-4, dropout=0.5, steps=200),
        control(layer="gat", **_SGD, steps=200),
        control(layer="gatv2", depth=3),
        control(layer="sage", depth=3, **_SGD),
        control(layer="gin", depth=3),
        control(layer="transformer", depth=3),
        control(layer="mlp", depth=4, **by("momentum", 0.05)),
        control(layer="gcn", depth=64, **_RESIDUAL, width=16, steps=60),  # big depth
        control(layer="gatv2", depth=32, residual=True, norm="batch", width=16, steps=60),
        control(layer="sage", depth=16, **_RESIDUAL),
        control(layer="gin", depth=8, residual=True, norm="batch"),
        control(**_GAT10, lr=0.05),
        control(**{**_GAT10, "depth": 16}, lr=0.02, features="words"),
        control(layer="gcn", schedule="warm-up", lr=0.02, steps=200),  # schedules
        control(layer="transformer", depth=4, schedule="warm-up", **by("AdamW", 0.01), steps=200),
        control(layer="sage", schedule="cosine", lr=0.02),
        control(layer="gatv2", schedule="drop", **by("momentum", 0.1), steps=200),
        control(layer="gcn", dropout=0.8, width=64, steps=300),  # noise
        control(layer="gat", dropout=0.6, depth=3, width=64, steps=300),
        control(layer="sage", batch=8, lr=0.003, steps=300),
        control(layer="gcn", batch=16, **by("momentum", 0.05), steps=300),
        control(layer="gin", task="graphs", nodes=300, batch=4, lr=0.003, steps=300),
        control(layer="mlp", batch=4, lr=0.003, steps=400, depth=3),
        control(layer="gcn", frozen="encoder.convs.0*", width=128),  # frozen on purpose
        control(layer="gin", depth=2, task="graphs", nodes=200, frozen="encoder.convs.0*", width=64),
        control(layer="gcn", features="words", inputs=("columns never used", 40)),  # features that never occur
        control(layer="gatv2", features="words", inputs=("columns never used", 200), optimizer="AdamW"),
        control(layer="gcn", resumed=True),
        control(layer="gatv2", depth=3, resumed=True, **by("momentum", 0.1)),
        control(layer="mlp", depth=6, activation="tanh", **by("SGD", 0.1), steps=400),  # plateaus
        control(layer="gcn", depth=5, **by("SGD", 0.3), steps=400),
        control(layer="sage", task="regression", depth=3),
        control(layer="gatv2", task="regression", depth=3, steps=200),
        control(layer="mlp", task="regression", depth=3, **by("momentum", 0.05), steps=200),
        control(layer="gcn", task="links", steps=200),
        control(layer="sage", task="links", depth=3, steps=200),
        control(layer="gat", task="graphs", nodes=300, depth=3, steps=150),
        control(layer="sage-sum", task="graphs", nodes=300, depth=2),
        control(layer="transformer", task="graphs", nodes=300, batch=20, depth=2, steps=150),
        control(layer="gcn", output="log-softmax"),  # harmless twice
        control(layer="gcn", output="log-softmax", loss="negative log-likelihood", optimizer="AdamW"),
        control(layer="sage", loss="label smoothing", clip=1.0),
        control(layer="gatv2", clip=0.5, optimizer="AdamW", decay=0.01, depth=4),
        control(layer="gcn", loss="summed", lr=0.01),
        control(layer="sage", inputs=("scaled", 5.0), lr=0.005),
        control(layer="gcn", inputs=("scaled", 0.1), lr=0.03),
        control(layer="gin", **init("scaled", 0.5), depth=3),
        control(layer="mlp", activation="sigmoid", depth=3, lr=0.03, steps=200),
        control(layer="gcn", norm="pair", depth=6, steps=200),
        control(layer="sage", activation="elu", depth=5, optimizer="AdamW", decay=0.05),
        control(layer="transformer", depth=8, **_RESIDUAL, batch=40, classes=3),
    ),
}
"""Cause -> rows."""

HELD_OUT: Final[Mapping[str, tuple[Row, ...]]] = {
    "init-unbalanced": (
        row(init("xavier", 1), layer="gatv2", depth=11, graph="grid", lr=0.05, **_DEEP),
        row(init("alternating", 25), layer="graph", depth=3, graph="small world", **by("SGD", 0.01)),
        row(init("xavier", 1), layer="gat", depth=12, graph="small world", lr=0.03, **_DEEP),
        row(init("neurons", 30), layer="sage", depth=3, graph="grid", **_SLOW),
        row(init("alternating", 50), layer="cheb", depth=5, graph="power law", **_SLOW),
    ),
    "init-too-small": (
        row(init("scaled", 0.01), layer="graph", depth=3, graph="grid", **by("SGD", 0.02)),
        row(init("normal", 1e-4), layer="mlp", depth=4, task="regression", **by("momentum", 0.05)),
        row(init("scaled", 0.005), layer="cheb", depth=3, graph="tree", **by("Nesterov", 0.05)),
        row(init("scaled", 0.01), layer="gat-4", depth=4, graph="preferential", **_SLOW),
    ),
    "init-too-large": (
        row(init("normal", 5), layer="tag", depth=3, graph="grid", lr=0.003),
        row(init("scaled", 30), layer="gat-4", depth=3, graph="tree"),
        row(init("last", 300), layer="gcn", depth=3, graph="small world", **_SLOW),
        row(init("normal", 4), layer="graph", depth=2, graph="other classes", task="regression"),
    ),
    "depth-oversmoothing": (
        row({"depth": 24}, layer="gat-4", depth=2, graph="preferential"),
        row({"depth": 48}, layer="gcn", depth=3, graph="small world", **init("he", 1), **_SLOW),
        row({"layer": "sgc-32", "depth": 2}, layer="gcn", depth=2, graph="preferential", task="regression"),
        row({"depth": 20}, layer="gatv2", depth=2, graph="other classes", **by("RMSprop", 0.003)),
    ),
    "depth-vanishing-gradient": (
        row({"depth": 30}, layer="mlp", depth=3, activation="gelu", task="regression", **by("Nesterov", 0.05)),
        row({"depth": 10, "activation": "sigmoid"}, layer="sage", depth=3, graph="tree"),
        row({"depth": 8, "activation": "sigmoid"}, layer="cheb", depth=2, graph="grid", **_SLOW),
        row({"depth": 40}, layer="mlp", depth=3, activation="leaky", features="words", **by("RMSprop", 0.003)),
    ),
    "depth-exploding-gradient": (
        row({"norm": ""}, layer="graph", depth=16, **_RESIDUAL, graph="preferential", **by("SGD", 0.02)),
        row(
            {"norm": ""}, layer="sage-sum", depth=14, residual=True, norm="graph", graph="power law", **by("SGD", 0.02)
        ),
        row({"norm": ""}, layer="cheb", depth=24, **_RESIDUAL, graph="grid", **_SLOW),
        row({"norm": ""}, layer="tag", depth=24, residual=True, norm="graph", **by("momentum", 0.05)),
    ),
    "rank-collapse": (
        row(init("constant", 1), layer="mlp", depth=3, **by("Nesterov", 0.1)),
        row({"width": 1}, layer="gcn", depth=3, graph="tree"),
        row({"depth": 56}, layer="mlp", depth=3, **init("he", 1), activation="leaky", **by("SGD", 0.05)),
        row(init("constant", 1), layer="cheb", depth=3, graph="other classes", **_SLOW),
    ),
    "dead-units": (
        row(init("biases", -20), layer="graph", depth=3, graph="grid", task="regression"),
        row(init("biases", -6), layer="cheb", depth=3, norm="layer", graph="tree", **_SLOW),
        row({"init": (("negative", 1), ("biases", -1))}, layer="tag", features="words", graph="power law"),
        row(init("biases", -9), layer="gat-4", depth=4, graph="preferential", **by("RMSprop", 0.003)),
    ),
    "lr-too-large": (
        row({"lr": 3.0}, layer="tag", depth=3, graph="grid"),
        row({"lr": 2.0}, layer="gat-4", depth=3, graph="preferential", **by("RMSprop", 0.003)),
        row({"lr": 20.0}, layer="cheb", depth=3, graph="tree", **by("Nesterov", 0.05)),
        row({"lr": 10.0}, layer="gin", depth=3, task="graphs", nodes=300, norm="batch", **_SLOW),
    ),
    "lr-too-small": (
        row({"lr": 1e-4}, layer="tag", depth=3, graph="power law", **_SLOW),
        row({"lr": 2e-6}, layer="gat-4", depth=3, graph="grid"),
        row({"lr": 1e-6}, layer="graph", depth=2, graph="tree", task="regression", **by("Nesterov", 0.002)),
        row({"lr": 1e-7}, layer="cheb", depth=3, graph="small world", **by("RMSprop", 0.003)),
    ),
    "parameters-not-in-optimizer": (
        row({"optimizes": "of a copy"}, layer="cheb", depth=3, graph="grid", **by("RMSprop", 0.003)),
        row({"optimizes": "last"}, layer="gat-4", depth=4, width=4, graph="preferential", lr=0.02),
        row({"optimizes": "before rebuilding"}, layer="sage", depth=4, width=4, graph="small world", lr=0.03),
        row({"optimizes": "layers in a list"}, layer="tag", depth=4, width=3, graph="tree", **_SLOW),
    ),
    "parameters-without-gradient": (
        row({"activation": "detached"}, layer="cheb", depth=4, width=4, graph="grid", lr=0.02),
        row({"frozen": "*weight"}, layer="tag", depth=3, width=8, graph="small world", **_SLOW),
        row({"frozen": "encoder.*"}, layer="sage-sum", depth=4, width=6, task="graphs", nodes=300, steps=150),
        row({"activation": "detached"}, layer="gat-4", depth=4, width=4, graph="tree", lr=0.02, steps=150),
    ),
    "gradients-not-cleared": (
        row({"clears": False}, layer="gat-4", depth=4, graph="tree", **by("SGD", 0.3)),
        row({"clears": False}, layer="cheb", depth=4, graph="grid", **by("Nesterov", 0.1)),
        row({"clears": False}, layer="sage", depth=4, task="regression", graph="tree", **by("momentum", 0.05)),
        row({"clears": False}, layer="tag", depth=4, graph="power law", **by("RMSprop", 0.01)),
    ),
    "clipping-too-tight": (
        row({"clip": 1e-4}, layer="tag", depth=3, graph="tree", **_SLOW),
        row({"clip": 1e-4}, layer="gat-4", depth=3, graph="small world", **by("Nesterov", 0.05)),
        row({"disturb": "values clipped at 1e-5"}, layer="graph", depth=3, task="graphs", nodes=300, **_SLOW),
        row({"clip": 1e-10}, layer="cheb", depth=3, graph="preferential", batch=50),
    ),
    "weight-decay-too-strong": (
        row({"decay": 0.5}, layer="tag", depth=3, graph="tree", **_SLOW),
        row({"decay": 0.5}, layer="cheb", depth=3, graph="grid", task="regression"),
        row({"decay": 30.0}, layer="gat-4", depth=3, graph="preferential", optimizer="AdamW"),
        row({"decay": 0.3}, layer="sage", depth=3, task="links", graph="small world", **by("Nesterov", 0.05)),
    ),
    "input-nonfinite": (
        row({"inputs": ("NaN in rows", 1)}, layer="tag", depth=3, graph="grid", **_SLOW),
        row({"inputs": ("infinity in rows", 3)}, layer="graph", depth=2, graph="tree", task="regression"),
        row({"inputs": ("log", 1)}, layer="cheb", depth=2, graph="power law", features="words", norm="layer"),
    ),
    "input-scale": (
        row({"inputs": ("scaled", 5e3)}, layer="cheb", depth=3, graph="grid", **_SLOW),
        row({"inputs": ("row numbers", 1e3)}, layer="tag", depth=3, graph="tree", **by("Nesterov", 0.05)),
        row({"inputs": ("scaled", 1e-5)}, layer="graph", depth=2, graph="small world", **by("SGD", 0.02)),
        row({"inputs": ("row numbers", 1e3)}, layer="gat-4", depth=2, graph="preferential"),
    ),
    "input-constant": (
        row({"inputs": ("all equal", 1)}, layer="gat-4", depth=3, graph="preferential"),
        row({"inputs": ("rows equal", 1)}, layer="gatv2", depth=3, graph="tree", **by("RMSprop", 0.003)),
        row({"inputs": ("all equal", 2)}, layer="sage", depth=3, graph="small world", task="links", steps=150),
        row({"inputs": ("rows equal", 1)}, layer="graph", depth=3, graph="other classes", **by("SGD", 0.01)),
    ),
    "output-softmax-twice": (
        row({"output": "softmax"}, layer="gat-4", depth=4, classes=8, columns=64, graph="small world", **_SLOW),
        row({"output": "softmax"}, layer="cheb", depth=4, classes=10, graph="grid", **by("SGD", 0.05)),
        row(
            {"output": "sigmoid"}, layer="sage", depth=3, task="links", graph="small world", **by("SGD", 0.3), steps=300
        ),
        row(
            {"output": "softmax", "loss": "negative log-likelihood"},
            layer="tag",
            depth=4,
            classes=10,
            graph="tree",
            steps=60,
            **by("SGD", 0.1),
        ),
    ),
    "output-softmax-over-nodes": (
        row(_OVER_NODES, layer="tag", depth=3, graph="grid"),
        row(_OVER_NODES, layer="graph", depth=3, graph="small world", **by("SGD", 0.01)),
        row(_OVER_NODES, layer="cheb", depth=3, graph="tree", **by("RMSprop", 0.003)),
    ),
    "output-relu": (
        row({"output": "relu"}, layer="cheb", depth=3, graph="grid", classes=8),
        row({"output": "relu"}, layer="gat-4", depth=3, graph="small world", classes=8, columns=64),
        row({"output": "relu"}, layer="tag", depth=3, graph="preferential", **by("Nesterov", 0.05)),
    ),
    "loss-broadcast": (
        row({"loss": "broadcast"}, layer="tag", depth=3, graph="grid", task="regression"),
        row({"loss": "broadcast, absolute"}, layer="cheb", depth=3, graph="small world", task="regression"),
        row({"loss": "broadcast"}, layer="graph", depth=3, graph="tree", task="regression", **by("RMSprop", 0.003)),
    ),
    "dropout-too-large": (
        row({"dropout": 0.99}, layer="cheb", depth=3, graph="grid"),
        row({"dropout": 0.98}, layer="gat-4", depth=3, graph="small world"),
        row({"dropout": 0.98}, layer="tag", depth=4, graph="preferential", **by("Nesterov", 0.05)),
    ),
    "nonfinite-operation": (
        row({"activation": "log"}, layer="tag", depth=3, graph="grid"),
        row({"activation": "unit rows"}, layer="graph", depth=3, graph="tree", task="regression"),
        row({"activation": "root of zero"}, layer="cheb", depth=4, graph="small world", **by("RMSprop", 0.003)),
        row({"activation": "softmax by hand"}, layer="gat-4", depth=3, norm="batch", graph="preferential"),
    ),
    "attention-saturated": (
        row(init("attention", 1e4), layer="gat-4", depth=3, graph="small world", **_SLOW),
        row(init("attention", 1e4), layer="gatv2", depth=4, graph="preferential"),
        row(init("attention", 1e4), layer="gatv2", depth=3, graph="grid", **by("momentum", 0.02)),
        row(init("attention", 1e4), layer="gat", depth=5, graph="tree", task="regression", steps=150),
    ),
    "no-training-signal": (
        row({"labels": "all one"}, layer="tag", depth=3, graph="grid"),
        row({"loss": "times zero"}, layer="gat-4", depth=3, graph="preferential", **by("RMSprop", 0.003)),
        row({"loss": "empty mask"}, layer="cheb", depth=3, graph="tree", **_SLOW),
        row({"output": "detached"}, layer="graph", depth=3, task="links", graph="small world"),
    ),
    "law-broken": (
        row({"loss": "penalized later"}, layer="graph", depth=3, graph="small world", **by("SGD", 0.001), steps=200),
        row({"disturb": "gradient scaled later"}, layer="mlp", depth=4, **_SLOW),
        row({"disturb": "gradient noisy later"}, layer="sage", depth=3, graph="tree", **by("SGD", 0.005), steps=400),
    ),
    "optimizer-breaks-conservation": (
        row({"optimizer": "Adam", "lr": 0.02}, layer="graph", depth=3, graph="grid", **by("SGD", 0.03)),
        row({"optimizer": "Nesterov", "lr": 0.2}, layer="sage", depth=3, graph="tree", **by("SGD", 0.1)),
        row({"optimizer": "RMSprop"}, layer="gatv2", depth=3, graph="small world", **by("SGD", 0.1)),
    ),
    "overfitting": (
        row({"labels": "random"}, layer="tag", depth=2, width=64, graph="grid", steps=150),
        row({"train_share": 0.05, "layer": "mlp"}, layer="gcn", depth=2, width=64, nodes=400, steps=150),
        row({"labels": "random"}, layer="cheb", depth=2, width=64, steps=150, optimizer="AdamW"),
        row({"labels": "random"}, layer="gat-4", depth=3, width=64, nodes=300, steps=200),
    ),
    HEALTHY: (
        control(layer="gcn", graph="preferential", features="words", decay=5e-4, dropout=0.5, steps=200),
        control(layer="gat-4", graph="tree", dropout=0.6, lr=0.005, decay=5e-4, steps=200, width=64),
        control(layer="tag", graph="grid", **by("RMSprop", 0.003)),
        control(layer="cheb", graph="power law", **_SLOW, steps=200),
        control(layer="graph", graph="preferential", lr=0.003, depth=3),  # sums over hubs
        control(layer="gin", graph="power law", lr=0.003, depth=3, norm="batch"),
        control(layer="graph", graph="small world", **by("Nesterov", 0.02), norm="layer", depth=6),
        control(layer="mlp", graph="other classes", depth=3, dropout=0.5, width=64, steps=200),
        control(layer="sage", graph="other classes", depth=4, batch=25, optimizer="AdamW", steps=200),
        control(layer="gatv2", graph="grid", depth=10, lr=0.05, **_DEEP),
        control(layer="gat-4", graph="grid", depth=16, residual=True, norm="graph", steps=80),
        control(layer="gcn", graph="tree", depth=32, residual=True, norm="batch", width=16, steps=80),
        control(layer="cheb", graph="tree", depth=3, task="regression", lr=0.005),
        control(layer="tag", graph="preferential", task="regression", **by("momentum", 0.02), steps=200),
        control(layer="graph", task="graphs", nodes=300, depth=3, lr=0.003, batch=15, steps=200),
        control(layer="gat-4", task="graphs", nodes=400, depth=2, norm="batch", steps=200),
        control(layer="sage", task="links", graph="small world", depth=2, decay=1e-3, steps=200),
        control(layer="gcn", graph="power law", schedule="warm-up", lr=0.03, optimizer="Nesterov", steps=200),
        control(layer="cheb", graph="grid", schedule="cosine", **by("RMSprop", 0.01), clip=0.1),
        control(layer="transformer", graph="small world", batch=10, lr=0.002, steps=300),
        control(layer="tag", graph="other classes", classes=10, nodes=300, activation="gelu", depth=3),
        control(layer="sage", graph="tree", train_share=0.1, nodes=300, width=16),
        control(layer="gat", graph="power law", frozen="encoder.convs.0*", width=128, lr=0.02),
        control(
            layer="gin", graph="small world", activation="leaky", loss="label smoothing", decay=0.1, optimizer="AdamW"
        ),
        control(layer="gcn", graph="grid", inputs=("scaled", 10.0), lr=0.003, resumed=True),
        control(layer="mlp", graph="preferential", depth=8, activation="tanh", residual=True, **_SLOW, steps=200),
        control(layer="graph", graph="tree", activation="elu", output="log-softmax", **init("he", 1), lr=0.003),
        control(layer="gatv2", graph="preferential", features="words", inputs=("columns never used", 100), **_SLOW),
    ),
}
"""Cause -> rows that no rule was calibrated on: other graphs, layers, norms and optimizers.

They were fixed before any of them was diagnosed. The first diagnosis, before any change of a rule, was right in 94 of
98 faults, with no error or warning in 28 controls and 98 repaired twins. Wrong were init-unbalanced-103 (a bug of the
bank gave it NaN weights; once fixed, it led to the rule that compares neurons within a layer), depth-oversmoothing-100,
lr-too-small-102 and optimizer-breaks-conservation-102, which still are.
"""

PAIRS: Final[tuple[Row, ...]] = (
    row({"gradients-not-cleared": {"clears": False}, "init-unbalanced": init("xavier", 1)},
        layer="gatv2", depth=12, **by("SGD", 0.02), steps=200, **init("balanced", 1)),
    row({"lr-too-small": {"lr": 1e-6}, "dead-units": init("biases", -6)},
        layer="gcn", depth=3),
    row({"input-scale": {"inputs": ("scaled", 3e3)}, "output-softmax-twice": {"output": "softmax"}},
        layer="sage", depth=4, classes=8, columns=64, **_SLOW),
    row({"weight-decay-too-strong": {"decay": 0.3}, "depth-oversmoothing": {"depth": 32}},
        layer="gcn", depth=3, **_SGD, **init("he", 1)),
    row({"parameters-not-in-optimizer": {"optimizes": "last"}, "init-too-small": init("scaled", 0.01)},
        layer="sage", depth=4, width=4, **_SGD),
    row({"clipping-too-tight": {"clip": 1e-4}, "init-unbalanced": init("alternating", 30)},
        layer="gcn", depth=4, graph="small world", **by("SGD", 0.3)),
    row({"input-constant": {"inputs": ("all equal", 1)}, "lr-too-large": {"lr": 3.0}},
        layer="gatv2", depth=3, graph="preferential"),
    row({"attention-saturated": init("attention", 1e4), "weight-decay-too-strong": {"decay": 30.0}},
        layer="gatv2", depth=4, graph="preferential", optimizer="AdamW"),
    row({"no-training-signal": {"labels": "all one"}, "dead-units": init("biases", -8)},
        layer="sage", depth=3, graph="grid", **by("SGD", 0.3)),
    row({"depth-vanishing-gradient": {"depth": 12, "activation": "sigmoid"}, "lr-too-small": {"lr": 1e-6}},
        layer="mlp", depth=3, activation="relu"),
    row({"parameters-without-gradient": {"activation": "detached"}, "lr-too-small": {"lr": 1e-5}},
        layer="gcn", depth=4, width=6, lr=0.02, steps=150),
    row({"output-softmax-twice": {"output": "softmax"}, "clipping-too-tight": {"clip": 1e-4}},
        layer="gatv2", depth=4, classes=8, columns=64, **_SLOW),
    row({"nonfinite-operation": {"activation": "unit rows"}, "lr-too-large": {"lr": 60.0}},
        layer="gcn", depth=3, **_SGD),
    row({"init-too-large": init("normal", 3), "weight-decay-too-strong": {"decay": 20.0}},
        layer="gatv2", depth=3, optimizer="AdamW"),
    row({"rank-collapse": {"width": 1}, "gradients-not-cleared": {"clears": False}},
        layer="mlp", depth=4, width=24, **by("momentum", 0.1)),
    row({"input-nonfinite": {"inputs": ("NaN in rows", 1)}, "parameters-not-in-optimizer": {"optimizes": "of a copy"}},
        layer="tag", depth=3, graph="tree"),
)  # fmt: skip
"""The changes that plant two faults, by cause, and the training without them."""

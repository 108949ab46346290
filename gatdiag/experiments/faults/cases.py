"""The bank: what is planted in which training. Each row is data; rows are added at the end of their cause."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults.held_out import HELD_OUT, HELD_OUT_CONTROLS
from gatdiag.experiments.faults.recipe import RESIDUAL, Recipe, Row, by, initialized, row

_HELD_OUT: Final = 100


@dataclass(frozen=True)
class Case:
    """A training in which something was planted, and the same training without it.

    Attributes:
        cause: Code of the finding that is right; "healthy" for a control.
        number: Its place among those of its cause, which also is the seed of its recipes.
        faulty: The training that is judged; of a control, the healthy one.
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
        """It is not for calibration: a row of `held_out`."""
        return self.number >= _HELD_OUT


def cases() -> Iterator[Case]:
    """All of the bank, in the order of causes; those held out are numbered from 100 on."""
    for cause in FAULTS:
        for number, (plant, usual) in [*enumerate(FAULTS[cause]), *enumerate(HELD_OUT[cause], _HELD_OUT)]:
            repaired = Recipe(**usual, seed=number)
            yield Case(cause, number, replace(repaired, **plant), repaired)
    for number, control in [*enumerate(CONTROLS), *enumerate(HELD_OUT_CONTROLS, _HELD_OUT)]:
        yield Case(HEALTHY, number, Recipe(**control, seed=number), None)


_GAT10: Final = {"layer": "gatv2", "depth": 10, "optimizer": "SGD", "steps": 200, "init": (("balanced", 1),)}
_SGD: Final = {"optimizer": "SGD", "lr": 0.5}

FAULTS: Final[Mapping[str, tuple[Row, ...]]] = MappingProxyType(
    {
        "init-unbalanced": (
            row(initialized(("xavier", 1)), **{**_GAT10, "depth": 12}, lr=0.02),
            row(initialized(("xavier", 1)), **{**_GAT10, "depth": 14}, lr=0.02, features="words"),
            row(initialized(("alternating", 30)), layer="gcn", depth=4, **_SGD),
            row(initialized(("alternating", 30)), layer="sage", depth=4, **_SGD),
            row(initialized(("alternating", 40)), layer="mlp", depth=4, task="graphs", nodes=300, steps=200, **_SGD),
            row(initialized(("alternating", 40)), layer="gatv2", depth=4, width=48, **_SGD),
            row(initialized(("xavier", 1)), **{**_GAT10, "width": 64}, lr=0.02, features="words"),
            row(initialized(("alternating", 30)), layer="gin", depth=2, optimizer="SGD", lr=0.05, classes=3),
        ),
        "init-too-small": (
            row(initialized(("scaled", 0.01)), layer="gcn", depth=3, steps=60, **_SGD),
            row(initialized(("scaled", 0.01)), layer="sage", depth=4, lr=0.5, optimizer="SGD"),
            row(initialized(("normal", 1e-3)), layer="gatv2", depth=4, **_SGD),
            row(initialized(("normal", 1e-3)), layer="mlp", depth=5, optimizer="momentum", lr=0.05, activation="tanh"),
            row(initialized(("scaled", 0.02)), layer="gin", task="graphs", depth=3, nodes=300, optimizer="SGD", lr=0.1),
            row(initialized(("scaled", 0.003)), layer="transformer", depth=3, **_SGD),
        ),
        "init-too-large": (
            row(initialized(("scaled", 25)), layer="gcn", depth=4, **_SGD),
            row(initialized(("scaled", 20)), layer="sage", depth=3, optimizer="SGD", lr=0.2),
            row(initialized(("normal", 3)), layer="gatv2", depth=4),
            row(initialized(("normal", 2)), layer="mlp", depth=4, optimizer="AdamW"),
            row(initialized(("scaled", 15)), layer="gin", depth=3, task="graphs", nodes=300, **by("momentum", 0.01)),
            row(initialized(("scaled", 30)), layer="transformer", depth=3, classes=3),
            row(initialized(("normal", 3)), layer="sage", task="regression", depth=3),
            row(initialized(("normal", 3)), layer="gcn", task="links", depth=2, steps=200),
        ),
        "depth-oversmoothing": (
            row({"residual": False}, layer="gcn", depth=32, residual=True, norm="layer", steps=60),
            row({"depth": 24}, layer="gat", depth=2),
            row({"depth": 24}, layer="gatv2", depth=2, **_SGD),
            row({"depth": 40}, layer="gcn", depth=3, init=(("he", 1),), nodes=300, **_SGD),
            row({"layer": "sgc-32", "depth": 2}, layer="gcn", depth=2, lr=0.01, nodes=300),
            row({"depth": 64, "residual": False}, layer="gcn", depth=12, **RESIDUAL, width=16, steps=60),
            row({"depth": 16}, layer="gcn", depth=2, task="regression", init=(("he", 1),), steps=150),
            row({"depth": 32}, layer="gat", depth=2, nodes=160, optimizer="AdamW", columns=16, width=16),
        ),
        "depth-vanishing-gradient": (
            row({"depth": 24}, layer="mlp", depth=3),
            row({"depth": 20, "residual": False}, layer="sage", depth=20, residual=True, norm="layer"),
            row({"depth": 10, "activation": "sigmoid"}, layer="mlp", depth=10, norm="", init=(("he", 1),)),
            row({"depth": 16}, layer="sage", depth=3, activation="tanh", **_SGD),
            row({"depth": 12, "activation": "sigmoid"}, layer="sage", depth=3, init=(("he", 1),), nodes=260),
            row({"depth": 32}, layer="mlp", depth=4, activation="elu", optimizer="momentum", lr=0.05),
            row({"depth": 24}, layer="mlp", depth=3, task="graphs", nodes=300, steps=150),
            row({"depth": 48, "residual": False}, layer="mlp", depth=48, **RESIDUAL, width=16, steps=60),
        ),
        "depth-exploding-gradient": (
            row({"norm": ""}, layer="sage", depth=20, residual=True, norm="layer", init=(("he", 1),), **_SGD),
            row({"norm": ""}, layer="sage-sum", depth=12, residual=True, norm="layer", optimizer="SGD", lr=0.05),
            row({"norm": ""}, layer="gcn", depth=40, residual=True, norm="batch", width=16, steps=60, **_SGD),
            row({"norm": ""}, layer="gatv2", depth=32, residual=True, norm="layer", optimizer="SGD", lr=0.05, width=16),
            row({"depth": 20}, layer="sage-sum", depth=2, init=(("he", 1),), optimizer="SGD", lr=0.01, nodes=160),
            row({"norm": ""}, layer="sage", depth=32, residual=True, norm="layer", init=(("he", 1),), lr=0.005),
            row({"norm": ""}, layer="sage-sum", depth=24, **RESIDUAL, **by("SGD", 0.02), width=16),
            row({"norm": ""}, layer="transformer", depth=24, **RESIDUAL, **by("SGD", 0.1), steps=60),
        ),
        "rank-collapse": (
            row(initialized(("constant", 1)), layer="gcn", depth=3),
            row(initialized(("constant", 1)), layer="gatv2", depth=3, **_SGD),
            row({"width": 1}, layer="mlp", depth=4, width=24),
            row({"width": 1}, layer="sage", depth=4, width=24, nodes=240),
            row({"depth": 64}, layer="mlp", depth=4, init=(("he", 1),), optimizer="SGD", lr=0.05, steps=60),
            row({"depth": 48}, layer="mlp", depth=3, init=(("he", 1),), optimizer="SGD", lr=0.1, steps=150),
        ),
        "dead-units": (
            row(initialized(("biases", -6)), layer="gcn", depth=3),
            row(initialized(("biases", -8)), layer="sage", depth=3, **_SGD),
            row(initialized(("negative", 1), ("biases", -0.5)), layer="mlp", depth=3, features="words"),
            row(initialized(("biases", -6)), layer="gcn", depth=4, norm="batch", optimizer="AdamW"),
            row({"inputs": ("shifted", -6), **initialized(("negative", -1))}, layer="mlp", depth=3, **_SGD),
            row(initialized(("biases", -10)), layer="gatv2", depth=3, features="words", classes=3),
            row(initialized(("biases", -8)), layer="sage", depth=3, task="graphs", nodes=300),
            row(initialized(("biases", -6)), layer="transformer", depth=3, task="regression", steps=150),
        ),
        "lr-too-large": (
            row({"lr": 60.0}, layer="gcn", depth=3, **_SGD),
            row({"lr": 2.0}, layer="sage", depth=3),
            row({"lr": 3.0}, layer="gatv2", depth=3, optimizer="AdamW"),
            row({"lr": 30.0}, layer="mlp", depth=3, optimizer="momentum", lr=0.1),
            row({"lr": 3.0}, layer="gin", depth=3, task="graphs", nodes=300, batch=20),
            row({"lr": 40.0}, layer="gat", depth=2, optimizer="SGD", lr=0.5, steps=150),
            row({"lr": 2.0}, layer="transformer", depth=3, batch=32),
            row({"lr": 5.0}, layer="sage", depth=2, task="regression", optimizer="momentum", lr=0.02),
            row({"lr": 20.0}, layer="gcn", depth=8, residual=True, **_SGD),
            row({"lr": 2.0}, layer="gcn", depth=3, task="links"),
        ),
        "lr-too-small": (
            row({"lr": 1e-4}, layer="gcn", depth=3, **_SGD),
            row({"lr": 1e-6}, layer="sage", depth=3),
            row({"lr": 1e-6}, layer="gatv2", depth=3, optimizer="AdamW"),
            row({"lr": 1e-5}, layer="mlp", depth=3, optimizer="momentum", lr=0.1),
            row({"lr": 1e-6}, layer="gin", depth=3, task="graphs", nodes=300, batch=20),
            row({"schedule": "collapse"}, layer="gat", depth=2, optimizer="SGD", lr=0.5, steps=150),
            row({"lr": 3e-6}, layer="transformer", depth=3, batch=32),
            row({"lr": 1e-5}, layer="sage", depth=2, task="regression", optimizer="momentum", lr=0.05),
            row({"lr": 1e-6}, layer="gcn", depth=16, residual=True, norm="layer"),
            row({"schedule": "collapse"}, layer="gcn", depth=3, task="links", lr=0.005, steps=150),
        ),
        "parameters-not-in-optimizer": (
            row({"optimizes": "of a copy"}, layer="gcn", depth=3),
            row({"optimizes": "last"}, layer="sage", depth=4, width=4, **_SGD),
            row({"optimizes": "before rebuilding"}, layer="gatv2", depth=4, width=6, lr=0.02),
            row({"optimizes": "layers in a list"}, layer="gcn", depth=4, width=8, lr=0.02),
            row({"optimizes": "last"}, layer="gin", depth=3, width=8, task="graphs", nodes=300),
            row({"optimizes": "biases"}, layer="transformer", depth=3, steps=60),
            row({"optimizes": "layers in a list"}, layer="mlp", depth=4, width=8, optimizer="momentum", lr=0.1),
            row({"optimizes": "of a copy"}, layer="sage", depth=3, task="regression", optimizer="AdamW"),
        ),
        "parameters-without-gradient": (
            row({"activation": "detached"}, layer="gcn", depth=4, width=6, lr=0.02),
            row({"frozen": "*weight"}, layer="sage", depth=3, width=16, **_SGD),
            row({"frozen": "encoder.convs.[01]*"}, layer="gatv2", depth=3, width=3, lr=0.02),
            row({"activation": "detached"}, layer="mlp", depth=4, width=6, optimizer="momentum", lr=0.1),
            row({"frozen": "encoder.*"}, layer="gin", depth=4, width=6, task="graphs", nodes=300, steps=150),
            row({"activation": "detached"}, layer="transformer", depth=4, width=6, batch=40, lr=0.02),
            row({"frozen": "encoder.*"}, layer="gcn", depth=3, width=6, task="links", steps=150),
            row({"activation": "detached"}, layer="sage", depth=4, width=4, task="regression", lr=0.02, steps=150),
        ),
        "gradients-not-cleared": (
            row({"clears": False}, layer="gcn", depth=3, optimizer="SGD", lr=2.0),
            row({"clears": False}, layer="sage", depth=4, lr=0.03),
            row({"clears": False}, layer="gatv2", depth=4, optimizer="momentum", lr=0.1),
            row({"clears": False}, layer="mlp", depth=4, optimizer="momentum", lr=0.2),
            row({"clears": False}, layer="gin", depth=3, task="graphs", nodes=300, batch=20, optimizer="SGD", lr=0.1),
            row({"clears": False}, layer="sage", depth=3, task="regression", optimizer="SGD", lr=0.3),
            row({"clears": False}, layer="transformer", depth=4, batch=32, optimizer="SGD", lr=0.5),
            row({"clears": False}, layer="gcn", depth=6, residual=True, optimizer="AdamW", lr=0.03),
        ),
        "clipping-too-tight": (
            row({"clip": 1e-3}, layer="gcn", depth=3, **_SGD),
            row({"clip": 1e-4}, layer="sage", depth=3, optimizer="momentum", lr=0.1),
            row({"clip": 1e-10}, layer="gatv2", depth=3),
            row({"clip": 1e-3}, layer="mlp", depth=4, **_SGD),
            row({"clip": 1e-3}, layer="gin", depth=3, task="graphs", nodes=300, batch=20, optimizer="SGD", lr=0.1),
            row({"disturb": "values clipped at 1e-5"}, layer="gcn", depth=2, **_SGD),
            row({"clip": 1e-4}, layer="sage", depth=2, task="regression", optimizer="SGD", lr=0.1),
            row({"clip": 1e-10}, layer="transformer", depth=3, optimizer="AdamW"),
        ),
        "weight-decay-too-strong": (
            row({"decay": 0.3}, layer="gcn", depth=3, **_SGD),
            row({"decay": 0.2}, layer="sage", depth=3),
            row({"decay": 20.0}, layer="gatv2", depth=3, optimizer="AdamW"),
            row({"decay": 0.3}, layer="mlp", depth=4, optimizer="momentum", lr=0.1),
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
            row({"inputs": ("scaled", 1e4)}, layer="mlp", depth=4, optimizer="momentum", lr=0.05),
            row({"inputs": ("scaled", 3e3)}, layer="gin", depth=3, task="graphs", nodes=300, optimizer="SGD", lr=0.1),
            row({"inputs": ("scaled", 1e-5)}, layer="gcn", depth=2, **_SGD),
            row({"inputs": ("one column scaled", 1e4)}, layer="transformer", depth=3, optimizer="AdamW"),
            row({"inputs": ("one column scaled", 1e4)}, layer="sage", task="regression", optimizer="SGD", lr=0.05),
        ),
        "input-constant": (
            row({"inputs": ("all equal", 1)}, layer="gatv2", depth=2),
            row({"inputs": ("rows equal", 1)}, layer="sage", depth=3, **_SGD),
            row({"inputs": ("all equal", 1)}, layer="mlp", depth=3, optimizer="momentum", lr=0.05),
            row({"inputs": ("all equal", 1)}, layer="transformer", depth=3, optimizer="AdamW"),
            row({"inputs": ("rows equal", 1)}, layer="gat", depth=3, batch=40),
            row({"inputs": ("all equal", 0)}, layer="gcn", depth=2),
            row({"inputs": ("all equal", 1)}, layer="sage", depth=2, task="regression"),
            row({"inputs": ("all equal", 1)}, layer="gat", depth=2, task="graphs", nodes=300),
        ),
        "output-softmax-twice": (
            row({"output": "softmax"}, layer="gcn", depth=3, classes=8, nodes=320, columns=64, **_SGD),
            row({"output": "softmax"}, layer="sage", depth=4, classes=8, optimizer="SGD", lr=0.2, columns=64),
            row({"output": "sigmoid"}, layer="gcn", depth=3, task="links", optimizer="SGD", lr=0.1, steps=300),
            row({"output": "softmax"}, layer="mlp", depth=4, optimizer="momentum", lr=0.05),
            row({"output": "softmax"}, layer="gin", depth=3, task="graphs", nodes=300, optimizer="SGD", lr=0.02),
            row({"output": "sigmoid"}, layer="transformer", depth=4, classes=8, columns=64, optimizer="SGD", lr=0.2),
            row({"output": "softmax"}, layer="gatv2", depth=4, classes=8, columns=64, lr=0.003, steps=60),
            row({"output": "softmax", "loss": "negative log-likelihood"}, layer="gcn", depth=4, classes=8, **_SGD),
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
            row(initialized(("attention", 3e3)), layer="gat", depth=3, **_SGD),
            row(initialized(("attention", 3e3)), layer="gatv2", depth=3),
            row(initialized(("attention", 1e4)), layer="gat", depth=3, task="regression", steps=150),
            row(initialized(("attention", 1e4)), layer="gatv2", depth=5, nodes=300, **_SGD),
            row(initialized(("attention", 1e4)), layer="gat", depth=4, optimizer="AdamW"),
            row(initialized(("attention", 1e4)), layer="gatv2", depth=4, task="regression", steps=150),
            row(initialized(("attention", 1e4)), layer="gatv2", depth=3, optimizer="momentum", lr=0.02, nodes=240),
            row(initialized(("attention", 1e4)), layer="gat", depth=6, classes=3),
        ),
        "no-training-signal": (
            row({"labels": "all one"}, layer="gcn", depth=3),
            row({"loss": "times zero"}, layer="sage", depth=3, **_SGD),
            row({"loss": "empty mask"}, layer="gatv2", depth=3),
            row({"output": "detached"}, layer="mlp", depth=3, optimizer="momentum", lr=0.05),
            row({"labels": "all one"}, layer="gin", depth=3, task="graphs", nodes=300),
            row({"labels": "all one"}, layer="transformer", depth=3, batch=40, optimizer="AdamW"),
            row({"loss": "times zero"}, layer="sage", depth=2, task="regression"),
            row({"loss": "empty mask"}, layer="gcn", depth=6, residual=True),
        ),
        "law-broken": (
            row({"loss": "penalized later"}, layer="gcn", depth=3, optimizer="SGD", lr=0.1),
            row({"disturb": "gradient scaled later"}, layer="sage", depth=3, optimizer="SGD", lr=0.1),
            row({"disturb": "gradient noisy later"}, layer="gatv2", depth=3, optimizer="SGD", lr=0.05),
            row({"loss": "penalized later"}, layer="mlp", depth=3, optimizer="SGD", lr=0.3, steps=150),
        ),
        "optimizer-breaks-conservation": (
            row({"optimizer": "Adam", "lr": 0.02}, layer="gcn", depth=3, optimizer="SGD", lr=0.1),
            row({"optimizer": "AdamW", "lr": 0.02, "decay": 1.0}, layer="sage", depth=3, optimizer="SGD", lr=0.1),
            row({"decay": 0.02}, layer="gatv2", depth=3, optimizer="SGD", lr=0.02, steps=200),
            row({"optimizer": "momentum", "lr": 0.2}, layer="gcn", depth=2, optimizer="SGD", lr=0.2),
        ),
        "overfitting": (
            row({"labels": "random"}, layer="gcn", depth=2, width=64, steps=200),
            row({"train_share": 0.06, "layer": "mlp"}, layer="gcn", depth=2, steps=150, nodes=300, width=64),
            row({"labels": "random"}, layer="sage", depth=2, width=64, steps=150, classes=3),
            row({"labels": "random"}, layer="transformer", depth=2, width=64, steps=150),
            row({"train_share": 0.03}, layer="sage", depth=2, steps=150, nodes=300, width=64),
            row({"labels": "random"}, layer="gcn", depth=3, width=64, steps=200, optimizer="AdamW", nodes=300),
        ),
    }
)
"""Cause -> rows: what is planted, and the training that it is planted in, which is the repaired twin."""

CONTROLS: Final[tuple[dict[str, Any], ...]] = (
    {"layer": "gcn"},
    {"layer": "gcn", "features": "words", "decay": 5e-4, "dropout": 0.5, "steps": 200},
    {"layer": "gat", **_SGD, "steps": 200},
    {"layer": "gatv2", "depth": 3},
    {"layer": "sage", "depth": 3, **_SGD},
    {"layer": "gin", "depth": 3},
    {"layer": "transformer", "depth": 3},
    {"layer": "mlp", "depth": 4, "optimizer": "momentum", "lr": 0.05},
    {"layer": "gcn", "depth": 64, "residual": True, "norm": "layer", "width": 16, "steps": 60},  # big depth
    {"layer": "gatv2", "depth": 32, "residual": True, "norm": "batch", "width": 16, "steps": 60},
    {"layer": "sage", "depth": 16, "residual": True, "norm": "layer"},
    {"layer": "gin", "depth": 8, "residual": True, "norm": "batch"},
    {**_GAT10, "lr": 0.05},
    {**_GAT10, "lr": 0.02, "depth": 16, "features": "words"},
    {"layer": "gcn", "schedule": "warm-up", "lr": 0.02, "steps": 200},  # schedules
    {"layer": "transformer", "depth": 4, "schedule": "warm-up", "optimizer": "AdamW", "lr": 0.01, "steps": 200},
    {"layer": "sage", "schedule": "cosine", "lr": 0.02},
    {"layer": "gatv2", "schedule": "drop", "optimizer": "momentum", "lr": 0.1, "steps": 200},
    {"layer": "gcn", "dropout": 0.8, "width": 64, "steps": 300},  # noise
    {"layer": "gat", "dropout": 0.6, "depth": 3, "width": 64, "steps": 300},
    {"layer": "sage", "batch": 8, "lr": 0.003, "steps": 300},
    {"layer": "gcn", "batch": 16, "optimizer": "momentum", "lr": 0.05, "steps": 300},
    {"layer": "gin", "task": "graphs", "nodes": 300, "batch": 4, "lr": 0.003, "steps": 300},
    {"layer": "mlp", "batch": 4, "lr": 0.003, "steps": 400, "depth": 3},
    {"layer": "gcn", "frozen": "encoder.convs.0*", "width": 128},  # frozen on purpose
    {"layer": "gin", "depth": 2, "task": "graphs", "nodes": 200, "frozen": "encoder.convs.0*", "width": 64},
    {"layer": "gcn", "features": "words", "inputs": ("columns never used", 40)},  # features that never occur
    {"layer": "gatv2", "features": "words", "inputs": ("columns never used", 200), "optimizer": "AdamW"},
    {"layer": "gcn", "resumed": True},
    {"layer": "gatv2", "depth": 3, "resumed": True, "optimizer": "momentum", "lr": 0.1},
    {"layer": "mlp", "depth": 6, "activation": "tanh", **_SGD, "lr": 0.1, "steps": 400},  # plateaus
    {"layer": "gcn", "depth": 5, "optimizer": "SGD", "lr": 0.3, "steps": 400},
    {"layer": "sage", "task": "regression", "depth": 3},
    {"layer": "gatv2", "task": "regression", "depth": 3, "steps": 200},
    {"layer": "mlp", "task": "regression", "depth": 3, "optimizer": "momentum", "lr": 0.05, "steps": 200},
    {"layer": "gcn", "task": "links", "steps": 200},
    {"layer": "sage", "task": "links", "depth": 3, "steps": 200},
    {"layer": "gat", "task": "graphs", "nodes": 300, "depth": 3, "steps": 150},
    {"layer": "sage-sum", "task": "graphs", "nodes": 300, "depth": 2},
    {"layer": "transformer", "task": "graphs", "nodes": 300, "batch": 20, "depth": 2, "steps": 150},
    {"layer": "gcn", "output": "log-softmax"},  # harmless twice
    {"layer": "gcn", "output": "log-softmax", "loss": "negative log-likelihood", "optimizer": "AdamW"},
    {"layer": "sage", "loss": "label smoothing", "clip": 1.0},
    {"layer": "gatv2", "clip": 0.5, "optimizer": "AdamW", "decay": 0.01, "depth": 4},
    {"layer": "gcn", "loss": "summed", "lr": 0.01},
    {"layer": "sage", "inputs": ("scaled", 5.0), "lr": 0.005},
    {"layer": "gcn", "inputs": ("scaled", 0.1), "lr": 0.03},
    {"layer": "gin", "init": (("scaled", 0.5),), "depth": 3},
    {"layer": "mlp", "activation": "sigmoid", "depth": 3, "lr": 0.03, "steps": 200},
    {"layer": "gcn", "norm": "pair", "depth": 6, "steps": 200},
    {"layer": "sage", "activation": "elu", "depth": 5, "optimizer": "AdamW", "decay": 0.05},
    {"layer": "transformer", "depth": 8, "residual": True, "norm": "layer", "batch": 40, "classes": 3},
)
"""Trainings in which nothing is wrong; many of them look as if something were."""

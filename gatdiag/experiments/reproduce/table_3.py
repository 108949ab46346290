"""Table 3: variants of the architecture on Cora under gradient descent."""

from typing import Any, Final

from gatdiag.experiments.reproduce.gats import BAL_O, BAL_X, SEEDS, THREE, XAV, of_paper
from gatdiag.experiments.reproduce.reproduction import published
from gatdiag.experiments.settings import Experiment, Optimizer
from gatdiag.experiments.sweep import grid

PRINTED: Final = {XAV: (25.5, 18.0), BAL_X: (77.7, 1.5), BAL_O: (79.5, 1.3)}
"""Accuracy of ten layers, and half its interval."""
_PLAIN: dict[str, Any] = {
    "layers": 10,
    "heads": 1,
    "activation": "relu",
    "dropout": 0.0,
    "weight_decay": 0.0,
    "share_weights": True,
}
_CHANGED: tuple[dict[str, Any], ...] = (
    {},
    {"heads": 8},
    {"activation": "elu"},
    {"dropout": 0.6, "attention_dropout": 0.6},
    {"weight_decay": 5e-4},
    {"share_weights": False},
)


def variants(optimizer: Optimizer) -> tuple[Experiment, ...]:
    """The trainings of tables 3 and 4, the plain ones first."""
    common = {"optimizer": optimizer, "layers": (5, 10), "initialization": THREE, "seed": SEEDS}
    return tuple(cell for change in _CHANGED for cell in grid(**common, **change))


VARIANTS_NOTES = (
    "Dropout 0.6 is of attention coefficients and of features after the activation, not of the input, as in the code.",
    "With eight heads a hidden layer is 512 wide.",
)
REPRODUCTION = of_paper(
    "table 3",
    title="Cora, gradient descent: GATs of 5 and 10 layers and their variants, by initialization",
    claim="Balanced initializations train GATs of ten layers that Xavier's does not, with eight heads, ELU, dropout, "
    "weight decay and separate weights, too.",
    full=variants("SGD"),
    quick=grid(layers=(5, 10), initialization=THREE, epochs=1000),
    published=published(PRINTED, "initialization", source="table 3", **_PLAIN),
    notes=VARIANTS_NOTES,
)

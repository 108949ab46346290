"""Table 3: variants of the architecture on Cora under gradient descent."""

from gatdiag.experiments.reproduce.gats import BAL_O, BAL_X, NAMES, PAPER, SEEDS, STOP, THREE, XAV
from gatdiag.experiments.reproduce.reproduction import Published, Reproduction
from gatdiag.experiments.sweep import grid

_COMMON = {"layers": [5, 10], "initialization": THREE}
_TEN = {"layers": 10, "heads": 1, "activation": "relu", "dropout": 0.0, "weight_decay": 0.0, "share_weights": True}

REPRODUCTION = Reproduction(
    name="table-3",
    title="Cora, gradient descent: GATs of 5 and 10 layers and their variants, by initialization",
    paper=f"{PAPER}, table 3",
    claim="Balanced initializations train GATs of ten layers that Xavier's does not, with eight heads, ELU, dropout, "
    "weight decay and separate weights, too.",
    full=(
        *grid(**_COMMON, seed=SEEDS),
        *grid(**_COMMON, heads=8, seed=SEEDS),
        *grid(**_COMMON, activation="elu", seed=SEEDS),
        *grid(**_COMMON, dropout=0.6, attention_dropout=0.6, seed=SEEDS),
        *grid(**_COMMON, weight_decay=5e-4, seed=SEEDS),
        *grid(**_COMMON, share_weights=False, seed=SEEDS),
    ),
    quick=grid(layers=10, initialization=THREE, epochs=1000),
    left_out="1000 epochs in place of 5000, seed 0 of five, the plain GAT of ten layers only.",
    published=(
        Published({**_TEN, "initialization": XAV}, 25.5, 18.0, source="table 3"),
        Published({**_TEN, "initialization": BAL_X}, 77.7, 1.5, source="table 3"),
        Published({**_TEN, "initialization": BAL_O}, 79.5, 1.3, source="table 3"),
    ),
    record=True,
    notes=(
        NAMES,
        STOP,
        "Dropout is of attention coefficients and of features after the activation, not of the input, as in the code.",
    ),
)

"""Figure 2: the conservation law, and what it conserves."""

from gatdiag.experiments.reproduce.gats import BAL_O, XAV, of_one_training
from gatdiag.experiments.reproduce.reproduction import Drawing
from gatdiag.experiments.sweep import grid
from gatdiag.run import Run


def _laws(run: Run) -> dict[str, float]:
    """How far delta is from zero at most, and c from where it was."""
    table = run.neurons
    first, last = (table[table["step"] == step].set_index("law")["c"] for step in table["step"].iloc[[0, -1]])
    change = (last - first).abs()
    return {
        "largest_delta": float(table["delta"].abs().max()),
        "largest_c_at_first": float(first.abs().max()),
        "largest_change_of_c": float(change.max()),
        "mean_change_of_c": float(change.mean()),
    }


REPRODUCTION = of_one_training(
    "figure 2",
    title="The law of gradients (delta) and the quantity that it conserves (c) over training",
    claim="delta is zero up to rounding under gradient descent and under Adam; c stays almost where it was under "
    "gradient descent: far from zero from Xavier's weights, at zero from balanced ones.",
    full=(
        *grid(layers=3, optimizer=("SGD", "Adam"), learning_rate=0.1),
        *grid(layers=10, initialization=(XAV, BAL_O), learning_rate=0.1),
    ),
    columns=("largest_delta", "largest_c_at_first", "largest_change_of_c", "mean_change_of_c"),
    measured=_laws,
    drawings=(Drawing("conservation", {"layers": 3}), Drawing("balance", {"layers": 10})),
    notes=(
        "The paper does not say from which weights its three-layer networks began: here it is xavier.",
        "In float32 delta is not exactly zero; its size is to be compared with that of its terms.",
    ),
)

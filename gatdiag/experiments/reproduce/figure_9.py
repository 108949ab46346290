"""Figure 9: identity and looks-linear initializations, balanced and not."""

from gatdiag.experiments.reproduce.gats import SEEDS, drawn_by_depth, of_paper
from gatdiag.experiments.sweep import grid

_BASES = ("xavier", "identity", "looks_linear_identity", "orthogonal")
_SCHEMES = tuple(f"{prefix}{base}" for base in _BASES for prefix in ("", "balanced_"))

REPRODUCTION = of_paper(
    "figure 9",
    title="Cora, gradient descent: four initializations as they are and balanced, by depth",
    claim="Balancing helps other initializations, too; looks-linear orthogonal weights, balanced, train the deepest.",
    full=grid(layers=(2, 5, 10, 20, 40, 64, 80), initialization=_SCHEMES, seed=SEEDS),
    quick=grid(layers=(2, 10), initialization=_SCHEMES, epochs=500),
    columns=("test_accuracy", "epochs_to_best"),
    drawings=drawn_by_depth(),
    notes=(
        "The paper's LLidentity is looks_linear_identity, its LLortho orthogonal. Neither identity is in its code: the "
        "first and the last matrix are Xavier's; balanced, the first has rows of squared norm 1 (identity) or 2, as "
        "its text says, which is what keeps a signal's size in such a stack.",
    ),
)

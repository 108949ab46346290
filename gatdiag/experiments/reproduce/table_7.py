"""Table 7: the same balance in GCNs, which have no attention."""

from gatdiag.experiments.reproduce.gats import SEEDS, drawn_by_depth, of_paper
from gatdiag.experiments.sweep import grid

_SCHEMES = ("xavier", "balanced_xavier", "orthogonal", "balanced_orthogonal")
_DATA = ("Cora", "CiteSeer:isolated=unmasked")
_DEPTHS = (2, 5, 10, 20, 40, 64, 80)

REPRODUCTION = of_paper(
    "table 7",
    title="GCN, gradient descent: accuracy by depth and initialization",
    claim="Balance, which for a GCN is the law without attention, helps deep GCNs as it does GATs.",
    full=grid(model="gcn", data=_DATA, layers=_DEPTHS, initialization=_SCHEMES, seed=SEEDS),
    quick=grid(model="gcn", layers=(2, 5, 10), initialization=_SCHEMES, epochs=1000),
    drawings=drawn_by_depth(*_DATA),
    notes=(
        "The paper's code has no GCN: its settings are taken to be those of its GATs. That the second data set is "
        "CiteSeer is presumed, and which depths between 2 and 80 the table has, too.",
    ),
)

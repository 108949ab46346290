"""Table 7: the same balance in GCNs, which have no attention."""

from gatdiag.experiments.reproduce.gats import PAPER, SEEDS, STOP, by_depth
from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.sweep import grid

_SCHEMES = ("xavier", "balanced_xavier", "orthogonal", "balanced_orthogonal")

REPRODUCTION = Reproduction(
    name="table-7",
    title="GCN, gradient descent: accuracy by depth and initialization",
    paper=f"{PAPER}, table 7",
    claim="Balance, which for a GCN is the law without attention, helps deep GCNs as it does GATs.",
    full=grid(
        model="gcn",
        data=("Cora", "CiteSeer:isolated=unmasked"),
        layers=(2, 5, 10, 20, 40, 64, 80),
        initialization=_SCHEMES,
        seed=SEEDS,
    ),
    quick=grid(model="gcn", layers=(2, 5, 10), initialization=_SCHEMES, epochs=1000),
    left_out="depths beyond 10, CiteSeer, 4000 of 5000 epochs, and seeds 1 to 4.",
    drawings=tuple(
        Drawing("accuracy_by_depth", {"data": data}, table=by_depth) for data in ("Cora", "CiteSeer:isolated=unmasked")
    ),
    notes=(
        STOP,
        "The paper's code has no GCN: its settings are taken to be those of its GATs. That the second data set is "
        "CiteSeer is presumed, and which depths between 2 and 80 the table has, too.",
    ),
)

"""Table 4: variants of the architecture on Cora under Adam."""

from gatdiag.experiments.reproduce.gats import PAPER, THREE
from gatdiag.experiments.reproduce.reproduction import Reproduction
from gatdiag.experiments.reproduce.table_3 import VARIANTS_NOTES, variants
from gatdiag.experiments.sweep import grid

REPRODUCTION = Reproduction(
    name="table-4",
    title="Cora, Adam: GATs of 5 and 10 layers and their variants, by initialization",
    paper=f"{PAPER}, table 4",
    claim="Under Adam, too, balanced initializations are better than Xavier's in GATs of ten layers.",
    full=variants("Adam"),
    quick=grid(optimizer="Adam", layers=(5, 10), initialization=THREE, epochs=1000),
    left_out="4000 of 5000 epochs, seeds 1 to 4, and all variants of the plain GAT.",
    notes=VARIANTS_NOTES,
)

"""Table 4: variants of the architecture on Cora under Adam."""

from gatdiag.experiments.reproduce.gats import THREE, of_paper
from gatdiag.experiments.reproduce.table_3 import VARIANTS_NOTES, variants
from gatdiag.experiments.sweep import grid

REPRODUCTION = of_paper(
    "table 4",
    title="Cora, Adam: GATs of 5 and 10 layers and their variants, by initialization",
    claim="Under Adam, too, balanced initializations are better than Xavier's in GATs of ten layers.",
    full=variants("Adam"),
    quick=grid(optimizer="Adam", layers=(5, 10), initialization=THREE, epochs=1000),
    notes=VARIANTS_NOTES,
)

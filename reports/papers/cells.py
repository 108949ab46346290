"""`python -m reports.papers.cells`: the trainings that published tables lack, cheapest means over seeds first.

One process with one thread, in a sweep that resumes where it was killed (`gatdiag.experiments.sweep`). Start it again
with the same folder to go on; `python -m reports.papers table-2 --full --no-train` then takes over what is there.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from gatdiag.errors import GatdiagError
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import sweep
from reports.papers import gats
from reports.papers.runner import REPORTS, TRAININGS, cell_key, known_rows

_STUDIES: Final = (gats.TABLE_2, gats.TABLE_3, gats.TABLE_4, gats.TABLE_7)
# Milliseconds of an epoch on one core, of which the first are those of the first weight, the second of each layer of
# a GATv2: measured for Cora, CiteSeer and the three small graphs, by the number of edges for the others.
_MILLISECONDS: Final = {
    "texas.npz": (1.5, 0.6),
    "cornell.npz": (1.5, 0.6),
    "wisconsin.npz": (1.5, 0.65),
    "Cora": (7.5, 6.0),
    "CiteSeer:isolated=unmasked": (33.0, 6.0),
    "actor.npz": (13.0, 15.0),
    "chameleon.npz": (10.0, 15.0),
    "PubMed": (25.0, 48.0),
    "squirrel.npz": (20.0, 91.0),
}
_GCN: Final = 0.4  # the cost of a layer, relative to that of a GATv2
_ADAM_EPOCHS: Final = 1500  # about; gradient descent usually takes all epochs


def estimated_seconds(cell: Experiment) -> float:
    """About how long a training takes on one core, for the order.

    Example:
        >>> round(estimated_seconds(Experiment(data="wisconsin.npz", layers=2)))
        14
    """
    first, each = _MILLISECONDS[cell.data]
    layers = each * cell.layers * cell.heads * (_GCN if cell.model == "gcn" else 1.0)
    epochs = min(cell.epochs, _ADAM_EPOCHS) if cell.optimizer == "Adam" else cell.epochs
    return epochs * (first + layers) * (1.7 if cell.dropout else 1.0) / 1000


def missing_cells(reports: Path = REPORTS) -> tuple[Experiment, ...]:
    """The trainings of published tables that no results.csv has, cheapest means over seeds first.

    The other seeds of cells that are apart are means of their own.
    """
    groups: dict[Experiment, list[Experiment]] = {}
    for study in _STUDIES:
        known = known_rows(study, reports)
        for cell in (*study.full, *study.other_seeds):
            if cell_key(cell) not in known:
                seeds = study.other_seeds if cell in study.other_seeds else study.full
                group = replace(cell, seed=min(one.seed for one in seeds))
                groups.setdefault(group, []).append(cell)
    in_order = sorted(groups.values(), key=lambda cells: sum(map(estimated_seconds, cells)))
    return tuple(dict.fromkeys(cell for cells in in_order for cell in cells))


def train_cells(cells: Sequence[Experiment], trainings: Path, root: Path) -> None:
    """Train what has no result in the folder yet, in this order; prints a line for each training."""

    def tell(cell: Experiment, outcome: str) -> None:
        words = f"{cell.model} {cell.data} L={cell.layers} {cell.initialization} {cell.optimizer} seed {cell.seed}"
        typer.echo(f"{datetime.now():%H:%M:%S} {words}: {outcome}")

    failed = sweep(cells, trainings, root, on_cell=tell)
    typer.echo(f"{len(cells) - len(failed)} of {len(cells)} trainings are done")


def main(
    root: Annotated[Path, typer.Option(help="Folder of the data sets.")] = Path("data"),
    trainings: Annotated[Path, typer.Option(help="Folder of the trainings.")] = REPORTS / TRAININGS,
    first: Annotated[int, typer.Option(min=0, help="Train only so many of them, 0: all.")] = 0,
) -> None:
    """Train what the published tables lack, cheapest first."""
    cells = missing_cells()
    train_cells(cells[:first] if first else cells, trainings, root)


if __name__ == "__main__":
    try:
        typer.run(main)
    except GatdiagError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)

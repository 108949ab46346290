"""`gatdiag sweep`: all trainings of a grid, and a table of their results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatdiag.cli.options import DATA_FOLDER, Address, AsJson, Backend, Root, Workers, pool_of
from gatdiag.cli.printing import grid as table_of
from gatdiag.cli.printing import number, plain_console, print_document
from gatdiag.cli.training import trainings_progress
from gatdiag.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


_FORMS = {
    "test_accuracy": ".1%",
    "ci95": ".1%",
    "last_test_accuracy": ".1%",
    "converged": ".0%",
    "epochs_trained": ".0f",
}


def sweep(
    grid: Annotated[
        Path, typer.Argument(metavar="GRID", help="TOML file: settings of `gatdiag train`, as layers = [2, 5, 10].")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")] = Path("sweep"),
    root: Root = DATA_FOLDER,
    workers: Workers = None,
    backend: Backend = "processes",
    address: Address = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Watch the trainings, and keep their runs; a cluster has to share the folder."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train each combination of the settings in a file, and print means over seeds with 95 % confidence intervals.

    A result is written once its training has ended, and never again: killed or interrupted, the same command goes on
    with what is not done. The table is kept as table.csv. On a Dask or Ray cluster the results are the same; its
    workers need gatdiag, and the data sets at the same place.
    """
    from gatdiag.experiments import sweep as sweeping
    from gatdiag.run.files import atomic_write

    pool = pool_of(workers, backend, address)
    cells = sweeping.read_grid(grid)
    with trainings_progress(str(out), len(cells)) as on_cell:
        failed = sweeping.sweep(cells, out, root, pool=pool, watched=cells if record else (), on_cell=on_cell)
    wrong = []
    if failed:
        reasons = "; ".join(dict.fromkeys(failed.values()))
        wrong.append(f"{len(failed)} of {len(cells)} trainings failed, and are tried again next time: {reasons}")
    means = sweeping.summarize(cells, out)
    try:
        if not means.empty:
            with atomic_write(out / "table.csv") as part:
                means.to_csv(part, index=False)
    except OSError as error:
        wrong.append(f"{out / 'table.csv'} could not be written: {error}")
    if as_json:
        print_document({"version": 1, "table": means.to_dict("records"), "failed": [*failed.values()]})
    else:
        _print(means, out)
    if wrong:
        raise InputError("; ".join(wrong))


def _print(means: pd.DataFrame, out: Path) -> None:
    split = [*means].index("seeds") if "seeds" in means else 0
    table = table_of([*means][:split], [name.replace("_", "\n") for name in [*means][split:]])
    for _, row in means.iterrows():
        numbers = [number(float(row[name]), _FORMS.get(name, ".4g")) for name in [*means][split:]]
        table.add_row(*(str(value) for value in row.iloc[:split]), *numbers)
    console = plain_console()
    console.print(table)
    console.print(f"The results: {out}")

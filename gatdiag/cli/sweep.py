"""`gatdiag sweep`: trains a grid of settings and prints a table of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatdiag.cli.options import DATA_FOLDER, Address, Backend, Jobs, Out, Root, make_pool
from gatdiag.cli.printing import format_number, make_table, plain_console
from gatdiag.cli.training import count_progress, report_failures
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
        Path,
        typer.Argument(
            metavar="GRID",
            help="TOML file with settings of `gatdiag train`, such as layers = [2, 5, 10]; --lr is learning_rate in "
            "it, and --hidden is width.",
        ),
    ],
    out: Out = Path("sweep"),
    root: Root = DATA_FOLDER,
    jobs: Jobs = None,
    backend: Backend = "processes",
    address: Address = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Record the trainings and keep their runs; a cluster must share the folder."),
    ] = False,
) -> None:
    """Train every combination of the settings in a file.

    Prints means over seeds with 95% confidence intervals, and writes them to table.csv. Each result is written once,
    when its training ends; if interrupted, the same command resumes. A Dask or Ray cluster gives the same results; its
    workers need gatdiag, and the data sets at the same path.
    """
    from gatdiag.experiments import sweep as sweeping
    from gatdiag.run.files import atomic_write

    pool = make_pool(jobs, backend, address)
    cells = sweeping.read_grid(grid)
    with count_progress(str(out), len(cells)) as on_cell:
        failed = sweeping.sweep(cells, out, root, pool=pool, watched=cells if record else (), on_cell=on_cell)
    means = sweeping.summarize(cells, out)
    if not means.empty:
        with atomic_write(out / "table.csv") as part:
            means.to_csv(part, index=False)
        _print_means(means, out)
    if failed:
        raise InputError(report_failures(failed.values(), len(cells)))


def _print_means(means: pd.DataFrame, out: Path) -> None:
    split = [*means].index("seeds")
    table = make_table([*means][:split], [name.replace("_", "\n") for name in [*means][split:]])
    for _, row in means.iterrows():
        numbers = [format_number(float(row[name]), _FORMS.get(name, ".4g")) for name in [*means][split:]]
        table.add_row(*(str(value) for value in row.iloc[:split]), *numbers)
    console = plain_console()
    console.print(table)
    console.print(f"Results: {out}")

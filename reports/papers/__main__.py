"""`python -m reports.papers NAME`: trains what a name lacks, and writes its folder."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gatdiag.cli.training import count_progress, report_failures
from gatdiag.errors import GatdiagError
from gatdiag.experiments.pool import Pool
from reports.papers import (
    beyond_dot_product_attention,
    beyond_features,
    beyond_predicted_c,
    beyond_rebalancing,
    beyond_theorem_6_3,
    gats,
    laws,
    lipschitz,
    taming,
)
from reports.papers.agreement import write_summary
from reports.papers.page import write_script, write_study
from reports.papers.runner import REPORTS, measure_script, train_missing
from reports.papers.study import Study, trainings_of

STUDIES = {
    study.name: study
    for study in (
        *gats.STUDIES,
        *lipschitz.STUDIES,
        *taming.STUDIES,
        beyond_dot_product_attention.STUDY,
        beyond_features.STUDY,
        beyond_predicted_c.STUDY,
        beyond_rebalancing.STUDY,
        beyond_theorem_6_3.STUDY,
        laws.STUDY,
    )
}
"""All studies by name."""


SUMMARY = "summary"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Names, or all; none: list.")] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="The paper's protocol, or ten minutes.")] = False,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Train and measure what is missing, or not.")
    ] = True,
    root: Annotated[Path, typer.Option(help="Folder of the data sets.")] = Path("data"),
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time, in processes of their own.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the reports and the trainings.")] = REPORTS,
    trainings: Annotated[Path | None, typer.Option(help="Another folder of the trainings.")] = None,
) -> None:
    """Train what tables and figures of the papers lack, and write published and measured values to reports/NAME.

    The name summary stands for reports/README.md, which sums up what is there.
    """
    if unknown := sorted({*(names or ())} - {"all", SUMMARY, *STUDIES}):
        raise typer.BadParameter(f"expected all, {SUMMARY} or some of {', '.join(STUDIES)}, got {', '.join(unknown)}")
    for study in STUDIES.values():
        if not names:
            typer.echo(f"{study.name}: {study.title} (trainings: {len(study.quick)} or {len(study.full)})")
        elif study.name in names or "all" in names:
            write(study, out, root, full=full, train=train, jobs=jobs, trainings=trainings)
    if names and {"all", SUMMARY} & {*names}:
        write_summary(STUDIES, out)
        typer.echo(f"{SUMMARY}: {out}")


def write(
    study: Study, out: Path, root: Path, *, full: bool, train: bool, jobs: int, trainings: Path | None = None
) -> None:
    """Write the folder of a study."""
    options = [*([f"--{'full' if full else 'quick'}"] if study.full else []), *([] if train else ["--no-train"])]
    command, folder = " ".join(["python -m reports.papers", study.name, *options]), out / study.name
    if study.script:
        table, pictures = measure_script(study, out, root, train=train)
        write_script(study, table, pictures, folder, command)
    else:
        cells, pool = trainings_of(study, full=full), Pool(jobs)
        with count_progress(study.name, len(cells) if train else 0) as on_cell:
            results = train_missing(
                study, out, root, full=full, train=train, pool=pool, on_cell=on_cell, trainings=trainings
            )
        write_study(results, folder, command)
        if results.failed:
            typer.echo(report_failures(results.failed.values(), len(cells)), err=True)
    typer.echo(f"{study.name}: {folder}")


if __name__ == "__main__":
    try:
        app()
    except GatdiagError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)

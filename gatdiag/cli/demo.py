"""`gatdiag demo`: the same network trained from two initializations, recorded, and compared on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gatdiag.cli.diagnose import print_diagnosis
from gatdiag.cli.options import DATA_FOLDER, Epochs, Graph, LearningRate, Out, Overwrite, Root, choose_folder, setting
from gatdiag.cli.printing import plain_console
from gatdiag.cli.training import epoch_progress
from gatdiag.experiments.settings import Experiment, demo_settings

if TYPE_CHECKING:
    from gatdiag.run import Run

SCHEMES: Final = ("xavier", "balanced_orthogonal")
"""The usual initialization, and the one of "Are GATs Out of Balance?"."""


def demo(
    data: Graph = "sbm",
    root: Root = DATA_FOLDER,
    layers: Annotated[int, setting("layers", min=2)] = 10,
    epochs: Epochs = None,
    lr: LearningRate = None,
    seed: Annotated[int, setting("seed")] = 0,
    out: Out = Path("gatdiag-demo"),
    overwrite: Overwrite = False,
) -> None:
    """Train a deep GAT twice, see one training fail, and read why.

    The first training starts from Xavier weights, the second from balanced ones; all else is equal. Every step is
    recorded, and a page and figures in --out compare the two. After Ctrl-C the runs can still be read.
    """
    from gatdiag.run import load
    from gatdiag.run.files import META

    out = choose_folder(out, f"*/{META}", overwrite=overwrite)
    from gatdiag.experiments.experiment import run_experiment  # loads torch

    default_rate, default_epochs = demo_settings(data)
    experiment = Experiment(
        data=data,
        layers=layers,
        learning_rate=default_rate if lr is None else lr,
        epochs=default_epochs if epochs is None else epochs,
        seed=seed,
    )
    trainings = {out / scheme.replace("_", "-"): replace(experiment, initialization=scheme) for scheme in SCHEMES}
    with epoch_progress(experiment.epochs, *trainings) as progress:
        for folder, training in trainings.items():
            on_epoch = partial(progress, readable(folder.name))
            # every=1, so that the page has no gaps on a slow machine either
            run_experiment(training, root, folder, every=1, overwrite=overwrite, progress=on_epoch)
    runs = [load(folder) for folder in trainings]
    _print(runs, f"A GAT of {layers} layers on {data}, seed {seed}, learning rate {experiment.rate:g}")
    _write(runs, out, data, overwrite=overwrite)


def _print(runs: Sequence[Run], subject: str) -> None:
    from gatdiag.diagnosis import diagnose
    from gatdiag.page.story import story

    console = plain_console()
    console.print(subject)
    for run in runs:
        console.print(f"\nWith {readable(run.name)} weights: {story(run)[-1]}")
        print_diagnosis(diagnose(run), "the page")


def readable(name: str) -> str:
    """The name of a run, as words."""
    return name.replace("-", " ").replace("_", " ").replace("xavier", "Xavier")


def _write(runs: Sequence[Run], out: Path, data: str, *, overwrite: bool) -> None:
    from gatdiag.figures import save_figures
    from gatdiag.page import report

    title = f"{data}: {' and '.join(readable(run.name) for run in runs)} weights"
    page = report(runs, out / "report.html", title=title, overwrite=overwrite)
    figures = save_figures(runs, out / "figures", formats=("png",))
    typer.echo(f"\nPage: {page}\nFigures ({len(figures)}): {out / 'figures'}")
    typer.echo(f"Runs: {' '.join(str(run.folder) for run in runs)}")

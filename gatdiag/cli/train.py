"""`gatdiag train`: one recorded training on a named graph; its options are the fields of `Experiment`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.options import (
    DATA_FOLDER,
    Every,
    Metrics,
    Overwrite,
    Root,
    add_options,
    choose_folder,
    parse_every,
    parse_metrics,
    setting,
)
from gatdiag.cli.training import epoch_progress
from gatdiag.experiments.settings import Experiment

if TYPE_CHECKING:
    from gatdiag.experiments.experiment import Result


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option per field of `Experiment`, which the command receives as keyword arguments."""
    for one in fields(Experiment):
        kind: Any = type(one.default)
        option = Annotated[kind, setting(one.name)]
        add_options(command, Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=option))
    return command


@with_settings
def train(
    *,
    out: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the new run.")],
    root: Root = DATA_FOLDER,
    every: Every = "auto",
    metrics: Metrics = "standard",
    overwrite: Overwrite = False,
    **settings: Any,
) -> None:
    """Train one network on one graph and record the run.

    The defaults are those of "Are GATs Out of Balance?". On the CPU, equal options give equal numbers. The run folder
    also holds the parameters of the best validation accuracy, and experiment.json with settings and result. Read it
    with `gatdiag diagnose` and `gatdiag report`. If RUN holds a run, RUN-2 is written.
    """
    experiment = Experiment(**settings)
    cadence = parse_every(every, "auto", "log")
    metrics = parse_metrics(metrics)
    from gatdiag.run.files import META

    out = choose_folder(out, META, overwrite=overwrite)
    from gatdiag.experiments.experiment import FILE, run_experiment  # loads torch

    with epoch_progress(experiment.epochs, out) as progress:
        on_epoch = partial(progress, f"{experiment.model}-{experiment.layers} on {experiment.data}")
        result = run_experiment(
            experiment, root, out, every=cadence, metrics=metrics, overwrite=overwrite, progress=on_epoch
        )
    typer.echo(f"{_describe_result(result)}\nRun: {out}\nSettings and result: {out / FILE}")


def _describe_result(result: Result) -> str:
    end = "the loss fell below the threshold" if result.converged else "the limit of epochs was reached"
    return (
        f"Test accuracy {result.test_accuracy:.1%} at epoch {result.epochs_to_best}, the best by validation accuracy "
        f"({result.val_accuracy:.1%}). Training ended after epoch {result.epochs} because {end}: loss "
        f"{result.loss:.3g}, test accuracy {result.last_test_accuracy:.1%}."
    )

"""`gatdiag train`: one training on a named graph, watched; its options are the fields of `Experiment`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from gatdiag.cli.options import DATA_FOLDER, GRAPHS, Overwrite, Root, add_options
from gatdiag.cli.training import training_progress
from gatdiag.errors import InputError
from gatdiag.experiments.settings import Experiment

if TYPE_CHECKING:
    from gatdiag.experiments.experiment import Result


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each field of `Experiment`, which it gets as keyword arguments."""
    hints = get_type_hints(Experiment, include_extras=True)
    for one in fields(Experiment):
        option = _option(one.name, *get_args(hints[one.name]))
        add_options(command, Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=option))
    return command


def _option(name: str, kind: Any, text: str) -> Any:
    """A field as typer has it: of counted values the names are in the help, and the settings refuse others."""
    if name == "data":
        text = f"{text.removesuffix('.')}: {GRAPHS}."
    if get_origin(kind) is Literal:
        text, kind = f"{text} One of {', '.join(get_args(kind))}.", str
    metavar = None if kind is bool else {int: "N", float: "X"}.get(kind, "NAME")
    return Annotated[kind, typer.Option(metavar=metavar, help=text)]


@with_settings
def train(
    *,
    out: Annotated[Path, typer.Argument(metavar="RUN", help="Folder for the run.")],
    root: Root = DATA_FOLDER,
    every: Annotated[str, typer.Option(metavar="K", help="Record each K-th step, auto, or log.")] = "auto",
    metrics: Annotated[str, typer.Option(metavar="NAME", help="Record fast, standard, or full.")] = "standard",
    overwrite: Overwrite = False,
    **settings: Any,
) -> None:
    """Train one network on one graph, watched, and keep its settings and its result with the run.

    The defaults are those of "Are GATs Out of Balance?". Equal options give equal numbers on the CPU. The run holds the
    best parameters by validation and experiment.json; `gatdiag diagnose` and `gatdiag report` read it.
    """
    experiment = Experiment(**settings)
    pace: Any = int(every) if every.isdecimal() else every
    if metrics not in ("fast", "standard", "full"):
        raise InputError(f"--metrics: expected fast, standard or full, got {metrics!r}")
    from gatdiag.experiments.experiment import FILE, run_experiment

    with training_progress(experiment.epochs, out) as progress:
        on_epoch = partial(progress, f"{experiment.model}-{experiment.layers} on {experiment.data}")
        result = run_experiment(
            experiment, root, out, every=pace, metrics=metrics, overwrite=overwrite, progress=on_epoch
        )
    typer.echo(f"{_told(result)}\nThe run: {out}\nSettings and result: {out / FILE}")


def _told(result: Result) -> str:
    end = "the loss fell below the threshold" if result.converged else "the limit of epochs was reached"
    return (
        f"Test accuracy {result.test_accuracy:.1%} at epoch {result.epochs_to_best}, the best by validation "
        f"({result.val_accuracy:.1%}); {result.last_test_accuracy:.1%} after the last, {result.epochs}, where the loss "
        f"was {result.loss:.3g}: {end}."
    )

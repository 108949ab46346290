"""`gatdiag treat`: trains a model, applies the remedy of its diagnosis, trains again, and reports whether it helped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gatdiag.cli.options import (
    DATA_FOLDER,
    Epochs,
    Factory,
    Graph,
    LearningRate,
    Out,
    Overwrite,
    Root,
    Transform,
    WeightDecay,
    check_folder,
    setting,
    suggest,
)
from gatdiag.cli.printing import plain_console, rows
from gatdiag.errors import GatdiagError, InputError, ModelError
from gatdiag.names import printable

if TYPE_CHECKING:
    from torch import nn

    from gatdiag.experiments.settings import Experiment
    from gatdiag.recorder import Recorder
    from gatdiag.treatment import Treatment


def treat(
    factory: Factory,
    data: Graph = "sbm",
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    epochs: Epochs = None,
    optimizer: Annotated[str, setting("optimizer")] = "SGD",
    lr: LearningRate = None,
    weight_decay: WeightDecay = None,
    remedy: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Code of the finding to treat instead of the first, such as init-unbalanced.",
        ),
    ] = None,
    seed: Annotated[
        str, typer.Option(metavar="N,...", help="Random seed of the weights, or several separated by commas.")
    ] = "0,1,2",
    out: Out = Path("treatment"),
    overwrite: Overwrite = False,
) -> None:
    """Diagnose a training, apply the remedy, and train again.

    FACTORY returns a model with fresh weights, called as model(x, edge_index), or as model(data) if its forward takes
    data. A page in --out shows both trainings, full-batch on cross-entropy, side by side. If a remedy does not help,
    that of the next finding is tried; what only you can change is named with its place in the code. A healthy training
    is left as it is.
    """
    from gatdiag.diagnosis import CAUSES
    from gatdiag.treatment import treat as treat_
    from gatdiag.treatment.page import PAGE

    if remedy is not None and remedy not in CAUSES:
        hint = f"gatdiag explain lists all{suggest(remedy, CAUSES)}"
        raise InputError(f"--remedy: expected the code of a finding, got {remedy!r}: {hint}")
    check_folder(out)
    with redirect_stdout(sys.stderr):  # the user's code may print
        settings = _make_settings(data, optimizer, lr, weight_decay, epochs)
        make, train, inputs = _make_training(factory, data, root, transform, settings)
        done = treat_(
            make,
            train,
            *inputs,
            seeds=_parse_seeds(seed),
            remedy=remedy,
            folder=out,
            overwrite=overwrite,
            progress=sys.stderr.isatty(),
            on_progress=lambda text: typer.echo(f"gatdiag: {text}", err=True),
        )
    _print(done)
    typer.echo(f"Page: {done.folder / PAGE}")


def _print(done: Treatment) -> None:
    console = plain_console()
    for part, line in done.parts():
        shown = rows(console, part, line) if console.is_terminal else [Text(printable(line))]
        for row in shown:
            console.print(row, soft_wrap=True)


def _make_training(
    factory: str, data: str, root: Path, transform: str | None, settings: Experiment
) -> tuple[Callable[[], nn.Module], Callable[[nn.Module, Recorder], None], tuple[Any, ...]]:
    """The functions that make and train the model, and the inputs of its forward pass."""
    import torch

    from gatdiag.cli.model_case import load_factory
    from gatdiag.experiments.training import train as train_

    make, graph, inputs = load_factory(factory, data, root, transform)

    def train(model: nn.Module, recorder: Recorder) -> None:
        try:
            train_(model, graph, replace(settings, seed=torch.initial_seed() % 2**63), recorder, inputs=inputs)
        except GatdiagError:
            raise
        except Exception as error:
            raise ModelError(f"{factory} raised {type(error).__name__} during training: {error}") from error

    return make, train, inputs


def _make_settings(
    data: str, optimizer: str, lr: float | None, weight_decay: float | None, epochs: int | None
) -> Experiment:
    from gatdiag.experiments.settings import Experiment, demo_settings

    default_rate, default_epochs = demo_settings(data)
    kind = next((name for name in ("SGD", "Adam") if name.lower() == optimizer.lower()), optimizer)
    rate = lr if lr is not None else 0.01 if kind == "Adam" else default_rate
    if not rate > 0:
        raise InputError(f"--lr: expected a positive learning rate, got {rate}")
    return Experiment(
        optimizer=kind,  # type: ignore[arg-type]  # checked by Experiment
        learning_rate=rate,
        weight_decay=weight_decay or 0.0,
        epochs=default_epochs if epochs is None else epochs,
    )


def _parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--seed: expected integers separated by commas, such as 0,1,2, got {text!r}") from None

"""`gatdiag treat`: train a model, apply the remedy that its diagnosis names, train again, and say whether it helped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.options import DATA_FOLDER, GRAPHS, Overwrite, Root, Transform, check_new
from gatdiag.cli.printing import plain_console
from gatdiag.errors import GatdiagError, InputError, ModelError

if TYPE_CHECKING:
    from torch import nn

    from gatdiag.experiments.settings import Experiment
    from gatdiag.recorder import Recorder


def treat(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE.MODULE:FACTORY",
            help="A class or function that makes an nn.Module, with fresh weights at each call. Arguments called "
            "in_channels and out_channels get the number of features and classes of --data.",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Graph to train on, as model(x, edge_index), or model(data) if it takes that: {GRAPHS}.",
        ),
    ] = "sbm",
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Of each training; enough to tell, if it is not given.")
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="SGD (without momentum) or Adam.")] = "SGD",
    learning_rate: Annotated[
        float | None,
        typer.Option("--lr", metavar="RATE", help="Learning rate; one made for graph and optimizer, if not given."),
    ] = None,
    weight_decay: Annotated[float, typer.Option(metavar="NUMBER", help="As the optimizer defines it.")] = 0.0,
    remedy: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="The code of another of its findings, such as init-unbalanced, to treat in place of the first.",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="LIST", help="Of the weights, separated by commas.")] = "0,1,2",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs and the page.")] = Path("treatment"),
    overwrite: Overwrite = False,
) -> None:
    """Train a model, diagnose it, apply the remedy, train again, and show both side by side.

    Training is full-batch gradient descent on cross-entropy. A remedy that does not help is followed by that of the
    next finding; what only you can change is said with the place. A healthy training is left as it is.
    """
    from gatdiag.diagnosis import CAUSES
    from gatdiag.treatment import treat as treat_
    from gatdiag.treatment.page import PAGE

    if remedy is not None and remedy not in CAUSES:
        raise InputError(f"--remedy: expected the code of a finding ({', '.join(CAUSES)}), got {remedy!r}")
    check_new(out, overwrite=overwrite)
    with redirect_stdout(sys.stderr):  # the model's own code may print
        settings = _settings(data, optimizer, learning_rate, weight_decay, steps)
        make, train, inputs = _training(factory, data, root, transform, settings)
        done = treat_(
            make,
            train,
            *inputs,
            seeds=_seeds(seeds),
            remedy=remedy,
            folder=out,
            overwrite=overwrite,
            on_progress=lambda text: typer.echo(text, err=True),
        )
    plain_console().print(str(done), soft_wrap=True)
    typer.echo(f"The page: {out / PAGE}")


def _training(
    factory: str, data: str, root: Path, transform: str | None, settings: Experiment
) -> tuple[Callable[[], nn.Module], Callable[[nn.Module, Recorder], None], tuple[Any, ...]]:
    """What makes the model, what trains it, and the inputs of a forward pass."""
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
            raise ModelError(f"{factory} raised {type(error).__name__} while it was trained: {error}") from error

    return make, train, inputs


def _settings(
    data: str, optimizer: str, learning_rate: float | None, weight_decay: float, steps: int | None
) -> Experiment:
    from gatdiag.experiments.settings import Experiment, demonstration

    usual_rate, usual_steps = demonstration(data)
    kind = next((name for name in ("SGD", "Adam") if name.lower() == optimizer.lower()), optimizer)
    rate = learning_rate if learning_rate is not None else 0.01 if kind == "Adam" else usual_rate
    if not rate > 0:
        raise InputError(f"--lr: expected a positive learning rate, got {rate}")
    return Experiment(
        optimizer=kind,  # type: ignore[arg-type]  # refused there, if it is none
        learning_rate=rate,
        weight_decay=weight_decay,
        epochs=usual_steps if steps is None else steps,
    )


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--seeds: expected whole numbers separated by commas, such as 0,1,2, got {text!r}") from None

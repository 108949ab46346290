"""The options that several commands have, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.pool import Pool

GRAPHS: Final = (
    "sbm, csbm or tree (built in), Cora, CiteSeer, PubMed, Actor, Chameleon, Squirrel, Cornell, Texas, Wisconsin, or a "
    "file as texas.npz; with options as Cora:missing=1 or csbm:homophily=0.2,nodes=500"
)

DATA_FOLDER: Final = Path("data")

Level = StrEnum("Level", ["note", "warning", "error", "never"])

Factory: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PACKAGE.MODULE:FACTORY",
        help="An nn.Module, or a class or function that makes one. Arguments called in_channels and out_channels get "
        "the number of features and classes of --data; all others keep their defaults.",
    ),
]
Data: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Graph to run the model on, as model(x, edge_index), or model(data) if its forward takes that: {GRAPHS}.",
    ),
]
Inputs: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FUNCTION",
        help="Function that returns the model's inputs instead: a tuple or list of positional ones, a dict of keyword "
        "ones, or a pair of both.",
    ),
]
Root: TypeAlias = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of the data sets. What it lacks is downloaded into it.")
]
Transform: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of the features of --data: normalize-features (rows sum to one; the default of Cora, CiteSeer and "
        "PubMed) or none (the default of all others).",
    ),
]
MODEL_OF_CHECKPOINT: Final = typer.Option(
    metavar="PACKAGE.MODULE:FACTORY",
    help="The model that a checkpoint is of, so that its own laws are found and it can run. Arguments called "
    "in_channels and out_channels get the widths that the checkpoint shows, or those of --data.",
)
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Processes, each with one thread; one for each core if left out."),
]
Backend: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="processes, or dask or ray: a cluster that is running.")
]
Address: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Of the cluster; that on this machine if left out.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")]
FailOn: TypeAlias = Annotated[Level, typer.Option(help="End with status 1 at a finding that is this bad.")]


def add_options(command: Callable[..., None], *added: Parameter) -> None:
    """Give typer more options of a command than its signature has, in the place of its ``**options``, if any."""
    own = signature(command, eval_str=True)
    kept = [one.replace(kind=one.KEYWORD_ONLY) for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    command.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in (*kept, *added)}


def parts(text: str) -> list[str]:
    """The parts of a list that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def pool_of(workers: int | None, backend: str, address: str | None) -> Pool:
    """Where trainings run; InputError where workers are asked for that a cluster has itself."""
    from gatdiag.experiments.pool import Pool

    if workers is not None and backend != "processes":
        raise InputError("--workers is of --backend processes: a cluster has the workers that it was started with")
    return Pool(workers, backend, address)


def check_folder(out: Path) -> None:
    """Raise InputError where a folder to write into is a file."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, got the file {str(out)!r}: choose another --out")


def check_new(out: Path, *, overwrite: bool) -> None:
    """Raise InputError where a folder to write into is a file, or holds something that is not to be replaced."""
    check_folder(out)
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is there already: choose another --out, or replace what is in it with --overwrite")

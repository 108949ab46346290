"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.pool import Pool

GRAPHS: Final = (
    "sbm, csbm or tree (built in), Cora, CiteSeer, PubMed, Actor, Chameleon, Squirrel, Cornell, Texas, Wisconsin, or a "
    "file such as texas.npz; options follow a colon, as in Cora:missing=1 or csbm:homophily=0.2,nodes=500"
)

DATA_FOLDER: Final = Path("data")

Level = StrEnum("Level", ["note", "warning", "error", "never"])

Factory: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PACKAGE.MODULE:FACTORY",
        help="An nn.Module, or a class or function that returns one. Arguments called in_channels and out_channels "
        "receive the number of features and classes of --data; all others keep their defaults.",
    ),
]
Data: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Graph to run the model on, called as model(x, edge_index), or as model(data) if its forward takes data: "
        f"{GRAPHS}.",
    ),
]
Inputs: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FUNCTION",
        help="Function that returns the inputs, instead of --data: a tuple or list of positional arguments, a dict of "
        "keyword arguments, or a pair of a tuple and a dict.",
    ),
]
Root: TypeAlias = Annotated[
    Path, typer.Option(metavar="DIR", help="Data set folder; missing data sets are downloaded into it.")
]
Transform: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Feature transform for --data: normalize-features (each row sums to one; default for Cora, CiteSeer and "
        "PubMed) or none (default for all others).",
    ),
]
CHECKPOINT_MODEL: Final = typer.Option(
    metavar="PACKAGE.MODULE:FACTORY",
    help="The model of the checkpoint, to find its own laws and to run it. Arguments called in_channels and "
    "out_channels receive the sizes inferred from the checkpoint, or those of --data.",
)
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of processes, each with one thread. Default: one per core."),
]
Backend: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="processes, or a running cluster: dask or ray.")]
Address: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address of the cluster. Default: the one on this machine.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
FailOn: TypeAlias = Annotated[Level, typer.Option(help="Exit with status 1 if a finding is at least this severe.")]


def add_options(command: Callable[..., None], *added: Parameter) -> None:
    """Add options to a command's signature for typer, in place of its ``**options``, if any."""
    own = signature(command, eval_str=True)
    kept = [one.replace(kind=one.KEYWORD_ONLY) for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    command.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in (*kept, *added)}


def split_list(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [item.strip() for item in text.split(",") if item.strip()]


def parse_every(text: str, *words: str) -> Any:
    """--every: a positive number, or one of the words."""
    if text in words:
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise InputError(f"--every: expected a positive number or {' or '.join(words)}, got {text!r}")


def make_pool(workers: int | None, backend: str, address: str | None) -> Pool:
    """The pool that --workers, --backend and --address describe."""
    from gatdiag.experiments.pool import Pool

    if workers is not None and backend != "processes":
        raise InputError("--workers only applies to --backend processes: a cluster already has its workers")
    return Pool(workers, backend, address)


def check_folder(out: Path) -> None:
    """Raise InputError if the output folder is a file."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, got the file {str(out)!r}")


def check_empty(out: Path, *, overwrite: bool) -> None:
    """Raise InputError if the output folder is a file, or is not empty and must not be overwritten."""
    check_folder(out)
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose another --out, or replace its contents with --overwrite")

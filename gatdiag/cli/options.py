"""Options that several commands share, each declared once, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import StrEnum
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import typer

from gatdiag.errors import InputError
from gatdiag.experiments.settings import OPTIONS, Experiment

if TYPE_CHECKING:
    from gatdiag.experiments.pool import Pool

GRAPHS: Final = (
    "sbm, csbm or tree (built in), Cora, CiteSeer, PubMed, Actor, Chameleon, Squirrel, Cornell, Texas, Wisconsin, or a "
    "file such as texas.npz; options follow a colon, as in Cora:missing=1 or csbm:homophily=0.2,nodes=500"
)

DATA_FOLDER: Final = Path("data")

Level = StrEnum("Level", ["note", "warning", "error", "never"])

_HINTS: Final = get_type_hints(Experiment, include_extras=True)


def setting(field: str, **more: Any) -> Any:
    """The option of a setting of a training, a field of `Experiment`, which also checks the values.

    Its help lists the possible values; ``more`` are other arguments of `typer.Option`.
    """
    kind, text = get_args(_HINTS[field])
    if field == "data":
        text = f"{text.removesuffix('.')}: {GRAPHS}."
    if get_origin(kind) is Literal:
        text = f"{text} One of {', '.join(get_args(kind))}."
    name = OPTIONS.get(field, field).replace("_", "-")
    flags = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    metavar = None if kind is bool else {int: "N", float: "X"}.get(kind, "NAME")
    return typer.Option(flags, **{"metavar": metavar, "help": text, **more})


# --- a training -------------------------------------------------------------------------------------------------------

Graph: TypeAlias = Annotated[str, setting("data")]
Epochs: TypeAlias = Annotated[int | None, setting("epochs", help="Epochs per training. Default: depends on the graph.")]
LearningRate: TypeAlias = Annotated[
    float | None, setting("learning_rate", help="Learning rate. Default: depends on the graph and the optimizer.")
]
WeightDecay: TypeAlias = Annotated[
    float | None, setting("weight_decay", help="Weight decay. Default: that of the optimizer.")
]

# --- the user's model and its inputs ----------------------------------------------------------------------------------

Factory: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PACKAGE.MODULE:FACTORY",
        help="An nn.Module, or a class or function that returns one. Arguments called in_channels and out_channels "
        "receive the number of features and classes of --data; all others keep their defaults.",
    ),
]
CHECKPOINT_MODEL: Final = typer.Option(
    metavar="PACKAGE.MODULE:FACTORY",
    help="The model of the checkpoint, to find its own laws and to run it. Arguments called in_channels and "
    "out_channels receive the sizes inferred from the checkpoint, or those of --data.",
)
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
    Path,
    typer.Option(metavar="DIR", help="Folder of data sets, as DIR/planetoid/Cora/raw; missing ones are downloaded."),
]
Transform: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Feature transform for --data: normalize-features (each row sums to one; default for Cora, CiteSeer and "
        "PubMed) or none (default for all others).",
    ),
]

# --- where and how ----------------------------------------------------------------------------------------------------

Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of processes, each with one thread. Default: one per core."),
]
Backend: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="processes, or a running cluster: dask or ray.")]
Address: TypeAlias = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address of the cluster. Default: the one on this machine.")
]
OUT: Final = typer.Option(metavar="DIR", help="Output folder.")
Out: TypeAlias = Annotated[Path, OUT]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Every: TypeAlias = Annotated[
    str, typer.Option(metavar="K", help="Record every K-th step; auto limits the cost, log records ever fewer steps.")
]
Metrics: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="What to record: fast, standard or full.")]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
FailOn: TypeAlias = Annotated[
    Level, typer.Option(help="Exit with status 1 if a finding or the verdict is at least this severe.")
]


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


def parse_metrics(text: str) -> str:
    """--metrics: the name of a preset."""
    if text in ("fast", "standard", "full"):
        return text
    raise InputError(f"--metrics: expected fast, standard or full, got {text!r}")


def suggest(word: str, known: Iterable[str]) -> str:
    """A question that names the words nearest to a mistyped one; empty if none is near.

    Example:
        >>> suggest("dead-unit", ["dead-units", "overfitting"])
        ". Did you mean 'dead-units'?"
    """
    near = get_close_matches(word, list(known))
    return f". Did you mean {' or '.join(map(repr, near))}?" if near else ""


def make_pool(jobs: int | None, backend: str, address: str | None) -> Pool:
    """The pool that --jobs, --backend and --address describe."""
    from gatdiag.experiments.pool import Pool

    if jobs is not None and backend != "processes":
        raise InputError("--jobs only applies to --backend processes: a cluster already has its workers")
    return Pool(jobs, backend, address)


def check_folder(out: Path) -> None:
    """Raise InputError if the output folder is a file."""
    if out.exists() and not out.is_dir():
        raise InputError(f"expected a folder, got the file {str(out)!r}")


def choose_folder(out: Path, made: str, *, overwrite: bool) -> Path:
    """The output folder; a numbered sibling, named on standard error, if it has what the command made there before.

    Args:
        out: The folder.
        made: A glob pattern of what the command makes.
        overwrite: Take the folder as it is.

    Raises:
        InputError: It is a file, or holds other files.
    """
    from gatdiag.run.files import free_folder

    check_folder(out)
    if overwrite:
        return out
    place = free_folder(out, made)
    if place.is_dir() and any(place.iterdir()):
        raise InputError(f"{place} holds other files: choose another folder, or replace its contents with --overwrite")
    return place

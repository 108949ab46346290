"""The commands and their options. Nothing heavy is imported before a command does its work."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gatdiag.errors import GatdiagError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def gatdiag() -> None:
    """Why does this graph neural network not train?"""


@app.command()
def laws(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE.MODULE:FACTORY",
            help="An nn.Module, or a class or function that makes one. Arguments called in_channels and out_channels "
            "get the number of features and classes of --data; all others keep their defaults.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Graph to run the model on, as model(x, edge_index), or as model(data) if that is what its forward "
            "takes: sbm (built in, the default), Cora, CiteSeer, PubMed, Actor, Chameleon, Squirrel, Cornell, Texas "
            "or Wisconsin.",
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FUNCTION",
            help="Function that returns the model's inputs instead: a tuple or list of positional ones, a dict of "
            "keyword ones, or a pair of both.",
        ),
    ] = None,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the data sets. What it lacks is downloaded into it.")
    ] = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Print the conservation laws of a model, layer by layer.

    The current directory is importable. Random numbers start from seed 0. What the model's own code prints goes to
    standard error.
    """
    with _errors_in_one_line(debug):
        from gatdiag.cli.laws import print_laws

        print_laws(factory, data=data, inputs=inputs, root=root, as_json=as_json)


def main() -> None:
    """Run the command line. A reader that closes the pipe early, such as `head`, ends it quietly."""
    try:
        try:
            app(prog_name="gatdiag")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whatever is still buffered has nowhere to go when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


@contextmanager
def _errors_in_one_line(debug: bool) -> Iterator[None]:
    try:
        yield
    except GatdiagError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"gatdiag: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None

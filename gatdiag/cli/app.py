"""The commands and their options. Nothing heavy is imported before a command does its work."""

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gatdiag.cli.printing import as_options
from gatdiag.errors import GatdiagError
from gatdiag.names import printable

_LONGEST = 300  # characters of a message that was not written for a person
_INTERRUPTED = 130  # as a shell has it for what Ctrl-C ended

# What typer raises where a command line is wrong; newer releases bring a copy of click of their own.
_UsageError: Final[Any] = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """Commands that say in one line what is wrong with how they are used."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command that the arguments name."""
        if not options.setdefault("standalone_mode", True):
            return super().main(*args, **options)
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
        except _UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
                error.show()
            else:
                path = error.ctx.command_path if error.ctx else "gatdiag"
                text = printable(" ".join(error.format_message().split())).rstrip(".")
                typer.echo(f"gatdiag: {text}: see {path} --help", err=True)
            status = error.exit_code
        except typer.Abort:
            typer.echo("gatdiag: interrupted", err=True)
            status = _INTERRUPTED
        sys.exit(status or 0)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            known = metadata.version("gatdiag")
        except metadata.PackageNotFoundError:  # a source tree on the path, never installed
            known = "unknown"
        typer.echo(f"gatdiag {known}")
        raise typer.Exit


@app.callback()
def gatdiag(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Why does this graph neural network not train?"""


@app.command()
def demo(
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Graph to train on: sbm (built in), Cora, CiteSeer, PubMed, Actor, Chameleon, Squirrel, Cornell, "
            "Texas or Wisconsin.",
        ),
    ] = "sbm",
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the data sets. What it lacks is downloaded into it.")
    ] = Path("data"),
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs, the page and the figures.")] = Path(
        "gatdiag-demo"
    ),
    layers: Annotated[int, typer.Option(metavar="N", help="Depth of the network.")] = 10,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Of each training; enough to tell, if it is not given.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="Of gradient descent; made for the graph, if it is not given.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the weights; from 0 to 2**63 - 1.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier demo wrote.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Train a deep graph attention network twice, see one of them fail, and read why.

    The first training begins with Xavier's weights, the second with balanced ones; all else is the same. Both are
    recorded, compared on a page, and drawn. Ctrl-C leaves runs that can be read.
    """
    with _errors_in_one_line(debug):
        from gatdiag.cli.demo import run_demo

        run_demo(
            dataset,
            root,
            out,
            layers=layers,
            epochs=epochs,
            learning_rate=learning_rate,
            seed=seed,
            overwrite=overwrite,
        )


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
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the features of --data: normalize-features (rows sum to one; the default of Cora, CiteSeer and "
            "PubMed) or none (the default of all others).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Print the conservation laws of a model, layer by layer.

    The current directory is importable. Random numbers start from seed 0. What the model's own code prints goes to
    standard error.
    """
    with _errors_in_one_line(debug):
        from gatdiag.cli.laws import print_laws

        print_laws(factory, data=data, inputs=inputs, root=root, transform=transform, as_json=as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of recorded runs, to be compared.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            help="NAME.html, with the figures beside it in NAME-figures; NAME.pdf, for all figures in one file; "
            "NAME.png or NAME.svg, for the first of them; or a folder for report.html and the figures.",
        ),
    ] = Path("report.html"),
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="LIST",
            help="What to write: html, png, svg, pdf, separated by commas. By default as --out says, or else html.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Heading of the page.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are not gatdiag's.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Write a page about recorded runs: what was trained, whether it trained, what stands out.

    The page is one file that loads nothing. An earlier report of the same name is replaced.
    """
    with _errors_in_one_line(debug), _warnings_in_one_line():
        from gatdiag.cli.report import make_report

        make_report(runs, out, formats, title, overwrite=overwrite)


@app.command()
def inspect(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Saved checkpoints, patterns such as 'ckpt/*.pt', or folders of them: torch (.pt, .pth, Lightning's "
            ".ckpt), safetensors, torch.distributed.checkpoint. Several are a series, in order of their steps.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FACTORY",
            help="The model they are of, so that its own laws are found. Arguments called in_channels and "
            "out_channels get the widths that the checkpoint shows.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Graph to run the model on, forward and backward, with the weights of each checkpoint: sbm, Cora, "
            "CiteSeer, PubMed, Actor, Chameleon, Squirrel, Cornell, Texas or Wisconsin.",
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FUNCTION", help="Function that returns the model's inputs, to find its laws with."
        ),
    ] = None,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the data sets. What it lacks is downloaded into it.")
    ] = Path("data"),
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the features of --data: normalize-features (rows sum to one; the default of Cora, CiteSeer and "
            "PubMed) or none (the default of all others).",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Checkpoint that changes are measured from; the first if it is not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the run made of them, its page and its figures.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Leave out spectral norms and quantiles of change, which take most of the time."),
    ] = False,
    fail_on: Annotated[
        str,
        typer.Option(metavar="LEVEL", help="End with status 1 at a finding that is this bad: note, warning, error."),
    ] = "error",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier inspection wrote.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Read saved checkpoints, without running anything that is in them, and say what stands out.

    Ends with status 0 if nothing is as bad as --fail-on, 1 if something is, 2 if a file could not be read.
    """
    with _errors_in_one_line(debug), _warnings_in_one_line():
        from gatdiag.cli.inspect import inspect_files

        inspect_files(
            files,
            model=model,
            data=data,
            inputs=inputs,
            root=root,
            transform=transform,
            reference=reference,
            out=out,
            as_json=as_json,
            quick=quick,
            fail_on=fail_on,
            overwrite=overwrite,
        )


@app.command()
def rebalance(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Saved checkpoint: torch, Lightning or safetensors.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File to write: the same, with other weights.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FACTORY",
            help="The model it is of, so that its own laws are used and its outputs compared. Without it the laws are "
            "those that names and shapes show.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Graph to run the model on, as for `gatdiag inspect`."),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FUNCTION", help="Function that returns the model's inputs instead."),
    ] = None,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the data sets. What it lacks is downloaded into it.")
    ] = Path("data"),
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the features of --data: normalize-features (rows sum to one; the default of Cora, CiteSeer and "
            "PubMed) or none (the default of all others).",
        ),
    ] = None,
    towards: Annotated[
        str, typer.Option(metavar="GOAL", help="c: weights in balance; relative-gradients (with --data): gradients.")
    ] = "c",
    moments: Annotated[
        str, typer.Option(metavar="HOW", help="The optimizer's state: rescale it along, or drop it.")
    ] = "rescale",
    include_approximate: Annotated[
        bool, typer.Option("--include-approximate", help="Use laws that hold only up to an epsilon in the model, too.")
    ] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="Write over IN itself.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Rescale the weights of a checkpoint until its neurons balance; the function it computes stays the same.

    Epoch, scheduler and all else in the file are carried over. The new file is written whole or not at all.
    """
    with _errors_in_one_line(debug), _warnings_in_one_line():
        from gatdiag.cli.rebalance import rebalance_file

        rebalance_file(
            source,
            target,
            model=model,
            data=data,
            inputs=inputs,
            root=root,
            transform=transform,
            towards=towards,
            moments=moments,
            include_approximate=include_approximate,
            in_place=in_place,
        )


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of a recorded run, or a saved checkpoint.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with.")],
    most: Annotated[int, typer.Option(metavar="N", min=0, help="How many differences to show; 0 for all.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Put two runs or two checkpoints side by side: outcomes, settings, then layers, what differs most first.

    A difference is a share of what it could be at most. Of runs, medians over all steps are compared.
    """
    with _errors_in_one_line(debug), _warnings_in_one_line():
        from gatdiag.cli.compare import print_comparison

        print_comparison(first, second, most=most, as_json=as_json)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a recorded run.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="csv or parquet.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write into; RUN-FORMAT if it is not given.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of the same names.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Write the tables of a run for other programs."""
    with _errors_in_one_line(debug), _warnings_in_one_line():
        from gatdiag.cli.export import export_run

        export_run(run, to, out, overwrite=overwrite)


def main() -> None:
    """Run the command line. A reader that closes the pipe early, such as `head`, ends it quietly."""
    try:
        try:
            app(prog_name="gatdiag")
        finally:
            if sys.stdout is not None:  # it may be closed from the beginning
                sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(1) from None
    except OSError as error:  # standard output leads to a disk that is full
        _discard_output()
        typer.echo(f"gatdiag: cannot print: {error.strerror or error}", err=True)
        raise SystemExit(2) from None


def _discard_output() -> None:
    """Whatever is still buffered has nowhere to go when the interpreter flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _errors_in_one_line(debug: bool) -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if debug and not interrupted:
            traceback.print_exc()
        typer.echo(f"gatdiag: {_one_line(error)}", err=True)
        raise typer.Exit(_INTERRUPTED if interrupted else 2) from None


def _one_line(error: BaseException) -> str:
    text = printable(" ".join(as_options(str(error)).split()))
    match error:
        case GatdiagError():
            return text
        case OSError():
            place = "" if error.filename is None else f" {error.filename!r}"
            return f"cannot read or write{place}: {error.strerror or error}"
        case KeyboardInterrupt():
            return "interrupted"
        case MemoryError():
            return "there is not enough memory for this"
    return f"this is a defect of gatdiag ({type(error).__name__}: {text[:_LONGEST]}); --debug shows where"


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """What the package warns of, each text once; where in the source it was said is of no use here."""
    told: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = " ".join(str(message).split())
        if text not in told:
            told.add(text)
            typer.echo(f"gatdiag: {text}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield

"""All commands in one app, with errors as one line and an exit status."""

import gc
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gatdiag.cli.compare import compare
from gatdiag.cli.demo import demo
from gatdiag.cli.diagnose import diagnose
from gatdiag.cli.explain import explain
from gatdiag.cli.export import export
from gatdiag.cli.inspect import inspect
from gatdiag.cli.laws import laws
from gatdiag.cli.live import live
from gatdiag.cli.options import add_options
from gatdiag.cli.preflight import preflight
from gatdiag.cli.rebalance import rebalance
from gatdiag.cli.report import report
from gatdiag.cli.run import run
from gatdiag.cli.silence import break_silence
from gatdiag.cli.sweep import sweep
from gatdiag.cli.train import train
from gatdiag.cli.training import INTERRUPTED
from gatdiag.cli.treat import treat
from gatdiag.errors import GatdiagError
from gatdiag.names import printable

_COMMANDS: Final[Mapping[str, tuple[Callable[..., None], ...]]] = {  # in the groups of --help
    "Your training": (demo, run, live, diagnose, report, compare, treat, preflight, export),
    "Checkpoints": (inspect, rebalance),
    "Theory": (laws, explain),
    "Experiments": (train, sweep),
}
_MAX_LENGTH: Final = 300  # characters of the message of an internal error
_FAILED: Final = 2
_SYNONYMS: Final[Mapping[str, str]] = {  # what other programs call an option -> what it is called here
    **dict.fromkeys(("--learning-rate", "--step-size"), "--lr"),
    **dict.fromkeys(("--hidden-dim", "--hidden-channels", "--hidden-size", "--width"), "--hidden"),
    **dict.fromkeys(("--num-layers", "--n-layers", "--depth"), "--layers"),
    **dict.fromkeys(("--num-epochs", "--max-epochs"), "--epochs"),
    **dict.fromkeys(("--output", "--output-dir", "--out-dir", "-o"), "--out"),
    **dict.fromkeys(("--dataset", "--graph"), "--data"),
    **dict.fromkeys(("--init",), "--initialization"),
    **dict.fromkeys(("--wd",), "--weight-decay"),
    **dict.fromkeys(("--force", "-f"), "--overwrite"),
}
_CLOSED_PIPE: Final = 128 + 13  # as of a program that SIGPIPE ends; 1 is that of --fail-on

# What typer raises if a command line is wrong; it is of the copy of click that typer contains.
_UsageError: Final[Any] = typer.BadParameter.__base__


class _Group(TyperGroup):
    """Commands that report wrong usage in one line, listed in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each group of commands with its title; without rich, typer would write one list."""
        width = formatter.width - 6 - max(map(len, self.commands))
        for title, commands in _COMMANDS.items():
            with formatter.section(title):
                named = ((command.__name__, self.commands[command.__name__]) for command in commands)
                formatter.write_dl([(name.ljust(10), command.get_short_help_str(width)) for name, command in named])

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command that the arguments name."""
        given = args[0] if args else options.get("args")
        given = sys.argv[1:] if given is None else given
        if "" in given and given[0] != run.__name__:  # where it may be an argument of the script
            _print_error("got an empty argument; the current folder is .")
            sys.exit(_FAILED)
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
        except _UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
                error.show()
            else:
                path = error.ctx.command_path if error.ctx else "gatdiag"
                text = printable(" ".join(_suggest_synonym(error).format_message().split()))
                is_question = text.endswith("?")
                _print_error(f"{text} See {path} --help" if is_question else f"{text.rstrip('.')}: see {path} --help")
            status = error.exit_code
        except typer.Abort:
            _print_error("interrupted")
            status = INTERRUPTED
        except SystemExit as error:  # click's, with status 1, after a broken pipe
            status = _CLOSED_PIPE if isinstance(error.__context__, BrokenPipeError) else error.code
        sys.exit(status or 0)


def _suggest_synonym(error: Any) -> Any:
    """The error; if it is about an option that the command has under another name, with this name."""
    meant = _SYNONYMS.get(getattr(error, "option_name", ""), "")
    if error.ctx and any(meant in one.opts for one in error.ctx.command.params):
        error.possibilities = [meant]
    return error


app = typer.Typer(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gatdiag import __version__

        typer.echo(f"gatdiag {__version__}")
        raise typer.Exit


@app.callback()
def gatdiag(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Why does this graph neural network not train?"""


def _with_error_handling(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one line per error or warning, and with the option --debug."""

    @wraps(command)
    def handled(*, debug: bool, **options: Any) -> None:
        with break_silence(command.__name__), _errors_in_one_line(debug), _warnings_in_one_line():
            command(**options)

    annotation = Annotated[bool, typer.Option("--debug", help="Print the full traceback of an error.")]
    add_options(handled, Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=annotation))
    return handled


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
        _print_error(_format_error(error))
        raise typer.Exit(INTERRUPTED if interrupted else _FAILED) from None


def _format_error(error: BaseException) -> str:
    text = printable(" ".join(str(error).split()))
    match error:
        case GatdiagError():
            return text
        case OSError():
            reason = error.strerror or error
            if error.filename is None:
                return f"cannot read or write: {reason}"
            return f"cannot read or write {error.filename!r} ({reason}); name a place that exists and can be written to"
        case KeyboardInterrupt():
            return "interrupted"
        case _ if isinstance(error, MemoryError) or "can't allocate memory" in text:  # torch raises RuntimeError
            return "not enough memory"
    return f"internal error of gatdiag ({type(error).__name__}: {text[:_MAX_LENGTH]}); --debug prints the traceback"


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print each warning once, without its source line."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = " ".join(str(message).split()).removeprefix("gatdiag: ")
        if text not in seen:
            seen.add(text)
            _print_error(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _print_error(text: str) -> None:
    typer.echo(f"gatdiag: {text}", err=True)


for _title, _commands in _COMMANDS.items():
    for _command in _commands:
        # what follows the script belongs to it
        _settings = {"allow_interspersed_args": _command is not run}
        app.command(rich_help_panel=_title, context_settings=_settings)(_with_error_handling(_command))


def main() -> None:
    """Run the command line. A reader that closes the pipe early, such as `head`, ends it quietly."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C, with the same message
    if sys.stdout is None:  # closed from the start: printing has to fail
        sys.stdout = io.TextIOWrapper(os.fdopen(os.open(os.devnull, os.O_RDONLY), "wb", 0), write_through=True)
    gc.set_threshold(100_000, 20, 50)  # garbage collection would take a sixth of the time of a short command
    try:
        try:
            app(prog_name="gatdiag")
        finally:
            gc.freeze()  # else the interpreter spends 0.3 seconds collecting torch's objects at exit
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(_CLOSED_PIPE) from None
    except OSError as error:  # such as a full disk
        _discard_output()
        _print_error(f"cannot print: {error.strerror or error}")
        raise SystemExit(_FAILED) from None


def _discard_output() -> None:
    """Send what is still buffered to the null device, where the interpreter flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

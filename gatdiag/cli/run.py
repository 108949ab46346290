"""`gatdiag run`: a training script as it is, recorded, and the verdict at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gatdiag.cli.diagnose import print_diagnosis
from gatdiag.cli.options import OUT, Every, Metrics, choose_folder, parse_every, parse_metrics
from gatdiag.cli.printing import plain_console
from gatdiag.errors import GatdiagError, InputError
from gatdiag.names import printable

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis
    from gatdiag.run import Run

_FOLDER: Final = Path("gatdiag-runs")
_PAGE: Final = "report.html"
_MOST_SHOWN: Final = 8  # runs, in full; of more, those with the worst verdicts are on the page
_CONCLUDE: Final = (  # by this package, wherever the script has gone
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import gatdiag; del sys.path[0]; "
    "from gatdiag.cli.run import conclude; conclude(*sys.argv[1:])"
)


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT ARGS...", help="A script or, with -m, a module, and its own arguments."),
    ],
    as_module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
    out: Annotated[Path | None, OUT] = None,
    every: Every = "auto",
    metrics: Metrics = "standard",
) -> None:
    """Run a training script unedited, and print the verdict.

    It runs as by python, and gatdiag records each model that an optimizer of it trains. The verdict is printed on
    standard error when the script has ended, also by an exception, Ctrl-C or a kill, with the address of a page that
    shows everything. The exit status is that of the script. Options come before the script; what follows it is its own.
    Runs and page are in --out, by default gatdiag-runs/SCRIPT. In distributed training, start this command in each
    process: torchrun --no-python gatdiag run train.py.
    """
    from gatdiag.recorder.ranks import is_first_process
    from gatdiag.script.launch import RUNS, Launch, python

    name = _name(command[0], as_module=as_module)
    folder = _FOLDER / name if out is None else out
    cadence, preset = parse_every(every, "auto", "log"), parse_metrics(metrics)
    if is_first_process():
        folder = choose_folder(folder, RUNS, overwrite=False)
    reporter = [sys.executable, "-P", "-c", _CONCLUDE]
    launch = Launch(str(folder.absolute()), cadence, preset, reporter, os.getpid())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    line = python(command, as_module=as_module)
    os.execve(line[0], line, launch.environment(os.environ))


def _name(target: str, *, as_module: bool) -> str:
    """What the folder of a script is called."""
    if as_module:
        return target.removesuffix(".__main__").rpartition(".")[2]
    path = Path(target)
    if not path.exists() and target != "-":
        raise InputError(f"cannot run {target!r}: no such file")
    stem = path.absolute().parent.name if path.name == "__main__.py" else path.stem
    return "script" if target == "-" else stem


def conclude(out: str, how: str = "") -> None:
    """Print the diagnosis of each run in a folder, and write a page about them; errors are one line.

    Args:
        out: The folder.
        how: "killed" if that is how the script has ended, which is told if it has left a run unfinished.
    """
    try:
        _conclude(Path(out), was_killed=how == "killed")
    except (GatdiagError, OSError) as error:
        typer.echo(f"gatdiag: no verdict: {printable(' '.join(str(error).split()))}", err=True)
    except KeyboardInterrupt:
        typer.echo(f"gatdiag: interrupted; read the verdict with: gatdiag report {out}/*", err=True)


def _conclude(out: Path, *, was_killed: bool) -> None:
    from gatdiag.diagnosis import SEVERITIES, diagnose
    from gatdiag.page import report
    from gatdiag.run import load
    from gatdiag.run.files import from_here, runs_inside

    runs = sorted(map(load, runs_inside(out)), key=lambda one: one.meta["created"])
    if was_killed:
        if not any(one.status == "recording" and not one.is_live for one in runs):
            return
        typer.echo("gatdiag: the script was killed, or ended by os._exit: its last two seconds may be missing here")
    diagnoses = [(one, diagnose(one)) for one in runs]
    with suppress(OSError):  # a terminal that was closed; the page can still be written
        _print(diagnoses)
    diagnoses.sort(key=lambda found: SEVERITIES.index(found[1].verdict.severity))
    try:
        page = report([one for one, _ in diagnoses[:_MOST_SHOWN]], out / _PAGE)
    except OSError as error:
        place = printable(str(from_here(out / _PAGE)))
        typer.echo(f"gatdiag: no page: {place} cannot be written ({error}); see gatdiag report --help", err=True)
    else:
        typer.echo(f"\nPage: {printable(str(from_here(page)))}")


def _print(diagnoses: Sequence[tuple[Run, Diagnosis]]) -> None:
    from gatdiag.run.files import from_here

    is_short = len(diagnoses) > _MOST_SHOWN
    for one, diagnosis in diagnoses:
        if not is_short:
            typer.echo("")
        if len(diagnoses) > 1:
            title = f" {diagnosis.verdict.title}" if is_short else ""
            plain_console().print(printable(f"== {from_here(one.folder)}{title}"), soft_wrap=True)
        if not is_short:
            print_diagnosis(diagnosis, f"gatdiag diagnose --json {from_here(one.folder)}")

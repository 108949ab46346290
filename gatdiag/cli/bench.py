"""`gatdiag bench`: what recording costs, on built-in trainings or on a model of one's own; what remedies cost."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from gatdiag.cli.options import DATA_FOLDER, Data, Inputs, Root, Transform, parts
from gatdiag.cli.printing import grid, number, plain_console
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.bench import Case, Cost, Every

_SECONDS: Final = 20.0
_PACED_SECONDS: Final = 150.0  # recording is paced after some time only
_CASES: Final = "gcn-2-small, gcn-2, gat-10, gat-40, residual-gcn-512"


def bench(
    factory: Annotated[
        str | None,
        typer.Argument(
            metavar="PACKAGE.MODULE:FACTORY",
            help="A model to train instead of the built-in ones, as for `gatdiag laws`.",
        ),
    ] = None,
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    cases: Annotated[
        str, typer.Option("--cases", metavar="LIST", help="Built-in trainings, separated by commas.")
    ] = _CASES,
    metrics: Annotated[
        str, typer.Option(metavar="LIST", help="Presets to record, separated by commas: fast, standard, full.")
    ] = "fast,standard",
    every: Annotated[str, typer.Option(metavar="K", help="Record each K-th step, or auto.")] = "1",
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="How long to time each; 20 if it is not given, and 150 for --every auto."),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure wandb, TensorBoard and Aim as well, where they are installed.")
    ] = False,
    remedies: Annotated[
        bool, typer.Option("--remedies", help="Measure instead what remedies cost that stay in the forward pass.")
    ] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where to train: cpu, cuda.")] = "cpu",
) -> None:
    """Measure what recording a training costs: watched and bare steps in turn, in one process.

    Printed are the ratio of their mean times, quartiles of the ratios of neighboring steps, the first watched step
    (the search for laws is in it), memory that it took, bytes on disk and aten calls a step. Nothing else should run
    on the machine.
    """
    import torch

    from gatdiag.experiments.bench import GATS, PEERS, REMEDIES, gatdiag_tool, measure

    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        raise InputError(f"--device: expected cpu, or cuda where torch finds a GPU, got {device!r}")
    cadence = 1 if remedies else _cadence(every)
    limit = _limit(seconds, cadence)
    tools = {preset: (gatdiag_tool(preset, cadence), cadence) for preset in _presets(metrics)}
    tools |= {name: (tool, 1) for name, tool in PEERS.items() if peers}
    trainings = _trainings(factory, (data, inputs, root, transform), parts(cases), torch.device(device))
    if remedies:
        tools = {name: (tool, 1) for name, tool in REMEDIES.items()}
        trainings = (make(name).to(torch.device(device)) for name, make in GATS.items())
    costs, absent = list["Cost"](), dict[str, str]()
    for case in trainings:
        for name in [name for name in tools if name not in absent]:
            tool, pace = tools[name]
            with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch, redirect_stdout(sys.stderr):
                try:
                    costs.append(measure(case, name, tool, Path(scratch) / "run", seconds=limit, every=pace))
                except ImportError as error:
                    absent[name] = f"note: {name} was not measured: {error}"
    console = plain_console()
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    console.print(f"{machine}, every={cadence}, {limit:g} s each")
    console.print(_table(costs, paced=cadence == "auto"))
    console.print("ratio: mean watched step / mean bare step, and of processor time; whole: the first one included")
    memory = max((cost.memory for cost in costs), default=0.0)
    console.print(
        f"first: from watch() to the end of the first step; memory grew by {memory:,.0f} MiB at most until then"
    )
    for note in absent.values():
        console.print(note)


def _cadence(every: str) -> Every:
    if every == "auto":
        return "auto"
    if every.isdecimal() and int(every) > 0:
        return int(every)
    raise InputError(f"--every: expected a positive number or auto, got {every!r}")


def _limit(seconds: float | None, cadence: Every) -> float:
    if seconds is None:
        return _PACED_SECONDS if cadence == "auto" else _SECONDS
    if not 0 <= seconds < float("inf"):
        raise InputError(f"--seconds: expected a number from 0, got {seconds:g}")
    return seconds


def _presets(metrics: str) -> list[str]:
    if not parts(metrics):
        raise InputError(f"--metrics: expected some of fast, standard, full, got {metrics!r}")
    return parts(metrics)


def _trainings(
    factory: str | None, options: tuple[str | None, str | None, Path, str | None], names: Sequence[str], device: Any
) -> Iterator[Case]:
    """Make what is to be trained, one at a time: the user's own model, or built-in ones."""
    import torch

    from gatdiag.experiments.bench import CASES, Case

    torch.manual_seed(0)
    if factory is None:
        if any(option is not None for option in (options[0], options[1], options[3])):
            raise InputError("--data, --inputs and --transform are of a model of your own: give PACKAGE.MODULE:FACTORY")
        unknown = [name for name in names if name not in CASES]
        if unknown or not names:
            raise InputError(f"--cases: expected some of {', '.join(CASES)}, got {', '.join(unknown) or 'none'}")
        for name in names:
            yield CASES[name](name).to(device)
        return
    from gatdiag.cli.model_case import load_case

    with redirect_stdout(sys.stderr):  # the model's own code may print
        made = load_case(factory, *options)
    yield Case(factory, made.model, made.args, made.loss or _mean_square, made.kwargs).to(device)


def _mean_square(output: Any) -> Any:
    """A loss for a model whose task is not known."""
    from gatdiag.laws.outputs import floating_tensors

    return next(floating_tensors(output)).square().mean()


def _table(costs: Sequence[Cost], *, paced: bool) -> Table:
    last = ["whole", "steps\nrecorded"] if paced else ["aten\ncalls"]
    numbers = ["bare\nms", "ratio", "of CPU", "quartiles", "first\ns", "bytes\na step", *last]
    table = grid(["training", "with"], numbers)
    for cost in costs:
        table.add_row(
            cost.case,
            cost.tool,
            f"{1e3 * cost.bare:.1f}",
            f"{cost.ratio:.3f}",
            f"{cost.cpu_ratio:.3f}",
            " ".join(f"{value:.2f}" for value in cost.quartiles),
            f"{cost.first:.2f}",
            f"{cost.bytes:,.0f}",
            *([f"{cost.whole:.3f}", number(cost.recorded, ".0%")] if paced else [number(cost.calls, "+.0f")]),
        )
    return table

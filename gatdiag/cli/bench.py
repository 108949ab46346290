"""`gatdiag bench`: what recording costs, on built-in trainings or on the user's model; what remedies cost."""

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

from gatdiag.cli.options import DATA_FOLDER, Data, Inputs, Root, Transform, parse_every, split_list
from gatdiag.cli.printing import format_number, make_table, plain_console
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.bench import Case, Cost

_SECONDS: Final = 20.0
_AUTO_SECONDS: Final = 150.0  # every="auto" thins out recording only after some time
_CASES: Final = "gcn-2-small, gcn-2, gat-10, gat-40, residual-gcn-512"


def bench(
    factory: Annotated[
        str | None,
        typer.Argument(
            metavar="PACKAGE.MODULE:FACTORY",
            help="Model to train instead of the built-in ones, as for `gatdiag laws`.",
        ),
    ] = None,
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    cases: Annotated[
        str, typer.Option("--cases", metavar="LIST", help="Built-in trainings to measure, separated by commas.")
    ] = _CASES,
    metrics: Annotated[
        str, typer.Option(metavar="LIST", help="Presets to record, separated by commas: fast, standard, full.")
    ] = "fast,standard",
    every: Annotated[str, typer.Option(metavar="K", help="Record every K-th step, or auto.")] = "1",
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, help="Duration of each measurement. Default: 20, or 150 with --every auto."),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also measure wandb, TensorBoard and Aim, if installed.")
    ] = False,
    remedies: Annotated[
        bool, typer.Option("--remedies", help="Measure instead the remedies that stay in the forward pass.")
    ] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="Device to train on: cpu or cuda.")] = "cpu",
) -> None:
    """Measure what recording a training costs.

    Watched and bare steps alternate in one process. Prints the ratio of their mean times, quartiles of the ratios of
    neighboring steps, time and memory of the first watched step (which searches for laws), bytes on disk and aten calls
    per step. Nothing else should run on the machine.
    """
    import torch

    from gatdiag.experiments.bench import GATS, PEERS, REMEDIES, gatdiag_tool, measure

    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        raise InputError(f"--device: expected cpu, or cuda if torch finds a GPU, got {device!r}")
    cadence = 1 if remedies else parse_every(every, "auto")
    limit = seconds if seconds is not None else _AUTO_SECONDS if cadence == "auto" else _SECONDS
    presets = split_list(metrics)
    if not presets:
        raise InputError(f"--metrics: expected some of fast, standard, full, got {metrics!r}")
    tools = {preset: (gatdiag_tool(preset, cadence), cadence) for preset in presets}
    tools |= {name: (tool, 1) for name, tool in PEERS.items() if peers}
    trainings = _trainings(factory, (data, inputs, root, transform), split_list(cases), torch.device(device))
    if remedies:
        tools = {name: (tool, 1) for name, tool in REMEDIES.items()}
        trainings = (make(name).to(torch.device(device)) for name, make in GATS.items())
    costs, missing = list["Cost"](), dict[str, str]()
    for case in trainings:
        for name in [name for name in tools if name not in missing]:
            tool, tool_cadence = tools[name]
            with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch, redirect_stdout(sys.stderr):
                try:
                    costs.append(measure(case, name, tool, Path(scratch) / "run", seconds=limit, every=tool_cadence))
                except ImportError as error:
                    missing[name] = f"note: {name} was not measured: {error}"
    console = plain_console()
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    console.print(f"{machine}, every={cadence}, {limit:g} s each")
    console.print(_cost_table(costs, is_auto=cadence == "auto"))
    total = "; total: including the first step" if cadence == "auto" else ""
    console.print(f"ratio: mean watched step / mean bare step, also of CPU time{total}")
    memory = max((cost.memory for cost in costs), default=0.0)
    console.print(
        f"first: from watch() to the end of the first step, during which memory grew by up to {memory:,.0f} MiB"
    )
    for note in missing.values():
        console.print(note)


def _trainings(
    factory: str | None, options: tuple[str | None, str | None, Path, str | None], names: Sequence[str], device: Any
) -> Iterator[Case]:
    """Yield the user's model, or the built-in trainings, each built when it is needed."""
    import torch

    from gatdiag.experiments.bench import CASES, Case

    torch.manual_seed(0)
    if factory is None:
        if any(option is not None for option in (options[0], options[1], options[3])):
            raise InputError("--data, --inputs and --transform need a model: give PACKAGE.MODULE:FACTORY")
        unknown = [name for name in names if name not in CASES]
        if unknown or not names:
            raise InputError(f"--cases: expected some of {', '.join(CASES)}, got {', '.join(unknown) or 'none'}")
        for name in names:
            yield CASES[name](name).to(device)
        return
    from gatdiag.cli.model_case import load_case

    with redirect_stdout(sys.stderr):  # the user's code may print
        made = load_case(factory, *options)
    yield Case(factory, made.model, made.args, made.loss or _mean_square, made.kwargs).to(device)


def _mean_square(output: Any) -> Any:
    """The loss of a model whose task is unknown."""
    from gatdiag.laws.outputs import floating_tensors

    return next(floating_tensors(output)).square().mean()


def _cost_table(costs: Sequence[Cost], *, is_auto: bool) -> Table:
    last = ["total\nratio", "steps\nrecorded"] if is_auto else ["aten\ncalls"]
    numbers = ["bare\nms", "ratio", "CPU\nratio", "quartiles", "first\ns", "bytes\nper step", *last]
    table = make_table(["training", "tool"], numbers)
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
            *(
                [f"{cost.total_ratio:.3f}", format_number(cost.recorded, ".0%")]
                if is_auto
                else [format_number(cost.calls, "+.0f")]
            ),
        )
    return table

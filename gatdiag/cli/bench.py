"""`gatdiag bench`: what recording costs, on built-in trainings or on a model of one's own.

The JSON document has these keys:

- ``version``: 1, the version of this description
- ``torch``, ``threads``, ``cores``: where it was measured
- ``costs``: for each training and tool the attributes of `gatdiag.experiments.bench.Cost`, with ``ratio`` and ``whole``
- ``notes``: texts

With ``--remedies``, ``costs`` holds the attributes of `gatdiag.experiments.bench.RemedyCost`, and there are no notes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from gatdiag.cli.options import DATA_FOLDER, AsJson, Data, Inputs, Root, Transform
from gatdiag.cli.printing import grid, number, plain_console, print_document
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
    as_json: AsJson = False,
) -> None:
    """Measure what recording a training costs: watched and bare steps in turn, in one process.

    Printed are the ratio of their mean times, quartiles of the ratios of neighboring steps, the first watched step
    (the search for laws is in it), bytes on disk and aten calls a step. Nothing else should run on the machine.
    """
    import torch

    from gatdiag.experiments.bench import PEERS, gatdiag_tool, measure

    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        raise InputError(f"--device: expected cpu, or cuda where torch finds a GPU, got {device!r}")
    if remedies:
        _measure_remedies(_SECONDS if seconds is None else seconds, as_json)
        return
    cadence = _cadence(every)
    limit = seconds if seconds is not None else _PACED_SECONDS if cadence == "auto" else _SECONDS
    costs, notes = [], {}
    for case in _trainings(factory, (data, inputs, root, transform), _split(cases), torch.device(device)):
        tools = {preset: (gatdiag_tool(preset, cadence), cadence) for preset in _split(metrics)}
        tools |= {name: (tool, 1) for name, tool in PEERS.items() if peers and name not in notes}
        for name, (tool, pace) in tools.items():
            with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch, redirect_stdout(sys.stderr):
                try:
                    costs.append(measure(case, name, tool, Path(scratch) / "run", seconds=limit, every=pace))
                except ImportError as error:
                    notes[name] = f"{name} was not measured: {error}"
    if as_json:
        measured = [{**asdict(cost), "ratio": cost.ratio, "whole": cost.whole} for cost in costs]
        print_document({**_machine(), "costs": measured, "notes": [*notes.values()]})
        return
    console = plain_console()
    console.print("torch {torch}, {threads} threads of {cores} cores".format(**_machine()), end="")
    console.print(f", every={every}, {limit:g} s each")
    console.print(_table(costs, paced=cadence == "auto"))
    console.print("ratio: mean watched step / mean bare step, and of processor time; whole: the first one included")
    console.print("first: from watch() to the end of the first step; --json has the memory that this took")
    for note in notes.values():
        console.print(f"note: {note}")


def _machine() -> dict[str, Any]:
    import torch

    return {"version": 1, "torch": torch.__version__, "threads": torch.get_num_threads(), "cores": os.cpu_count()}


def _measure_remedies(seconds: float, as_json: bool) -> None:
    from gatdiag.experiments.bench import GATS, REMEDIES, measure_remedy

    costs = [measure_remedy(model, remedy, seconds=seconds) for model in GATS for remedy in REMEDIES]
    if as_json:
        print_document({**_machine(), "costs": [asdict(cost) for cost in costs]})
        return
    table = grid(["10 layers", "remedy"], ["bare\nms", "forward", "forward and\nbackward"])
    for cost in costs:
        numbers = f"{1e3 * cost.bare:.1f}", f"{cost.forward:.3f}", f"{cost.step:.3f}"
        table.add_row(cost.model, cost.remedy, *numbers)
    console = plain_console()
    console.print("torch {torch}, {threads} threads of {cores} cores".format(**_machine()), end="")
    console.print(f", {seconds:g} s each")
    console.print(table)
    console.print("forward: mean processor time of a forward pass with the remedy / without it")


def _cadence(every: str) -> Every:
    if every == "auto":
        return "auto"
    if every.isdecimal() and int(every) > 0:
        return int(every)
    raise InputError(f"--every: expected a positive number or auto, got {every!r}")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


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
    table = grid(["training", "recording"], numbers)
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

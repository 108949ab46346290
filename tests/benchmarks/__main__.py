"""`python -m tests.benchmarks`: what recording costs, printed; nothing else should run on the machine."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from reports.papers.markdown import table
from tests.benchmarks.costs import CASES, PEERS, measure_laws, measure_tool

_AUTO_SECONDS = 150.0  # every="auto" thins out recording only after some time


def main(
    cases: Annotated[str, typer.Option(help="Trainings, separated by commas.")] = ",".join(CASES),
    metrics: Annotated[str, typer.Option(help="Presets to record, separated by commas.")] = "fast,standard",
    auto: Annotated[bool, typer.Option("--auto", help="Record at the default cadence, not every step.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="Of each measurement: 20, or 150 with --auto.")] = None,
) -> None:
    """Print what recording costs, and what wandb, TensorBoard and Aim cost if they are installed.

    Watched and bare steps alternate in one process for each row. ms: mean steps; ratio: mean watched step / mean bare
    step, also of processor time; first_s: from the start to the end of the first watched step; MiB: peak memory above
    that of bare training.
    """
    limit = seconds if seconds is not None else _AUTO_SECONDS if auto else 20.0
    names, presets = cases.split(","), metrics.split(",")
    typer.echo(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, {limit:g} s each"
    )
    tools = [*presets, *(peer for peer in PEERS if find_spec(peer) and not auto)]
    rows = [alone(partial(measure_tool, name, tool, auto, limit)) for name in names for tool in tools]
    typer.echo(f"\nRecording:\n\n{table(pd.DataFrame(rows))}\n")
    laws = [alone(partial(measure_laws, name)) for name in names]
    typer.echo(f"find_laws:\n\n{table(pd.DataFrame(laws))}")


def alone(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is measured in a process of its own, whose peak memory is that of nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work).result()


if __name__ == "__main__":
    typer.run(main)

"""Shared by the findings beyond the papers: gradient descent step by step, statements with outcome, pictures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch_geometric.data import Data

from gatdiag.experiments.experiment import prepared_model
from gatdiag.experiments.settings import Experiment
from gatdiag.figures.style import category, style_context

UNKNOWN_STEPS: Final = (
    "results.csv is of a measurement that kept only the last step of each training: what holds at every step is not "
    "stated here until it is measured again."
)


def backward(model: nn.Module, graph: Data) -> float:
    """Compute new gradients of the loss on all training nodes; returns the loss."""
    model.zero_grad()
    logits = model(graph.x, graph.edge_index)
    loss = F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])
    loss.backward()
    return float(loss.detach())


def run_steps(model: nn.Module, graph: Data, optimizer: Optimizer, steps: int) -> Iterator[tuple[int, float]]:
    """Train on all training nodes; yields step and loss before each step, and once more after the last."""
    for step in range(steps + 1):
        yield step, backward(model, graph)
        if step < steps:
            optimizer.step()


def train_at_rates(
    graph: Data,
    rates: Sequence[float],
    experiment: Experiment,
    measure: Callable[[Any, Data, Iterator[dict[str, float]]], Iterator[dict[str, float]]],
) -> pd.DataFrame:
    """Gradient descent from the same weights at several rates, in float64, for the same time (steps times rate).

    Args:
        graph: In float64.
        rates: Learning rates.
        experiment: Its epochs are those at its own rate.
        measure: (model, graph, steps of one training) -> the steps with measurements. A step is a row with rate, step,
            time and loss, before the weights are updated.

    Returns:
        One row per step of each training.
    """
    rows: list[dict[str, float]] = []
    for rate in rates:
        model = prepared_model(experiment, graph).double()
        optimizer = SGD(model.parameters(), lr=rate)
        steps = run_steps(model, graph, optimizer, round(experiment.epochs * experiment.rate / rate))
        step_rows = ({"rate": rate, "step": step, "time": step * rate, "loss": loss} for step, loss in steps)
        rows.extend(measure(model, graph, step_rows))
    return pd.DataFrame(rows)


def draw_slowest(axes: Axes, runs: pd.DataFrame, columns: dict[str, str], title: str, ylabel: str) -> None:
    """Draw columns (with their labels) of the training at the smallest rate, from `train_at_rates`."""
    slowest = runs[runs["rate"] == runs["rate"].min()]
    for number, (column, label) in enumerate(columns.items()):
        axes.plot(slowest["time"], slowest[column], label=label, **category(number))
    _finish(axes, title, ylabel, yscale="log")


def draw_drift(axes: Axes, runs: pd.DataFrame, column: str, title: str) -> None:
    """Draw how far c has moved at each rate, from `train_at_rates`."""
    for number, (rate, run) in enumerate(runs.groupby("rate", sort=False)):
        axes.plot(run["time"], run[column], label=f"rate {rate}", **category(number))
    _finish(axes, title, "largest |c - c at the beginning|")
    axes.yaxis.set_major_formatter("{x:.3g}")


def _finish(axes: Axes, title: str, ylabel: str, yscale: str = "linear") -> None:
    axes.set(xlabel="steps times rate", ylabel=ylabel, yscale=yscale)
    axes.set_title(title, loc="left")
    axes.legend()


def to_double(graph: Data) -> Data:
    """A copy of the graph with features in float64."""
    double = graph.clone()
    double.x = graph.x.double()
    return double


def format_statements(statements: Iterable[tuple[bool, str]], *paragraphs: str) -> str:
    """A Markdown list of statements, each with whether the measurements show it, and further paragraphs.

    Example:
        >>> print(format_statements([(True, "It holds."), (False, "It is fast.")]))
        1 of 2 statements are shown by the measurements.
        <BLANKLINE>
        - Shown: It holds.
        - **Not shown:** It is fast.
    """
    rows = [*statements]
    lines = [f"- {'Shown:' if holds else '**Not shown:**'} {text}" for holds, text in rows]
    head = f"{sum(holds for holds, _ in rows)} of {len(rows)} statements are shown by the measurements."
    return "\n\n".join([head, "\n".join(lines), *paragraphs])


def render_png(draw: Callable[[Figure], None], height: float = 2.3) -> bytes:
    """A PNG in the style of all figures; height in inches."""
    with style_context():
        figure = Figure(figsize=(6.75, height), dpi=160, layout="constrained")
        draw(figure)
        buffer = BytesIO()
        figure.savefig(buffer, format="png")
    return buffer.getvalue()

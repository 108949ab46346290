"""Common to the findings beyond the papers: descent step by step, statements with their outcome, pictures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch_geometric.data import Data

from gatdiag.experiments.experiment import prepared_model
from gatdiag.experiments.settings import Experiment
from gatdiag.figures.style import style_context


def backward(model: nn.Module, graph: Data) -> float:
    """The loss on all training nodes; its gradients take the place of those before."""
    model.zero_grad()
    logits = model(graph.x, graph.edge_index)
    loss = F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])
    loss.backward()
    return float(loss.detach())


def descent(model: nn.Module, graph: Data, optimizer: Optimizer, steps: int) -> Iterator[tuple[int, float]]:
    """Yields number and loss of each step on all training nodes before it is made; and once more after the last."""
    for step in range(steps + 1):
        yield step, backward(model, graph)
        if step < steps:
            optimizer.step()


def trainings(
    graph: Data,
    rates: Sequence[float],
    experiment: Experiment,
    measured: Callable[[Any, Data, Iterator[dict[str, float]]], Iterator[dict[str, float]]],
) -> pd.DataFrame:
    """Gradient descent from the same weights at several rates, in float64, each for the same time (steps times rate).

    Args:
        graph: In float64.
        rates: Learning rates.
        experiment: Its epochs are those at its own rate.
        measured: Model, graph and steps of one training (rate, step, time, loss; the step is not made yet) -> the same
            with what is measured at each of them.

    Returns:
        A row for each step of each training.
    """
    rows: list[dict[str, float]] = []
    for rate in rates:
        model = prepared_model(experiment, graph).double()
        optimizer = SGD(model.parameters(), lr=rate)
        steps = descent(model, graph, optimizer, round(experiment.epochs * experiment.rate / rate))
        about = ({"rate": rate, "step": step, "time": step * rate, "loss": loss} for step, loss in steps)
        rows.extend(measured(model, graph, about))
    return pd.DataFrame(rows)


def in_double(graph: Data) -> Data:
    """The graph with features in float64."""
    double = graph.clone()
    double.x = graph.x.double()
    return double


def outcome(statements: Iterable[tuple[bool, str]], *paragraphs: str) -> str:
    """Statements as a list in Markdown, each with whether the measurements show it; then these paragraphs.

    Example:
        >>> print(outcome([(True, "It holds."), (False, "It is fast.")]))
        1 of 2 statements are shown by what was measured.
        <BLANKLINE>
        - Shown: It holds.
        - **Not shown:** It is fast.
    """
    listed = [*statements]
    shown = sum(holds for holds, _ in listed)
    lines = [f"- {'Shown:' if holds else '**Not shown:**'} {text}" for holds, text in listed]
    head = f"{shown} of {len(listed)} statements are shown by what was measured."
    return "\n\n".join([head, "\n".join(lines), *paragraphs])


def picture(draw: Callable[[Figure], None], height: float = 2.3) -> bytes:
    """A PNG, in inches, in the style of all figures."""
    with style_context():
        figure = Figure(figsize=(6.75, height), dpi=160, layout="constrained")
        draw(figure)
        buffer = BytesIO()
        figure.savefig(buffer, format="png")
    return buffer.getvalue()

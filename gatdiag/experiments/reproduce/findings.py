"""Common to the findings beyond the papers: descent step by step, statements with their outcome, pictures."""

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch_geometric.data import Data

from gatdiag.figures.style import style_context


def descent(model: nn.Module, graph: Data, optimizer: Optimizer, steps: int) -> Iterator[tuple[int, float]]:
    """Yields number and loss of each step on all training nodes before it is made; and once more after the last."""
    for step in range(steps + 1):
        optimizer.zero_grad()
        logits = model(graph.x, graph.edge_index)
        loss = F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])
        loss.backward()
        yield step, float(loss.detach())
        if step < steps:
            optimizer.step()


def in_double(graph: Data) -> Data:
    """The graph with features in float64."""
    double = graph.clone()
    double.x = graph.x.double()
    return double


def outcome(statements: Iterable[tuple[bool, str]]) -> str:
    """Statements as a list in Markdown, each with whether the measurements show it.

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
    return "\n".join([f"{shown} of {len(listed)} statements are shown by what was measured.", "", *lines])


def picture(draw: Callable[[Figure], None], height: float = 2.3, width: float = 6.75) -> bytes:
    """A PNG, in inches, in the style of all figures."""
    with style_context():
        figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
        draw(figure)
        buffer = BytesIO()
        FigureCanvasAgg(figure)
        figure.savefig(buffer, format="png")
    return buffer.getvalue()

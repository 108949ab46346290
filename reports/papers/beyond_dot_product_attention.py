"""Conservation laws of dot-product attention, measured in trainings of a Graph Transformer.

Scores <Q x_v, K x_u> do not change under Q -> M Q, K -> M^-T K for any invertible M: by Noether's theorem
Q g_Q^T = g_K K^T for each head (g: gradients), and gradient flow conserves Q Q^T - K K^T. A diagonal M is a rescaling,
which `gatdiag.find_laws` finds; the rest of this matrix law is computed here. `find_laws` also finds the rescaling of
row i of V (and of the skip's weight) against columns i of the weights that read it in the next layer, as in a GAT.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import graph_of
from gatdiag.experiments.models import build
from gatdiag.experiments.settings import Experiment, Network, choices
from gatdiag.laws import find_laws
from gatdiag.structure.isolation import random_state
from reports.papers.markdown import table as markdown
from reports.papers.measurements import (
    UNKNOWN_STEPS,
    draw_drift,
    draw_slowest,
    format_statements,
    render_png,
    to_double,
    train_at_rates,
)
from reports.papers.study import Measured, Study

EXPERIMENT: Final = Experiment(
    model="transformer",
    layers=3,
    width=16,
    heads=2,
    transform="none",
    initialization="default",
    learning_rate=0.1,
    epochs=300,
)
RATES: Final = (0.2, 0.1, 0.05)
_ZERO: Final = 1e-9  # singular values below this, relative to the largest, are zero


def matrix_law(conv: Any) -> tuple[Tensor, Tensor]:
    """Q g_Q^T and g_K K^T of each head, (heads, channels, channels); by the law they are equal."""
    (q, k), (g_q, g_k) = _heads(conv), _heads(conv, gradients=True)
    return q @ g_q.mT, g_k @ k.mT


def matrix_c(conv: Any, *, gradients: bool = False) -> Tensor:
    """Q Q^T - K K^T of each head, (heads, channels, channels), of the weights or of their gradients."""
    q, k = _heads(conv, gradients=gradients)
    return q @ q.mT - k @ k.mT


def _heads(conv: Any, *, gradients: bool = False) -> tuple[Tensor, Tensor]:
    weights = conv.lin_query.weight, conv.lin_key.weight
    tensors = [weight.grad if gradients else weight.detach() for weight in weights]
    query, key = (tensor.view(conv.heads, conv.out_channels, -1) for tensor in tensors)
    return query, key


def matrix_residuals(model: Any) -> dict[str, float]:
    """Difference between the two sides of the matrix law, relative to their size, in the worst head.

    Returns:
        diagonal, off_diagonal, and transposed: off the diagonal with one side transposed, which is not a law.
    """
    residuals: dict[str, list[float]] = {"diagonal": [], "off_diagonal": [], "transposed": []}
    for left, right in (sides for conv in model.convs for sides in zip(*matrix_law(conv), strict=True)):
        on = torch.eye(len(left), dtype=torch.bool)
        for name, one, mask in (("diagonal", left, on), ("off_diagonal", left, ~on), ("transposed", left.mT, ~on)):
            size = one[mask].norm() + right[mask].norm()
            residuals[name].append(float((one - right)[mask].norm() / size))
    return {name: max(values) for name, values in residuals.items()}


def measure_steps(model: Any, graph: Data, steps: Iterator[dict[str, float]]) -> Iterator[dict[str, float]]:
    """Add the residuals of the laws and the drift of c to the steps of a training (see `train_at_rates`).

    Besides `matrix_residuals`, the columns are: found, the largest normalized delta of the laws of `find_laws`;
    drift_diagonal, drift_off_diagonal (of Q Q^T - K K^T) and drift_values (of the channels of V), the largest change of
    c since the beginning; step_off_diagonal, the change in the last step; and unexplained, its difference from
    rate^2 (g_Q g_Q^T - g_K g_K^T), which the law predicts.
    """
    laws = find_laws(model, graph.x, graph.edge_index)
    is_value = torch.tensor([law.kind == "neuron" for law in laws])
    first = last = _stacked(model)
    expected, values = torch.zeros_like(first), laws.c()[is_value]
    eyes = [torch.eye(conv.out_channels, dtype=torch.bool).repeat(conv.heads, 1) for conv in model.convs]
    on = torch.cat([eye.flatten() for eye in eyes])
    for step in steps:
        now = _stacked(model)
        yield {
            **step,
            **matrix_residuals(model),
            "found": float(laws.normalized_delta().max()),
            "drift_diagonal": float((now - first)[on].abs().max()),
            "drift_off_diagonal": float((now - first)[~on].abs().max()),
            "drift_values": float((laws.c()[is_value] - values).abs().max()),
            "step_off_diagonal": float((now - last)[~on].abs().max()),
            "unexplained": float((now - last - expected)[~on].abs().max()),
        }
        last, expected = now, step["rate"] ** 2 * _stacked(model, gradients=True)


def _stacked(model: Any, *, gradients: bool = False) -> Tensor:
    return torch.cat([matrix_c(conv, gradients=gradients).flatten() for conv in model.convs])


def count_laws(graph: Data, depths: Sequence[int] = (1, 2, 3), heads: Sequence[int] = (1, 2)) -> pd.DataFrame:
    """Compare the number of laws that `find_laws` finds with the dimensions of null spaces over random draws.

    Returns:
        layers, heads, activation; found; null_space, of rows w * dLoss/dw: the number of rescalings; matrix, of rows
        with all entries of Q g_Q^T and g_K K^T: the number of linear relations; channels_squared, summed over heads:
        that number by the matrix law.
    """
    rows = []
    for layers, number, activation in product(depths, heads, choices(Network)["activation"]):
        network = Network(model="transformer", layers=layers, width=3, heads=number, activation=activation)  # type: ignore[arg-type]
        with random_state(0, ()):
            model: Any = build(network, graph.num_features, int(graph.y.max()) + 1).double()
            found = len(find_laws(model, graph.x, graph.edge_index))
            squared = sum(conv.heads * conv.out_channels**2 for conv in model.convs)
            entrywise, relations = _null_spaces(model, graph)
        row = {"layers": layers, "heads": number, "activation": activation, "found": found}
        rows.append({**row, "null_space": entrywise, "matrix": relations, "channels_squared": squared})
    return pd.DataFrame(rows)


def _null_spaces(model: Any, graph: Data) -> tuple[int, int]:
    parameters = [*model.parameters()]
    entrywise, matrices = [], []
    for _ in range(sum(weight.numel() for weight in parameters) + 50):
        with torch.no_grad():
            for weight in parameters:
                weight.normal_(std=weight.shape[1] ** -0.5)
        logits = model(torch.randn_like(graph.x), graph.edge_index)
        model.zero_grad()
        ((logits * torch.randn_like(logits)).sum() + (logits.square() * torch.randn_like(logits)).sum()).backward()
        entrywise.append(torch.cat([(weight.detach() * weight.grad).flatten() for weight in parameters]))
        matrices.append(torch.cat([side.flatten() for conv in model.convs for side in matrix_law(conv)]))
    return _nullity(torch.stack(entrywise)), _nullity(torch.stack(matrices))


def _nullity(rows: Tensor) -> int:
    rows = rows / rows.norm(dim=1, keepdim=True)
    values = torch.linalg.svdvals(rows / rows.norm(dim=0))
    return int((values < _ZERO * values[0]).sum())


def measure(root: Path) -> Measured:
    """Count laws, and train on two graphs."""
    small, blocks = prepared_graph("csbm:nodes=100,classes=2,features=4,degree=4"), prepared_graph("csbm:classes=4")
    runs = [
        train_at_rates(to_double(graph), rates, EXPERIMENT, measure_steps).assign(graph=name)
        for name, graph, rates in (("block model", blocks, RATES), ("Cora", graph_of(EXPERIMENT, root), RATES[1:2]))
    ]
    table = pd.concat([count_laws(to_double(small)).assign(part="counts"), summarize(pd.concat(runs))])
    return table, {"dot-product-attention.png": render_png(lambda figure: _draw(figure, runs[0]))}


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """The last step of each training, its first loss, and the worst residuals of all its steps."""
    trainings = runs.groupby(["graph", "rate"], sort=False)
    worst = {f"worst_{name}": trainings[name].max() for name in ("diagonal", "off_diagonal", "found", "unexplained")}
    table = trainings.last().assign(first_loss=trainings["loss"].first(), **worst)
    return table.assign(least_transposed=trainings["transposed"].min(), part="trainings").reset_index()


def describe(table: pd.DataFrame) -> str:
    """The statements that the measurements show or not."""
    numbers = table[table["part"] == "counts"]
    last = table[table["part"] == "trainings"]
    by_rate = last[last["graph"] == "block model"].sort_values("rate", ascending=False)
    steps, drifts = (_ratios(by_rate[name]) for name in ("step_off_diagonal", "drift_off_diagonal"))
    has_worst = "worst_off_diagonal" in table
    statements = [
        (bool((numbers["found"] == numbers["null_space"]).all()), "`gatdiag.find_laws` finds as many laws as the null "
         f"space of w * dLoss/dw has dimensions, in {len(numbers)} small Graph Transformers."),
        (bool((numbers["matrix"] == numbers["channels_squared"]).all()), "Among the entries of Q g_Q^T and g_K K^T "
         "there are as many linear relations as squared channels of the heads: the matrix law, no other."),
        *(_statements_on_steps(last) if has_worst else ()),
        (all(abs(ratio - 4) < 0.5 for ratio in steps), "At half the rate the last step of c off the diagonal is a "
         f"quarter (ratios {', '.join(f'{ratio:.2f}' for ratio in steps)}): c drifts at second order in the rate."),
        (all(abs(ratio - 2) < 0.25 for ratio in drifts), "Over the same time it then moves half as far "
         f"(ratios {', '.join(f'{ratio:.2f}' for ratio in drifts)})."),
    ]  # fmt: skip
    counts = ["layers", "heads", "activation", "found", "null_space", "matrix", "channels_squared"]
    shown = ["graph", "rate", "step", "first_loss", "loss", "drift_diagonal", "drift_off_diagonal", "drift_values"]
    residuals = ["diagonal", "off_diagonal", "transposed", "found", "unexplained"]
    return format_statements(
        statements,
        *([] if has_worst else [UNKNOWN_STEPS]),
        "Number of laws of networks with 3 channels per head and two classes. With ELU, only the laws within layers "
        "are left. `find_laws` finds rescalings: of query against key, the diagonal, channel by channel. The rest of "
        "the matrix law is computed independently.",
        markdown(numbers[counts]),
        "Trainings of three layers with two heads of 16 channels, from PyG's initial weights, in float64: largest "
        "change of c from beginning to end, over channels or entries.",
        markdown(last[[*shown, "step_off_diagonal"]]),
        "At the last step: the difference between the sides of the matrix law relative to their size, on and off the "
        "diagonal, and with one side transposed, which is no law; the largest delta of the laws found, relative to its "
        "terms; and what of the last change of c off the diagonal rate^2 (g_Q g_Q^T - g_K g_K^T) does not explain.",
        markdown(last[["graph", "rate", *residuals]]),
    )


def _statements_on_steps(last: pd.DataFrame) -> Iterator[tuple[bool, str]]:
    worst = {name: float(last[f"worst_{name}"].max()) for name in ("diagonal", "off_diagonal", "found", "unexplained")}
    false = float(last["least_transposed"].min())
    yield from (
        (worst["off_diagonal"] < 1e-9, "Q g_Q^T = g_K K^T off the diagonal, at each step of the trainings, up to "
         f"{worst['off_diagonal']:.0e} of the size of its sides (on the diagonal {worst['diagonal']:.0e})."),
        (false > 1e-3, f"With one side transposed it is false: its sides differ by {false:.2g} of their size or more."),
        (worst["found"] < 1e-6, f"The laws found hold at each step, up to {worst['found']:.0e} of the terms."),
        (worst["unexplained"] < 1e-12, "Off the diagonal, Q Q^T - K K^T changes in each step by rate^2 (g_Q g_Q^T - "
         f"g_K g_K^T) and nothing else, up to {worst['unexplained']:.0e}."),
    )  # fmt: skip


def _ratios(values: pd.Series) -> list[float]:
    return [larger / smaller for larger, smaller in pairwise(values.tolist())]


def _draw(figure: Figure, runs: pd.DataFrame) -> None:
    deltas, off_diagonal, values = figure.subplots(1, 3)
    labels = {"transposed": "transposed: no law", "off_diagonal": "off the diagonal", "diagonal": "on the diagonal"}
    draw_slowest(deltas, runs, labels, "Q g$_Q^T$ = g$_K$ K$^T$", "|left - right| / sides")
    draw_drift(off_diagonal, runs, "drift_off_diagonal", "c: Q Q$^T$ - K K$^T$, off the diagonal")
    draw_drift(values, runs, "drift_values", "c: channels of V")


STUDY = Study(
    name="beyond-dot-product-attention",
    title="Laws of dot-product attention in a Graph Transformer",
    claim="For each head Q g_Q^T = g_K K^T, so that gradient flow conserves the matrix Q Q^T - K K^T; what leads into "
    "a channel of V and of the skip balances what leads out of it to the next layer.",
    script=measure,
    describe=describe,
)

"""Conservation laws of dot-product attention, measured in trainings of a Graph Transformer.

Scores are <Q x_v, K x_u>, so Q -> M Q with K -> M^-T K leaves them as they are, for any invertible M: by Noether's
theorem Q g_Q^T = g_K K^T for each head (g: gradients), and gradient flow conserves Q Q^T - K K^T. Where M is diagonal
this is a rescaling, which `gatdiag.find_laws` finds; of all other M it knows nothing, and they are summed by hand here.
Row i of V (and of the skip's weight) is rescaled against the columns i of all that reads it in the next layer, as in a
GAT; `find_laws` finds that, too.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any, Final

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor
from torch_geometric.data import Data

from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import graph_of
from gatdiag.experiments.markdown import table as markdown
from gatdiag.experiments.models import build
from gatdiag.experiments.reproduce.findings import in_double, outcome, picture, trainings
from gatdiag.experiments.reproduce.reproduction import Evidence, Options, Reproduction
from gatdiag.experiments.settings import Experiment, Network, choices
from gatdiag.figures.style import category
from gatdiag.laws import find_laws
from gatdiag.structure.isolation import random_state

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
_ZERO: Final = 1e-9  # a singular value below this times the largest is zero


def matrix_law(conv: Any) -> tuple[Tensor, Tensor]:
    """Q g_Q^T and g_K K^T of each head, (heads, channels, channels); the law says that they are equal."""
    (q, k), (g_q, g_k) = _heads(conv), _heads(conv, gradients=True)
    return q @ g_q.mT, g_k @ k.mT


def matrix_c(conv: Any, *, gradients: bool = False) -> Tensor:
    """Q Q^T - K K^T of each head, (heads, channels, channels); or the same of the gradients."""
    q, k = _heads(conv, gradients=gradients)
    return q @ q.mT - k @ k.mT


def _heads(conv: Any, *, gradients: bool = False) -> tuple[Tensor, Tensor]:
    weights = conv.lin_query.weight, conv.lin_key.weight
    tensors = [weight.grad if gradients else weight.detach() for weight in weights]
    query, key = (tensor.view(conv.heads, conv.out_channels, -1) for tensor in tensors)
    return query, key


def matrix_residuals(model: Any) -> dict[str, float]:
    """How far the matrix law is missed, relative to its two sides, in the worst head.

    Returns:
        On the diagonal, off it, and off it with one side transposed, which is no law.
    """
    found: dict[str, list[float]] = {"diagonal": [], "off_diagonal": [], "transposed": []}
    for left, right in (sides for conv in model.convs for sides in zip(*matrix_law(conv), strict=True)):
        on = torch.eye(len(left), dtype=torch.bool)
        for name, one, mask in (("diagonal", left, on), ("off_diagonal", left, ~on), ("transposed", left.mT, ~on)):
            size = one[mask].norm() + right[mask].norm()
            found[name].append(float((one - right)[mask].norm() / size))
    return {name: max(values) for name, values in found.items()}


def measured(model: Any, graph: Data, steps: Iterator[dict[str, float]]) -> Iterator[dict[str, float]]:
    """At each step of a training (`findings.trainings`) what `matrix_residuals` says, and how far c has moved.

    found: the largest normalized delta of the laws that `find_laws` finds. Largest change of c since the beginning:
    drift_diagonal and drift_off_diagonal of Q Q^T - K K^T, drift_values of the channels of V. step_off_diagonal: its
    change in the last step; unexplained: by how much that misses rate^2 (g_Q g_Q^T - g_K g_K^T), which it is where the
    law holds.
    """
    laws = find_laws(model, graph.x, graph.edge_index)
    of_values = torch.tensor([law.kind == "neuron" for law in laws])
    first = last = _stacked(model)
    expected, values = torch.zeros_like(first), laws.c()[of_values]
    on = _diagonal(model)
    for step in steps:
        now = _stacked(model)
        yield {
            **step,
            **matrix_residuals(model),
            "found": float(laws.normalized_delta().max()),
            "drift_diagonal": float((now - first)[on].abs().max()),
            "drift_off_diagonal": float((now - first)[~on].abs().max()),
            "drift_values": float((laws.c()[of_values] - values).abs().max()),
            "step_off_diagonal": float((now - last)[~on].abs().max()),
            "unexplained": float((now - last - expected)[~on].abs().max()),
        }
        last, expected = now, step["rate"] ** 2 * _stacked(model, gradients=True)


def _stacked(model: Any, *, gradients: bool = False) -> Tensor:
    return torch.cat([matrix_c(conv, gradients=gradients).flatten() for conv in model.convs])


def _diagonal(model: Any) -> Tensor:
    eyes = [torch.eye(conv.out_channels, dtype=torch.bool).repeat(conv.heads, 1) for conv in model.convs]
    return torch.cat([eye.flatten() for eye in eyes])


def counts(graph: Data, depths: Sequence[int] = (1, 2, 3), heads: Sequence[int] = (1, 2)) -> pd.DataFrame:
    """Numbers of laws: those that `find_laws` finds, and dimensions of null spaces over random draws.

    Returns:
        layers, heads, activation; found; null_space: of the rows w * dLoss/dw, which is the number of rescalings;
        matrix: of the rows of all entries of Q g_Q^T and g_K K^T, which is that of their linear relations;
        channels_squared: what that is by the matrix law, the squared channels of each head.
    """
    rows = []
    for layers, number, activation in product(depths, heads, choices(Network)["activation"]):
        network = Network(model="transformer", layers=layers, width=3, heads=number, activation=activation)  # type: ignore[arg-type]
        with random_state(0, ()):
            model: Any = build(network, graph.num_features, int(graph.y.max()) + 1).double()
            found = len(find_laws(model, graph.x, graph.edge_index))
            squared = sum(conv.heads * conv.out_channels**2 for conv in model.convs)
            entrywise, relations = _null_spaces(model, graph)
        about = {"layers": layers, "heads": number, "activation": activation, "found": found}
        rows.append({**about, "null_space": entrywise, "matrix": relations, "channels_squared": squared})
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
    """Of rows of about one length and columns of about one size."""
    rows = rows / rows.norm(dim=1, keepdim=True)
    values = torch.linalg.svdvals(rows / rows.norm(dim=0))
    return int((values < _ZERO * values[0]).sum())


def evidence(options: Options) -> Evidence:
    """Measures and reports."""
    small, blocks = prepared_graph("csbm:nodes=100,classes=2,features=4,degree=4"), prepared_graph("csbm:classes=4")
    cora = graph_of(EXPERIMENT, options.root)
    runs = [
        trainings(in_double(graph), rates, EXPERIMENT, measured).assign(graph=name)
        for name, graph, rates in (("block model", blocks, RATES), ("Cora", cora, RATES[1:2]))
    ]
    return report(counts(in_double(small)), pd.concat(runs))


def report(numbers: pd.DataFrame, runs: pd.DataFrame) -> Evidence:
    """What was measured, in words, tables and a picture."""
    blocks = runs[runs["graph"] == "block model"]
    last = runs.groupby(["graph", "rate"], sort=False).last().reset_index()
    last["first_loss"] = runs.groupby(["graph", "rate"], sort=False)["loss"].first().to_numpy()
    by_rate = last[last["graph"] == "block model"].sort_values("rate", ascending=False)
    steps, drifts = (_ratios(by_rate[name]) for name in ("step_off_diagonal", "drift_off_diagonal"))
    worst = {name: float(runs[name].max()) for name in ("diagonal", "off_diagonal", "found", "unexplained")}
    false = float(runs["transposed"].min())
    statements = (
        (bool((numbers["found"] == numbers["null_space"]).all()), "`gatdiag.find_laws` finds as many laws as the null "
         f"space of w * dLoss/dw has dimensions, in {len(numbers)} small Graph Transformers."),
        (bool((numbers["matrix"] == numbers["channels_squared"]).all()), "Among the entries of Q g_Q^T and g_K K^T "
         "there are as many linear relations as squared channels of the heads: the matrix law, no other."),
        (worst["off_diagonal"] < 1e-9, "Q g_Q^T = g_K K^T off the diagonal, at each step of the trainings, up to "
         f"{worst['off_diagonal']:.0e} of its sides (on the diagonal {worst['diagonal']:.0e})."),
        (false > 1e-3, f"With one side transposed it is false: missed by {false:.2g} of its sides or more."),
        (worst["found"] < 1e-6, f"The laws found hold at each step, up to {worst['found']:.0e} of the terms."),
        (worst["unexplained"] < 1e-12, "Off the diagonal, Q Q^T - K K^T changes in each step by rate^2 (g_Q g_Q^T - "
         f"g_K g_K^T) and nothing else, up to {worst['unexplained']:.0e}."),
        (all(abs(ratio - 4) < 0.5 for ratio in steps), "At half the rate its last step is a quarter "
         f"(ratios {', '.join(f'{ratio:.2f}' for ratio in steps)}): c drifts at second order in the rate."),
        (all(abs(ratio - 2) < 0.25 for ratio in drifts), "Over the same time it then moves half as far "
         f"(ratios {', '.join(f'{ratio:.2f}' for ratio in drifts)})."),
    )  # fmt: skip
    shown = ["graph", "rate", "step", "first_loss", "loss", "drift_diagonal", "drift_off_diagonal", "drift_values"]
    text = outcome(
        statements,
        "Laws by count, of networks with 3 channels a head and two classes. With ELU only the laws inside the "
        "layers are left. What `find_laws` claims are rescalings: of query against key the diagonal, channel by "
        "channel. It does not know the rest of the matrix law, which is an independent statement, summed by hand "
        "here.",
        markdown(numbers),
        "Trainings of three layers, two heads of 16 channels, from PyG's weights, in float64: how far c has moved "
        "at the end, at most over channels or entries.",
        markdown(last[[*shown, "step_off_diagonal"]]),
    )
    table = pd.concat([numbers.assign(part="counts"), last.assign(part="trainings")])
    return Evidence(table, text, {"dot-product-attention.png": picture(lambda figure: _draw(figure, blocks))})


def _ratios(values: pd.Series) -> list[float]:
    return [larger / smaller for larger, smaller in pairwise(values.tolist())]


def _draw(figure: Figure, runs: pd.DataFrame) -> None:
    """delta at the smallest rate, and c at all of them."""
    deltas, *drifts = figure.subplots(1, 3)
    slowest = runs[runs["rate"] == runs["rate"].min()]
    labels = {"transposed": "transposed: no law", "off_diagonal": "off the diagonal", "diagonal": "on the diagonal"}
    for number, (name, label) in enumerate(labels.items()):
        deltas.plot(slowest["time"], slowest[name], label=label, **category(number))
    deltas.set(yscale="log", ylabel="|left - right| / sides")
    deltas.set_title("Q g$_Q^T$ = g$_K$ K$^T$", loc="left")
    for axes, name, title in zip(
        drifts,
        ("drift_off_diagonal", "drift_values"),
        ("Q Q$^T$ - K K$^T$, off the diagonal", "channels of V"),
        strict=True,
    ):
        for number, (rate, run) in enumerate(runs.groupby("rate", sort=False)):
            axes.plot(run["time"], run[name], label=f"rate {rate}", **category(number))
        axes.set_title(f"c: {title}", loc="left")
        axes.set_ylabel("largest |c - c at the beginning|")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    for axes in (deltas, *drifts):
        axes.set_xlabel("steps times rate")
        axes.legend()


REPRODUCTION = Reproduction(
    name="beyond-dot-product-attention",
    title="Laws of dot-product attention in a Graph Transformer",
    claim="For each head Q g_Q^T = g_K K^T, so that gradient flow conserves the matrix Q Q^T - K K^T; what leads into "
    "a channel of V and of the skip balances what leads out of it to the next layer.",
    evidence=evidence,
)

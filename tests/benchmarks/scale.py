"""`python -m tests.benchmarks.scale [CASE...]`: whether gatdiag holds at sizes that people have, each case alone."""

import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import gatdiag
from gatdiag.experiments.models import gcn
from reports.papers.markdown import table
from tests.benchmarks.__main__ import alone


@contextmanager
def clocked(row: dict[str, Any], name: str) -> Iterator[None]:
    """Note the seconds that the body takes."""
    start = time.perf_counter()
    yield
    row[name] = round(time.perf_counter() - start, 2)


def measure(name: str) -> dict[str, Any]:
    """Train a case, open its run, diagnose it and write its page."""
    row: dict[str, Any] = {"case": name}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(scratch) / "run"
        with clocked(row, "training_s"):
            row["steps"] = CASES[name](folder)
        row["training_GiB"] = _peak()
        row["run_MiB"] = round(sum(path.stat().st_size for path in folder.iterdir()) / 2**20, 1)
        with clocked(row, "open_s"):
            run = gatdiag.load(folder)
            row["rows"] = sum(len(one) for one in (run.steps, run.layers, run.parameters, run.neurons))
        with clocked(row, "diagnose_s"):
            row["verdict"] = gatdiag.diagnose(run).verdict.code
        with clocked(row, "page_s"):
            page = gatdiag.report(run, Path(scratch) / "page.html")
        row["page_MiB"] = round(page.stat().st_size / 2**20, 2)
        row["GiB"] = _peak()
    return row


def _peak() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def train(model: nn.Module, folder: Path, steps: int, loss: Callable[[int], Tensor], **options: Any) -> int:
    """Adam, watched at the default cadence."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with gatdiag.watch(model, folder, **options):
        for step in range(steps):
            optimizer.zero_grad()
            loss(step).backward()
            optimizer.step()
    return steps


class Sage(nn.Module):
    """Three layers of GraphSAGE over a batch of sampled neighbors."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        widths = (columns, 256, 256, classes)
        self.convs = nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes of the batch."""
        *hidden, last = self.convs
        for conv in hidden:
            x = conv(x, edge_index).relu()
        out: Tensor = last(x, edge_index)
        return out


def products(folder: Path) -> int:
    """2.4 million nodes with 100 features, 60 million edges: three hops of 10, 5 and 5 neighbors of 1,024 nodes."""
    nodes, generator = 2_400_000, torch.Generator().manual_seed(0)
    y = torch.randint(47, (nodes,), generator=generator)
    x = torch.randn(47, 100, generator=generator)[y].add_(torch.randn(nodes, 100, generator=generator))
    neighbors = torch.randint(nodes, (nodes, 25), generator=generator)
    model = Sage(100, 47)

    def loss(step: int) -> Tensor:
        batch, edges, seeds = torch.randint(nodes, (1024,), generator=generator), [], torch.arange(1024)
        known = batch
        for fanout in (10, 5, 5):
            fresh = neighbors[batch, :fanout].flatten()
            targets = torch.arange(len(known) - len(batch), len(known)).repeat_interleave(fanout)
            edges.append(torch.stack([len(known) + torch.arange(len(fresh)), targets]))
            known, batch = torch.cat([known, fresh]), fresh
        out = model(x[known], torch.cat(edges, 1))
        return F.cross_entropy(out[seeds], y[known[seeds]])

    return train(model, folder, 30, loss)


class Transformer(nn.Module):
    """A language model of 40 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4096, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(512, 4096)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        out: Tensor = self.head(self.layers(self.embedding(tokens)))
        return out


def transformer(folder: Path) -> int:
    """40 million parameters, sequences of 64."""
    torch.manual_seed(0)
    model, tokens = Transformer(), torch.randint(4096, (4, 65))
    return train(
        model, folder, 30, lambda _: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    )


def layers(folder: Path) -> int:
    """512 layers of graph convolutions."""
    torch.manual_seed(0)
    x, edge_index, y = torch.randn(500, 32), torch.randint(500, (2, 2000)), torch.randint(4, (500,))
    model = gcn(32, 4, hidden_channels=16, layers=512, residual=True)
    return train(model, folder, 40, lambda _: F.cross_entropy(model(x, edge_index), y))


def steps(folder: Path) -> int:
    """One million steps of a small network."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return train(model, folder, 1_000_000, lambda _: F.cross_entropy(model(x), y))


CASES: Final = {"products": products, "transformer": transformer, "layers": layers, "steps": steps}


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        print(table(pd.DataFrame([alone(partial(measure, name))])), flush=True)  # noqa: T201

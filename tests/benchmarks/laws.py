"""What finding and evaluating laws costs; prints figures, asserts nothing.

    python -m tests.benchmarks.laws

1. find_laws on a 10-layer width-64 GATv2 on a random graph of Cora's shapes;
2. delta and c as a share of that model's training step: both in one process, interleaved, median of the ratios;
3. find_laws on a 512-layer width-64 residual GCN on the same graph: time and peak memory, in a process of its own.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

import gatdiag

NODES, EDGES, FEATURES, CLASSES, WIDTH = 2708, 10556, 1433, 7, 64


class Gat(nn.Module):
    """The model of the papers: GATv2 with one head, shared weights and no bias, ReLU between layers."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        widths = [FEATURES, *[WIDTH] * (depth - 1), CLASSES]
        self.convs = nn.ModuleList(gnn.GATv2Conv(i, o, share_weights=True, bias=False) for i, o in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Class scores of every node."""
        for conv in self.convs[:-1]:
            x = F.relu(conv(x, edge_index))
        return self.convs[-1](x, edge_index)


class ResidualGcn(nn.Module):
    """Linear, then x + ReLU(GCN(x)) many times, then linear."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(gnn.GCNConv(WIDTH, WIDTH) for _ in range(depth - 2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Class scores of every node."""
        x = self.encode(x)
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index))
        return self.decode(x)


def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Row-normalized sparse binary features, edges in both directions and labels, at random."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(NODES, FEATURES, generator=generator) < 0.0127).float()
    half = torch.randint(NODES, (2, EDGES // 2), generator=generator)
    labels = torch.randint(CLASSES, (NODES,), generator=generator)
    return x / x.sum(1, keepdim=True).clamp(min=1), torch.cat([half, half.flip(0)], dim=1), labels


def say(text: str) -> None:
    """Prints a line at once, so that lines of the process started last come last."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def find_in_gat(repeats: int) -> None:
    """Prints the time of find_laws, first call and later ones."""
    x, edge_index, _ = graph()
    model = Gat(10)
    times = [seconds(lambda: gatdiag.find_laws(model, x, edge_index)) for _ in range(repeats)]
    laws = gatdiag.find_laws(model, x, edge_index)
    say(f"10-layer GATv2: {len(laws)} laws found in {statistics.median(times):.2f} s (first call {times[0]:.2f} s)")


def share_of_a_step(rounds: int) -> None:
    """Prints the cost of delta and c beside a training step's."""
    x, edge_index, labels = graph()
    model = Gat(10)
    laws = gatdiag.find_laws(model, x, edge_index)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0005)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index), labels).backward()
        optimizer.step()

    def values() -> None:
        laws.delta()
        laws.c()

    for run in (step, values):
        run()
    pairs = [(seconds(step), seconds(values)) for _ in range(rounds)]
    ratio = statistics.median(cost / whole for whole, cost in pairs)
    whole, cost = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    say(f"delta and c: {100 * ratio:.2f} % of a training step ({cost:.2f} ms of {whole:.0f} ms, {rounds} rounds)")


def find_in_deep_gcn(depth: int) -> None:
    """Prints time and peak memory; to be run in a process of its own."""
    x, edge_index, _ = graph()
    model = ResidualGcn(depth)
    before = _peak()
    found: list[gatdiag.Laws] = []
    spent = seconds(lambda: found.append(gatdiag.find_laws(model, x, edge_index)))
    say(
        f"{depth}-layer residual GCN: {len(found[0])} laws found in {spent:.1f} s, "
        f"peak memory {_peak():.2f} GiB (before: {before:.2f} GiB)"
    )


def _peak() -> float:
    """Largest resident memory of this process in GiB; getrusage would count the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 2**20  # type: ignore[index]


def main() -> None:
    """Runs all three, the last in a process of its own."""
    parser = argparse.ArgumentParser(description="Costs of the laws.")
    parser.add_argument("--depth", type=int, default=512, help="layers of the residual GCN")
    parser.add_argument("--rounds", type=int, default=40, help="interleaved rounds of step and values")
    parser.add_argument("--only-deep", action="store_true", help="only the residual GCN, in this process")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.only_deep:
        find_in_deep_gcn(options.depth)
        return
    say(f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores")
    find_in_gat(5)
    share_of_a_step(options.rounds)
    subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.laws", "--only-deep", "--depth", str(options.depth)], check=True
    )


if __name__ == "__main__":
    main()

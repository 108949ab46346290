"""The training loop of gatdiag against one written by hand, epoch by epoch in turn, on Cora's shapes: ratios of means.

`python tests/benchmarks/training_loop.py [SECONDS]` prints them in processor time: once as with dropout, where a step
and its evaluation need a forward pass each, and once as without, where gatdiag uses one for both.
"""

import sys
import time
from contextlib import suppress
from statistics import fmean

import torch
from torch.nn import functional as F
from torch_geometric.nn import GAT

from gatdiag.experiments.bench import _like_cora
from gatdiag.experiments.experiment import prepared_model
from gatdiag.experiments.pool import one_thread
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.training import train


def masked(graph):
    """The public split's sizes."""
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1)).split([140, 500, 1000, 1068])
    for name, nodes in zip(("train", "val", "test"), order[:3], strict=True):
        graph[f"{name}_mask"] = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, nodes, True)
    return graph


def by_hand(graph, layers):
    """An epoch as a user of PyG writes it."""
    model = GAT(1433, 64, layers, 7, v2=True, share_weights=True, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def epoch():
        model.train()
        optimizer.zero_grad()
        out = model(graph.x, graph.edge_index)
        loss = F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(graph.x, graph.edge_index).argmax(dim=1) == graph.y
        shares = [right[mask].float().mean().item() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]
        return loss.item(), *shares

    return epoch


def ratio(graph, layers, seconds, *, has_modes):
    """Mean epoch of gatdiag relative to the mean epoch by hand, and how many there were of each."""
    model, plain = prepared_model(Experiment(layers=layers), graph), by_hand(graph, layers)
    times, begin = ([], []), time.perf_counter()
    last = [time.process_time()]

    def in_turn(number, epoch):
        between = time.process_time()
        plain()
        times[0].append(between - last[0])
        times[1].append(time.process_time() - between)
        if time.perf_counter() - begin > seconds:
            raise StopIteration
        last[0] = time.process_time()

    with suppress(StopIteration):
        train(model, graph, Experiment(epochs=10**6, stop_below=0.0), progress=in_turn, has_modes=has_modes)
    ours, theirs = (fmean(one[2:]) for one in times)
    return ours / theirs, len(times[0]) - 2


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with one_thread():
        for layers in (2, 10):
            for has_modes in (True, False):
                value, epochs = ratio(masked(_like_cora()), layers, seconds, has_modes=has_modes)
                passes = "two passes" if has_modes else "one pass"
                sys.stdout.write(f"gatv2, {layers} layers, {passes}: {value:.3f} ({epochs} epochs)\n")

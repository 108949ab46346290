"""What `gatdiag.checkpoint.inspect` costs: ``python -m tests.benchmarks.checkpoints``.

Reading checkpoints with ``torch.load`` and inspecting them take turns in one process. Printed are medians, ratios, and
the memory of the process that no file stands behind.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch_geometric.nn import GCN

from gatdiag.checkpoint import inspect
from gatdiag.experiments.models import gat

MODELS: dict[str, Callable[[], nn.Module]] = {
    "10-layer GATv2, width 64 (0.5 MB)": lambda: gat(1433, 7),
    "25-layer GCN, width 1024 (100 MB)": lambda: GCN(1024, 1024, 25, out_channels=1024),
}


def say(text: str) -> None:
    """Prints at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def save(folder: Path, model: nn.Module, count: int) -> None:
    """As many checkpoints, a little further each time."""
    for step in range(count):
        torch.save(model.state_dict(), folder / f"step{step}.pt")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1e-3 * torch.randn_like(parameter)


def read(folder: Path) -> None:
    """Loads all of them, one at a time."""
    for path in sorted(folder.iterdir()):
        for tensor in torch.load(path, weights_only=True).values():
            tensor.flatten()[0].item()


def timed(function: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def anonymous() -> int:
    """MiB of this process that no file stands behind."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024  # type: ignore[index]


def measure(model: nn.Module, count: int, rounds: int, quick: bool) -> str:
    """One line: reading, inspecting, their ratio, memory."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkpoints"
        folder.mkdir()
        save(folder, model, count)
        peak, before = [0], anonymous()
        pairs = []
        for number in range(rounds + 1):
            run = Path(scratch) / f"run{number}"
            loading = timed(lambda: read(folder))
            inspecting = timed(
                lambda run=run: inspect(folder, run, quick=quick, told=lambda *_: peak.append(anonymous()))  # type: ignore[misc]
            )
            pairs.append((loading, inspecting))
    loading, inspecting = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    return (
        f"{count} checkpoints{', quick' * quick}: read in {1e3 * loading:.0f} ms, inspected in {1e3 * inspecting:.0f} "
        f"ms, {inspecting / loading:.1f} times; {max(peak) - before} MiB more at most between checkpoints"
    )


def main() -> None:
    """Runs all of them."""
    parser = argparse.ArgumentParser(description="What inspecting checkpoints costs.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for name, make in MODELS.items():
        say(name)
        for count, quick in ((1, True), (1, False), (6, True), (6, False)):
            torch.manual_seed(0)
            say(f"    {measure(make(), count, rounds, quick)}")


if __name__ == "__main__":
    main()

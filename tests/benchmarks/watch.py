"""What `gatdiag.watch` costs: ``python -m tests.benchmarks.watch``.

A ten-layer GATv2 of width 64 on the shapes of Cora, full batch, SGD. Each watched step is followed by the same step of
an unwatched twin, with the recorder's hooks taken off, in one process; what is printed is the median of the ratios of
such pairs, and the medians of the times. Other tools are measured in the same way where they are installed.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.recorder import GROUPS, Recorder
from tests.benchmarks.laws import Gat, graph

Step = Callable[[], None]


def say(text: str) -> None:
    """Prints at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def training_step(model: nn.Module, log: Callable[..., None] = lambda **_: None) -> Step:
    """One step of plain gradient descent."""
    x, edge_index, labels = graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index), labels)
        loss.backward()
        optimizer.step()
        log(loss=loss)

    return step


@contextmanager
def paused(recorder: Recorder) -> Iterator[None]:
    """The global hooks of a recorder are off."""
    layers = recorder._hooks._layers
    recorder._hooks.remove()
    recorder._steps.remove()
    yield
    recorder._hooks.attach()
    recorder._hooks._layers = layers
    recorder._steps.attach()


def timed(step: Step) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def watched(rounds: int, bare: Step, **options: object) -> tuple[float, float, float]:
    """Median ratio of pairs, median of the watched times, median of the bare times."""
    torch.manual_seed(0)
    model = Gat(10)
    with (
        tempfile.TemporaryDirectory() as folder,
        gatdiag.watch(model, Path(folder) / "run", **options) as recorder,  # type: ignore[arg-type]
    ):
        step = training_step(model, recorder.log)
        for _ in range(3):
            step()
        pairs = []
        for _ in range(rounds):
            spent = timed(step)
            with paused(recorder):
                pairs.append((spent, timed(bare)))
    ratio = statistics.median(one / other for one, other in pairs)
    return ratio, *(statistics.median(column) for column in zip(*pairs, strict=True))


def presets(rounds: int, bare: Step) -> None:
    """Prints the presets."""
    for preset in ("standard", "fast", "full"):
        ratio, one, other = watched(rounds, bare, metrics=preset)
        say(f"{preset:9} every step: {ratio:.3f} times the bare loop ({1e3 * one:.1f} and {1e3 * other:.1f} ms)")


def groups(rounds: int, bare: Step) -> None:
    """Prints what each group adds, recorded at every step."""
    least, _, _ = watched(rounds, bare, metrics=["weights"])
    say(f"{'weights':9} alone: {100 * (least - 1):5.1f} % of a step")
    for name in GROUPS:
        if name != "weights":
            ratio, _, _ = watched(rounds, bare, metrics=["weights", name])
            say(f"{name:9} adds:  {100 * (ratio - least):5.1f} % of a step")


def others(rounds: int, bare: Step) -> None:
    """Prints TensorBoard histograms and wandb.watch, where they are installed."""
    model = Gat(10)
    step = training_step(model)
    with tempfile.TemporaryDirectory() as folder:
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(folder)

            def histograms() -> None:
                step()
                for name, parameter in model.named_parameters():
                    writer.add_histogram(name, parameter, 0)
                    writer.add_histogram(f"{name}.grad", parameter.grad, 0)

            _tell("TensorBoard histograms of weights and gradients", rounds, histograms, bare)
            writer.close()
        with suppress(ImportError):
            import wandb

            os.environ.setdefault("WANDB_SILENT", "true")
            run = wandb.init(mode="offline", dir=folder)
            run.watch(model, log="all", log_freq=1)

            def reported() -> None:
                step()
                run.log({"step": 0})

            _tell("wandb.watch(log='all', log_freq=1)", rounds, reported, bare)
            run.finish()


def _tell(name: str, rounds: int, step: Step, bare: Step) -> None:
    step()
    ratio = statistics.median(timed(step) / timed(bare) for _ in range(rounds))
    say(f"{name}: {ratio:.3f} times the bare loop")


def memory(steps: int) -> None:
    """Prints how the memory of this process grows over many steps of a small network."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.ReLU())))
    x, optimizer = torch.randn(16, 8), torch.optim.SGD(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder, gatdiag.watch(model, Path(folder) / "run") as recorder:
        for step in range(steps + 1):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.log(loss=loss)
            if step and step % max(1, steps // 5) == 0:
                size = sum(file.stat().st_size for file in (Path(folder) / "run").iterdir())
                say(f"step {step}: {_resident():.0f} MiB in memory, {size / 2**20:.1f} MiB on disk")


def _resident() -> float:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 2**10  # type: ignore[index]


def main() -> None:
    """Runs all of them, or some."""
    parser = argparse.ArgumentParser(description="What watching costs.")
    parser.add_argument("what", nargs="*", default=["presets", "groups", "others", "memory"])
    parser.add_argument("--rounds", type=int, default=60, help="interleaved pairs of steps")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of the memory test")
    options = parser.parse_args()
    say(f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores")
    bare = training_step(Gat(10))
    bare()
    for what in options.what:
        if what == "memory":
            memory(options.steps)
        else:
            {"presets": presets, "groups": groups, "others": others}[what](options.rounds, bare)


if __name__ == "__main__":
    main()

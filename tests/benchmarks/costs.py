"""What recording a training costs: watched and bare steps alternate in one process.

Other tools that attach to a model are measured in the same way, where they are installed.
"""

import copy
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch_geometric.data import Data

import gatdiag
from gatdiag.checkpoint import ModelCase
from gatdiag.experiments.models import Stack, gat, gcn
from gatdiag.experiments.synthetic import block_model

Tool: TypeAlias = Callable[[nn.Module, Path], AbstractContextManager[Callable[[Tensor], None]]]
"""Attaches to a model and writes into a folder; what it yields is called with the loss after each step."""

_MIN_ROUNDS = 4  # however long they take
_WARMUP_STEPS = 2
_WATCHED_STEPS = 10  # per round, unless every step is recorded
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (  # that are called for every module and optimizer
    modules._global_forward_pre_hooks,
    modules._global_forward_hooks,
    modules._global_forward_hooks_always_called,
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
)


@dataclass(frozen=True)
class Cost:
    """What watching a training costs; times are means in seconds, memory is in MiB.

    Attributes:
        steps: Number of watched steps that were timed, without the first.
        bare: A bare step.
        watched: A watched step.
        cpu_ratio: Processor time of a watched step relative to a bare one; more reliable on a busy machine.
        first: The first watched step including setup.
        memory: Growth of the peak memory of the process over that of bare training.
        disk: Bytes written per watched step, without snapshots of weights.
    """

    steps: int
    bare: float
    watched: float
    cpu_ratio: float
    first: float
    memory: float
    disk: float

    @property
    def ratio(self) -> float:
        """Mean watched step relative to the mean bare step: 1.05 is 5% slower."""
        return self.watched / self.bare


def measure(case: ModelCase, tool: Tool, folder: Path, *, seconds: float, every_step: bool = True) -> Cost:
    """Train a model watched and a copy of it bare, in turn, with SGD.

    Global hooks are removed during bare steps. Unless every step is recorded, two bare steps follow ten watched ones,
    as the recorder counts them as training time; the first of the two is not timed, as its weights are not in the
    caches. At least four rounds are made.
    """
    bare = _make_step(case, copy.deepcopy(case.model), lambda _: None)
    for _ in range(_WARMUP_STEPS):
        bare()
    memory, begin = _peak_memory(), time.perf_counter()
    model = copy.deepcopy(case.model)
    with tool(model, folder) as after:
        watched = _make_step(case, model, after)
        watched()
        first = time.perf_counter() - begin
        watched_times, bare_times = list[tuple[float, float]](), list[tuple[float, float]]()
        while len(bare_times) < _MIN_ROUNDS or time.perf_counter() - begin - first < seconds:
            watched_times += [_time(watched) for _ in range(1 if every_step else _WATCHED_STEPS)]
            with _without_global_hooks():
                if not every_step:
                    bare()
                bare_times.append(_time(bare))
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".safetensors"]
    (watched_wall, watched_cpu), (bare_wall, bare_cpu) = (
        map(fmean, zip(*times, strict=True)) for times in (watched_times, bare_times)
    )
    return Cost(
        steps=len(watched_times),
        bare=bare_wall,
        watched=watched_wall,
        cpu_ratio=watched_cpu / bare_cpu,
        first=first,
        memory=_peak_memory() - memory,
        disk=sum(file.stat().st_size for file in files) / (1 + len(watched_times)),
    )


def measure_search(case: ModelCase) -> tuple[int, float, float]:
    """Number of laws of the model, seconds that `gatdiag.find_laws` takes, and growth of the peak memory in MiB."""
    _make_step(case, copy.deepcopy(case.model), lambda _: None)()
    memory, begin = _peak_memory(), time.perf_counter()
    laws = gatdiag.find_laws(case.model, *case.args)
    return len(laws), time.perf_counter() - begin, _peak_memory() - memory


def _make_step(case: ModelCase, model: nn.Module, after: Callable[[Tensor], None]) -> Callable[[], None]:
    """A function that makes one training step."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss = case.loss(model(*case.args))
        loss.backward()
        optimizer.step()
        after(loss.detach())

    return step


def _time(step: Callable[[], object]) -> tuple[float, float]:
    """Wall time and processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


def _peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


@contextmanager
def _without_global_hooks() -> Iterator[None]:
    kept = [dict(hooks) for hooks in _GLOBAL_HOOKS]
    for hooks in _GLOBAL_HOOKS:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(_GLOBAL_HOOKS, kept, strict=True):
            hooks.update(before)


# --- tools ------------------------------------------------------------------------------------------------------------


@contextmanager
def watching(model: nn.Module, folder: Path, **options: Any) -> Iterator[Callable[[Tensor], None]]:
    """`gatdiag.watch` with its options."""
    with gatdiag.watch(model, folder, **options) as recorder:
        yield lambda loss: recorder.log(loss=loss)


@contextmanager
def _wandb(model: nn.Module, folder: Path) -> Iterator[Callable[[Tensor], None]]:
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=folder)
    run.watch(model, log="all", log_freq=1)
    yield lambda loss: run.log({"loss": float(loss)})
    run.finish()


@contextmanager
def _tensorboard(model: nn.Module, folder: Path) -> Iterator[Callable[[Tensor], None]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def after(loss: Tensor) -> None:
        writer.add_scalar("loss", loss)
        for name, tensor in _weights_and_gradients(model):
            writer.add_histogram(name, tensor)
        writer.flush()  # else its thread writes while the bare step is timed

    yield after
    writer.close()


@contextmanager
def _aim(model: nn.Module, folder: Path) -> Iterator[Callable[[Tensor], None]]:
    import aim

    folder.mkdir(parents=True, exist_ok=True)
    run = aim.Run(repo=str(folder), system_tracking_interval=None)

    def after(loss: Tensor) -> None:
        run.track(float(loss), name="loss")
        for name, tensor in _weights_and_gradients(model):
            run.track(aim.Distribution(tensor.cpu().numpy()), name=name)

    yield after
    run.close()


def _weights_and_gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad


PEERS: Mapping[str, Tool] = {"wandb": _wandb, "tensorboard": _tensorboard, "aim": _aim}
"""Other tools by the module that they need, recording weights and gradients at every step."""


# --- trainings --------------------------------------------------------------------------------------------------------


def _graph_case(model: nn.Module, graph: Data) -> ModelCase:
    return ModelCase(model, (graph.x, graph.edge_index), loss=partial(F.cross_entropy, target=graph.y))


def _like_cora() -> Data:
    """A random graph of Cora's shapes: sparse features with rows that sum to one, undirected edges, labels."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(2708, 1433, generator=generator) < 0.0127).float()
    half = torch.randint(2708, (2, 5278), generator=generator)
    labels = torch.randint(7, (2708,), generator=generator)
    return Data(x / x.sum(1, keepdim=True).clamp(min=1), torch.cat([half, half.flip(0)], dim=1), y=labels)


def _shrink_branches(model: Stack) -> Stack:
    """Divide the weights of residual branches by their number, as the sum of 512 branches would overflow."""
    branches = model.convs[1:-1]
    with torch.no_grad():
        for parameter in branches.parameters():
            parameter.div_(len(branches))
    return model


CASES: Mapping[str, Callable[[], ModelCase]] = {
    "gcn-2-small": lambda: _graph_case(gcn(64, 4, 16, layers=2), block_model(nodes=240)),
    "gcn-2": lambda: _graph_case(gcn(1433, 7, 16, layers=2), _like_cora()),
    "gat-10": lambda: _graph_case(gat(1433, 7, layers=10), _like_cora()),
    "gat-40": lambda: _graph_case(gat(1433, 7, layers=40), _like_cora()),
    "residual-gcn-512": lambda: _graph_case(_shrink_branches(gcn(1433, 7, layers=512, residual=True)), _like_cora()),
}
"""Trainings by name: on a block model of 240 nodes, or on a random graph of Cora's shapes."""


# --- rows, each measured in a process of its own ----------------------------------------------------------------------


def measure_tool(case: str, tool: str, auto: bool, seconds: float) -> dict[str, Any]:
    """The row of a training and a tool, which is a preset of gatdiag or a peer."""
    torch.manual_seed(0)
    attach = PEERS.get(tool, partial(watching, metrics=tool, every="auto" if auto else 1))
    with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
        cost = measure(CASES[case](), attach, Path(scratch) / "run", seconds=seconds, every_step=not auto)
    return {
        "training": case,
        "tool": tool,
        "steps": cost.steps,
        "bare_ms": 1e3 * cost.bare,
        "watched_ms": 1e3 * cost.watched,
        "ratio": cost.ratio,
        "cpu_ratio": cost.cpu_ratio,
        "first_s": cost.first,
        "MiB": cost.memory,
        "bytes_per_step": round(cost.disk),
    }


def measure_laws(case: str) -> dict[str, Any]:
    """The row of the search for laws in a model."""
    torch.manual_seed(0)
    count, seconds, memory = measure_search(CASES[case]())
    return {"model": case, "laws": count, "seconds": seconds, "MiB": memory}

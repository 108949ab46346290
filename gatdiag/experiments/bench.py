"""What recording a training costs: watched and bare steps alternate in one process.

Other tools that attach to a model are measured in the same way, and so are remedies that stay in the forward pass.
"""

import copy
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch_geometric.data import Data
from torch_geometric.nn import GAT, PairNorm

from gatdiag.experiments.models import Stack, gat, gcn
from gatdiag.experiments.synthetic import block_model
from gatdiag.remedies import Skip, insert_after_, lipschitz_normalize_, weight_normalize_
from gatdiag.run import load
from gatdiag.watching import watch

# Called with the loss after each step.
AfterStep: TypeAlias = Callable[[Tensor], None]
Tool: TypeAlias = Callable[[nn.Module, Path], AbstractContextManager[AfterStep]]
Every: TypeAlias = int | Literal["auto"]
_Times: TypeAlias = tuple[float, float]  # wall time and processor time

_MIN_ROUNDS: Final = 4  # however long they take
_WARMUP_STEPS: Final = 2
_WATCHED_STEPS: Final = 10  # per round, unless every step is recorded
_COUNTED_STEPS: Final = 10  # for aten calls: some quantities are recorded at every tenth step

# Hooks that are called for every module and optimizer.
_GLOBAL_HOOKS: Final[tuple[dict[int, Any], ...]] = (
    modules._global_forward_pre_hooks,
    modules._global_forward_hooks,
    modules._global_forward_hooks_always_called,
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
)


@dataclass(frozen=True)
class Case:
    """A training whose steps are timed.

    Attributes:
        name: Name of the training.
        model: The model; copies of it are trained.
        args: Positional inputs of its forward pass.
        loss: Function of its output that returns a scalar.
        kwargs: Keyword inputs.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    loss: Callable[[Any], Tensor]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Case":
        """The case on a device."""
        args, kwargs = tree_map_only((Tensor, Data), lambda value: value.to(device), (self.args, self.kwargs))
        return replace(self, model=self.model.to(device), args=args, kwargs=kwargs)


@dataclass(frozen=True)
class Cost:
    """What watching a training costs.

    Attributes:
        case: Name of the training.
        tool: Name of the tool that watches it.
        steps: Number of watched steps that were timed, without the first.
        bare: Mean time of a bare step, in seconds.
        watched: Mean time of a watched step, in seconds.
        cpu_ratio: Mean processor time of a watched step relative to a bare one; more reliable on a busy machine.
        quartiles: Quartiles of the ratios of watched steps to the bare step that followed.
        first: Time of the first watched step including setup, in seconds.
        memory: Growth of the peak resident memory of the process during the first step, in MiB.
        bytes: Bytes written to disk per watched step, without snapshots of weights.
        calls: Mean number of aten calls that watching adds to a step; None unless every step is recorded.
        recorded: Share of the watched steps that was recorded; None for other tools.
    """

    case: str
    tool: str
    steps: int
    bare: float
    watched: float
    cpu_ratio: float
    quartiles: tuple[float, ...]
    first: float
    memory: float
    bytes: float
    calls: float | None
    recorded: float | None

    @property
    def ratio(self) -> float:
        """Mean watched step relative to the mean bare step: 1.05 is 5 % slower."""
        return self.watched / self.bare

    @property
    def total_ratio(self) -> float:
        """The ratio over all steps, including the first."""
        return (self.first + self.steps * self.watched) / ((self.steps + 1) * self.bare)


def measure(case: Case, name: str, tool: Tool, folder: Path, *, seconds: float = 20.0, every: Every = 1) -> Cost:
    """Train a model watched and a copy of it bare, in turn, with SGD.

    A step is zero_grad, forward pass, loss, backward pass and optimizer step; a watched one also logs its loss. Global
    hooks are removed during bare steps. With "auto", the recorder counts bare steps as training time, so only two
    follow ten watched ones: it may record a fifth too much. The first of the two is not timed, as its weights are not
    in the caches.

    Args:
        case: What to train.
        name: Name of the tool, in the result.
        tool: Attaches to a model, and writes into a folder.
        folder: Where the tool writes; created if missing.
        seconds: Duration of the measurement; at least four rounds are made.
        every: The recorder's setting.

    Example:
        >>> import tempfile
        >>> line = Case("line", nn.Linear(2, 1), (torch.ones(3, 2),), torch.mean)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cost = measure(line, "fast", gatdiag_tool("fast", 1), Path(folder), seconds=0.0)
        >>> cost.steps, cost.recorded, cost.ratio > 0
        (4, 1.0, True)
    """
    bare = _make_step(case, copy.deepcopy(case.model), lambda _: None)
    for _ in range(_WARMUP_STEPS):
        bare()
    memory, begin = _peak_memory(), time.perf_counter()
    model = copy.deepcopy(case.model)
    with tool(model, folder) as after:
        watched = _make_step(case, model, after)
        watched()
        first, memory = time.perf_counter() - begin, _peak_memory() - memory
        rounds: list[tuple[list[_Times], _Times]] = []
        while len(rounds) < _MIN_ROUNDS or time.perf_counter() - begin - first < seconds:
            watched_times = [_time(watched) for _ in range(1 if every == 1 else _WATCHED_STEPS)]
            with _without_global_hooks():
                if every != 1:
                    bare()
                rounds.append((watched_times, _time(bare)))
        calls = None if every != 1 else _count_added_calls(watched, bare)
    steps = [times for watched_times, _ in rounds for times in watched_times]
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".safetensors"]
    step_count = 1 + len(steps) + (0 if calls is None else _COUNTED_STEPS)
    return Cost(
        case=case.name,
        tool=name,
        steps=len(steps),
        bare=fmean(wall for _, (wall, _) in rounds),
        watched=fmean(wall for wall, _ in steps),
        cpu_ratio=fmean(cpu for _, cpu in steps) / fmean(cpu for _, (_, cpu) in rounds),
        quartiles=(*quantiles([wall / bare_wall for times, (bare_wall, _) in rounds for wall, _ in times], n=4),),
        first=first,
        memory=memory,
        bytes=sum(file.stat().st_size for file in files) / step_count,
        calls=calls,
        recorded=load(folder).parameters["step"].nunique() / step_count if (folder / "meta.json").exists() else None,
    )


def _make_step(case: Case, model: nn.Module, after: AfterStep) -> Callable[[], None]:
    """A function that makes one training step."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = case.loss(model(*case.args, **case.kwargs))
        loss.backward()
        optimizer.step()
        after(loss.detach())
        if on_gpu:
            torch.cuda.synchronize()

    return step


def _time(step: Callable[[], object]) -> _Times:
    start = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - start[0], time.process_time() - start[1]


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


class _Counter(TorchDispatchMode):
    """Counts aten calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _count_added_calls(watched: Callable[[], None], bare: Callable[[], None]) -> float:
    with _Counter() as of_watched:
        for _ in range(_COUNTED_STEPS):
            watched()
    with _Counter() as of_bare, _without_global_hooks():
        bare()
    return float(of_watched.calls / _COUNTED_STEPS - of_bare.calls)


# --- tools and cases --------------------------------------------------------------------------------------------------


def gatdiag_tool(metrics: str, every: Every) -> Tool:
    """`gatdiag.watch` with a preset and a cadence."""

    @contextmanager
    def attach(model: nn.Module, folder: Path) -> Iterator[AfterStep]:
        options: dict[str, Any] = {"metrics": metrics, "every": every}
        with watch(model, folder, **options) as recorder:
            yield lambda loss: recorder.log(loss=loss)

    return attach


@contextmanager
def _wandb(model: nn.Module, folder: Path) -> Iterator[AfterStep]:
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=folder)
    run.watch(model, log="all", log_freq=1)
    yield lambda loss: run.log({"loss": float(loss)})
    run.finish()


@contextmanager
def _tensorboard(model: nn.Module, folder: Path) -> Iterator[AfterStep]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def after(loss: Tensor) -> None:
        writer.add_scalar("loss", loss)
        for name, parameter in model.named_parameters():
            writer.add_histogram(name, parameter)
            if parameter.grad is not None:
                writer.add_histogram(f"{name}.grad", parameter.grad)
        writer.flush()  # else its thread writes while the bare step is timed

    yield after
    writer.close()


@contextmanager
def _aim(model: nn.Module, folder: Path) -> Iterator[AfterStep]:
    import aim

    folder.mkdir(parents=True, exist_ok=True)
    run = aim.Run(repo=str(folder), system_tracking_interval=None)

    def after(loss: Tensor) -> None:
        run.track(float(loss), name="loss")
        for name, parameter in model.named_parameters():
            run.track(aim.Distribution(parameter.detach().cpu().numpy()), name=name)
            if parameter.grad is not None:
                run.track(aim.Distribution(parameter.grad.cpu().numpy()), name=f"{name}.grad")

    yield after
    run.close()


PEERS: Final[Mapping[str, Tool]] = {"wandb": _wandb, "TensorBoard": _tensorboard, "Aim": _aim}
"""Other tools, recording weights and gradients at every step; they raise ImportError if not installed."""


def _graph_case(name: str, model: nn.Module, graph: Data) -> Case:
    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, graph.y.to(logits.device))

    return Case(name, model, (graph.x, graph.edge_index), loss)


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


def _gat_case(name: str, heads: int, v2: bool) -> Case:
    model = GAT(64 * heads, 64 * heads, num_layers=10, heads=heads, v2=v2)
    return Case(name, model, (torch.randn(2708, 64 * heads), _like_cora().edge_index), lambda out: out.square().mean())


CASES: Final[Mapping[str, Callable[[str], Case]]] = {
    "gcn-2-small": lambda name: _graph_case(name, gcn(64, 4, 16, layers=2), block_model(nodes=240)),
    "gcn-2": lambda name: _graph_case(name, gcn(1433, 7, 16, layers=2), _like_cora()),
    "gat-10": lambda name: _graph_case(name, gat(1433, 7, layers=10), _like_cora()),
    "gat-40": lambda name: _graph_case(name, gat(1433, 7, layers=40), _like_cora()),
    "residual-gcn-512": lambda name: _graph_case(
        name, _shrink_branches(gcn(1433, 7, layers=512, residual=True)), _like_cora()
    ),
}
"""Built-in trainings by name: on a block model of 240 nodes, or on a random graph of Cora's shapes."""


GATS: Final[Mapping[str, Callable[[str], Case]]] = {
    f"{'GATv2' if v2 else 'GAT'}, {heads} head{'s' * (heads > 1)}": partial(_gat_case, heads=heads, v2=v2)
    for v2 in (False, True)
    for heads in (1, 8)
}
"""PyG's GATs of ten layers, with 64 channels per head, on a random graph of Cora's size."""


def _remedy_tool(change: Callable[[nn.Module], object]) -> Tool:
    @contextmanager
    def attach(model: nn.Module, folder: Path) -> Iterator[AfterStep]:
        change(model)
        yield lambda loss: None

    return attach


REMEDIES: Final[Mapping[str, Tool]] = {
    "lipschitz_normalize_": _remedy_tool(lipschitz_normalize_),
    "weight_normalize_": _remedy_tool(partial(weight_normalize_, c=4.0)),
    "insert_after_ PairNorm": _remedy_tool(lambda model: insert_after_(model, "convs.*", PairNorm())),
    "insert_after_ Skip": _remedy_tool(lambda model: insert_after_(model, "convs.*", Skip())),
}
"""Remedies that stay in the forward pass, in place of a tool."""

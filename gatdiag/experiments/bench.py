"""What recording a training costs: watched and bare steps in turn, in one process.

Other tools are measured alike, and so are remedies that stay in the forward pass: whatever attaches to a model.
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
from types import MappingProxyType
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

# Called after each step with its loss.
AfterStep: TypeAlias = Callable[[Tensor], None]
Tool: TypeAlias = Callable[[nn.Module, Path], AbstractContextManager[AfterStep]]
Every: TypeAlias = int | Literal["auto"]
_Times: TypeAlias = tuple[float, float]  # by the clock on the wall, and of the processor

_LEAST: Final = 4  # rounds, however long they take
_WARM: Final = 2  # steps before anything is timed
_PACED: Final = 10  # watched steps a bare one where recording paces itself by the time that passes
_COUNTED: Final = 10  # steps whose aten calls are counted: some quantities are recorded at each tenth

# What hears of every module and optimizer.
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
        name: What it is called.
        model: The model; copies of it are trained.
        args: Positional inputs of its forward pass.
        loss: Its output -> scalar.
        kwargs: Keyword inputs.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    loss: Callable[[Any], Tensor]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Case":
        """The same on a device."""
        args, kwargs = tree_map_only((Tensor, Data), lambda given: given.to(device), (self.args, self.kwargs))
        return replace(self, model=self.model.to(device), args=args, kwargs=kwargs)


@dataclass(frozen=True)
class Cost:
    """What watching a training costs.

    Attributes:
        case: Name of the training.
        tool: What watches it.
        steps: How many watched steps were timed, beside the first.
        bare: Mean time of a bare step, in seconds.
        watched: Mean time of a watched step, in seconds.
        cpu_ratio: Mean processor time of a watched step relative to that of a bare one; on a busy machine it says more.
        quartiles: Of the ratios of watched steps to the bare step that followed.
        first: Time of the first watched step, in seconds, with all that happens once before it.
        memory: By how much the largest resident memory of the process grew until then, in MiB.
        bytes: Written to disk, a watched step; snapshots of weights are not counted.
        calls: aten calls that watching adds to a step, a mean of ten; None where not each step is recorded.
        recorded: Share of the watched steps that was recorded; None of other tools.
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
    def whole(self) -> float:
        """The same of all that was trained, the first step included."""
        return (self.first + self.steps * self.watched) / ((self.steps + 1) * self.bare)


def measure(case: Case, name: str, tool: Tool, folder: Path, *, seconds: float = 20.0, every: Every = 1) -> Cost:
    """Train a model watched and a twin of it bare, in turn, by gradient descent.

    A step is zero_grad, forward pass, loss, backward pass and update; a watched one logs its loss, too. While the twin
    steps, hooks that hear of every module are off. A recorder that paces itself takes the time of bare steps for
    training, so to "auto" two bare steps follow ten watched ones: it may record a fifth too much. The first of the two
    is not timed, for it finds its own weights out of the caches.

    Args:
        case: What to train.
        name: Of the tool, in the result.
        tool: Attaches to a model, and writes into a folder.
        folder: Where it writes; made if it does not exist.
        seconds: How long to go on; four rounds are made in any case.
        every: As given to the recorder.

    Example:
        >>> import tempfile
        >>> line = Case("line", nn.Linear(2, 1), (torch.ones(3, 2),), torch.mean)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cost = measure(line, "fast", gatdiag_tool("fast", 1), Path(folder), seconds=0.0)
        >>> cost.steps, cost.recorded, cost.ratio > 0
        (4, 1.0, True)
    """
    bare = _training(case, copy.deepcopy(case.model), lambda _: None)
    for _ in range(_WARM):
        bare()
    memory, begin = _peak_memory(), time.perf_counter()
    model = copy.deepcopy(case.model)
    with tool(model, folder) as after:
        watched = _training(case, model, after)
        watched()
        first, memory = time.perf_counter() - begin, _peak_memory() - memory
        rounds: list[tuple[list[_Times], _Times]] = []
        while len(rounds) < _LEAST or time.perf_counter() - begin - first < seconds:
            spent = [_timed(watched) for _ in range(1 if every == 1 else _PACED)]
            with _without_global_hooks():
                if every != 1:
                    bare()
                rounds.append((spent, _timed(bare)))
        calls = None if every != 1 else _added_calls(watched, bare)
    steps = [step for several, _ in rounds for step in several]
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".safetensors"]
    made = 1 + len(steps) + (0 if calls is None else _COUNTED)
    return Cost(
        case=case.name,
        tool=name,
        steps=len(steps),
        bare=fmean(wall for _, (wall, _) in rounds),
        watched=fmean(wall for wall, _ in steps),
        cpu_ratio=fmean(cpu for _, cpu in steps) / fmean(cpu for _, (_, cpu) in rounds),
        quartiles=(*quantiles([wall / alone for several, (alone, _) in rounds for wall, _ in several], n=4),),
        first=first,
        memory=memory,
        bytes=sum(file.stat().st_size for file in files) / made,
        calls=calls,
        recorded=load(folder).parameters["step"].nunique() / made if (folder / "meta.json").exists() else None,
    )


def _training(case: Case, model: nn.Module, after: AfterStep) -> Callable[[], None]:
    """One step of training."""
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


def _timed(step: Callable[[], object]) -> _Times:
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
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _added_calls(watched: Callable[[], None], bare: Callable[[], None]) -> float:
    with _Counter() as of_watched:
        for _ in range(_COUNTED):
            watched()
    with _Counter() as of_bare, _without_global_hooks():
        bare()
    return float(of_watched.calls / _COUNTED - of_bare.calls)


# --- what is measured -------------------------------------------------------------------------------------------------


def gatdiag_tool(metrics: str, every: Every) -> Tool:
    """`gatdiag.watch` with a preset and a cadence."""

    @contextmanager
    def attached(model: nn.Module, folder: Path) -> Iterator[AfterStep]:
        options: dict[str, Any] = {"metrics": metrics, "every": every}
        with watch(model, folder, **options) as recorder:
            yield lambda loss: recorder.log(loss=loss)

    return attached


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
        writer.flush()  # its thread would write on while the bare step is timed

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


PEERS: Final[Mapping[str, Tool]] = MappingProxyType({"wandb": _wandb, "TensorBoard": _tensorboard, "Aim": _aim})
"""Other tools at every step, all that they record of weights and gradients; they raise ImportError if not installed."""


def _on_graph(name: str, model: nn.Module, graph: Data) -> Case:
    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, graph.y.to(logits.device))

    return Case(name, model, (graph.x, graph.edge_index), loss)


def _like_cora() -> Data:
    """Sparse features with rows that sum to one, edges in both directions, and labels, at random."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(2708, 1433, generator=generator) < 0.0127).float()
    half = torch.randint(2708, (2, 5278), generator=generator)
    labels = torch.randint(7, (2708,), generator=generator)
    return Data(x / x.sum(1, keepdim=True).clamp(min=1), torch.cat([half, half.flip(0)], dim=1), y=labels)


def _tamed(model: Stack) -> Stack:
    """Divide the weights of residual branches by their number: as they are drawn, a sum of 512 overflows."""
    branches = model.convs[1:-1]
    with torch.no_grad():
        for parameter in branches.parameters():
            parameter.div_(len(branches))
    return model


def _wide_gat(name: str, heads: int, v2: bool) -> Case:
    model = GAT(64 * heads, 64 * heads, num_layers=10, heads=heads, v2=v2)
    return Case(name, model, (torch.randn(2708, 64 * heads), _like_cora().edge_index), lambda out: out.square().mean())


CASES: Final[Mapping[str, Callable[[str], Case]]] = MappingProxyType(
    {
        "gcn-2-small": lambda name: _on_graph(name, gcn(64, 4, 16, layers=2), block_model(nodes=240)),
        "gcn-2": lambda name: _on_graph(name, gcn(1433, 7, 16, layers=2), _like_cora()),
        "gat-10": lambda name: _on_graph(name, gat(1433, 7, layers=10), _like_cora()),
        "gat-40": lambda name: _on_graph(name, gat(1433, 7, layers=40), _like_cora()),
        "residual-gcn-512": lambda name: _on_graph(name, _tamed(gcn(1433, 7, layers=512, residual=True)), _like_cora()),
    }
)
"""Name -> a built-in training of that name: on 240 nodes of a block model, or on a random graph of Cora's shapes."""


GATS: Final[Mapping[str, Callable[[str], Case]]] = MappingProxyType(
    {
        f"{'GATv2' if v2 else 'GAT'}, {heads} head{'s' * (heads > 1)}": partial(_wide_gat, heads=heads, v2=v2)
        for v2 in (False, True)
        for heads in (1, 8)
    }
)
"""Name -> ten layers of PyG, each of width 64 a head, on a random graph of Cora's size."""


def _remedy(change: Callable[[nn.Module], object]) -> Tool:
    @contextmanager
    def attached(model: nn.Module, folder: Path) -> Iterator[AfterStep]:
        change(model)
        yield lambda loss: None

    return attached


REMEDIES: Final[Mapping[str, Tool]] = MappingProxyType(
    {
        "lipschitz_normalize_": _remedy(lipschitz_normalize_),
        "weight_normalize_": _remedy(partial(weight_normalize_, c=4.0)),
        "insert_after_ PairNorm": _remedy(lambda model: insert_after_(model, "convs.*", PairNorm())),
        "insert_after_ Skip": _remedy(lambda model: insert_after_(model, "convs.*", Skip())),
    }
)
"""Name -> a remedy that stays in the forward pass, in place of a tool."""

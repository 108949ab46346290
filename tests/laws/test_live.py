"""Laws from a training's own forward passes: those of `find_laws`, and the training is as it is without them."""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from gatdiag.laws import Laws, find_laws
from gatdiag.structure.copying import map_tensors
from gatdiag.structure.discovery import discover
from gatdiag.structure.inputs import perturb
from gatdiag.structure.layers import Structure
from tests.laws.test_other_batches import CASES, as_double, worst
from tests.laws.training import backward, laws_of, rank, traced, vectors, worst_delta
from tests.laws.zoo import ROOMS, ZOO, build

SUBSETS = {  # name -> why the first forward pass gives fewer laws
    "pooling: rnn relu": "multiplies only zeros",  # the state gets no gradient there: it is dead until the last step
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ZOO)
def test_a_training_has_the_laws_that_find_laws_finds(name: str) -> None:
    bare, bare_args, bare_kwargs = build(name)
    torch.manual_seed(1)
    random.seed(1)
    backward(bare(*bare_args, **bare_kwargs))
    model, args, kwargs = build(name)
    torch.manual_seed(1)
    random.seed(1)
    with traced(model) as trace:
        backward(model(*args, **kwargs))
    laws = laws_of(model, trace)

    assert gradients_of(model) == gradients_of(bare)
    executed = [layer.name for layer in discover(bare, *bare_args, **bare_kwargs) if layer.executed]
    assert [path or Structure.ROOT for path in trace.order] == executed
    found = find_laws(bare, *bare_args, **bare_kwargs)
    names = list(found.parameters)  # those that a gradient reaches: laws have terms of others, too
    ours, theirs = vectors(laws, names), vectors(found, names)
    assert rank(ours, theirs) == rank(theirs)
    if name in SUBSETS:
        assert SUBSETS[name] in str(laws.excluded)
    else:
        assert len(laws) == len(found)
        assert rank(ours) == rank(theirs)
        assert sum(law.exact for law in laws) == sum(law.exact for law in found)
    assert worst_delta(laws) <= 1e-4
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        args, kwargs = map_tensors((args, dict(kwargs)), lambda tensor: perturb(tensor, generator))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.2 * torch.rand(parameter.shape, generator=generator)).grad = None
        backward(model(*args, **kwargs), seed)
        assert worst_delta(laws) <= 1e-4


def gradients_of(model: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.to_dense().tolist() for p in model.parameters()]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_law_of_a_poor_first_batch_holds_in_every_other(name: str) -> None:
    make, first, other = CASES[name]
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        model(*other(0))  # lazy layers
    with traced(model) as trace:
        backward(model(*first))
    laws = laws_of(model, trace)

    assert len(laws) or laws.excluded
    for seed in range(1, 5):
        assert worst(model, laws, other(seed)) < 1e-9


def with_edges(value: Any, edges: Tensor) -> Any:
    is_edges = isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim == 2 and len(value) == 2
    return edges if is_edges else value


def first_of(value: Any, axis: int, length: int) -> Any:
    """The first slice of a tensor along an axis of this length; of edges, a loop."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return value
    looped = with_edges(value, torch.zeros(2, 1, dtype=torch.int64))
    has_axis = value.ndim > axis and value.shape[axis] == length
    return looped if looped is not value else value.narrow(axis, 0, 1) if has_axis else value


def poor_batches(args: tuple[Any, ...]) -> Iterator[list[Any]]:
    """Inputs without edges, with one edge or loop, with one row, with one step."""
    for edges in (torch.zeros(2, 0), torch.tensor([[0], [1]]), torch.zeros(2, 1)):
        poor = [with_edges(value, edges.long()) for value in args]
        if any(new is not old for new, old in zip(poor, args, strict=True)):
            yield poor
    sizes = [value.shape for value in args if isinstance(value, Tensor) and value.is_floating_point()]
    for axis in range(min(2, max(1, len(sizes[0]) - 1)) if sizes else 0):
        yield [first_of(value, axis, sizes[0][axis]) for value in args]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("room", ROOMS.split())
def test_laws_of_few_edges_and_of_one_row_or_step_hold_for_all(room: str) -> None:
    """Of every model that runs on such inputs and in float64."""
    checked = 0
    for name in (name for name in ZOO if name.startswith(f"{room}: ")):
        for number, _ in enumerate(poor_batches(build(name).args)):
            model, args, kwargs = build(name)
            with traced(model) as trace:
                try:
                    backward(model(*list(poor_batches(args))[number], **kwargs))
                except (AssertionError, IndexError, RuntimeError, ValueError):
                    continue
            laws = laws_of(model, trace)
            model.double()
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter).grad = None
            try:
                backward(model(*map(as_double, args), **{key: as_double(value) for key, value in kwargs.items()}))
            except RuntimeError:  # not in float64
                continue
            assert worst_delta(laws) < 1e-7, (name, number)
            checked += 1
    assert checked


class Net(nn.Module):
    """A network in whose middle something special happens to a hidden layer."""

    def __init__(self, middle: Callable[[nn.Module, Tensor], Tensor] = lambda layer, x: layer(x).relu()) -> None:
        super().__init__()
        self.enter, self.inner, self.leave, self.middle = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2), middle
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.middle(self.inner, self.enter(x * self.weight).relu()))


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(), nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 4))

    def encode(self, x: Tensor) -> Tensor:
        return self.encoder(x)

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(z)


class Graph(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.first, self.second = gnn.GATConv(widths[0], 6), gnn.SAGEConv(widths[-1], 2)

    def forward(self, x: Tensor) -> Tensor:
        edge_index = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]])
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)])
        self.layers[2].weight = self.layers[1].weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class Unseen(torch.autograd.Function):
    """A kernel that writes memory without an operation of torch, as those of Triton do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out.numpy()[...] = x.numpy() ** 2
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def square(layer: nn.Module, x: Tensor) -> Tensor:
    return Unseen.apply(layer(x))


def attend(layer: nn.Module, x: Tensor) -> Tensor:
    query = layer(x).detach()[None, None]  # on a CPU it has no backward pass
    attended = flex_attention(query, query, query)
    assert isinstance(attended, Tensor)
    return x * attended[0, 0]


def autoencode(model: nn.Module, x: Tensor) -> Tensor:
    return model.decode(2 * model.encode(x))


def reconstruct(model: nn.Module, x: Tensor) -> Tensor:
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    return model.recon_loss(model.encode(x, edge_index), edge_index)


def cast(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()


def cast_before(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        nn.functional.linear(x[:1], model.enter.weight)  # it is cached
        return model(x).float()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))


def parametrized() -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 6)),
        nn.ReLU(),
        nn.Dropout(0.3),
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        nn.ReLU(),
        nn.Linear(6, 2),
    )


def compiled(backend: str) -> Callable[[nn.Module, Tensor], Tensor]:
    return torch.compile(lambda layer, x: layer(x).relu(), backend=backend)  # type: ignore[no-any-return]


def reentrant(layer: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(layer, x, use_reentrant=True).relu()


def recomputed(layer: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(layer, x, use_reentrant=False).relu()


Loss = Callable[[nn.Module, Tensor], Tensor]


def call(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x)
    return output


TRAININGS: dict[str, tuple[Callable[[], nn.Module], Loss, int]] = {  # name -> model, its output, number of laws
    "plain": (Net, call, 16),
    "in place": (lambda: Net(lambda layer, x: layer(x).relu_()), call, 16),
    "reentrant checkpoint": (lambda: Net(reentrant), call, 16),
    "checkpoint": (lambda: Net(recomputed), call, 16),
    "model in a reentrant checkpoint": (
        Net,
        lambda model, x: checkpoint(model, x.requires_grad_(), use_reentrant=True),
        16,
    ),
    "model in a checkpoint": (Net, lambda model, x: checkpoint(model, x, use_reentrant=False), 16),
    "compiled to other code": (lambda: Net(compiled("aot_eager")), call, 4),
    "compiled to the same operations": (lambda: Net(compiled("eager")), call, 16),
    "unseen kernel": (lambda: Net(square), call, 10),
    "encode and decode": (Coder, autoencode, 12 + 6),
    "graph autoencoder": (lambda: gnn.GAE(gnn.GCN(4, 6, 2, 3)), reconstruct, 6),
    "an operation on functions": (lambda: Net(attend), call, 10),
    "tied": (Tied, call, 7),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(2)), call, 6),
    "lazy convolutions": (lambda: Graph(-1, -1), call, 6),
    "parametrized": (parametrized, call, 8),
    "autocast": (Net, cast, 16),
    "a weight that autocast has cached": (Net, cast_before, 7),
    "frozen": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2).requires_grad_(False)), call, 0),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_as_it_is_without_a_trace(name: str) -> None:
    make, loss, count = TRAININGS[name]
    bare, traced_states = list(train(make, loss, None)), list(train(make, loss, found := []))

    for state, expected in zip(traced_states, bare, strict=True):
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[key], expected[key]) for key in state)
    laws, deltas = found[0], found[1:]
    assert len(laws) == count
    assert max(deltas) <= (0.1 if "autocast" in name else 1e-4)


def train(make: Callable[[], nn.Module], loss: Loss, found: list[Any] | None) -> Iterator[dict[str, Tensor]]:
    """The states after some steps; the laws of the first step and the largest delta of each are put in `found`."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, optimizer, laws = make(), None, None
    for seed in range(3):
        torch.manual_seed(seed)
        random.seed(seed)
        x = torch.randn(8, 4)
        if found is not None and laws is None:
            with traced(model) as trace:
                loss(model, x).square().sum().backward()
            laws = laws_of(model, trace)
            found.append(laws)
        else:
            loss(model, x).square().sum().backward()
        if found is not None and laws is not None:
            found.append(worst_delta(laws))
        optimizer = optimizer or torch.optim.Adam(model.parameters(), 1e-2)
        optimizer.step()
        optimizer.zero_grad()
        yield {key: value.clone() for key, value in model.state_dict().items()}


def trace_once(model: nn.Module, *args: Any) -> Laws:
    with traced(model) as trace:
        backward(model(*args))
    return laws_of(model, trace)


def test_a_learned_first_state_of_one_step_is_in_no_law_that_more_steps_refute() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.cell = nn.Parameter(torch.rand(1, 1, 5)), nn.RNN(4, 5, nonlinearity="relu")
            self.read = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.read(self.cell(x, self.first.expand(-1, x.shape[1], -1).contiguous())[0])

    model = Recurrent()
    laws = trace_once(model, torch.randn(1, 8, 4))

    assert "a single step" in str(laws.excluded)
    model.zero_grad()
    backward(model(torch.randn(5, 8, 4)))
    assert worst_delta(laws) <= 1e-4


def test_what_calls_return_is_fixed_so_a_cell_in_a_loop_has_no_false_law() -> None:
    model = nn.RNNCell(4, 5, nonlinearity="relu")
    with traced(model) as trace:
        state = torch.zeros(8, 5)
        for _ in range(4):
            state = model(torch.randn(8, 4), state)
        backward(state)

    assert not len(laws_of(model, trace))


def test_a_parameter_that_is_used_between_calls_keeps_its_scale() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.read = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 2)

        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return self.read((x @ weight).relu())

    model = Product()
    laws = trace_once(model, torch.randn(5, 4), (model.weight * 2).tanh())

    assert not len(laws)
    assert any(exclusion.what == "weight" for exclusion in laws.excluded)


def test_no_tensor_is_kept_alive() -> None:
    storages = []

    def note(layer: nn.Module, x: Tensor) -> Tensor:
        storages.append(StorageWeakRef(x.untyped_storage()))
        return layer(x)

    model = Net(note)
    with traced(model) as trace:
        model(torch.randn(8, 4))

    assert storages[0].expired()
    assert trace.order


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_compiled_parts_are_compiled_as_without_a_trace() -> None:
    """Also where eager operations run between two parts: nothing of ours is compiled with them."""

    def middle(layer: nn.Module, x: Tensor) -> Tensor:
        y = layer(x)
        torch._dynamo.graph_break()
        return y.relu() + x

    counts = []
    for watches in (False, True):
        torch.compiler.reset()
        counters.clear()
        torch.manual_seed(0)
        model = Net(torch.compile(middle, backend="aot_eager"))
        with traced(model) if watches else nullcontext():
            backward(model(torch.randn(8, 4)))
        counts.append(dict(counters["stats"]))

    assert counts[0] == counts[1]
    assert counts[0]["unique_graphs"] == 2


def test_a_counter_of_operations_counts_none_of_ours() -> None:
    counts = []
    for watches in (False, True):
        torch.manual_seed(0)
        model = mlp()
        with FlopCounterMode(display=False) as counter:
            if watches:
                trace_once(model, torch.randn(8, 4))
            else:
                backward(model(torch.randn(8, 4)))
        counts.append(counter.flop_counts)

    assert counts[0] == counts[1]


def test_a_graph_that_the_user_makes_contains_none_of_our_operations() -> None:
    model = mlp()

    def step(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    bare = make_fx(step)(torch.ones(8, 4)).code
    with traced(model) as trace:
        code = make_fx(step)(torch.ones(8, 4)).code

    assert code == bare
    assert "no call of the model could be traced" in str(laws_of(model, trace).excluded)


def test_after_an_interrupt_no_mode_is_left_behind() -> None:
    def interrupt(layer: nn.Module, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    model = Net(interrupt)
    with traced(model) as trace, pytest.raises(KeyboardInterrupt):
        model(torch.randn(8, 4))
    assert torch._C._len_torch_dispatch_stack() == 1
    trace.abandon()

    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_call_that_fails_leaves_no_mode_behind() -> None:
    model = mlp()
    with traced(model) as trace, pytest.raises(RuntimeError):
        model(torch.randn(8, 5))

    assert torch._C._len_torch_dispatch_stack() == 0
    backward(model(torch.randn(8, 4)))
    assert not len(laws_of(model, trace))


def test_evaluation_before_the_training_is_not_traced() -> None:
    model = mlp().eval()
    with traced(model) as trace, torch.no_grad():
        model(torch.randn(8, 4))

    assert "no call of the model could be traced" in str(laws_of(model, trace).excluded)


def test_parameters_that_nothing_reads_are_named() -> None:
    model = Net()
    model.unused = nn.Linear(2, 2)
    laws = trace_once(model, torch.randn(8, 4))

    assert {"unused.weight", "unused.bias"} <= {exclusion.what for exclusion in laws.excluded}

"""c after a step, predicted before it, is c as measured after it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from gatdiag.errors import OptimizerError
from gatdiag.laws import Law, Laws, find_laws
from gatdiag.laws.prediction import predict_updates
from tests.laws.loops import each, gradients, weights
from tests.laws.models.graph import IN, NODES, OUT, Stack, edges
from tests.laws.models.operations import Written

STEPS = 25
Make = Callable[[nn.Module], Optimizer]


def gat() -> nn.Module:
    """Two heads, concatenated and averaged, with every bias GATv2 has."""
    return Stack(gnn.GATv2Conv(IN, 3, heads=2), gnn.GATv2Conv(6, 3, heads=2, concat=False), gnn.GATv2Conv(3, OUT))


class Task:
    """A model in float64 with data, a loss and its laws."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(NODES, IN, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(OUT, (NODES,), generator=generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.model = gat().double()
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 0.1 * torch.randn_like(parameter)

    def laws(self) -> Laws:
        return Laws(_find(), dict(self.model.named_parameters()))

    def backward(self) -> None:
        self.model.zero_grad()
        F.cross_entropy(self.model(self.x, edges()), self.labels).backward()


@functools.cache
def _find() -> list[Law]:
    task = Task()
    return list(find_laws(task.model, task.x, edges()))


SGDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "momentum, dampening, weight decay": {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.05},
    "nesterov": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    "maximize": {"maximize": True, "lr": 0.005, "weight_decay": 0.05},
    "maximize, momentum": {"maximize": True, "lr": 0.002, "momentum": 0.5, "dampening": 0.2, "weight_decay": 0.05},
    "fused": {"fused": True, "momentum": 0.9, "nesterov": True},
}
ADAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight decay": {"weight_decay": 0.1},
    "amsgrad": {"amsgrad": True},
    "amsgrad, weight decay": {"amsgrad": True, "weight_decay": 0.1},
    "maximize": {"maximize": True, "lr": 0.003, "weight_decay": 0.1},
    "betas and eps": {"betas": (0.7, 0.9), "eps": 1e-3},
    "fused": {"fused": True, "weight_decay": 0.1, "amsgrad": True},
}


def optimizers() -> dict[str, Make]:
    made: dict[str, Make] = {}
    for name, options in SGDS.items():
        made[f"sgd: {name}"] = lambda model, more=options: SGD(model.parameters(), **{"lr": 0.05, **more})
    for name, options in ADAMS.items():
        for kind in (Adam, AdamW) if "weight_decay" in options or not options else (Adam,):
            made[f"{kind.__name__.lower()}: {name}"] = lambda model, kind=kind, more=options: kind(
                model.parameters(), **{"lr": 0.01, **more}
            )
    return made


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Every kind of parameter with a rate and a decay of its own."""
    named = list(model.named_parameters())
    biases = [p for name, p in named if "bias" in name]
    early = [p for name, p in named if "bias" not in name and name.startswith(("layers.0", "layers.1"))]
    late = [p for name, p in named if "bias" not in name and not name.startswith(("layers.0", "layers.1"))]
    return [
        {"params": biases, "lr": 0.02, "weight_decay": 0.0},
        {"params": early, "lr": 0.05, "weight_decay": 0.1},
        {"params": late, "lr": 0.01, "weight_decay": 0.3},
    ]


OWN: list[dict[str, Any]] = [
    {"momentum": 0.9, "dampening": 0.5},
    {"momentum": 0.5, "nesterov": True},
    {"maximize": True},
]


def by_loop(task: Task, laws: Laws) -> Tensor:
    return each(laws, weights(task.model), weights(task.model))


CHAINS: dict[str, Callable[[nn.Module], Optimizer]] = {
    **{
        name: optimizers()[name] for name in ("sgd: nesterov", "sgd: maximize, momentum", "adam: amsgrad, weight decay")
    },
    "own rates and decays": lambda model: SGD(groups(model), momentum=0.9, dampening=0.1),
    "own rates and decays, adamw": lambda model: AdamW(groups(model)),
    "own options": lambda model: SGD([{**group, **more} for group, more in zip(groups(model), OWN, strict=True)]),
    "a rate that is a tensor": lambda model: AdamW(
        model.parameters(), lr=torch.tensor(0.01, dtype=torch.float64), foreach=False
    ),
    "only some parameters": lambda model: AdamW([p for name, p in model.named_parameters() if "att" not in name]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_predictions_stays_on_the_measured_c(name: str) -> None:
    task = Task()
    laws, optimizer = task.laws(), CHAINS[name](task.model)
    start = predicted = by_loop(task, laws)
    for _ in range(STEPS):
        task.backward()
        predicted = laws.predict(predicted, None, optimizer)
        optimizer.step()

    measured = by_loop(task, laws)
    torch.testing.assert_close(predicted, measured, rtol=1e-8, atol=1e-12)
    assert (measured - start).abs().max() > 100 * (measured - predicted).abs().max() + 1e-6


@pytest.mark.parametrize("name", ["sgd: plain", "sgd: nesterov", "adam: amsgrad, weight decay", "adamw: plain"])
def test_a_complex_weight_moves_as_two_real_ones(name: str) -> None:
    torch.manual_seed(0)
    a, b = (nn.Parameter(torch.randn(3, 3, dtype=torch.complex128)) for _ in range(2))
    model, x = Written(lambda x, a, b: torch.view_as_real(x @ a @ b)), torch.randn(5, 3, dtype=torch.complex128)
    model.weights.update({"a": a, "b": b})
    laws, optimizer = find_laws(model, x), optimizers()[name](model)
    assert len(laws) == 3
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        predicted = laws.predict(laws.c(), None, optimizer)
        optimizer.step()
        torch.testing.assert_close(predicted, laws.c(), rtol=1e-12, atol=1e-12)


def test_several_optimizers_may_share_a_step() -> None:
    task = Task()
    laws, named = task.laws(), dict(task.model.named_parameters())
    first = list(named)[::2]
    optimizers = [
        SGD([named[name] for name in first], lr=0.05, momentum=0.9, weight_decay=0.1),
        AdamW([tensor for name, tensor in named.items() if name not in first], lr=0.01),
    ]
    predicted = laws.c()
    for _ in range(20):
        task.backward()
        c = laws.c()
        once = laws.predict(c, None, optimizers)
        chained = laws.predict(predicted, None, iter(optimizers))
        for optimizer in reversed(optimizers):
            optimizer.step()
        predicted = chained
        torch.testing.assert_close(once, by_loop(task, laws), rtol=1e-12, atol=1e-14)
        assert (laws.c() - c).abs().max() > 1e-4
    torch.testing.assert_close(predicted, by_loop(task, laws), rtol=1e-8, atol=1e-12)


def test_two_optimizers_of_one_parameter_are_refused() -> None:
    task = Task()
    laws, both = task.laws(), [SGD(task.model.parameters(), lr=0.1), SGD(task.model.parameters(), lr=0.1)]
    task.backward()

    with pytest.raises(OptimizerError, match=r"is updated by two optimizers in one step.*laws\.c\(\)"):
        laws.predict(laws.c(), None, both)


def test_an_optimizer_that_moves_nothing_of_the_laws_may_be_any() -> None:
    task = Task()
    laws, other = task.laws(), torch.nn.Parameter(torch.ones(2))
    task.backward()
    other.grad = torch.ones(2)

    assert torch.equal(laws.predict(laws.c(), None, RMSprop([other])), laws.c())


@pytest.mark.parametrize(
    "make", [lambda given: SGD(given, lr=0.05, momentum=0.9, weight_decay=0.1), lambda given: AdamW(given, lr=0.01)]
)
def test_a_parameter_without_a_gradient_stays(make: Callable[..., Optimizer]) -> None:
    """Torch skips it altogether: no decay, no momentum."""
    task = Task()
    laws, optimizer = task.laws(), make(task.model.parameters())
    predicted = laws.c()
    for step in range(6):
        task.backward()
        if step % 2:
            task.model.layers[0].lin_l.weight.grad = None
            task.model.layers[1].bias.grad = None
        # without all gradients delta is not zero, and a step that is not like the others is predicted from it
        delta = laws.delta()
        predicted = laws.predict(laws.c(), None, optimizer)
        optimizer.step()
        slack = _largest_step(optimizer) * delta.abs() * 2 + 1e-12
        assert ((predicted - laws.c()).abs() <= slack).all()


def _largest_step(optimizer: Optimizer) -> float:
    return max(2 * float(group["lr"]) for group in optimizer.param_groups) if isinstance(optimizer, SGD) else 0.0


def test_gradients_may_be_given_by_name() -> None:
    task = Task()
    laws, optimizer = task.laws(), SGD(task.model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1)
    task.backward()
    given = {name: gradient.clone() for name, gradient in gradients(task.model).items()}
    expected = laws.predict(laws.c(), None, optimizer)
    task.model.zero_grad()

    torch.testing.assert_close(laws.predict(laws.c(), given, optimizer), expected, rtol=0, atol=0)


def test_predicting_changes_nothing() -> None:
    task = Task()
    laws, optimizer = task.laws(), AdamW(task.model.parameters(), lr=0.01, amsgrad=True)
    for _ in range(2):
        task.backward()
        optimizer.step()
    task.backward()
    before = [tensor.clone() for tensor in _everything(task.model, optimizer)]

    laws.predict(laws.c(), None, optimizer)

    assert all(map(torch.equal, before, _everything(task.model, optimizer)))


def _everything(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    state = [tensor for parameter in model.parameters() for tensor in optimizer.state[parameter].values()]
    return [*weights(model).values(), *gradients(model).values(), *state]


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5)])
def test_gradients_that_break_a_law_show_as_a_residual(momentum: float, decay: float) -> None:
    """Only delta = 0 is put in: with another delta, c - prediction = -2 eta (1 - eta lambda) delta."""
    task = Task()
    rate = 0.1
    laws = task.laws()
    optimizer = SGD(task.model.parameters(), lr=rate, momentum=momentum, weight_decay=decay)
    for parameter in task.model.parameters():
        parameter.grad = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    delta = each(laws, weights(task.model), gradients(task.model))
    predicted = laws.predict(laws.c(), None, optimizer)

    optimizer.step()

    assert delta.abs().max() > 0.1
    torch.testing.assert_close(by_loop(task, laws) - predicted, -2 * rate * (1 - rate * decay) * delta)


class Lazy(SGD):
    """Someone's own optimizer, whose step may be anything."""


@pytest.mark.parametrize("make", [RMSprop, Lazy])
def test_another_optimizer_is_refused(make: Callable[..., Optimizer]) -> None:
    task = Task()
    laws = task.laws()
    task.backward()

    with pytest.raises(OptimizerError, match=rf"Expected one of SGD, Adam, AdamW, got {make.__name__}.*laws\.c\(\)"):
        laws.predict(laws.c(), None, make(task.model.parameters(), lr=0.1))


@pytest.mark.parametrize("name", optimizers())
def test_the_split_step_is_the_step(name: str) -> None:
    """keep * w - step * g - rest is the weight after the optimizer's step, at the first step and later."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2).double()
    optimizer = optimizers()[name](module)
    for _ in range(3):
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        expected = _split(optimizer, {id(p): p.grad for p in module.parameters() if p.grad is not None}, module)
        optimizer.step()

        for parameter, value in zip(module.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.detach(), value, rtol=1e-12, atol=1e-14)


def _split(optimizer: Optimizer, given: Mapping[int, Tensor], module: nn.Module) -> list[Tensor]:
    found = predict_updates(optimizer, given)
    after = []
    for parameter in module.parameters():
        update = found[id(parameter)]
        rest = 0.0 if update.rest is None else update.rest
        after.append(update.keep * parameter.detach() - update.step * given[id(parameter)] - rest)
    return after

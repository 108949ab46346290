"""What every law is checked against: random points near the weights and far from them, and large steps along it."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.errors import ModelError
from gatdiag.laws import find_laws
from gatdiag.laws.check import Evidence, WithoutEpsilon, find_violations, gather_evidence
from gatdiag.laws.point import distant_points
from tests.laws.models.graph import HID
from tests.laws.models.single import GUARDED, HONEST
from tests.laws.referee import count_kinds


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def gather(model: nn.Module, *args: Tensor) -> Evidence:
    return gather_evidence(model, args, {}, {name: name.rpartition(".")[0] for name, _ in model.named_parameters()})


def test_the_point_is_near_the_weights_and_its_gradients_are_those_of_a_linear_loss() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    found = gather(model, torch.randn(5, 3))
    run, point = found.replica, found.point

    for name, weight in model.named_parameters():
        ratio = point.weights[name] / weight.detach()
        assert ratio.min() >= 0.69
        assert ratio.max() <= 1.31
        assert ratio.std() > 0.01
    output = run.run()
    slopes = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=output.dtype)
    expected = torch.autograd.grad((output * slopes).sum(), list(run.parameters.values()))
    for gradient, other in zip(point.gradients.values(), expected, strict=True):
        torch.testing.assert_close(gradient, other)


class Narrow(nn.Module):
    """Finite only where its weight is exactly what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if bool((self.weight == 2).all()) else x * self.weight * float("nan")


def test_the_own_weights_are_taken_where_no_point_near_them_is_finite() -> None:
    assert gather(Narrow(), torch.randn(5, 3)).point.weights["weight"].tolist() == [2.0] * 3


@pytest.mark.parametrize("is_strict", [False, True])
def test_nothing_finite_anywhere_is_refused(is_strict: bool) -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight) / torch.zeros(3)

    # anomaly mode would raise another error and print where the forward pass was
    with (
        torch.autograd.set_detect_anomaly(is_strict),
        warnings.catch_warnings(action="error"),
        pytest.raises(ModelError, match="not finite"),
    ):
        gather(Never(), torch.randn(5, 3))


def test_further_points_differ_in_signs_and_repeat_themselves() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = gather(model, torch.randn(5, 3))
    points, again = (list(distant_points(found.replica, found.point, 3)) for _ in range(2))

    assert len(points) == 3
    for point, other in zip(points, again, strict=True):
        flipped = torch.cat([(point.weights[name] * w < 0).flatten() for name, w in found.point.weights.items()])
        assert 0.2 < flipped.double().mean() < 0.8
        assert all(torch.equal(point.weights[name], other.weights[name]) for name in point.weights)
    assert not torch.equal(points[0].weights["0.weight"], points[1].weights["0.weight"])


@pytest.mark.parametrize("name", HONEST)
def test_a_model_of_single_precision_has_the_laws_it_has_in_double(name: str) -> None:
    model, args, _ = HONEST[name]()
    found = find_laws(model, *args)
    model.only = False
    expected = find_laws(model, *args)

    assert [(law.name, law.terms, law.exact) for law in found] == [(law.name, law.terms, law.exact) for law in expected]
    assert any(law.exact for law in found)


@pytest.mark.parametrize("single", [True, False], ids=["single", "double"])
@pytest.mark.parametrize("name", GUARDED)
def test_channels_that_a_bound_cuts_have_no_exact_law(name: str, single: bool) -> None:
    model, args, _ = GUARDED[name]()
    model.only = single
    found = find_laws(model, *args)

    assert [law.layer for law in found if law.exact] == ["first"] * HID
    model.only = False
    model.double()
    (model(args[0].double()) * torch.randn(len(args[0]), 2)).sum().backward()
    assert found.normalized_delta().max() < 1e-12


def test_the_referee_agrees() -> None:
    for name in ("bound 0.001", "softplus"):
        torch.manual_seed(0)
        model, args, _ = GUARDED[name]()
        model.only = False
        assert count_kinds(model, args) == (HID, HID)


def test_a_violation_is_found_among_many_laws_and_rounding_is_none() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x = torch.randn(20, 4, dtype=torch.float64)
    laws = list(find_laws(model, x))
    wrong = laws[3]
    first = wrong.terms[0]
    laws[3] = type(wrong)(**{**vars(wrong), "terms": (type(first)(**{**vars(first), "exponent": first.exponent * 2}),
                                                      *wrong.terms[1:])})  # fmt: skip
    found = gather(model, x)
    replica, points, epsilon = found.replica, [found.point], torch.finfo(torch.float64).eps

    assert set(find_violations(laws, range(len(laws)), replica, points, 16 * epsilon)) == {3}
    assert find_violations(laws, [0, 1, 2], replica, points, 0.0) == {}  # to the last digit
    assert len(find_violations(laws, range(len(laws)), replica, points, -1.0)) == len(laws)


class Passed(torch.autograd.Function):
    """ReLU, with the identity for its backward pass."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.relu()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def clip_gradient(x: Tensor) -> Tensor:
    x = x.relu()
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient.clamp(-5, 5))
    return x


class Between(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor], width: int = 4) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, width), act, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


@pytest.mark.parametrize("act", [Passed.apply, clip_gradient])
def test_a_backward_pass_that_is_not_that_of_the_function_leaves_no_law(act: Callable[[Tensor], Tensor]) -> None:
    """A unit that is never below zero at one point seems to obey one there."""
    assert list(find_laws(Between(act, 16), torch.randn(7, 4))) == []


def square_in_place(x: Tensor) -> Tensor:
    return x.sigmoid().square_()


def test_a_backward_pass_that_fails_is_refused_with_the_reason() -> None:
    with pytest.raises(ModelError, match=r"backward pass failed with RuntimeError: .*modified by an inplace operation"):
        find_laws(Between(square_in_place), torch.randn(4, 4))


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

WITH_EPSILON: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda x: x / (x.norm() + 1e-3),
    "added from the left": lambda x: x / (1e-3 + x.norm()),
    "by keyword": lambda x: F.layer_norm(x, (3,), eps=1e-3),
    "by position": lambda x: F.layer_norm(x, (3,), None, None, 1e-3),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True, eps=1e-3),
    "group norm": lambda x: F.group_norm(x, 1, eps=1e-3),
}


@pytest.mark.parametrize("name", WITH_EPSILON)
def test_the_scale_that_a_guard_let_through_is_gone(name: str) -> None:
    operation = WITH_EPSILON[name]
    assert not torch.allclose(operation(X), operation(X * 0.1), rtol=1e-6)

    with WithoutEpsilon():
        torch.testing.assert_close(operation(X), operation(X * 0.1), rtol=1e-8, atol=1e-10)


def test_zero_by_zero_stays_guarded() -> None:
    with WithoutEpsilon():
        assert (torch.zeros(3) / (torch.zeros(()) + 1e-3)).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    "operation", [lambda x: x + 0.5, lambda x: x - 1, lambda x: x * 1e-3, lambda x: x.clamp(min=0.1)]
)
def test_constants_that_are_no_guard_stay(operation: Callable[[Tensor], Tensor]) -> None:
    plain = operation(X)

    with WithoutEpsilon():
        assert torch.equal(operation(X), plain)

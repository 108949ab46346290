"""Random points near the weights and far from them, and what they show."""

import pytest
import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.laws.check import Evidence, further_points, gather
from gatdiag.structure.replica import Replica, replicate


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def replica(model: nn.Module, *args: Tensor) -> Replica:
    return replicate(model, args).to(torch.float64)


def evidence(model: nn.Module, *args: Tensor) -> Evidence:
    return gather(replica(model, *args), {name: name.rpartition(".")[0] for name, _ in model.named_parameters()})


def test_the_point_is_near_the_weights_and_its_gradients_are_those_of_a_linear_loss() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    run = replica(model, torch.randn(5, 3))
    point = gather(run, {name: "" for name, _ in model.named_parameters()}).point

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


def test_zeros_become_small_numbers() -> None:
    model = nn.Linear(3, 4)
    with torch.no_grad():
        model.bias.zero_()
        model.weight[0, 0] = 0

    weights = evidence(model, torch.randn(5, 3)).point.weights

    assert bool((weights["bias"] != 0).all())
    assert 0 < weights["weight"][0, 0].abs() < weights["weight"][1:].abs().max()


def test_the_replica_is_left_at_the_point() -> None:
    run = replica(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()), torch.randn(6, 3))
    found = gather(run, {name: name.rpartition(".")[0] for name in run.parameters})

    assert set(found.no_effect) == {"0.bias"}  # other points were visited
    assert all(torch.equal(run.parameters[name], weight) for name, weight in found.point.weights.items())


def test_what_never_reaches_the_output_is_told_apart() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare, self.frozen = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            self.spare(x)
            return self.frozen(self.used(x))

    found = evidence(Spare(), torch.randn(5, 3))

    assert found.unreached == ("spare.weight", "spare.bias")
    assert list(found.point.gradients) == list(found.point.weights) == ["used.weight", "used.bias"]


class Narrow(nn.Module):
    """Finite only where its weight is exactly what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if bool((self.weight == 2).all()) else x * self.weight * float("nan")


def test_the_own_weights_are_taken_where_no_point_near_them_is_finite() -> None:
    assert evidence(Narrow(), torch.randn(5, 3)).point.weights["weight"].tolist() == [2.0] * 3


def test_nothing_finite_anywhere_is_refused() -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight) / torch.zeros(3)

    with pytest.raises(ModelError, match="not finite"):
        evidence(Never(), torch.randn(5, 3))


def test_further_points_differ_in_signs_and_repeat_themselves() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    run = replica(model, torch.randn(5, 3))
    found = gather(run, {name: "" for name, _ in model.named_parameters()})

    points = list(further_points(run, found, 3))
    again = list(further_points(run, found, 3))

    assert len(points) == 3
    for point, other in zip(points, again, strict=True):
        flipped = torch.cat([(point.weights[name] * w < 0).flatten() for name, w in found.point.weights.items()])
        assert 0.2 < flipped.double().mean() < 0.8
        assert all(torch.equal(point.weights[name], other.weights[name]) for name in point.weights)
    assert not torch.equal(points[0].weights["0.weight"], points[1].weights["0.weight"])

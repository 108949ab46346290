"""What a random point shows: parameters without effect for good, by chance, and never reached."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def annihilated(model: nn.Module, *args: Tensor) -> dict[str, list[bool]]:
    return {name: mask.tolist() for name, mask in evidence(model, *args).annihilated.items()}


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


def test_a_bias_before_batch_norm_is_annihilated() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    assert annihilated(model, torch.randn(8, 3)) == {"0.bias": [True] * 4}


def test_a_bias_before_running_statistics_is_not() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()

    assert annihilated(model, torch.randn(8, 3)) == {}


class Attending(nn.Module):
    """Scores q.k for every pair of rows: a shift of all keys changes no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).t()).softmax(1) @ self.value(x)


def test_the_bias_of_keys_is_annihilated_and_that_of_queries_is_not() -> None:
    assert annihilated(Attending(), torch.randn(6, 3)) == {"key.bias": [True] * 4}


def dead(act: nn.Module) -> nn.Sequential:
    """Neuron 1 is below zero for every input near the given ones."""
    model = nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias[1] = -50
    return model


@pytest.mark.parametrize("act", [nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(1e-9)], ids=["relu", "leaky", "flat"])
def test_a_dead_or_linear_neuron_is_not_annihilated(act: nn.Module) -> None:
    assert annihilated(dead(act), torch.randn(5, 3)) == {}


class Alike(nn.Module):
    """A shift of all scores of a softmax, behind a LeakyReLU: without effect only while every score has one sign."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.shift = nn.Linear(3, 1, bias=False), nn.Parameter(torch.tensor([40.0]))
        self.value = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.score(x) + self.shift, 0.2).softmax(0).t() @ self.value(x)


def test_what_cancels_only_while_a_leaky_relu_is_linear_is_not_annihilated() -> None:
    assert "shift" not in annihilated(Alike(), torch.randn(6, 3))


def test_without_the_kink_it_is() -> None:
    class Smooth(Alike):
        def forward(self, x: Tensor) -> Tensor:
            return (self.score(x) + self.shift).softmax(0).t() @ self.value(x)

    assert annihilated(Smooth(), torch.randn(6, 3)) == {"shift": [True]}


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

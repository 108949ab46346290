import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch_geometric.nn import BatchNorm

import gatdiag
from gatdiag.errors import ModelError
from gatdiag.laws import Laws
from gatdiag.remedies.verification import find_verified_rescaling, output_difference

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


class Threshold(nn.Module):
    """Counts what is small as zero, as `StdAggregation` does; no derivative tells of it."""

    def forward(self, x):
        return torch.where(x.detach().abs() < 0.05, 0.0, 1.0) * x


def network(middle=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), middle(), nn.Linear(5, 2))


def laws_of_plain(model):
    """The laws of the same network with ReLU throughout."""
    found = gatdiag.find_laws(network(), X)
    return Laws(list(found), dict(model.named_parameters()))


def test_a_layer_that_crosses_a_threshold_is_skipped():
    model = network(Threshold)
    with torch.no_grad():
        model[2].weight *= 0.2
        model[2].bias *= 0.2
    laws = laws_of_plain(model)
    rescaling, double, _ = find_verified_rescaling(model, laws, None, (X,), {})
    assert rescaling.balanced == (0, 1, 2, 3)
    assert [exclusion.what for exclusion in rescaling.skipped] == [laws[n].name for n in range(4, 9)]
    assert all("changes the outputs by" in exclusion.reason for exclusion in rescaling.skipped)
    assert double.relative < 1e-14
    balanced = {name: p.detach() * rescaling.factors.get(name, 1) for name, p in model.named_parameters()}
    c = laws.normalized_c(balanced).abs()
    assert c[:4].max() < 1e-12
    assert c[4:].max() > 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_are_refused(value):
    model = network()
    with pytest.raises(ModelError, match=r"nothing was changed.*finite"):
        find_verified_rescaling(model, laws_of_plain(model), None, (X * value,), {})


class Single(nn.Module):
    """Runs in single precision only."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("a kernel for single precision")
        return self.net(x)


def test_a_model_that_does_not_run_in_double_is_checked_in_its_own_precision():
    model = Single()
    laws = gatdiag.find_laws(model, X)
    rescaling, double, own = find_verified_rescaling(model, laws, None, (X,), {})
    assert double is None
    assert 0 < own.relative < 1e-5
    assert len(rescaling.balanced) == 9


class Faint(nn.Module):
    """Weights of which half precision knows a digit or two."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.first.weight, 1.2e-7)
        nn.init.constant_(self.second.weight, 2.4e-7)

    def forward(self, x):
        return self.second((self.first(x * 6e4) * 6e4).relu()) * 6e4


def test_what_the_models_own_precision_cannot_hold_is_refused():
    x = torch.ones(2, 1)
    model = Faint()
    assert find_verified_rescaling(model, gatdiag.find_laws(model, x), None, (x,), {})[2].relative < 1e-6
    with pytest.raises(ModelError, match="the model's own precision and evaluation mode they would change"):
        half = model.half()
        find_verified_rescaling(half, gatdiag.find_laws(half, x.half()), None, (x.half(),), {})


# --- how far outputs move ---------------------------------------------------------------------------------------------


def linear(*widths):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(i, o, bias=False) for i, o in pairwise(widths)))


def test_the_difference_is_that_of_the_outputs():
    model = linear(3, 4)
    factor = torch.tensor([[1.0], [1.0], [1.5], [1.0]], dtype=torch.float64)
    before = model(X).detach()
    expected = before[:, 2].abs().max() / 2
    found = output_difference(model, {"0.weight": factor}, (X,))
    assert found.absolute == pytest.approx(float(expected), rel=1e-5)
    assert found.relative == pytest.approx(float(expected / before.abs().max()), rel=1e-5)
    assert found.epsilon == torch.finfo(torch.float32).eps
    assert torch.equal(model(X), before)


def test_evaluation_mode_and_no_trace_on_the_model():
    model = nn.Sequential(linear(3, 4), BatchNorm(4), nn.Dropout(0.5))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert output_difference(model, {}, (X,)).absolute == 0
    found = output_difference(model, {"0.0.weight": torch.tensor(3.0)}, (X,))
    assert found.relative > 1  # running statistics do not follow the scale, as those of a batch would
    assert model.training
    assert model[1].module.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("x", "factor", "relative"), [(math.nan, 1, math.nan), (math.inf, 1, math.nan), (1, 1e60, math.inf)]
)
def test_outputs_that_are_not_finite_say_nothing_and_those_that_become_so_are_a_change(x, factor, relative):
    found = output_difference(linear(3, 4), {"0.weight": torch.tensor(factor).double()}, (X * x,)).relative
    assert found == pytest.approx(relative, nan_ok=True)

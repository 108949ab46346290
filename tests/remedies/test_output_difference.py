import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch_geometric.nn import BatchNorm

from gatdiag.remedies.output_difference import output_difference

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


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


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Parameter(torch.tensor(1e-3)), nn.Parameter(torch.tensor(1e3))

    def forward(self):
        return {"small": self.small * 1, "rest": (self.large * 1, torch.arange(3), torch.zeros(0))}


def test_each_output_is_measured_by_its_own_size():
    found = output_difference(Many(), {"small": torch.tensor(2.0)})
    assert found.absolute == pytest.approx(1e-3)
    assert found.relative == pytest.approx(1.0)


def test_double_precision_tells_rounding_from_a_change():
    model = linear(3, 4, 2)
    s = torch.tensor([0.3, 1.7, 5.0, 0.01], dtype=torch.float64)
    factors = {"0.weight": s[:, None], "1.weight": 1 / s}
    assert output_difference(model, factors, (X,), dtype=torch.float64).relative < 1e-14
    assert 1e-9 < output_difference(model, factors, (X,)).relative < 1e-5
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


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


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_are_not_finite_say_nothing(value):
    assert math.isnan(output_difference(linear(3, 4), {}, (X * value,)).relative)


def test_outputs_that_become_infinite_are_a_change():
    found = output_difference(linear(3, 4), {"0.weight": torch.tensor(1e60).double()}, (X,))
    assert found.relative == math.inf


def test_integers_are_no_outputs():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.arange(3), requires_grad=False)

        def forward(self, x):
            return x.long() + self.table

    found = output_difference(Counting(), {}, (X,))
    assert (found.absolute, found.relative, found.epsilon) == (0, 0, 0)

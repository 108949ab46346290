import pytest
import torch
from torch import nn

from gatdiag.remedies.gain import preserving_factor
from tests.remedies.stacks import X


def factor(model, *inputs):
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    scaled = frozenset(name for name, weight in weights.items() if weight.dim() == 2)
    return preserving_factor(model, weights, scaled, inputs or (X,), {})


@pytest.mark.parametrize("gains", [(1.0, 1.0), (4.0, 0.25, 1.0), (3.0, 0.5, 0.1), (1e-3,) * 5])
def test_it_undoes_what_the_layers_multiply_a_signal_by(gains):
    model = nn.Sequential(*(nn.Linear(5, 5, bias=False) for _ in gains))
    for layer, gain in zip(model, gains, strict=True):
        nn.init.eye_(layer.weight).data.mul_(gain)
    product = float(torch.tensor(gains).double().prod())
    assert factor(model) == pytest.approx(product ** (-1 / len(gains)), rel=1e-4)


def test_width_multiplies_squares_in_the_first_layer_only():
    model = nn.Sequential(nn.Linear(5, 20, bias=False), nn.Linear(20, 5, bias=False))
    nn.init.eye_(model[0].weight)
    nn.init.eye_(model[1].weight)
    assert factor(model) == pytest.approx(2**0.5, rel=1e-4)  # 20 outputs for 5 inputs: twice as large, in two layers


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(5, 4), nn.Sigmoid()),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
    ],
    ids=["a normalization", "a bounded output", "nothing comes out"],
)
def test_where_no_factor_is_known_to_help_it_is_one(model):
    nn.init.zeros_(model[0].bias)
    if isinstance(model[-1], nn.Linear):
        nn.init.zeros_(model[-1].weight)
        nn.init.zeros_(model[-1].bias)
    assert factor(model) == 1


def test_an_embedding_is_measured_by_what_it_puts_out():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4, bias=False))
    nn.init.eye_(model[1].weight).data.mul_(0.25)
    assert factor(model, torch.arange(7)) == pytest.approx(4, rel=1e-4)  # one matrix after it


def test_nothing_is_left_behind():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    factor(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not nn.modules.module._global_forward_hooks

"""Initializations by their distribution, against what torch and PyG draw; and no name once training has shown."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import inits

from gatdiag.checkpoint.initialization import identify_initialization
from gatdiag.remedies.schemes import LooksLinearLayout, looks_linear_

SCHEMES = {
    "Xavier uniform": [nn.init.xavier_uniform_, inits.glorot],
    "Xavier normal": [nn.init.xavier_normal_],
    "Kaiming uniform": [
        lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu"),
        lambda w: nn.init.kaiming_uniform_(w, mode="fan_out", nonlinearity="relu"),
    ],
    "Kaiming normal": [lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu")],
    "uniform 1/sqrt(fan_in)": [
        lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)),
        lambda w: inits.kaiming_uniform(w, fan=w.shape[1], a=math.sqrt(5)),
    ],
    "standard normal": [nn.init.normal_],
    "orthogonal": [nn.init.orthogonal_, lambda w: nn.init.orthogonal_(w, gain=math.sqrt(2))],
    "looks-linear": [
        lambda w: looks_linear_(w, LooksLinearLayout(blocks=1, columns=1)),
        lambda w: looks_linear_(w, LooksLinearLayout(columns=1)),
    ],
}
DRAWS = [(scheme, draw) for scheme, draws in SCHEMES.items() for draw in draws]


def fresh(draw, seed, shape):
    torch.manual_seed(seed)
    weight = torch.empty(shape)
    draw(weight)
    return weight


def trained(weight, steps):
    x, y = torch.randn(50, weight.shape[1]), torch.randint(0, len(weight), (50,))
    for _ in range(steps):
        weight = weight.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy((x @ weight.T).relu(), y), weight)
        weight = weight - 0.1 * gradient
    return weight


@pytest.mark.parametrize(("scheme", "draw"), DRAWS)
@pytest.mark.parametrize("shape", [(64, 48), (7, 64), (64, 64), (30, 31), (128, 700)])
def test_fresh_weights_are_named(scheme, draw, shape):
    right = sum(scheme in identify_initialization(fresh(draw, seed, shape)) for seed in range(20))
    assert right >= 19


@pytest.mark.parametrize(("scheme", "draw"), [draw for draw in DRAWS if "normal" not in draw[0]])
@pytest.mark.parametrize("shape", [(64, 48), (7, 64), (16, 16)])
def test_what_has_bounds_or_is_exact_is_not_named_once_trained(scheme, draw, shape):
    named = [scheme in identify_initialization(trained(fresh(draw, seed, shape), 20)) for seed in range(20)]
    assert sum(named) <= 1


def test_other_distributions_have_no_name():
    for seed in range(20):
        normal = fresh(nn.init.xavier_normal_, seed, (64, 48))
        for other in (normal * 1.1, normal * 0.9, normal + 0.05, normal.abs(), normal.sign() * 0.1, normal**3):
            assert identify_initialization(other) == ()


@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
@pytest.mark.parametrize("draw", [nn.init.xavier_uniform_, nn.init.xavier_normal_])
def test_number_types(draw):
    weight = fresh(draw, 0, (64, 48))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert identify_initialization(weight.to(dtype)) == identify_initialization(weight)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.int8, torch.bool):
        assert identify_initialization(weight.to(dtype)) == ()
    assert identify_initialization(torch.quantize_per_tensor(weight, 0.1, 0, torch.quint8)) == ()


@pytest.mark.parametrize(
    ("tensor", "names"),
    [
        (torch.zeros(3), ("zeros",)),
        (torch.ones(70_000), ("ones",)),
        (torch.full((2, 2), 0.25), ("constant",)),
        (torch.tensor(0.5), ("constant",)),
        (torch.cat([torch.ones(70_000), torch.zeros(1)]), ()),
        (torch.eye(8), ("orthogonal",)),
        (torch.empty(0), ()),
        (torch.tensor([[1.0, math.nan], [2.0, 3.0]]), ()),
        (torch.full((4, 4), math.nan), ()),
        (torch.full((4, 4), math.inf), ()),
        (torch.arange(5), ()),
        (torch.tensor([1.0, 2.0]), ()),
        (torch.linspace(-1, 1, 400).view(20, 20) ** 3, ()),
    ],
)
def test_exact_and_odd_tensors(tensor, names):
    assert identify_initialization(tensor) == names


@pytest.mark.parametrize("size", [1e-42, 1e-35, 1e-25, 1e-20, 1e18, 1e25, 1e35])
def test_orthogonality_at_extreme_sizes(size):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 16, generator=generator)
    assert identify_initialization(weight * size) == ()
    if size > 1e-38:  # below, single precision keeps too few digits
        assert identify_initialization(nn.init.orthogonal_(weight, generator=generator) * size) == ("orthogonal",)

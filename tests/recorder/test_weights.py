"""Parameters of several types and shapes together, against one at a time."""

import numpy as np
import pytest
import torch
from torch import nn

from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.recorder.weights import Weights
from gatdiag.weight_change import FRACTIONS
from tests.metrics import oracles


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    made = {
        "weight": torch.randn(7, 5, generator=generator),
        "att": torch.zeros(1, 1, 6),
        "bias": torch.zeros(7),
        "small": 1e-6 * torch.randn(4, generator=generator),
    }
    return {name: nn.Parameter(value.to(dtype)) for name, value in made.items()}


def moved(made, amount=0.3):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.items():
            if name != "bias":
                step = amount * torch.randn(parameter.shape, generator=generator)
                parameter += torch.where(torch.rand(parameter.shape, generator=generator) < 0.5, step, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_changes_of_all_parameters_together(dtype):
    made = parameters(dtype)
    initial = {name: parameter.detach().clone() for name, parameter in made.items()}
    watched = Weights(made, ["att"])
    moved(made)
    watched.before()
    found = watched.changes() | watched.quantiles()
    for position, name in enumerate(made):
        shares = oracles.changes(initial[name], made[name], absolute=name == "att")
        assert [found[column][position].item() for column in FRACTIONS] == pytest.approx(shares, nan_ok=True)
        for kind, wanted in zip(
            ("relative", "absolute"), oracles.change_quantiles(initial[name], made[name]), strict=True
        ):
            columns = [found[change_quantile(kind, level)][position].item() for level in LEVELS]
            assert columns == pytest.approx(wanted, rel=1e-5, abs=1e-7, nan_ok=True)


def test_weights_that_are_not_finite_have_no_fractions():
    made = parameters()
    watched = Weights(made, ["att"])
    made["weight"].data[0, 0] = torch.inf
    made["att"].data[0, 0, 0] = torch.nan
    found = watched.before() | watched.changes()
    assert found["unchanged_fraction"].isnan().tolist() == [True, True, False, False]
    assert watched.non_finite(found["norm"], gradient=False).tolist() == [1, 1, 0, 0]


def test_parameters_of_several_types_keep_their_places():
    made = parameters()
    made["double"] = nn.Parameter(torch.ones(3, dtype=torch.float64))
    made["half"] = nn.Parameter(torch.ones(2, dtype=torch.float16))
    watched = Weights(made, [])
    made["half"].grad = torch.full((2,), 3.0, dtype=torch.float16)
    before = watched.before()
    assert before["norm"].tolist()[-2:] == pytest.approx([3**0.5, 2**0.5])
    assert before["gradient_norm"].tolist() == [0, 0, 0, 0, 0, pytest.approx(18**0.5)]
    assert watched.has_gradient().tolist() == [False] * 5 + [True]
    with torch.no_grad():
        made["double"] *= 2
    assert watched.after()["update_ratio"][4].item() == pytest.approx(1.0)
    assert watched.after() == {}, "it is measured once"
    assert watched.arrays()["half"].dtype == np.float16


def test_sparse_gradients():
    embedding = nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    watched = Weights(dict(embedding.named_parameters()), [])
    assert watched.before()["gradient_norm"].item() == pytest.approx((3 * 4 + 3) ** 0.5)
    assert watched.non_finite(torch.tensor([torch.nan]), gradient=True).tolist() == [0]


def test_one_copy_of_the_parameters_is_kept_between_steps():
    made = parameters()
    watched = Weights(made, [])
    watched.before()
    watched.after()
    held = [batch.initial.numel() for batch in watched._batches]
    assert sum(held) == sum(parameter.numel() for parameter in made.values())
    assert all(batch.before is None for batch in watched._batches)

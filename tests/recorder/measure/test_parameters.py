"""Parameters of several dtypes and shapes measured together, against one at a time."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gatdiag.quantities import GROUPS, LEVELS, Metric, Quantity, change_quantile
from gatdiag.recorder.measure import parameters as measuring
from gatdiag.recorder.measure.parameters import ParameterMeasurer, are_finite
from gatdiag.recorder.samples import Sample
from gatdiag.weight_change import FRACTIONS
from tests.metrics import oracles

COLUMNS = frozenset(column for group in GROUPS.values() for column in group.columns)


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


def measured(watched, move=lambda: None, columns=COLUMNS):
    """The columns of one step."""
    flat, sample = watched.flat, Sample(0, 0, frozenset(GROUPS))
    sample.weights, sample.gradients, sample.has_gradient = flat.weights(), flat.gradients(), flat.has_gradient()
    found = watched.before([sample], unguarded, columns)
    with torch.no_grad():
        move()
    sample.weights_after = flat.live_weights()
    found = found.columns | watched.after(found, [sample], [sample.take_change()], unguarded, columns)
    return {name: values[0] for name, values in found.items()}


def unguarded(_, function, *given):
    return function(*given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_changes_of_all_parameters_together(dtype):
    made = parameters(dtype)
    initial = {name: parameter.detach().clone() for name, parameter in made.items()}
    watched = ParameterMeasurer(made, ["att"])
    moved(made)
    found = measured(watched)
    for position, name in enumerate(made):
        shares = oracles.changes(initial[name], made[name], absolute=name == "att")
        assert [found[column][position] for column in FRACTIONS] == pytest.approx(shares, nan_ok=True)
        for kind, wanted in zip(
            ("relative", "absolute"), oracles.change_quantiles(initial[name], made[name]), strict=True
        ):
            columns = [found[change_quantile(kind, level)][position] for level in LEVELS]
            assert columns == pytest.approx(wanted, rel=1e-5, abs=1e-7, nan_ok=True)


def test_weights_that_are_not_finite_have_no_fractions():
    made = parameters()
    watched = ParameterMeasurer(made, ["att"])
    made["weight"].data[0, 0] = torch.inf
    made["att"].data[0, 0, 0] = torch.nan
    found = measured(watched)
    assert np.isnan(found["unchanged_fraction"]).tolist() == [True, True, False, False]
    assert found["non_finite"].tolist() == [1, 1, 0, 0]
    assert found["gradient_norm"].tolist() == [None] * 4


def test_parameters_of_several_types_keep_their_places():
    made = parameters()
    made["double"] = nn.Parameter(torch.ones(3, dtype=torch.float64))
    made["half"] = nn.Parameter(torch.ones(2, dtype=torch.float16))
    made["complex"] = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    watched = ParameterMeasurer(made, [])
    made["half"].grad = torch.full((2,), 3.0, dtype=torch.float16)
    found = measured(watched, lambda: made["double"].mul_(2))
    assert found["norm"].tolist()[-3:] == [pytest.approx(3**0.5), pytest.approx(2**0.5), None]
    assert found["gradient_norm"].tolist() == [None] * 5 + [pytest.approx(18**0.5), None]
    assert found["update_ratio"][4:6].tolist() == pytest.approx([1.0, 0.0])
    assert watched.arrays()["half"].dtype == np.float16


def test_initial_values_can_be_those_of_a_file(tmp_path):
    made = parameters()
    watched = ParameterMeasurer(made, ["att"])
    save_file({"weight": made["weight"].detach() * 2}, tmp_path / "initial.safetensors")
    watched.set_initial(tmp_path / "initial.safetensors")
    assert measured(watched)["unchanged_fraction"].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("needs", ["", "matrix"])
def test_functions_of_gradients_and_updates(monkeypatch, needs):
    made = parameters()
    made["weight"].grad, made["small"].grad = torch.ones(7, 5), torch.ones(4)
    catalog = [Metric("frobenius_norm", of, needs, (Quantity(of, group="changes"),)) for of in ("gradient", "update")]
    monkeypatch.setattr(measuring, "_METRICS", catalog)
    found = measured(
        ParameterMeasurer(made, ["att"]), lambda: made["weight"].sub_(2), frozenset({"gradient", "update"})
    )
    assert found["gradient"].tolist() == [pytest.approx(35**0.5), None, None, None if needs else 2]
    assert found["update"].tolist() == [pytest.approx(2 * 35**0.5), *([None] * 3 if needs else [0.0] * 3)]


def test_sparse_gradients():
    embedding = nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    found = measured(ParameterMeasurer(dict(embedding.named_parameters()), []))
    assert found["gradient_norm"].item() == pytest.approx((3 * 4 + 3) ** 0.5)
    assert found["gradient_non_finite"].tolist() == [0]


def test_what_further_parameters_a_sample_holds_is_not_measured():
    made = parameters()
    watched = ParameterMeasurer({name: made[name] for name in ("weight", "bias")}, [])
    watched.add_parameters([made["small"]])
    found = measured(watched)
    assert found["norm"].shape == (2,)
    assert found["norm"][0] == pytest.approx(made["weight"].norm().item())
    assert found["relative_change_q50"].tolist() == pytest.approx([0.0, np.nan], nan_ok=True)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (math.nan, False), (math.inf, False)])
def test_whether_gradients_are_finite(value, finite, is_sparse):
    gradient = torch.tensor([[0.0, 0.0], [value, 2.0]])
    assert are_finite([torch.ones(2), gradient.to_sparse() if is_sparse else gradient]) is finite

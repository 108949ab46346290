"""Rounding told from violations by large steps along laws."""

import pytest
import torch
from torch import nn

from gatdiag.laws import find_laws
from gatdiag.laws.check import gather
from gatdiag.laws.invariance import violations
from gatdiag.structure import replicate
from tests.laws.models.graph import HID
from tests.laws.models.single import GUARDED, HONEST
from tests.laws.referee import count_kinds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", HONEST)
def test_a_model_of_single_precision_has_the_laws_it_has_in_double(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, args, _ = HONEST[name]()
    found = find_laws(model, *args)
    model.only = False
    expected = find_laws(model, *args)

    assert [(law.name, law.terms, law.exact) for law in found] == [(law.name, law.terms, law.exact) for law in expected]
    assert any(law.exact for law in found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("single", [True, False], ids=["single", "double"])
@pytest.mark.parametrize("name", GUARDED)
def test_channels_that_a_bound_cuts_have_no_exact_law(name: str, single: bool, seed: int) -> None:
    torch.manual_seed(seed)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_violation_is_found_among_many_laws_and_rounding_is_none(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
    x = torch.randn(20, 4, dtype=dtype)
    laws = list(find_laws(model, x))
    wrong = laws[3]
    first = wrong.terms[0]
    laws[3] = type(wrong)(**{**vars(wrong), "terms": (type(first)(**{**vars(first), "exponent": first.exponent * 2}),
                                                      *wrong.terms[1:])})  # fmt: skip
    replica = replicate(model, (x,))
    points = [gather(replica, {name: "" for name, _ in model.named_parameters()}).point]
    epsilon = torch.finfo(dtype).eps

    assert set(violations(laws, range(len(laws)), replica, points, 16 * epsilon)) == {3}
    assert violations(laws, [0, 1, 2], replica, points, 0.0) == {}  # to the last digit
    assert len(violations(laws, range(len(laws)), replica, points, -1.0)) == len(laws)

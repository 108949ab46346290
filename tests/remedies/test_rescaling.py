import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.experiments.models import gat
from gatdiag.laws import Laws
from gatdiag.remedies.rescaling import balancing, relative_gradients
from tests.remedies.stacks import EDGES, X

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(0)
    model = gat(5, 3, hidden_channels=6, layers=4).double()
    laws = gatdiag.find_laws(model, X.double(), EDGES)
    return model, laws


def gradients(model):
    model.zero_grad()
    F.cross_entropy(model(X.double(), EDGES), LABELS).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def rescaled(tensors, rescaling, power=1):
    return {name: tensor.detach() * rescaling.factors.get(name, 1) ** power for name, tensor in tensors.items()}


def test_c_of_any_tensors_comes_to_zero_and_the_models_own_stay(stack):
    model, laws = stack
    torch.manual_seed(1)
    checkpoint = {name: torch.randn_like(parameter).float() for name, parameter in model.named_parameters()}
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    rescaling = balancing(laws, checkpoint)
    balanced = {name: tensor.double() for name, tensor in rescaled(checkpoint, rescaling).items()}
    assert laws.normalized_c(balanced).abs().max() < 1e-12
    assert rescaling.balanced == tuple(range(18))
    assert [law.neuron for law in rescaling.by_law[:6]] == list(range(6))
    assert [law.factor for law in rescaling.by_law] == pytest.approx(rescaling.coordinates.exp().tolist())
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_the_factor_of_a_law_is_what_its_rows_are_multiplied_by(stack):
    _, laws = stack
    rescaling = balancing(laws, laws.parameters)
    for number, law in enumerate(rescaling.by_law[:6]):
        assert law.layer == "convs.0"
        assert float(rescaling.factors["convs.0.lin_l.weight"][number, 0]) == pytest.approx(law.factor)
        assert float(rescaling.factors["convs.0.att"][0, 0, number]) == pytest.approx(1 / law.factor)
        assert float(rescaling.factors["convs.1.lin_l.weight"][0, number]) == pytest.approx(
            rescaling.by_law[6].factor / law.factor
        )


def test_relative_gradients_balance_as_autograd_sees_them_afterwards(stack):
    """The model is rescaled and differentiated anew: both sides of each neuron then add up to the same."""
    model, laws = stack
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    rescaling = balancing(laws, before, gradients(model))
    assert len(rescaling.balanced) > 6  # behind ReLU some units may be dead
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(rescaling.factors.get(name, 1))
    after = gradients(model)
    relative = {name: after[name] / parameter.detach() for name, parameter in model.named_parameters()}
    convs = range(3)
    sides = []
    for layer in convs:
        for i in range(6):
            into = sum(float(r) ** 2 for r in relative[f"convs.{layer}.lin_l.weight"][i])
            out = sum(float(r) ** 2 for r in relative[f"convs.{layer + 1}.lin_l.weight"][:, i])
            out += float(relative[f"convs.{layer}.att"][0, 0, i]) ** 2
            sides.append((into, out))
    for number in rescaling.balanced:
        into, out = sides[number]
        assert into == pytest.approx(out, rel=1e-8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])


def test_the_authors_sweeps_lead_to_the_same_point(stack):
    """Procedure of the paper's code, neuron after neuron, without its limits and repeated until nothing changes."""
    model, laws = stack
    torch.manual_seed(2)
    w = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    g = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    rescaling = balancing(laws, w, g)
    expected = {name: tensor.clone() for name, tensor in w.items()}
    for _ in range(400):
        for layer in range(3):
            names = f"convs.{layer}.lin_l.weight", f"convs.{layer}.att", f"convs.{layer + 1}.lin_l.weight"
            r = [(g[name] / expected[name]).square() for name in names]
            s = (r[0].sum(1) / (r[1][0, 0] + r[2].sum(0))) ** 0.125
            for name, factor in zip(names, (s[:, None], 1 / s, 1 / s), strict=True):
                expected[name] *= factor
                g[name] /= factor
    for name, tensor in rescaled(w, rescaling).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-8, atol=1e-10)


@given(seed=st.integers(0, 2**31), spread=st.floats(0, 2))
@settings(max_examples=25, deadline=None)
def test_wherever_on_the_orbit_it_starts_it_ends_at_the_same_weights(stack, seed, spread):
    _, laws = stack
    generator = torch.Generator().manual_seed(seed)
    weights, slopes = (
        {name: torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in laws.parameters.items()}
        for _ in range(2)
    )
    somewhere = balancing(laws, {name: w * (spread * w).exp() for name, w in weights.items()})
    for given_gradients in (None, slopes):
        here = rescaled(weights, balancing(laws, weights, given_gradients))
        moved = rescaled(weights, somewhere)
        there_gradients = None if given_gradients is None else rescaled(slopes, somewhere, -1)
        there = rescaled(moved, balancing(laws, moved, there_gradients))
        for name, tensor in here.items():
            torch.testing.assert_close(there[name], tensor, rtol=1e-9, atol=1e-11)


def test_relative_gradients_entry_by_entry():
    weights = {"a": torch.tensor([2.0, 0.0, -4.0]), "b": torch.ones(2), "c": torch.ones(2, 1)}
    slopes = {"a": torch.tensor([1.0, 1.0, 1.0]), "c": torch.tensor([[3.0], [0.0]]).to_sparse()}
    found = relative_gradients(weights, slopes)
    assert found["a"].tolist() == [0.5, 0.0, -0.25]
    assert found["b"].tolist() == [0.0, 0.0]
    assert found["c"].tolist() == [[3.0], [0.0]]


def test_approximate_laws_wait_to_be_asked():
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    laws = gatdiag.find_laws(norm, torch.randn(8, 3))
    scales = [law.name for law in laws if not law.exact]
    assert len(scales) == 4
    for include, reason in ((False, "epsilon"), (True, "leads out of it is zero")):
        rescaling = balancing(laws, laws.parameters, include_approximate=include)
        left = {exclusion.what: exclusion.reason for exclusion in rescaling.left_alone}
        assert set(left) == set(scales)
        assert all(reason in text for text in left.values())
        assert len(rescaling.balanced) == 4


def test_refused_laws_are_left_alone_and_the_others_balance(stack):
    _, laws = stack
    rescaling = balancing(laws, laws.parameters, refused={2: "not this one"})
    assert rescaling.left_alone[0].reason == "not this one"
    assert rescaling.left_alone[0].what == laws[2].name
    assert float(rescaling.coordinates[2]) == 0
    c = laws.normalized_c(rescaled(laws.parameters, rescaling)).abs()
    assert c[2] > 1e-3
    assert c[[number for number in range(18) if number != 2]].max() < 1e-12


def test_no_laws_no_factors():
    rescaling = balancing(Laws([], {"w": torch.ones(2)}), {"w": torch.ones(2)})
    assert rescaling.factors == {}
    assert rescaling.by_law == rescaling.left_alone == rescaling.balanced == ()

import copy

import pytest
import torch
from torch import nn

import gatdiag
from gatdiag.experiments.bench import CASES, GATS, REMEDIES, Case, gatdiag_tool, measure


@pytest.fixture
def case():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return Case("mlp", model, (torch.randn(5, 4),), lambda output: output.square().mean())


@pytest.mark.parametrize(("every", "steps", "recorded"), [(1, 4, 1.0), (3, 40, 14 / 41)])
def test_only_watched_steps_are_recorded_and_the_model_is_not_trained(case, tmp_path, every, steps, recorded):
    before = [parameter.clone() for parameter in case.model.parameters()]
    cost = measure(case, "fast", gatdiag_tool("fast", every), tmp_path / "run", seconds=0, every=every)
    assert (cost.steps, cost.recorded) == (steps, recorded)
    assert len(gatdiag.load(tmp_path / "run").steps) == steps + 1 + 10 * (every == 1)
    assert all(map(torch.equal, case.model.parameters(), before))
    assert not torch.nn.modules.module._global_forward_hooks


def test_numbers_follow_from_each_other(case, tmp_path):
    cost = measure(case, "fast", gatdiag_tool("fast", 1), tmp_path / "run", seconds=0)
    assert cost.ratio == cost.watched / cost.bare
    assert cost.total_ratio == pytest.approx((cost.first + 4 * cost.watched) / (5 * cost.bare))
    assert sorted(cost.quartiles) == [*cost.quartiles]
    assert cost.calls > 20
    assert cost.cpu_ratio > 0
    size = sum(file.stat().st_size for file in (tmp_path / "run").iterdir() if file.suffix != ".safetensors")
    assert cost.bytes == size / 15


def test_every_remedy_changes_every_model_that_it_is_measured_on(tmp_path):
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    for name, make in GATS.items():
        bare = make(name).model
        x = torch.randn(5, bare.in_channels)
        for remedy in REMEDIES.values():
            model = copy.deepcopy(bare)
            with remedy(model, tmp_path), torch.no_grad():
                assert not torch.equal(model(x, edges), bare(x, edges))


def test_built_in_trainings_have_the_sizes_of_their_names():
    sizes = {}
    for name, make in CASES.items():
        case = make(name)
        assert case.name == name
        with torch.no_grad():
            assert torch.isfinite(case.loss(case.model(*case.args)))
        sizes[name] = (len(case.model.convs), *case.args[0].shape, case.args[1].shape[1])
    assert sizes.pop("gcn-2-small")[:3] == (2, 240, 64)
    assert sizes == {
        name: (layers, 2708, 1433, 10556)
        for name, layers in (("gcn-2", 2), ("gat-10", 10), ("gat-40", 40), ("residual-gcn-512", 512))
    }

import math

import pytest
import torch
from torch import nn

from gatdiag.checkpoint import inspect, layer_table, weight_table


def inspected(folder, data):
    torch.save(data, folder / "x.pt")
    return inspect(folder / "x.pt", folder / "run")


@pytest.mark.parametrize("steps", [1, 7])
def test_adam_remembers_a_constant_gradient(tmp_path, steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    gradients = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    for _ in range(steps):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clone()
        optimizer.step()
    data = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for row in layer_table(inspected(tmp_path, data)).itertuples():
        name = f"{row.layer}.weight"
        expected = gradients[name].norm() / dict(model.named_parameters())[name].norm()
        assert row.remembered_gradient == pytest.approx(expected.item(), rel=1e-4)


def test_other_optimizers_remember_no_gradient(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    table = layer_table(inspected(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    assert table.remembered_gradient.isna().all()


@pytest.mark.parametrize(
    ("moment", "step", "betas"),
    [
        (-torch.ones(4, 3), torch.tensor(3.0), (0.9, 0.99)),
        (torch.ones(4, 3), torch.ones(2), (0.9, 0.99)),
        (torch.ones(4, 3), torch.tensor(-3.5), (0.9, 0.99)),
        (torch.ones(4, 3), torch.tensor(0.0), (0.9, 0.99)),
        (torch.ones(4, 3), torch.tensor(2.5), (0.9, -0.5)),
        (torch.ones(4, 3), torch.tensor(2.5), (0.9, math.inf)),
        (torch.ones(4, 3), torch.tensor(2.5), ("a", "b")),
        (torch.full((4, 3), math.nan), torch.tensor(2.5), (0.9, 0.99)),
        (torch.ones(4, 3).to(torch.complex64), torch.tensor(2.5), (0.9, 0.99)),
    ],
)
def test_moments_that_make_no_sense(tmp_path, moment, step, betas):
    state = {0: {"exp_avg": torch.ones(4, 3), "exp_avg_sq": moment, "step": step}}
    optimizer = {"state": state, "param_groups": [{"params": [0], "betas": betas}]}
    table = layer_table(inspected(tmp_path, {"model": {"0.weight": torch.ones(4, 3)}, "optimizer": optimizer}))
    assert table.remembered_gradient.isna().tolist() == [True]


@pytest.mark.parametrize("made", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal])
def test_norms_of_a_weight_that_is_computed_are_not_known(tmp_path, made):
    model = nn.ModuleDict({"lin": made(nn.Linear(4, 4)), "other": nn.Linear(4, 5)})
    row, other = layer_table(inspected(tmp_path, model.state_dict())).itertuples()
    assert math.isnan(row.norm)
    assert math.isnan(row.spectral_norm)
    assert other.norm == pytest.approx(model["other"].weight.norm().item(), rel=1e-5)
    assert not math.isnan(other.spectral_norm)


def test_norms_of_weights_whose_names_only_look_like_computed_ones_are_known(tmp_path):
    tensors = {
        f"layers.{layer}.{name}": torch.full((8, 8), 0.5) for layer in range(2) for name in ("W_q", "W_k", "W_v")
    }
    table = layer_table(inspected(tmp_path, tensors))
    assert table.norm.tolist() == pytest.approx([math.sqrt(3 * 64) / 2] * 2)
    assert table.spectral_norm.tolist() == pytest.approx([4.0] * 2)


def test_a_layer_of_infinities_is_neither_balanced_nor_constant(tmp_path):
    tensors = {name: torch.full((4, 4), math.inf) for name in ("lin1.weight", "lin2.weight")}
    assert layer_table(inspected(tmp_path, tensors)).initialization.tolist() == ["", ""]


def test_second_moments_are_read_where_groups_average_over_other_times(tmp_path):
    state = {at: {"exp_avg_sq": torch.full((4, 3), float(at)), "step": torch.tensor(3.0)} for at in (0, 1)}
    groups = [{"params": [at], "param_names": [f"{at}.weight"], "betas": (0.9, 0.99 + at / 200)} for at in (0, 1)]
    tensors = {f"{at}.weight": torch.ones(4, 3) for at in (0, 1)}
    inspection = inspected(tmp_path, {"model": tensors, "optimizer": {"state": state, "param_groups": groups}})
    assert weight_table(inspection).second_moment.tolist() == pytest.approx([0, 12**0.5])
    assert layer_table(inspection).remembered_gradient.isna().all()

import math

import pytest
import torch
from torch import nn

from gatdiag.checkpoint import inspect, layer_table, weight_table


def inspected(folder, data):
    torch.save(data, folder / "x.pt")
    return inspect(folder / "x.pt", folder / "run")


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


def test_the_second_moments_of_adam_are_measured(tmp_path):
    state = {at: {"exp_avg_sq": torch.full((4, 3), float(at)), "step": torch.tensor(3.0)} for at in (0, 1)}
    groups = [{"params": [at], "param_names": [f"{at}.weight"], "betas": (0.9, 0.99 + at / 200)} for at in (0, 1)]
    tensors = {f"{at}.weight": torch.ones(4, 3) for at in (0, 1)}
    inspection = inspected(tmp_path, {"model": tensors, "optimizer": {"state": state, "param_groups": groups}})
    assert weight_table(inspection).second_moment.tolist() == pytest.approx([0, 12**0.5])

import math

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv

from gatdiag.checkpoint import ModelCase, inspect, layer_table, open_all
from gatdiag.roles import FEATURE
from gatdiag.summary import weight_change


def inspected(folder, data):
    torch.save(data, folder / "x.pt")
    return inspect(open_all(folder / "x.pt"), folder / "run")


class Bipartite(nn.Module):
    """A layer with two feature weights of different size, 6 x 50 and 6 x 20."""

    def __init__(self):
        super().__init__()
        self.conv = GATv2Conv((50, 20), 6)

    def forward(self, source, target, edges):
        return self.conv((source, target), edges)


@pytest.fixture
def pruned_weights(tmp_path):
    """Checkpoints before and after training: of the larger feature weight most entries end below 1e-4."""
    generator = torch.Generator().manual_seed(0)
    before, after = {}, {}
    small, moved, kept = {"lin_l": 0.9, "lin_r": 0.05}, {"lin_l": 0.8, "lin_r": 0.1}, {"lin_l": 0.02, "lin_r": 0.3}
    for name, tensor in Bipartite().state_dict().items():
        before[name] = torch.randn(tensor.shape, generator=generator)
        after[name] = before[name] * 1.01
        if name.endswith("weight"):
            draw, part = torch.rand(tensor.shape, generator=generator), name.split(".")[1]
            after[name][draw < moved[part]] *= 3
            after[name][draw > 1 - kept[part]] = before[name][draw > 1 - kept[part]]
            after[name][torch.rand(tensor.shape, generator=generator) < small[part]] *= 1e-6
    for step, state in enumerate((before, after)):
        torch.save(state, tmp_path / f"step{step}.pt")
    return before, after


def counted(before, after):
    """(entries, unchanged ones, of at least 1e-4, of these changed by more than 5%), by loops over both weights."""
    found = [0, 0, 0, 0]
    for name in (name for name in before if "lin_" in name and "weight" in name):
        for w_0, w in zip(
            before[name].double().flatten().tolist(), after[name].double().flatten().tolist(), strict=True
        ):
            found[0] += 1
            found[1] += w == w_0
            found[2] += abs(w) >= 1e-4
            found[3] += abs(w) >= 1e-4 and abs((w - w_0) / w) > 0.05
    return found


@pytest.mark.parametrize("with_model", [False, True])
def test_what_changed_in_a_layer_is_counted_over_all_its_weights_of_at_least_1e_4(tmp_path, pruned_weights, with_model):
    entries, unchanged, significant, changed = counted(*pruned_weights)
    assert abs(changed / significant - 0.3) < 0.1
    edges = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]])
    inputs = (torch.ones(4, 50), torch.ones(3, 20), edges)
    case = ModelCase(Bipartite(), inputs, loss=torch.Tensor.sum) if with_model else None
    inspection = inspect(open_all([tmp_path / "step0.pt", tmp_path / "step1.pt"]), tmp_path / "run", case=case)
    (row,) = layer_table(inspection).itertuples()
    assert row.changed == pytest.approx(changed / significant, rel=1e-12)
    assert row.unchanged == pytest.approx(unchanged / entries, rel=1e-12)
    drawn = weight_change(inspection.run).set_index("role").loc[FEATURE]
    assert drawn["changed_fraction_005"] == pytest.approx(changed / significant, rel=1e-12)
    assert drawn["unchanged_fraction"] == pytest.approx(unchanged / entries, rel=1e-12)


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
    assert inspection.run.parameters.second_moment.tolist() == pytest.approx([0, 12**0.5])

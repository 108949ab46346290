"""What is said of neurons that nothing leads into."""

import pytest
import torch
from torch import nn

from gatdiag.checkpoint import findings, inspect
from gatdiag.checkpoint.overview import layer_rows


def inspected(model, folder):
    torch.save(model.state_dict(), folder / "x.pt")
    return inspect(folder / "x.pt", folder / "run")


@pytest.mark.parametrize(
    "model",
    [
        nn.ModuleDict({"emb": nn.Embedding(9, 4, padding_idx=0)}),
        nn.ModuleDict({"a": nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))}),
    ],
)
def test_rows_that_are_no_neurons_are_not_dead(tmp_path, model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[0] = 0
    inspection = inspected(model, tmp_path)
    assert not findings(inspection)
    assert not any(row.dead_rows or row.dead_columns for row in layer_rows(inspection))


def test_rows_of_a_linear_map_are(tmp_path):
    model = nn.ModuleDict({"lin": nn.Linear(4, 4)})
    with torch.no_grad():
        model["lin"].weight[0] = 0
    (finding,) = findings(inspected(model, tmp_path))
    assert (finding.code, finding.level, finding.where) == ("dead-weights", "warning", ("lin",))

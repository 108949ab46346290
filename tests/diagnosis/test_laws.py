"""What is said of conservation laws."""

import pytest
import torch
from torch import nn

import gatdiag


def small():
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def of_laws(folder, model, optimizer, *, clip=lambda: None, autocast=False, dtype=torch.float32):
    """Watch ten steps; the diagnosis, in which no law is broken."""
    x, y = torch.randn(60, 12, dtype=dtype), torch.randint(0, 4, (60,))
    with gatdiag.watch(model, folder, every=1):
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            clip()
            optimizer.step()
    run = gatdiag.load(folder)
    assert len(run.neurons)
    diagnosis = gatdiag.diagnose(run)
    assert "law-broken" not in [finding.code for finding in diagnosis]
    return diagnosis


def test_rounding_breaks_no_law(tmp_path):
    torch.manual_seed(0)
    model = small().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    assert "bfloat16" in of_laws(tmp_path / "few", model, optimizer, dtype=torch.bfloat16).skipped["law-broken"]
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    assert "mixed precision" in of_laws(tmp_path / "mixed", model, optimizer, autocast=True).skipped["law-broken"]


@pytest.mark.parametrize("size", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("name", ["0.bias", "2.weight"])
def test_rounding_of_large_biases_and_outgoing_weights_breaks_no_law(tmp_path, size, name):
    torch.manual_seed(0)
    model = small()
    with torch.no_grad():
        model.get_parameter(name).mul_(size)
    diagnosis = of_laws(tmp_path / "run", model, torch.optim.Adam(model.parameters(), lr=0.01))
    assert "law-broken" not in diagnosis.skipped


def test_laws_of_parameters_in_no_optimizer_are_not_judged(tmp_path):
    """Its zero_grad() leaves old gradients in them."""
    torch.manual_seed(0)
    model = small()
    diagnosis = of_laws(tmp_path / "run", model, torch.optim.Adam(model[0].parameters(), lr=0.01))
    assert "in no optimizer" in diagnosis.skipped["law-broken"]
    assert diagnosis.verdict.code == "parameters-not-in-optimizer"


def test_clipping_entry_by_entry_is_why_c_moves(tmp_path):
    torch.manual_seed(0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    diagnosis = of_laws(
        tmp_path / "run", model, optimizer, clip=lambda: nn.utils.clip_grad_value_(model.parameters(), 0.002)
    )
    assert "clipped" in diagnosis.skipped["law-broken"]


def test_laws_are_not_judged_where_gradients_are_not_cleared(tmp_path):
    torch.manual_seed(0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.zero_grad = lambda: None
    diagnosis = of_laws(tmp_path / "run", model, optimizer)
    assert "gradients-not-cleared" in [finding.code for finding in diagnosis]
    assert not any("conserves c" in remark for remark in diagnosis.remarks)

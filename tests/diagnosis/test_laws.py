"""What is said of conservation laws."""

import pytest
import torch
from torch import nn

import gatdiag


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounding_of_weights_of_few_digits_breaks_no_law(tmp_path, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 4)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = torch.randn(60, 12).to(dtype), torch.randint(0, 4, (60,))
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(4):
            nn.functional.cross_entropy(model(x).float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    diagnosis = gatdiag.diagnose(gatdiag.load(tmp_path / "run"))
    assert "law-broken" not in [finding.code for finding in diagnosis.findings]
    assert ("law-broken" in diagnosis.skipped) is (dtype is torch.bfloat16)


def test_rounding_of_gradients_in_mixed_precision_breaks_no_law(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = torch.randn(120, 16), torch.arange(120) % 3
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    diagnosis = gatdiag.diagnose(gatdiag.load(tmp_path / "run"))
    assert "law-broken" not in [finding.code for finding in diagnosis.findings]
    assert "mixed precision" in diagnosis.skipped["law-broken"]


def _laws_of(folder, model, parameters, *, optimizer=None, clip=lambda: None):
    """Watch 20 steps, by default of Adam on some of the parameters; the diagnosis."""
    x, y = torch.randn(60, 12), torch.randint(0, 4, (60,))
    optimizer = optimizer or torch.optim.Adam(parameters, lr=0.01)
    with gatdiag.watch(model, folder, every=1):
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            clip()
            optimizer.step()
    run = gatdiag.load(folder)
    assert len(run.neurons)
    return gatdiag.diagnose(run)


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_rounding_of_large_biases_and_outgoing_weights_breaks_no_law(tmp_path, size):
    for name, place in (("0.bias", 0), ("2.weight", 1)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
        with torch.no_grad():
            model.get_parameter(name).mul_(size)
        diagnosis = _laws_of(tmp_path / f"run{place}", model, model.parameters())
        assert "law-broken" not in [finding.code for finding in diagnosis]
        assert "law-broken" not in diagnosis.skipped


def test_laws_of_parameters_in_no_optimizer_are_not_judged(tmp_path):
    """Its zero_grad() leaves old gradients in them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    diagnosis = _laws_of(tmp_path / "run", model, [*model[0].parameters(), *model[4].parameters()])
    assert "in no optimizer" in diagnosis.skipped["law-broken"]
    assert diagnosis.verdict.code == "parameters-not-in-optimizer"


def test_clipping_entry_by_entry_is_why_c_moves(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0)

    def clip():
        nn.utils.clip_grad_value_(parameters, 0.002)

    diagnosis = _laws_of(tmp_path / "run", model, parameters, optimizer=optimizer, clip=clip)
    assert "law-broken" not in [finding.code for finding in diagnosis.findings]
    assert "clipped" in diagnosis.skipped["law-broken"]

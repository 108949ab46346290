"""The lines to paste."""

import pytest
import torch
from torch import nn

import gatdiag
from gatdiag.diagnosis import fixes
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.remedy import optimizer_line
from tests.report.builder import build

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@pytest.mark.parametrize(
    ("kind", "settings", "arguments"),
    [
        (SGD, {"lr": 0.1}, "lr=0.1"),
        (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "lr=0.1, momentum=0.9, nesterov=True"),
        (ADAM, {"lr": 0.01, "betas": (0.9, 0.999)}, "lr=0.01"),
        (ADAM, {"lr": 0.01, "betas": (0.5, 0.9), "amsgrad": True}, "lr=0.01, betas=(0.5, 0.9), amsgrad=True"),
        (ADAM, {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1}, "lr=0.01, eps=0.001, weight_decay=0.1"),
        (ADAMW, {"lr": 0.01}, "lr=0.01"),
        (ADAMW, {"lr": 0.01, "weight_decay": 0.0}, "lr=0.01, weight_decay=0"),
    ],
)
def test_an_optimizer_keeps_the_settings_that_differ_from_torchs_defaults(tmp_path, kind, settings, arguments):
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), **settings)
    with gatdiag.watch(model, tmp_path / "run"):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    line = optimizer_line(Facts(gatdiag.load(tmp_path / "run")))
    assert line == f"optimizer = torch.optim.{kind.__name__}(model.parameters(), {arguments})"
    exec(line, {"model": model, "torch": torch})


def test_a_setting_that_is_changed_is_written_even_if_it_becomes_the_default(tmp_path):
    group = {"lr": 0.1, "weight_decay": 0.5, "betas": [0.8, 0.999], "momentum": None, "foreign": None}
    facts = Facts(build(tmp_path / "run", optimizers=[{"class": "AdamW", "groups": [group]}]))
    line = optimizer_line(facts, weight_decay=0.01)
    assert line.endswith("(model.parameters(), lr=0.1, betas=(0.8, 0.999), weight_decay=0.01)")


def test_an_optimizer_that_is_not_torchs_is_not_written_as_one_of_its(tmp_path):
    facts = Facts(build(tmp_path / "run", optimizers=[{"class": "Lion", "groups": [{"lr": 0.1}]}]))
    assert optimizer_line(facts, lr=0.01) == "optimizer = Lion(model.parameters(), lr=0.01)"


def test_torchs_optimizers_are_known():
    kinds = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)} - {"Optimizer"}
    assert kinds == fixes._OF_TORCH

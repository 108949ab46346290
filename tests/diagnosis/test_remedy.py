"""The lines to paste."""

from inspect import signature

import pytest
import torch
from torch import nn

import gatdiag
from gatdiag.diagnosis import Action, fixes
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.remedy import change_learning_rate, optimizer_line
from gatdiag.recorder.meta import describe_optimizer
from tests.page.builder import build

NOT_NUMERIC = ("foreach", "differentiable", "capturable", "fused")  # how it computes, not what
VALID = {"SGD": {"dampening": 0.0}, "Rprop": {"etas": (0.6, 1.3)}, "Adafactor": {"d": 2.0}}
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


def other_than(default):
    """A value that a setting does not have by default."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, tuple):
        return tuple(value and 0.9 * value for value in default)
    return float(f"{0.9 * default:.3g}") if isinstance(default, float) else default + 1


@pytest.mark.parametrize("name", sorted(fixes.OF_TORCH))
@pytest.mark.parametrize("is_default", [True, False])
def test_the_line_makes_the_same_optimizer_with_all_settings(tmp_path, name, is_default):
    kind, changed = getattr(torch.optim, name), {"lr": 0.1}
    for one in signature(kind).parameters.values():
        if not is_default and isinstance(one.default, int | float | tuple) and one.name not in NOT_NUMERIC:
            changed |= {one.name: other_than(one.default)}
    changed |= VALID.get(name, {}) if not is_default else {}
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = kind([weight], **changed)
    described = describe_optimizer(optimizer, {id(weight): "weight"}, 0)
    facts = Facts(build(tmp_path / "run", optimizers=[described]))
    made = {"model": nn.Linear(2, 2, bias=False), "torch": torch}
    exec(optimizer_line(facts), made)
    one, other = (
        {key: value for key, value in each.param_groups[0].items() if key != "params"}
        for each in (optimizer, made["optimizer"])
    )
    assert one.keys() == other.keys()
    assert all(pytest.approx(value) == other[key] for key, value in one.items())


def test_torchs_optimizers_are_known():
    kinds = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)} - {"Optimizer"}
    assert kinds == fixes.OF_TORCH


def test_the_rate_that_is_printed_is_the_one_that_schedules_scale(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    with gatdiag.watch(model, tmp_path / "run"):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        schedule.step()
    (fix,) = change_learning_rate(Facts(gatdiag.load(tmp_path / "run")), 0.005).fixes
    assert fix.settings["factor"] == pytest.approx(0.1)
    assert fix.code.startswith("optimizer = torch.optim.SGD(model.parameters(), lr=0.05)")


def test_an_optimizer_that_one_line_cannot_make_is_changed_where_it_is(tmp_path):
    groups = [{"lr": 0.1, "weight_decay": 0.0}, {"lr": 0.2, "weight_decay": 0.1}]
    several = (
        [{"class": "SGD", "groups": groups}],
        [{"class": "Lion", "groups": groups[:1]}],
        [{"class": "SGD", "groups": groups[:1]}, {"class": "SGD", "groups": groups[1:]}],
    )
    for number, optimizers in enumerate(several):
        facts = Facts(build(tmp_path / str(number), optimizers=optimizers))
        (fix,) = change_learning_rate(facts, 0.01).fixes
        assert fix.code.splitlines()[0] == "for group in optimizer.param_groups:"
        assert fix.code.splitlines()[1].startswith('    group["lr"] *= 0.1')


def test_modules_for_the_same_layers_are_inserted_in_one_loop():
    settings = {"layers": ("convs.1", "convs.2"), "width": 8}
    remedy = fixes.Remedy(
        *(Action("insert_after", {**settings, "module": one}) for one in ("LayerNorm", "ReLU")),
        Action("insert_after", {"layers": ("out",), "module": "ReLU"}),
    )
    assert remedy.code == (
        "for i in range(1, 3):  # before the optimizer is created\n"
        "    for layer in (torch.nn.LayerNorm(8), torch.nn.ReLU()):\n"
        '        gatdiag.remedies.insert_after_(model, f"convs.{i}", layer)\n'
        "for name in ['out']:  # before the optimizer is created\n"
        "    gatdiag.remedies.insert_after_(model, name, torch.nn.ReLU())"
    )

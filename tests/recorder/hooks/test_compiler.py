"""The compiler sees nothing of the recorder: it compiles what it does without, in as many pieces."""

import contextlib
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import nn

import gatdiag

pytestmark = [
    pytest.mark.slow,  # importing the compiler takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
COMPILE = torch.compile(backend="aot_eager")


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.optim.Adam(model.parameters(), lr=0.1), torch.randn(5, 4)


def whole_step(model, optimizer, log):
    @COMPILE
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def broken_step(model, optimizer, log):
    @COMPILE
    def step(x):
        x = model[0](x)
        torch._dynamo.graph_break()
        loss = model[2](model[1](x)).square().mean()
        loss.backward()
        torch._dynamo.graph_break()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def backward_only(model, optimizer, log):
    @COMPILE
    def update(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def step(x):
        loss = model(x).square().mean()
        update(loss)
        return loss

    return step


def forward_only(model, optimizer, log):
    @COMPILE
    def forward(x):
        return model(x).square().mean()

    def step(x):
        loss = forward(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def train(make_step, folder=None):
    """The losses, what the compiler did, and the recorder."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, optimizer, x = make()
    with contextlib.nullcontext() if folder is None else gatdiag.watch(model, folder, every=1) as recorder:
        step = make_step(model, optimizer, None)
        losses = [step(x).item() for _ in range(4)]
        counters = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "frames")}
        # On Python 3.13 the optimizer's own break counts as one or the other, and splits nothing in either case.
        breaks = [Counter(torch._dynamo.utils.counters[name]) for name in ("graph_break", "unimplemented")]
    return losses, counters | {"breaks": breaks[0] + breaks[1]}, recorder


@pytest.mark.parametrize("make_step", [whole_step, broken_step, backward_only, forward_only])
def test_what_is_compiled_is_the_same(tmp_path, make_step):
    train(make_step)  # the first time, the compiler compiles some functions of torch
    plain, compiled, _ = train(make_step)
    losses, counters, recorder = train(make_step, tmp_path / "run")
    assert losses == plain
    for name in ("stats", "breaks"):
        assert counters[name] == compiled[name]
    assert counters["frames"]["total"] <= compiled["frames"]["total"]
    assert compiled["stats"]["unique_graphs"] > 0
    run = gatdiag.load(recorder.folder)
    is_seen = make_step is forward_only or sys.version_info >= (3, 13)  # there the break keeps the step from compiling
    assert len(run.steps) == (4 if is_seen else 0)
    assert len(run.steps) or any("torch.compile" in note for note in run.meta["notes"])


def test_what_the_loop_calls_inside_of_compiled_code_breaks_the_graph_and_is_not_compiled(tmp_path):
    def train(folder):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model, optimizer, x = make()
        with gatdiag.watch(model, folder, enabled=folder.name == "on") as recorder:

            @COMPILE
            def step(x):
                loss = model(x).square().mean()
                recorder.log(loss=loss)
                recorder.note("compiled")
                return loss * 2

            for _ in range(3):
                step(x).backward()
                optimizer.step()
        return dict(torch._dynamo.utils.counters["stats"]), dict(torch._dynamo.utils.counters["frames"])

    assert train(tmp_path / "on") == train(tmp_path / "off")
    assert gatdiag.load(tmp_path / "on").steps.loss.notna().any()


def test_neither_importing_nor_watching_imports_the_compiler(tmp_path):
    program = """
import sys, torch, gatdiag
model = torch.nn.Linear(3, 2)
with gatdiag.watch(model, sys.argv[1]) as recorder:
    for _ in range(2):
        model(torch.ones(4, 3)).sum().backward()
        with recorder.step(), torch.no_grad():  # creating an optimizer of torch imports the compiler
            model.weight -= model.weight.grad
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "run"], check=True)

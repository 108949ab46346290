"""Compiled models: before `watch`, inside it, in place. Slow, because importing the compiler is."""

import warnings
from contextlib import contextmanager

import pytest
import torch

import gatdiag
from gatdiag.recorder import RecordingWarning
from gatdiag.recorder.hooks.modules import has_compiled
from tests.recorder.loops import Gat, graph, loss_of, sgd, train_step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # from the compiler, and that layers cannot be seen
]


@contextmanager
def always():
    warnings.simplefilter("always")
    yield


def loop(folder, how, *, finds_laws=False, steps=3):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, data = Gat(layers=2), graph()
    optimizer = sgd(model)
    laws = gatdiag.find_laws(model, data.x, data.edge_index) if finds_laws else True
    called = torch.compile(model, backend="aot_eager") if how == "before" else model
    if how == "in place":
        model.compile(backend="aot_eager")
    losses = []
    with warnings.catch_warnings(record=True) as caught, always(), gatdiag.watch(called, folder, laws=laws) as recorder:
        if how == "inside":
            called = torch.compile(model, backend="aot_eager")
        for _ in range(steps):
            loss = train_step(called, data, optimizer)
            recorder.log(loss=loss)
            losses.append(loss.item())
    return losses, gatdiag.load(folder), model, [str(item.message) for item in caught]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return loop(tmp_path_factory.mktemp("plain") / "run", "not at all")


@pytest.mark.parametrize("how", ["before", "inside", "in place"])
def test_a_compiled_model_trains_as_it_does_and_its_parameters_are_recorded(tmp_path, plain, how):
    plain_losses, plain_run, _, _ = plain
    losses, run, model, messages = loop(tmp_path / "run", how, finds_laws=True)
    assert losses == pytest.approx(plain_losses, rel=1e-5)
    assert run.parameters.gradient_norm.tolist() == pytest.approx(plain_run.parameters.gradient_norm.tolist(), rel=1e-4)
    assert run.neurons.c.tolist() == pytest.approx(plain_run.neurons.c.tolist(), rel=1e-5)
    assert run.neurons.delta.abs().max() < 1e-6
    assert not [message for message in messages if "global hooks" in message]
    if len(run.layers) == 0:
        assert any("compiled" in note for note in run.meta["notes"])
    assert has_compiled()
    assert not torch.nn.modules.module._has_any_global_hook()
    loss_of(model, graph()).backward()


@pytest.mark.parametrize("how", ["before", "inside", "in place"])
def test_laws_are_not_looked_for_in_compiled_code(tmp_path, plain, how):
    losses, run, _, messages = loop(tmp_path / "run", how)
    assert losses == pytest.approx(plain[0], rel=1e-5)
    assert len(run.neurons) == 0
    assert any("laws=gatdiag.find_laws" in message or "compiled" in message for message in messages)


def test_what_else_was_compiled_is_no_concern_of_an_ordinary_model(tmp_path):
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert has_compiled()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught, always(), gatdiag.watch(model, tmp_path):
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
    assert not [str(item.message) for item in caught if issubclass(item.category, RecordingWarning)]
    assert "can be passed" not in gatdiag.load(tmp_path).meta["laws"]["error"]

"""The handler with real engines of Ignite."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gatdiag
from tests.integrations.untouched import assert_same, remains, seed

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.(script|interface)` is deprecated", DeprecationWarning)
    pytest.importorskip("ignite")
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, RunningAverage

    from gatdiag.integrations.ignite import GatdiagHandler

GENERATOR = torch.Generator().manual_seed(0)
ROWS = TensorDataset(torch.randn(48, 5, generator=GENERATOR), torch.randint(0, 3, (48,), generator=GENERATOR))


def engines():
    """A model, the engine that trains it, the engine that evaluates it, and the losses."""
    seed()
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    trainer = create_supervised_trainer(model, optimizer, nn.functional.cross_entropy)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "smooth")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(DataLoader(ROWS, batch_size=16)))
    return model, trainer, evaluator, losses


def run_engine(trainer, epochs=2):
    trainer.run(DataLoader(ROWS, batch_size=8, shuffle=True), max_epochs=epochs)


def test_training_is_unchanged_and_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    left = []
    for recorded in (True, False):
        model, trainer, evaluator, losses = engines()
        if recorded:
            GatdiagHandler().attach(trainer, model, {"val": evaluator})
        run_engine(trainer)
        left.append(remains(model, losses))
    assert_same(*left)
    run = gatdiag.load("runs/sequential")
    assert run.status == "finished"
    assert run.steps.loss.tolist() == pytest.approx(losses, rel=1e-6)
    assert run.steps.step[run.steps["val/accuracy"].notna()].tolist() == [5, 11]
    assert run.steps.step[run.steps["smooth"].notna()].tolist() == [5, 11]
    folder = Path("runs", "sequential")
    assert capsys.readouterr().err.endswith(f"whether it trains; see gatdiag diagnose {folder}\n")


def test_a_terminated_run_ends_and_the_next_one_is_written_beside_it(tmp_path, capsys):
    model, trainer, _, _ = engines()
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda engine: engine.terminate(skip_completed=True))
    handler = GatdiagHandler(tmp_path / "run")
    handler.attach(trainer, model)
    run_engine(trainer)
    run_engine(trainer, epochs=3)
    assert handler.recorder.folder == tmp_path / "run-2"
    assert capsys.readouterr().err.count("see gatdiag diagnose") == 2
    runs = [gatdiag.load(tmp_path / name) for name in ("run", "run-2")]
    assert [run.status for run in runs] == ["finished", "finished"]
    assert len(runs[0].steps) == 4


def test_exceptions_pass_as_without_the_handler(tmp_path):
    model, trainer, _, _ = engines()
    caught = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda _: 1 / 0)
    handler = GatdiagHandler(tmp_path / "run")
    handler.attach(trainer, model)
    with pytest.raises(ZeroDivisionError):
        run_engine(trainer)
    handler.recorder.finish()
    trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda _, error: caught.append(error))
    run_engine(trainer)
    handler.recorder.finish()

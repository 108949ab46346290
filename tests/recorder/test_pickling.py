"""A recorder may be part of what is copied or sent to other processes: its copies are disabled."""

import copy
import io
import multiprocessing
import pickle

import cloudpickle
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import gatdiag
from gatdiag.recorder import Recorder
from tests.recorder.loops import Gat, graph, loss_of, sgd, train_step


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPY = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch.save": saved_and_loaded,
}


class Rows(Dataset):
    """A dataset that holds the recorder, for instance to log what it draws."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __len__(self):
        return 4

    def __getitem__(self, number):
        self.recorder.log(drawn=number)
        return torch.tensor([number, int(self.recorder.enabled)])


@pytest.mark.parametrize(
    ("how", "when", "enabled"),
    [
        *((how, "between steps", True) for how in COPY),
        *(("pickle", when, True) for when in ("before the first step", "inside a step", "after the end")),
        *((how, "between steps", False) for how in ("pickle", "deepcopy")),
    ],
)
def test_a_copy_records_nothing_and_knows_the_folder(tmp_path, how, when, enabled):
    model, data = Gat(layers=2), graph()
    optimizer, copies = sgd(model), []

    def take_copy(now):
        if now == when:
            copies.append(COPY[how](recorder))

    with gatdiag.watch(model, tmp_path / "run", enabled=enabled) as recorder:
        take_copy("before the first step")
        train_step(model, data, optimizer)
        take_copy("between steps")
        loss_of(model, data).backward()
        take_copy("inside a step")
        optimizer.step()
        for each in copies:
            each.log(value=1.0)
            each.note("a note")
            with each.step():
                train_step(model, data, optimizer)
            each.finish()
        train_step(model, data, optimizer)
    take_copy("after the end")
    (found,) = copies
    assert isinstance(found, Recorder)
    assert found.folder == recorder.folder
    assert not found.enabled
    assert not found.diagnosis().findings
    with found, found.start():
        pass
    assert (tmp_path / "run").exists() is enabled
    if enabled:
        run = gatdiag.load(tmp_path / "run")
        assert len(run.steps) == (3 if when == "after the end" else 4)
        assert "value" not in run.steps
        assert "a note" not in run.meta["notes"]
        assert run.status == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [method for method in ("fork", "spawn") if method in multiprocessing.get_all_start_methods()]
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_of_a_loader_whose_dataset_holds_the_recorder(tmp_path, method):
    model, data = Gat(layers=2), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run") as recorder:
        train_step(model, data, optimizer)
        rows = [*DataLoader(Rows(recorder), num_workers=1, multiprocessing_context=method)]
        train_step(model, data, optimizer)
    assert [row[0, 0].item() for row in rows] == [0, 1, 2, 3]
    run = gatdiag.load(tmp_path / "run")
    assert len(run.steps) == 2
    assert "drawn" not in run.steps
    assert run.status == "finished"

"""Trackers with their real packages, on this machine: while recording, and by `gatdiag export`."""

import json
import struct
import sys
import time
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.recorder import RecordingWarning, Update
from gatdiag.recorder.tracking import update_of_run
from tests.recorder.loops import train
from tests.run.synthetic import synthetic_run

pytestmark = pytest.mark.filterwarnings("ignore:.*:ResourceWarning")


@pytest.fixture
def recorded(tmp_path):
    """A function that records a training with a tracker, and returns what it should have been given."""

    def record(tracker):
        return update_of_run(train(tmp_path / "run", steps=12, every=1, tracker=tracker).run)

    return record


def by_name(update):
    """Name -> [(step, value), ...]."""
    found = {}
    for step, row in update.scalars.items():
        for name, value in row.items():
            found.setdefault(name, []).append((step, value))
    return found


def export(folder, to):
    done = CliRunner().invoke(app, ["export", str(folder), "--to", to])
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """The folder of a run to export, in the current folder, and its scalars."""
    monkeypatch.chdir(tmp_path)
    folder = synthetic_run(tmp_path / "gat3", steps=5, layers=3, neurons=2)
    return folder, update_of_run(gatdiag.load(folder))


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def check_tensorboard(folder, expected):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert {name: sorted(values) for name, values in found.items()} == {
        name: [(step, pytest.approx(value, rel=1e-6)) for step, value in values]  # TensorBoard keeps float32
        for name, values in by_name(expected).items()
    }
    (text,) = events.Tensors("gatdiag/verdict/text_summary")
    assert f"[{expected.diagnosis.verdict.code}]" in text.tensor_proto.string_val[0].decode() or (
        not expected.diagnosis.verdict.is_cause
    )


def test_tensorboard_while_recording(tmp_path, recorded):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    from gatdiag.integrations.tensorboard import to_tensorboard

    writer = SummaryWriter(str(tmp_path / "board"))
    expected = recorded(to_tensorboard(writer))
    check_tensorboard(tmp_path / "board", expected)
    writer.add_scalar("mine", 1.0, 0)  # it is still open
    writer.close()


def test_tensorboard_by_export(exported):
    pytest.importorskip("tensorboard")
    folder, expected = exported
    for place in ("gat3-tensorboard", "gat3-tensorboard-2"):
        assert export(folder, "tensorboard") == place
        check_tensorboard(place, expected)


# --- W&B --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return pytest.importorskip("wandb")


def blocks(data):
    """The records of a file of W&B: LevelDB's log format, in blocks of 32 KiB, after a header of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + length > len(data):  # is being written
            return
        record, at = record + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_wandb(folder):
    """The rows of the history and the summary of an offline run, from its own file."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("*.wandb")
    until, records = time.monotonic() + 20, []
    while not (records and records[-1].HasField("exit")):  # written by a process of W&B's own
        assert time.monotonic() < until
        records = [wandb_internal_pb2.Record.FromString(data) for data in blocks(path.read_bytes())]
    rows, summary = [], {}
    for record in records:
        if record.HasField("history"):
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in record.history.item})
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = item.value_json
    return rows, summary


def check_wandb(folder, expected, *, all_rows=True):
    rows, summary = read_wandb(folder)
    found = {}
    for row in rows:
        for name in row.keys() - {"gatdiag/step"}:
            if name.startswith("gatdiag/"):
                found.setdefault(name, []).append((json.loads(row["gatdiag/step"]), json.loads(row[name])))
    if all_rows:
        assert {name: sorted(values) for name, values in found.items()} == by_name(expected)
    else:  # the latest value of each
        assert {name: values[-1][1] for name, values in found.items()} == {
            name: values[-1][1] for name, values in by_name(expected).items()
        }
    assert json.loads(summary["gatdiag/verdict"]) == expected.diagnosis.verdict.code
    return rows


@pytest.mark.parametrize("own_rows", [True, False])
def test_wandb_while_recording(tmp_path, recorded, wandb, own_rows):
    from gatdiag.integrations.wandb import to_wandb

    with wandb.init(project="mine", dir=str(tmp_path)) as run:
        expected = recorded(to_wandb(own_rows=own_rows))
        if not own_rows:
            run.log({"loss": 0.5}, step=0)  # is not dropped
        folder = Path(run.dir).parent
    rows = check_wandb(folder, expected, all_rows=own_rows)
    assert own_rows or "0.5" in [row.get("loss") for row in rows]


def test_wandb_by_export(exported, wandb, tmp_path):
    folder, expected = exported
    place = Path(export(folder, "wandb"))
    assert place.is_relative_to(tmp_path / "gat3-wandb")
    check_wandb(place, expected)


# --- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from packages that it imports
        return pytest.importorskip("mlflow")


def check_mlflow(store, run_id, expected):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    names = client.get_run(run_id).data.metrics
    history = {name: client.get_metric_history(run_id, name) for name in names}
    found = {name: sorted((one.step, one.value) for one in values) for name, values in history.items()}
    assert found == by_name(expected)
    assert client.get_run(run_id).data.tags["gatdiag/verdict"] == expected.diagnosis.verdict.code


def test_mlflow_while_recording(tmp_path, recorded, mlflow):
    from gatdiag.integrations.mlflow import to_mlflow

    store = (tmp_path / "store").as_uri()
    mlflow.set_tracking_uri(store)
    try:
        with mlflow.start_run() as run:
            expected = recorded(to_mlflow())
    finally:
        mlflow.set_tracking_uri(None)
    check_mlflow(store, run.info.run_id, expected)


def test_mlflow_by_export(exported, mlflow, tmp_path):
    from mlflow import MlflowClient

    folder, expected = exported
    store = export(folder, "mlflow")
    assert store == (tmp_path / "gat3-mlflow").as_uri()
    client = MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("gatdiag").experiment_id])
    assert (run.info.run_name, run.info.status) == ("gat3", "FINISHED")
    check_mlflow(store, run.info.run_id, expected)


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_without_an_active_run_there_is_one_warning(request, recorded, name):
    from importlib import import_module

    request.getfixturevalue(name)
    tracker = getattr(import_module(f"gatdiag.integrations.{name}"), f"to_{name}")()
    with pytest.warns(RecordingWarning, match=f"to_{name}.. expects a run"):
        recorded(tracker)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_missing_is_named(exported, monkeypatch, name):
    monkeypatch.setitem(sys.modules, f"gatdiag.integrations.{name}", None)
    done = CliRunner().invoke(app, ["export", str(exported[0]), "--to", name])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gatdiag: --to {name} needs a package that is not installed: pip install {name}")
    assert not Path(f"gat3-{name}").exists()


def test_any_function_is_a_tracker(recorded):
    updates = []
    recorded(updates.append)
    assert all(isinstance(update, Update) for update in updates)

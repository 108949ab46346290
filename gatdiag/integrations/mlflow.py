"""MLflow: gatdiag's scalars as metrics of your run, and the verdict as its tags."""

import os
import time
from pathlib import Path
from typing import Any, Final

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from gatdiag.errors import InputError
from gatdiag.recorder import Tracker, Update
from gatdiag.recorder.tracking import update_of_run
from gatdiag.run import Run

_MOST: Final = 1_000  # metrics that MLflow takes at once
_LONGEST: Final = 5_000  # characters of a tag


def to_mlflow(run_id: str | None = None, client: MlflowClient | None = None) -> Tracker:
    """A tracker that logs to a run of MLflow, for ``gatdiag.watch(..., tracker=to_mlflow())``.

    Metrics are sent in the background, a thousand at once. The tags ``gatdiag/verdict`` and ``gatdiag/verdict_text``
    are set at the end, when all metrics have arrived.

    Args:
        run_id: The run; by default the active one at the first call, as after `mlflow.start_run()`.
        client: A client of its tracking server; by default one of the current one.

    Raises:
        InputError: There is no active run, when it is called.
    """
    known, waiting = run_id, list[Any]()

    def track(update: Update) -> None:
        nonlocal known
        known = _active_run() if known is None else known
        run, server, now = known, client or MlflowClient(), int(1000 * time.time())
        rows = ((step, *item) for step, row in update.scalars.items() for item in row.items())
        metrics = [Metric(name, value, now, step) for step, name, value in rows]
        for start in range(0, len(metrics), _MOST):
            waiting.append(server.log_batch(run, metrics=metrics[start : start + _MOST], synchronous=False))
        if update.diagnosis is not None:
            for operation in waiting:
                operation.wait()
            verdict = update.diagnosis.verdict
            tags = {"gatdiag/verdict": verdict.code, "gatdiag/verdict_text": str(verdict)[:_LONGEST]}
            server.log_batch(run, tags=[RunTag(*item) for item in tags.items()])

    return track


def _active_run() -> str:
    if (active := mlflow.active_run()) is None:
        raise InputError("to_mlflow() expects a run: call mlflow.start_run() before training, or pass its id")
    return str(active.info.run_id)


def export(run: Run, folder: Path) -> str:
    """Make a run of MLflow, in its experiment ``gatdiag``; returns the store.

    The store is that of the environment variable MLFLOW_TRACKING_URI, or else the folder.
    """
    store = os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri()
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow 3 takes no folder
    client = MlflowClient(tracking_uri=store)
    found = client.get_experiment_by_name("gatdiag")
    experiment = client.create_experiment("gatdiag") if found is None else found.experiment_id
    made = client.create_run(experiment, run_name=run.name)
    to_mlflow(made.info.run_id, client)(update_of_run(run))
    client.set_terminated(made.info.run_id)
    return store

"""Weights & Biases: gatdiag's scalars in your run, and the verdict in its summary."""

import os
from collections import ChainMap
from pathlib import Path
from typing import Any

import wandb

from gatdiag.errors import InputError
from gatdiag.recorder import Tracker, Update
from gatdiag.recorder.tracking import update_of_run
from gatdiag.run import Run

_STEP = "gatdiag/step"


def to_wandb(run: Any = None, *, own_rows: bool = False) -> Tracker:
    """A tracker that logs to a run of W&B, for ``gatdiag.watch(..., tracker=to_wandb())``.

    The x axis of its charts is ``gatdiag/step``. The verdict is ``gatdiag/verdict`` in the run's summary.

    Args:
        run: The run; by default the active one at the first call, as after `wandb.init()`.
        own_rows: True: each recorded step is logged, as a row of W&B's history. Rows count as steps of W&B, so your own
            loop may not pass ``step=`` to `wandb.log` then: W&B drops what is logged for an earlier step. By default
            the latest value of each scalar joins the row that you log next.

    Raises:
        InputError: There is no active run, when it is called.
    """
    target: Any = None

    def track(update: Update) -> None:
        nonlocal target
        if target is None:
            target = _active_run() if run is None else run
            target.define_metric("gatdiag/*", step_metric=_STEP)
        rows = [{**row, _STEP: step} for step, row in update.scalars.items()]
        for row in rows if own_rows else [dict(ChainMap(*reversed(rows)))]:
            target.log(row, commit=own_rows)
        if update.diagnosis is not None:
            verdict = update.diagnosis.verdict
            target.summary.update({"gatdiag/verdict": verdict.code, "gatdiag/verdict_text": str(verdict)})

    return track


def _active_run() -> Any:
    if wandb.run is None:
        raise InputError("to_wandb() expects a run: call wandb.init() before training, or pass the run")
    return wandb.run


def export(run: Run, folder: Path) -> str:
    """Make a run of W&B, in its project ``gatdiag``; returns its folder, or its address if it is online.

    It is offline unless the environment variable WANDB_MODE says otherwise; ``wandb sync`` uploads it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mode: Any = os.environ.get("WANDB_MODE", "offline")
    made = wandb.init(
        project="gatdiag",
        name=run.name,
        dir=str(folder.resolve()),  # its service runs in a folder of its own
        mode=mode,
        settings=wandb.Settings(silent=True, console="off"),
    )
    to_wandb(made, own_rows=True)(update_of_run(run))
    place = made.url or str(Path(made.dir).parent)
    made.finish()
    return str(place)

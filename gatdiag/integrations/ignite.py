"""Ignite: a handler that records what an engine trains."""

import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from torch import Tensor, nn

from gatdiag.integrations.verdict import finish
from gatdiag.recorder import Recorder
from gatdiag.watching import watch


class GatdiagHandler:
    """Records each run of an engine, and prints the verdict at its end.

    Metrics that are attached to the engine are recorded at the end of each epoch, and those of other engines when these
    have completed. An exception passes through the engine as without the handler.

    Args:
        folder: Where the run is written; by default ``runs/`` and the name of the model's class. If it holds a run, a
            numbered sibling is written.
        settings: Other arguments of `gatdiag.watch`.

    Attributes:
        recorder: That of the last run; None before the first.

    Example::

        trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.cross_entropy)
        evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy()})
        GatdiagHandler().attach(trainer, model, {"val": evaluator})
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._folder, self._settings = folder, settings
        self.recorder: Recorder | None = None
        self._is_running = False

    def attach(self, engine: Engine, model: nn.Module, evaluators: Mapping[str, Engine] | None = None) -> None:
        """Record what an engine trains.

        Args:
            engine: The engine that trains.
            model: The model that it trains.
            evaluators: Name -> engine whose metrics are recorded as ``name/metric``.
        """
        engine.add_event_handler(Events.STARTED, self._start, model)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._log, "")
        for name, evaluator in (evaluators or {}).items():
            evaluator.add_event_handler(Events.COMPLETED, self._log, f"{name}/")
        for end in (Events.TERMINATE, Events.COMPLETED):  # an engine may terminate without the other
            engine.add_event_handler(end, self._finish)

    def _start(self, engine: Engine, model: nn.Module) -> None:
        folder = self._folder or Path("runs", type(model).__name__.lower())
        self.recorder = watch(model, folder, **self._settings)
        self._is_running = True

    def _log(self, engine: Engine, prefix: str) -> None:
        if self.recorder is not None:
            metrics = engine.state.metrics.items()
            self.recorder.log({f"{prefix}{name}": value for name, value in metrics if _is_number(value)})

    def _finish(self, engine: Engine) -> None:
        if self._is_running:
            self._is_running = False
            finish(self.recorder)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)

"""Lightning: a callback that records what `trainer.fit` trains."""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gatdiag.integrations.verdict import FOLDER, finish
from gatdiag.recorder import Recorder, Update
from gatdiag.watching import watch


class GatdiagCallback(Callback):  # type: ignore[misc] # of a package that mypy does not follow
    """Records each `trainer.fit`, and prints the verdict at its end.

    A few scalars of each recorded step (`gatdiag.summary.SCALARS`) go to the trainer's loggers, and what the module
    logs with `self.log` is recorded. The batches of the sanity check, of `lr_find` and of `scale_batch_size` are no
    steps of the run, unless the rate is searched for again in the middle of a training. In distributed training the
    first process records. Works with trainers of `pytorch_lightning`, too.

    Args:
        folder: Where the run is written; by default the folder ``gatdiag-run`` in the trainer's `log_dir`. If it holds
            a run, a numbered sibling is written.
        settings: Other arguments of `gatdiag.watch`; with ``tracker``, scalars go there and not to the loggers, and
            nowhere if it is None.

    Attributes:
        recorder: That of the last fit; None before the first.

    Example::

        trainer = lightning.Trainer(callbacks=[GatdiagCallback()])
        trainer.fit(module, loader)
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._folder, self._settings = folder, settings
        self.recorder: Recorder | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start recording: the first step comes next."""
        beside = Path(trainer.log_dir or trainer.default_root_dir)  # asked in each process, because it is broadcast
        tracker = partial(_send, trainer.loggers) if trainer.loggers else None
        self.recorder = watch(pl_module, self._folder or beside / FOLDER, **{"tracker": tracker, **self._settings})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what is left, and print the verdict."""
        finish(self.recorder)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write what is left, and why training has ended."""
        if self.recorder is not None:
            self.recorder.__exit__(type(exception), exception, exception.__traceback__)


def _send(loggers: Iterable[Any], update: Update) -> None:
    for logger in loggers:
        for step, row in update.scalars.items():
            logger.log_metrics(row, step=step)

"""Hugging Face: a callback that records what `transformers.Trainer` trains."""

import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gatdiag.integrations.verdict import FOLDER, finish
from gatdiag.recorder import Recorder
from gatdiag.watching import watch

# What is recorded at each step anyway, and what is about the whole training or its speed.
_NOT_RECORDED: Final = ("loss", "grad_norm", "learning_rate", "epoch", "train_loss", "total_flos")
_SPEED: Final = ("_runtime", "_per_second")


class GatdiagCallback(TrainerCallback):  # type: ignore[misc] # of a package that mypy does not follow
    """Records each `trainer.train()`, and prints the verdict at its end.

    What the trainer logs is recorded, too, such as ``eval_loss``. In distributed training the first process records.

    Args:
        folder: Where the run is written; by default the folder ``gatdiag-run`` in the trainer's `output_dir`. If it
            holds a run, a numbered sibling is written.
        settings: Other arguments of `gatdiag.watch`.

    Attributes:
        recorder: That of the last training; None before the first.

    Example::

        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[GatdiagCallback()])
        trainer.train()
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._folder, self._settings = folder, settings
        self.recorder: Recorder | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any
    ) -> None:
        """Start recording: the first step comes next."""
        self.recorder = watch(model, self._folder or Path(args.output_dir) / FOLDER, **self._settings)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record what is logged."""
        if self.recorder is not None:
            self.recorder.log({name: value for name, value in (logs or {}).items() if _is_recorded(name, value)})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write what is left, and print the verdict."""
        finish(self.recorder)


def _is_recorded(name: str, value: object) -> bool:
    return isinstance(value, Real) and name not in _NOT_RECORDED and not name.endswith(_SPEED)

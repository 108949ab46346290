"""Checkpoints -> rows of a run, by a forward and a backward pass of the model with the weights of each."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from gatdiag.checkpoint.fitting import load_weights_
from gatdiag.checkpoint.measures import Measured, measure
from gatdiag.errors import InputError, ModelError
from gatdiag.recorder import GROUPS, Recorder, Settings, select
from gatdiag.structure import Structure

# The optimizer's steps from one checkpoint to the next were not seen.
_UNSEEN: Final = ("update_ratio", "predicted_c")
RECORDED: Final = tuple(name for group in GROUPS.values() for name in group.columns if name not in _UNSEEN)
_CHANGES: Final = (*GROUPS["changes"].columns, *GROUPS["quantiles"].columns)


@dataclass(frozen=True)
class Subject:
    """The model that checkpoints are of, and what it is run on.

    Attributes:
        model: The model; its weights are replaced by those of each checkpoint.
        args: Positional inputs of its forward pass.
        kwargs: Keyword inputs.
        loss: Its output -> scalar; None: nothing is differentiated.
        source: Where the inputs come from, in words.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Tensor] | None = None
    source: str = ""


def checkpoint(_: int) -> bool:
    """Every one is recorded; the run's settings show this name."""
    return True


class PassRecord:
    """Writes a step of a run for each checkpoint: what a step of training would have measured there.

    The model runs in training mode, with the same random numbers for each checkpoint.

    Args:
        subject: The model, with a loss.
        structure: Its layers.
        folder: The run's.
        name: What the run is called.
        compared: Whether there is something to measure changes from.
        overwrite: Delete the run that is there.

    Attributes:
        measured: Parameter -> what it measures in the last checkpoint.

    Raises:
        InputError: The folder cannot be written, or recording is switched off.
    """

    def __init__(
        self, subject: Subject, structure: Structure, folder: Path, name: str, *, compared: bool, overwrite: bool
    ) -> None:
        """Begins the run."""
        self._subject = subject
        self._names = [info.name for info in structure.parameters]
        self.measured: Mapping[str, Measured] = {}
        metrics = RECORDED if compared else [name for name in RECORDED if name not in _CHANGES]
        settings = Settings(select(metrics, 20.0), every=checkpoint, overwrite=overwrite, name=name)
        self._recorder = Recorder(subject.model, folder, settings)
        if not self._recorder.enabled:
            raise InputError("GATDIAG_DISABLE is set, so nothing can be recorded: unset it")
        subject.model.train()
        self._recorder.start()

    def start(self, reference: Mapping[str, Tensor]) -> None:
        """Measure changes from these weights on; the laws are found with them.

        Raises:
            ModelError: The model or the loss fails.
        """
        load_weights_(self._subject.model, reference)
        self._loss()

    def add(self, step: int, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
        """Write one checkpoint.

        Raises:
            ModelError: The model or the loss fails.
        """
        load_weights_(self._subject.model, tensors)
        self._subject.model.zero_grad()
        loss = self._loss()
        loss.backward()
        with self._recorder.step(step):
            self._recorder.log(loss=loss, **scalars)
        self.measured = {name: measure(tensors[name]) for name in self._names if name in tensors}

    def tell(self, notes: Iterable[str]) -> None:
        """Keep remarks with the run."""
        for note in notes:
            self._recorder.note(note)

    def __enter__(self) -> Self:
        """The run has begun already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        """Seal the run."""
        self._subject.model.zero_grad()
        self._recorder.__exit__(kind, error, None)

    def _loss(self) -> Tensor:
        subject = self._subject
        torch.manual_seed(0)
        try:
            output = subject.model(*subject.args, **subject.kwargs)
            loss = subject.loss(output) if subject.loss is not None else output
        except Exception as error:  # the user's code
            raise ModelError(f"The model fails with these weights: {type(error).__name__}: {error}") from error
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ModelError("The loss has to be a scalar tensor that depends on the weights")
        return loss

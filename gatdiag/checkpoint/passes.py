"""Record checkpoints by one forward and one backward pass each, as training steps are."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag.checkpoint.opening import Checkpoint
from gatdiag.checkpoint.state_dict import load_weights_
from gatdiag.errors import InputError, ModelError
from gatdiag.quantities import GROUPS
from gatdiag.recorder.settings import Selection, Settings, select

CHANGE_GROUPS: Final = ("changes", "quantiles")  # of columns that compare a checkpoint with the first one
_OF_UPDATES: Final = ("update_ratio", "predicted_c")  # no optimizer step is taken


@dataclass(frozen=True)
class ModelCase:
    """The model that was saved, with its inputs and loss.

    Attributes:
        model: The model; the weights of each checkpoint are loaded into it.
        args: Positional inputs of its forward pass.
        kwargs: Keyword inputs.
        loss: Maps the model's output to a scalar; None for no backward pass.
        source: Description of where the inputs come from.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Tensor] | None = None
    source: str = ""


def checkpoint(_: int) -> bool:
    """Record each step; the settings of the run show this function's name."""
    return True


def recorded_columns(*, compared: bool) -> Selection:
    """All columns that can be measured without an optimizer step; those of changes if there are several checkpoints."""
    left_out = {*_OF_UPDATES, *(name for group in CHANGE_GROUPS if not compared for name in GROUPS[group].columns)}
    return select([name for group in GROUPS.values() for name in group.columns if name not in left_out])


def record_passes(
    folder: Path,
    settings: Settings,
    case: ModelCase,
    reference: Mapping[str, Tensor],
    series: Iterable[tuple[int, Checkpoint]],
    notes: Iterable[str],
) -> None:
    """Record each checkpoint as a training step, in training mode, with the same random numbers for each.

    Laws are found with the weights of the reference, from which changes are measured.
    """
    from gatdiag.recorder import Recorder  # slow to import, and not needed for weights alone

    recorder = Recorder(case.model, folder, settings)
    if not recorder.enabled:
        raise InputError("GATDIAG_DISABLE is set, so nothing can be recorded: unset it")
    case.model.train()
    with recorder:
        load_weights_(case.model, reference)
        _run_forward(case)
        try:
            for step, saved in series:
                load_weights_(case.model, saved.tensors)
                case.model.zero_grad()
                loss = _run_forward(case)
                loss.backward()
                with recorder.step(step):
                    recorder.log(loss=loss, **saved.scalars)
        finally:
            case.model.zero_grad()
        for note in notes:
            recorder.note(note)


def _run_forward(case: ModelCase) -> Tensor:
    """The loss."""
    torch.manual_seed(0)
    try:
        output = case.model(*case.args, **case.kwargs)
        loss = case.loss(output) if case.loss is not None else output
    except Exception as error:  # the user's code
        raise ModelError(f"The forward pass or the loss failed: {type(error).__name__}: {error}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ModelError("Expected the loss to be a scalar tensor that depends on the weights")
    return loss

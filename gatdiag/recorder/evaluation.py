"""The first calls of a model without gradients, as evaluations make them: the mode, random numbers, the inputs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag.recorder import criterion
from gatdiag.structure.modules import is_training, modules_of, named_parameters
from gatdiag.structure.tensors import all_tensors

_CALLS: Final = 20  # that are counted
_COMPARED: Final = 6  # whose inputs are compared, and whose random numbers are looked for
_ENOUGH_ROWS: Final = 20  # the mean of fewer is noise


class Evaluations:
    """Counts calls of a model without gradients.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls = self._training = self._quiet = self._random = 0
        self._before: list[Tensor] | None = None  # random states
        self._known: dict[str, Tensor] = {}  # moments of the columns of the inputs in training
        self._inputs: dict[str, dict[str, Any]] = {}
        self._is_repeated = False

    @property
    def is_over(self) -> bool:
        """No further calls are looked at."""
        return self._calls >= _CALLS or self._is_repeated

    def note_training_inputs(self, inputs: Sequence[tuple[str, Tensor]]) -> None:
        """The inputs that those of evaluations are compared with."""
        self._known = {name: criterion.column_moments(x) for name, x in inputs if _has_enough_rows(x)}

    def note_repeated(self) -> None:
        """The model is called again in a backward pass: calls without gradients are a part of training."""
        self._is_repeated = True

    def start(self) -> None:
        """A call begins."""
        self._before = None
        if self._quiet < _COMPARED and not any(map(is_training, modules_of(self._model))):
            self._before = random_states(self._model)

    def end(self, inputs: Sequence[tuple[str, Tensor]]) -> None:
        """A call has ended.

        Args:
            inputs: The floating-point ones, by name.
        """
        self._calls += 1
        self._training += is_training(self._model)
        if self._before is None:
            return
        self._quiet += 1
        same = map(torch.equal, self._before, random_states(self._model))
        self._random += not all(same)
        self._before = None
        for name, x in inputs:
            if name in self._known and _has_enough_rows(x):
                self._compare(name, x)

    def _compare(self, name: str, x: Tensor) -> None:
        found = criterion.compare_moments(self._known[name], criterion.column_moments(x))
        if found and (name not in self._inputs or found["shift"] > self._inputs[name]["shift"]):
            self._inputs[name] = found

    def as_meta(self) -> Mapping[str, Any]:
        """What stands in meta.json: counts of calls, and how far inputs are from those in training."""
        if self._is_repeated or not self._calls:
            return {}
        counts = {"calls": self._calls, "in_training_mode": self._training}
        return {**counts, "compared": self._quiet, "random": self._random, "inputs": self._inputs}


def _has_enough_rows(x: Tensor) -> bool:
    return x.numel() >= _ENOUGH_ROWS * x.shape[-1] > 0


def random_states(model: nn.Module) -> list[Tensor]:
    """The states of torch's random numbers on the CPU and on the model's devices, without waiting for them."""
    devices = {tensor.device for tensor in all_tensors(dict(named_parameters(model))) if tensor.is_cuda}
    if devices and torch.cuda.is_current_stream_capturing():
        return []
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in sorted(devices, key=str))]

"""Backward passes: whether one is running, how many there were, and the gradients at the end of each."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gatdiag.recorder.weights import Flat, FlatParameters


def in_backward_pass() -> bool:
    """True if this runs inside a backward pass, as the forward passes that activation checkpointing repeats do."""
    return torch._C._current_graph_task_id() != -1


class BackwardCounter:
    """Tells whether there was a backward pass: torch numbers them, and says the number inside of one only."""

    def __init__(self) -> None:
        self._probe, self._one = torch.zeros((), requires_grad=True), torch.ones(())
        self._probe.register_hook(self._read)
        self._number = -1

    def count(self) -> int:
        """A number that grows by one with each backward pass of the process, of which this call makes one."""
        engine: Any = torch.autograd.Variable._execution_engine  # `backward()` would take four times as long
        engine.run_backward((self._probe,), (self._one,), False, False, (), accumulate_grad=True)
        return self._number

    def _read(self, _: Tensor) -> None:
        self._number = torch._C._current_graph_task_id()


class BackwardPass:
    """The gradients at the end of each backward pass, which is before anything can clip them.

    They are copied even where nothing clips them, for that cannot be known: what goes through `.data` leaves no trace.
    """

    def __init__(self) -> None:
        self._gradients: Flat | None = None
        self._number = -1
        self._earlier: list[tuple[int, int]] = []

    @property
    def is_another(self) -> bool:
        """True in a backward pass that has not begun yet."""
        return torch._C._current_graph_task_id() != self._number

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Remember the gradients as they are before a backward pass."""
        self._number = torch._C._current_graph_task_id()
        self._earlier = versions(parameter.grad for parameter in parameters)

    def on_end(self, flat: FlatParameters) -> None:
        """The gradients are as the backward pass left them."""
        gradients = [tensor.grad for tensor in flat.tensors]
        if versions(gradients) != self._earlier:  # else nothing was accumulated: gradients were asked for elsewhere
            self._gradients = flat.side_by_side(gradients)

    def give(self) -> Flat | None:
        """Those of the last pass, once; None where no pass was seen."""
        raw, self._gradients = self._gradients, None
        return raw


def versions(gradients: Iterable[Tensor | None]) -> list[tuple[int, int]]:
    """Identity and version of each gradient: they change when it is replaced, or changed in place, as by clipping."""
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]

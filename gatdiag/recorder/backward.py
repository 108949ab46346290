"""Backward passes: whether one is running, their number, and the gradients at the end of each."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gatdiag.recorder.hooks.outside import run_as_is
from gatdiag.recorder.weights import Flat, FlatParameters


def is_in_backward_pass() -> bool:
    """True inside a backward pass, where activation checkpointing repeats forward passes."""
    return torch._C._current_graph_task_id() != -1


class BackwardCounter:
    """Counts backward passes: torch numbers them, but gives the number only inside of one."""

    def __init__(self) -> None:
        self._probe, self._one = torch.zeros((), requires_grad=True), torch.ones(())
        self._probe.register_hook(self._read)
        self._number = -1

    def count(self) -> int:
        """The number of backward passes in this process, including the one that this call makes."""
        engine: Any = torch.autograd.Variable._execution_engine  # `backward()` takes four times as long
        engine.run_backward((self._probe,), (self._one,), False, False, (), accumulate_grad=True)
        return self._number

    @run_as_is
    def _read(self, _: Tensor) -> None:
        self._number = torch._C._current_graph_task_id()


class BackwardPass:
    """Copies the gradients at the end of each backward pass, before they can be clipped.

    They are copied even if nothing clips them, because clipping through `.data` cannot be detected.
    """

    def __init__(self) -> None:
        self._gradients: Flat | None = None
        self._number = -1
        self._versions_before: list[tuple[int, int]] = []

    @property
    def is_new(self) -> bool:
        """True inside a backward pass for which `begin` was not called yet."""
        return torch._C._current_graph_task_id() != self._number

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Called at the first gradient of a backward pass."""
        self._number = torch._C._current_graph_task_id()
        self._versions_before = versions(parameter.grad for parameter in parameters)

    def on_end(self, flat: FlatParameters) -> None:
        """Called at the end of the backward pass."""
        gradients = [tensor.grad for tensor in flat.tensors]
        if versions(gradients) != self._versions_before:  # unchanged by `torch.autograd.grad`
            self._gradients = flat.flatten(gradients)

    def take(self) -> Flat | None:
        """The gradients after the last pass, once; None if there was no pass since."""
        raw, self._gradients = self._gradients, None
        return raw


def versions(gradients: Iterable[Tensor | None]) -> list[tuple[int, int]]:
    """Identity and version of each gradient; these change when it is replaced or modified in place."""
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]

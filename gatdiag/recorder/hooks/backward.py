"""Backward passes: whether one is running, their number, what they began with, and their end."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from gatdiag.recorder.hooks.outside import run_as_is


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


class BackwardPasses:
    """Reports the end of each backward pass, when its gradients cannot have been clipped yet.

    Args:
        on_end: Called at the end of a backward pass that has changed gradients.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._number = -1

    def begin(self, parameters: Sequence[Tensor]) -> bool:
        """Called at each gradient of an output; returns whether it is the first of its backward pass.

        Args:
            parameters: Whose gradients count.
        """
        number = torch._C._current_graph_task_id()
        if number == self._number:
            return False
        self._number = number
        before = versions(parameter.grad for parameter in parameters)

        @run_as_is
        def on_end() -> None:
            if versions(parameter.grad for parameter in parameters) != before:  # `torch.autograd.grad` changes none
                self._on_end()

        # queued once more from within, so that it comes after the reduction of DistributedDataParallel, which queues
        # itself later in the pass than we do
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(run_as_is(lambda: engine.queue_callback(on_end)))
        return True


def versions(gradients: Iterable[Tensor | None]) -> list[tuple[int, int]]:
    """Identity and version of each gradient; these change when it is replaced or modified in place."""
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]


def find_losses() -> list[Tensor]:
    """What `backward()` was called on, in a hook that it calls, with its graph; none if they are no scalars.

    The call is found on the stack: nothing else links the gradients to it. On an accelerator hooks run in a thread of
    autograd's, and the call is looked for in all others.
    """
    calls = [*_backward_calls(sys._getframe())]
    if not calls:
        frames = sys._current_frames().values()
        calls = [call for frame in frames for call in [*_backward_calls(frame)][-1:]]
    if not calls:
        return []
    called = calls[-1].f_locals  # the outermost: reentrant checkpointing makes others inside
    tensors, given = called["tensors"], called["grad_tensors"]
    losses = [tensors] if isinstance(tensors, Tensor) else [*tensors]
    if given is not None and any(each is not None for each in ([given] if isinstance(given, Tensor) else given)):
        return []
    return losses if all(loss.numel() == 1 and loss.is_floating_point() for loss in losses) else []


def add_up(losses: Sequence[Tensor]) -> Tensor:
    """The sum of scalars, without its graph, in a new tensor."""
    return sum((loss.detach().reshape(()) for loss in losses[1:]), start=losses[0].detach().reshape(()).clone())


def _backward_calls(frame: FrameType | None) -> Iterator[FrameType]:
    code = torch.autograd.backward.__code__
    while frame is not None:
        if frame.f_code is code:
            yield frame
        frame = frame.f_back

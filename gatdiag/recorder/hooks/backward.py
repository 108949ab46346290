"""Backward passes: whether one is running, their number, what they began with, and their end."""

import sys
import weakref
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

    Attributes:
        is_surprised: Whether the pass began with gradients that a pass has changed that was not seen: a penalty on the
            weights has a backward pass that goes through no output. What the loop itself does to gradients, such as
            momentum by hand, takes no pass.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end, self._counter = on_end, BackwardCounter()
        self._known: list[tuple[int, int]] = []  # versions of the gradients, after the last pass or step
        self.is_surprised = False
        self._number = -1  # of the last pass that was seen
        self._last = -1  # of the last pass when the gradients were taken
        self._call: Callable[[], Tensor | None] = lambda: None  # the gradient of the loss in the last call

    def begin(self, parameters: Sequence[Tensor]) -> bool:
        """Called at each gradient of an output; returns whether it is the first of a call, such as `backward()`.

        Reentrant checkpointing makes further backward passes inside of a call, which end on their own.

        Args:
            parameters: Whose gradients count.
        """
        number = torch._C._current_graph_task_id()
        if number == self._number:
            return False
        self._number = number
        before = versions(parameter.grad for parameter in parameters)
        self.is_surprised = before not in ([], self._known) and number > self._last + 1

        @run_as_is
        def on_end() -> None:
            self._take(parameters, number)
            if self._known != before:  # `torch.autograd.grad` changes none
                self._on_end()

        # queued once more from within, so that it comes after the reduction of DistributedDataParallel, which queues
        # itself later in the pass than we do
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(run_as_is(lambda: engine.queue_callback(on_end)))
        return not self._is_in_known_call()

    def start(self, parameters: Sequence[Tensor]) -> None:
        """Take the gradients as they are, at the beginning of a step."""
        self._take(parameters, self._counter.count())

    def _take(self, parameters: Sequence[Tensor], number: int) -> None:
        self._known, self._last = versions(parameter.grad for parameter in parameters), number

    def has_missed(self, parameters: Sequence[Tensor]) -> bool:
        """Whether passes since the last one, through no output, may have changed gradients. Not for inside of one."""
        is_same = versions(parameter.grad for parameter in parameters) == self._known
        return not is_same and self._counter.count() > self._number + 1

    def _is_in_known_call(self) -> bool:
        call = _find_call()
        made = () if call is None else call.f_locals.get("grad_tensors_", ())  # by this call, and gone when it ends
        one = next((gradient for gradient in made if gradient is not None), None)
        is_known = one is not None and self._call() is one
        if one is not None:
            self._call = weakref.ref(one)
        return is_known


def versions(gradients: Iterable[Tensor | None]) -> list[tuple[int, int]]:
    """Identity and version of each gradient; these change when it is replaced or modified in place."""
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]


def find_losses() -> list[Tensor | None]:
    """What `backward()` was called on, in a hook that it calls, with its graph; None for all if they are no scalars.

    Nothing if something else computes gradients, such as `torch.autograd.grad`.
    """
    call = _find_call()
    if call is None:
        return []
    tensors, given = call.f_locals["tensors"], call.f_locals["grad_tensors"]
    losses = [tensors] if isinstance(tensors, Tensor) else [*tensors]
    is_weighted = given is not None and any(x is not None for x in ([given] if isinstance(given, Tensor) else given))
    if is_weighted or not losses or any(loss.numel() != 1 or not loss.is_floating_point() for loss in losses):
        return [None]
    return [*losses]


def _find_call() -> FrameType | None:
    """The outermost call of `backward()`: reentrant checkpointing makes others inside.

    It is found on the stack: nothing else links the gradients to it. On an accelerator hooks run in a thread of
    autograd's, and the call is looked for in the others; if several make one, it is not known which.
    """
    stack = [*_frames(sys._getframe())]
    stacks = [stack]
    if stack[-1].f_globals.get("__name__", "").startswith(__package__.partition(".")[0]):  # autograd called us
        stacks = [[*_frames(frame)] for frame in sys._current_frames().values()]
    code = torch.autograd.backward.__code__
    calls = [made for each in stacks for made in [frame for frame in each if frame.f_code is code][-1:]]
    del stack, stacks  # else this frame would hold itself, and all that its callers hold, until a collection
    return calls[0] if len(calls) == 1 else None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, the outermost last."""
    while frame is not None:
        yield frame
        frame = frame.f_back

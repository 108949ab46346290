"""Which operations the output takes numbers from, and which only decide something: what is selected, or whether.

The neighbors of a k-nearest-neighbor graph depend on distances, but no gradient flows through them. Such an operation
demands the same of the exponents as any other, so that what it decides does not change when weights are rescaled; the
gradient alone would allow more. That must be reported.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.laws.rules import Call


class _Step(NamedTuple):
    written: list[int]
    read: list[int]
    differentiated: list[int]  # those of `read` that a gradient flows back to
    cause: str | None  # the operation and its module, if it demanded something of the exponents


class Flow:
    """Records the operations of a forward pass in order. Tensors that share memory as views count as one.

    Attributes:
        deciding: Causes of operations that the outputs depend on without taking a number from them -> number of calls.
    """

    def __init__(self) -> None:
        self.deciding: Counter[str] = Counter()
        self._outputs: set[int] = set()
        self._used: set[int] = set()
        self._reached: set[int] = set()
        self._numbers = WeakTensorKeyDictionary()
        self._count = 0
        self._steps: list[_Step] = []

    def record(self, call: Call, cause: str | None) -> None:
        """Record an operation that has just run."""
        tensors, results = call.tensors(), [tensor for tensor in call.results if isinstance(tensor, Tensor)]
        read = [self._number(tensor) for tensor in tensors]
        is_detached = call.name.startswith("detach")
        floating = [number for number, tensor in zip(read, tensors, strict=True) if has_scale(tensor)]
        if call.function.is_view and not is_detached:
            for tensor in results:
                self._numbers[tensor] = read[0]
        written = [self._number(tensor) for tensor in results]
        self._steps.append(_Step(written, read, [] if is_detached else floating, cause))

    def link(self, tensor: Tensor, sources: Iterable[Tensor]) -> None:
        """Record that a tensor was computed from others by operations that were not seen."""
        read = [self._number(source) for source in sources]
        self._steps.append(_Step([self._number(tensor)], read, read, None))

    def add_outputs(self, outputs: Iterable[Tensor]) -> None:
        """Note what a forward pass returns."""
        self._outputs.update(map(self._number, outputs))

    def follow_back(self) -> None:
        """Find what the outputs depend on, when all forward passes have run."""
        used = self._used = set(self._outputs)
        reached = self._reached = set(self._outputs)
        for step in reversed(self._steps):
            is_used = not used.isdisjoint(step.written)
            is_reached = not step.written or not reached.isdisjoint(step.written)  # Python reads what is no tensor
            if is_used:
                used.update(step.differentiated)
            if is_reached:
                reached.update(step.read)
            if is_reached and not is_used and step.cause is not None:
                self.deciding[step.cause] += 1

    def reaches_outputs(self, tensor: Tensor) -> bool:
        """Whether the outputs depend on a tensor, with or without a gradient."""
        return self._number(tensor) in self._reached

    def feeds_outputs(self, tensor: Tensor) -> bool:
        """Whether a gradient flows from the outputs back to a tensor."""
        return self._number(tensor) in self._used

    def _number(self, tensor: Tensor) -> int:
        if tensor not in self._numbers:
            self._count += 1
            self._numbers[tensor] = self._count
        number: int = self._numbers[tensor]
        return number


def has_scale(tensor: Tensor) -> bool:
    """Whether a tensor can be rescaled: integers and booleans cannot."""
    return tensor.is_floating_point() or tensor.is_complex()

"""Notices the steps of optimizers, through torch's hooks for all of them; nothing is planted on an optimizer.

One step of training may take several optimizers: those that follow each other without a forward or a backward pass
between them share a step, and so do those that step inside one backward pass, each as soon as its own gradients are
there. An optimizer that wraps another shares its step, too. Where `step(closure)` computes the gradients itself, the
step opens after the first evaluation, when the weights are still those before it.

An optimizer that holds none of the model's parameters makes steps of other models. But as long as none that does has
made one, its steps count if the listener takes them to be meant for this model, which does not move then.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gatdiag.hooks import BackwardCounter, in_backward_pass


class Steady(Protocol):
    """Hears of steps."""

    def on_step(self, optimizers: Sequence[Optimizer]) -> None:
        """A step is about to be made: the gradients are there, the weights have not moved."""

    def on_loss(self, loss: Any) -> None:
        """What a closure returned at its first evaluation, from which the gradients of the open step are."""

    def on_joined(self, optimizer: Optimizer) -> None:
        """A further optimizer is about to take part in the step."""

    def is_misdirected(self, optimizer: Optimizer) -> bool:
        """Whether a step was meant for the model although its optimizer holds no parameter of it."""

    def on_moved(self, complete: bool) -> None:
        """An optimizer has moved weights; `complete`: no other is expected to in this step."""

    def on_done(self) -> None:
        """The step is over."""


class Moving(AbstractContextManager[None]):
    """The context in which a step is made by hand."""

    def __init__(self, moved: Callable[[], object]) -> None:
        """`moved` is called on leaving it."""
        self._moved = moved

    def __exit__(self, *_: object) -> None:
        """The weights have moved; an exception goes on as it came."""
        self._moved()


class Steps:
    """The steps of the optimizers that hold parameters of a model.

    Args:
        parameters: The model's.
        listener: Hears of the steps.
        optimizers: The only ones that count; None: all that hold one of the parameters, or are meant to.
    """

    def __init__(
        self, parameters: Callable[[], Sequence[nn.Parameter]], listener: Steady, optimizers: Sequence[Optimizer] | None
    ) -> None:
        """Nothing is hooked yet."""
        self._parameters = parameters
        self._listener = listener
        self._only = None if optimizers is None else {id(optimizer) for optimizer in optimizers}
        self._kept = optimizers  # so that no other object gets one of these ids
        self._members: list[Optimizer] | None = None  # of the step that is open
        self._running: list[int] = []  # optimizers at work; one whose class calls its parent's step is here twice
        self._evaluating = False
        self._counter = BackwardCounter()
        self._backward_passes: int | None = None  # how many there had been when the open step had to stay open
        self._own: dict[int, nn.Parameter] = {}  # the parameters as they were last listed
        self._saw_own = False  # whether an optimizer that holds some of the parameters has made a step
        self._handles: list[Any] = []

    @property
    def is_open(self) -> bool:
        """Whether a step has begun and is not over."""
        return self._members is not None

    def forward_begins(self) -> None:
        """A forward pass begins: unless an optimizer asked for it, the step that was open is over.

        An optimizer still at work then is one whose step raised.
        """
        if not self._evaluating:
            self._running = []
            self.close()

    def attach(self) -> None:
        """Start listening."""
        if not self._handles:
            self._handles = [
                register_optimizer_step_pre_hook(self._before),
                register_optimizer_step_post_hook(self._after),
            ]

    def remove(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def open(self, optimizer: Optimizer | None = None) -> None:
        """A step is about to be made, by an optimizer or by something that is not one of torch's."""
        if len(self._running) < 2 and self._is_another(optimizer):
            self.close()
        if self._members is None:
            self._members = [] if optimizer is None else [optimizer]
            self._listener.on_step(self._members)
        elif optimizer is not None and optimizer not in self._members:
            self._members.append(optimizer)
            self._listener.on_joined(optimizer)

    def _is_another(self, optimizer: Optimizer | None) -> bool:
        """Whether what is about to be made is not part of the open step."""
        if self._members is None:
            return False
        if optimizer is None or optimizer in self._members:
            return True
        counted = self._backward_passes
        return counted is not None and not in_backward_pass() and self._counter.count() > counted + 1

    def close(self) -> None:
        """The open step is over."""
        if self._members is not None:
            self._listener.on_done()
            self._members = self._backward_passes = None

    def refresh(self) -> None:
        """The model has other parameters than before."""
        self._own = {id(parameter): parameter for parameter in self._parameters()}

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        counts = self._counts(optimizer)
        self._saw_own |= counts
        if (self._saw_own and not counts) or _is_skipped(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure) or isinstance(closure, nn.Module):
            if counts or self._listener.is_misdirected(optimizer):
                self._running.append(id(optimizer))
                self.open(optimizer)
            return None
        if not self._running and optimizer in (self._members or ()):
            self.close()  # before the closure computes what belongs to the next one
        self._running.append(id(optimizer))
        opened = False

        def evaluated(*inner: Any, **named: Any) -> Any:
            nonlocal opened
            outer, self._evaluating = self._evaluating, True
            try:
                loss = closure(*inner, **named)
            finally:
                self._evaluating = outer
            if not opened and (counts or self._listener.is_misdirected(optimizer)):
                opened = True
                self.open(optimizer)
                self._listener.on_loss(loss)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": evaluated}
        return (args[0], evaluated, *args[2:]), kwargs

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) not in self._running:
            return
        self._running.remove(id(optimizer))
        if self._members is None:
            return
        inside = in_backward_pass()
        complete = not self._running and not inside and self._is_complete()
        self._listener.on_moved(complete)
        if complete:
            self.close()
        elif not inside:
            self._backward_passes = self._counter.count()

    def _counts(self, optimizer: Optimizer) -> bool:
        if self._only is not None:
            return id(optimizer) in self._only
        if self._holds_own(optimizer):
            return True
        self.refresh()  # there may be new ones
        return self._holds_own(optimizer)

    def _holds_own(self, optimizer: Optimizer) -> bool:
        return any(id(parameter) in self._own for group in optimizer.param_groups for parameter in group["params"])

    def _is_complete(self) -> bool:
        """Whether every parameter with a gradient is held by an optimizer that has made its step."""
        members = self._members or []
        if self._only is not None and len(members) < len(self._only):
            return False
        held = {id(parameter) for member in members for group in member.param_groups for parameter in group["params"]}
        return all(key in held or parameter.grad is None for key, parameter in self._own.items())


def _is_skipped(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer will not move the weights, because a gradient scaler found an infinity."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)

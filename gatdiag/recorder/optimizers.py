"""Notices the steps of optimizers, through torch's hooks for all of them; no optimizer is modified.

One step of training may take several optimizers: those that follow each other without a forward or a backward pass
between them share a step. An optimizer that wraps another shares its step, too. Where `step(closure)` computes the
gradients itself, the step opens after the first evaluation, when the weights are still those before it.

An optimizer that holds none of the model's parameters makes steps of other models. But as long as none that does has
made one, its steps count if they were meant for this model, which does not move then.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gatdiag.laws.prediction import held_by
from gatdiag.recorder.backward import BackwardCounter, in_backward_pass
from gatdiag.recorder.guard import Guard

if TYPE_CHECKING:
    from gatdiag.recorder.recorder import Recorder


_INSIDE = (
    "the optimizer steps inside the backward pass, so that gradients never exist together, and nothing is recorded of "
    "these steps; where gradients are there, call recorder.step() before the weights move"
)


class OptimizerHooks:
    """The steps of the optimizers that hold parameters of a model."""

    def __init__(
        self,
        parameters: Callable[[], Sequence[nn.Parameter]],
        recorder: "Recorder",
        guard: Guard,
        optimizers: Sequence[Optimizer] | None,
    ) -> None:
        self._parameters, self._recorder, self._guard = parameters, recorder, guard
        self._only = optimizers
        self._members: list[Optimizer] | None = None  # of the step that is open
        self._running: list[int] = []  # optimizers at work; one whose class calls its parent's step is here twice
        self._alone: Optimizer | None = None  # the one that made the last step, which was complete with it
        self._passing: Optimizer | None = None  # the same while it makes one that is only counted
        self._evaluating = False
        self._counter = BackwardCounter()
        self._backward_passes: int | None = None  # how many there had been when the open step had to stay open
        self._own: dict[int, nn.Parameter] = {}  # the parameters as they were last listed
        self.stepped_inside = False  # a backward pass
        self._saw_own = False  # whether an optimizer that holds some of the parameters has made a step
        self._handles: list[Any] = []

    @property
    def is_open(self) -> bool:
        """True if a step has begun and is not over."""
        return self._members is not None or self._passing is not None

    def attach(self) -> None:
        """Start listening."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def forward_begins(self) -> None:
        """A forward pass begins: unless an optimizer asked for it, the step that was open is over."""
        if not self._evaluating:
            self._running = []
            self.close()

    def open(self, optimizer: Optimizer | None = None) -> None:
        """A step is about to be made, by an optimizer or by something that is not one of torch's."""
        self._alone = self._passing = None  # where this is part of it, it is not like the last one
        if len(self._running) < 2 and self._is_another(optimizer):
            self.close()
        if self._members is None:
            self._members = [] if optimizer is None else [optimizer]
            self._recorder.on_step(self._members)
        elif optimizer is not None and optimizer not in self._members:
            self._members.append(optimizer)
            self._recorder.on_joined(optimizer)

    def close(self) -> None:
        """The open step is over."""
        if self._passing is not None:
            self._passing = None
            self._recorder.on_passed()
        elif self._members is not None:
            self._recorder.on_done()
            self._members = self._backward_passes = None

    def refresh(self) -> None:
        """The model has other parameters than before."""
        self._own = {id(parameter): parameter for parameter in self._parameters()}

    def holds_own(self, optimizer: Optimizer) -> bool:
        """True if it holds any of the model's parameters."""
        if self._holds(optimizer):
            return True
        self.refresh()  # there may be new ones
        return self._holds(optimizer)

    def _holds(self, optimizer: Optimizer) -> bool:
        return any(id(held) in self._own for group in optimizer.param_groups for held in group["params"])

    def _is_another(self, optimizer: Optimizer | None) -> bool:
        """True if what is about to be made is not part of the open step."""
        if self._members is None:
            return False
        if optimizer is None or optimizer in self._members:
            return True
        counted = self._backward_passes
        return counted is not None and self._counter.count() > counted + 1

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if optimizer is self._passing or self._passes(optimizer, args, kwargs):
            self._running.append(id(optimizer))
            return None
        return self._begin(optimizer, args, kwargs)

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        counts = self.holds_own(optimizer) if self._only is None else any(optimizer is one for one in self._only)
        self._saw_own |= counts
        if (self._saw_own and not counts) or _is_skipped(optimizer) or self._is_inside(counts):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure) or isinstance(closure, nn.Module):
            if counts or self._is_misdirected(optimizer):
                self._running.append(id(optimizer))
                self.open(optimizer)
            return None
        if not self._running and optimizer in (self._members or ()):
            self.close()  # before the closure computes what belongs to the next one
        self._running.append(id(optimizer))
        watched = self._watched(closure, optimizer, counts)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _watched(self, closure: Callable[..., Any], optimizer: Optimizer, counts: bool) -> Callable[..., Any]:
        """The closure, after whose first evaluation the step opens."""
        opened = False

        def evaluated(*inner: Any, **named: Any) -> Any:
            nonlocal opened
            outer, self._evaluating = self._evaluating, True
            try:
                loss = closure(*inner, **named)
            except BaseException:  # after which torch calls no hook
                self._running = []
                raise
            finally:
                self._evaluating = outer
            if not opened and (counts or self._is_misdirected(optimizer)):
                opened = True
                self.open(optimizer)
                self._recorder.on_loss(loss)
            return loss

        return evaluated

    def _passes(self, optimizer: Optimizer, args: Any, kwargs: Any) -> bool:
        """True if this is a step like the last one, and is only to be counted."""
        if optimizer is not self._alone or self._members is not None or len(args) > 1 or kwargs:
            return False
        if in_backward_pass() or _is_skipped(optimizer) or not self._recorder.may_pass():
            return False
        self._passing = optimizer
        return True

    def _is_inside(self, counts: bool) -> bool:
        """True inside a backward pass, which is said of an optimizer that counts."""
        if in_backward_pass() and counts:
            self.stepped_inside = True
            self._guard.warn("gradients", _INSIDE)
        return in_backward_pass()

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) not in self._running:
            return
        self._running.remove(id(optimizer))
        if optimizer is self._passing:
            if id(optimizer) not in self._running:
                self.close()
        elif self._members is None:
            return
        elif not self._running and self._is_complete():
            self._alone = optimizer if len(self._members) == 1 else None
            self.close()
        else:
            self._backward_passes = self._counter.count()
            self._recorder.await_training()

    def _is_complete(self) -> bool:
        """True if every parameter with a gradient is held by an optimizer that has made its step."""
        members = self._members or []
        if self._only is not None and len(members) < len(self._only):
            return False
        held = held_by(*members)
        return all(key in held or parameter.grad is None for key, parameter in self._own.items())

    def _is_misdirected(self, optimizer: Optimizer) -> bool:
        """True if training passes of the model come before this step, and its optimizer's parameters have no gradient.

        The optimizer of another network that is trained beside this one, such as a critic, has gradients of its own.
        """
        return bool(self._guard("steps of optimizers of other parameters", self._has_no_news, optimizer))

    def _has_no_news(self, optimizer: Optimizer) -> bool:
        if not self._recorder.is_ahead or all(parameter.grad is None for parameter in self._parameters()):
            return False
        gradients = [parameter.grad for parameter in held_by(optimizer).values() if parameter.grad is not None]
        return not any(bool(gradient.any()) for gradient in gradients)


def _is_skipped(optimizer: Optimizer) -> bool:
    """True if a fused optimizer will not move the weights, because a gradient scaler found an infinity."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


# --- gradient scalers -------------------------------------------------------------------------------------------------


def calling_scaler() -> GradScaler | None:
    """The gradient scaler whose `step` calls the optimizer from which this is called: it leaves no other trace."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


def unscale_of_parameters(optimizers: Sequence[Optimizer]) -> Tensor | None:
    """Factor that undoes the scaling of gradients as a fused optimizer finds them: it unscales them inside its step."""
    scales = [scale for optimizer in optimizers if (scale := getattr(optimizer, "grad_scale", None)) is not None]
    return 1.0 / scales[0].double() if scales else None


def unscale_of_outputs(scaler: Any) -> Tensor | float | None:
    """Factor that does so for gradients of layer outputs; a tensor where that spares waiting for the device."""
    if scaler is None or not scaler.is_enabled():
        return None
    scale = getattr(scaler, "_scale", None)
    return 1.0 / (scale.double() if isinstance(scale, Tensor) else float(scaler.get_scale()))

"""Notices optimizer steps through torch's global optimizer hooks; no optimizer is modified.

A training step may involve several optimizers: those that step without a forward or backward pass in between share a
step, and so do an optimizer and its wrapper. If `step(closure)` computes the gradients, the step opens after the first
evaluation of the closure, when the weights have not moved yet.

Optimizers that hold none of the model's parameters belong to other models. But until an optimizer of the model has made
a step, their steps count if they were meant for this model (see `_is_misdirected`).
"""

import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from gatdiag.recorder.guard import Guard
from gatdiag.recorder.hooks.backward import BackwardCounter, is_in_backward_pass
from gatdiag.recorder.hooks.listener import Listener
from gatdiag.recorder.hooks.registry import listen_to_optimizers, stop_listening
from gatdiag.structure.modules import attributes_of
from gatdiag.structure.optimizers import parameters_of

_IN_BACKWARD = (
    "the optimizer steps inside the backward pass, where gradients never all exist at the same time, so these steps "
    "are not recorded; to record a step, call recorder.step() when all gradients exist, before the weights are updated"
)


class OptimizerHooks:
    """Reports the steps of the optimizers that hold parameters of a model.

    Args:
        parameters: Returns the parameters of the model.
        listener: Its methods are called.
        guard: Contains failures.
        optimizers: The only optimizers whose steps count; None: all that hold parameters of the model.
    """

    def __init__(
        self,
        parameters: Callable[[], Sequence[nn.Parameter]],
        listener: Listener,
        guard: Guard,
        optimizers: Sequence[Optimizer] | None,
    ) -> None:
        self._parameters, self._listener, self._guard = parameters, listener, guard
        self._only = optimizers
        self._members: list[Optimizer] | None = None  # of the open step
        self._running: list[int] = []  # ids; twice if the optimizer's class calls its parent's step
        self._is_in_closure = False
        self._counter = BackwardCounter()
        self._backward_passes: int | None = None  # their number when an optimizer left the step open
        self._model_parameters: dict[int, nn.Parameter] = {}  # as of the last `refresh`
        self.stepped_in_backward = False
        self._saw_model_optimizer = False  # an optimizer that counts has made a step

    @property
    def is_open(self) -> bool:
        """True during a step."""
        return self._members is not None

    def attach(self) -> None:
        """Register the hooks."""
        listen_to_optimizers(self)

    def detach(self) -> None:
        """Remove the hooks."""
        stop_listening(self)

    def on_forward_start(self) -> None:
        """Called before a forward pass: unless a closure runs it, it ends the open step."""
        if not self._is_in_closure:
            self._running = []
            self.close()

    def open(self, optimizer: Optimizer | None = None) -> None:
        """Open a step, or add an optimizer to the open one; None: an optimizer that is not one of torch's."""
        if len(self._running) < 2 and self._starts_new_step(optimizer):
            self.close()
        if self._members is None:
            self._members = [] if optimizer is None else [optimizer]
            self._listener.on_step(self._members)
        elif optimizer is not None and not self._is_member(optimizer):
            self._members.append(optimizer)
            self._listener.on_optimizer_joined(optimizer)

    def close(self) -> None:
        """Close the open step, if there is one."""
        if self._members is not None:
            self._listener.on_step_end()
            self._members = self._backward_passes = None

    def refresh(self) -> None:
        """List the model's parameters again."""
        self._model_parameters = {id(parameter): parameter for parameter in self._parameters()}

    def holds_model_parameters(self, optimizer: Optimizer) -> bool:
        """True if the optimizer holds any of the model's parameters."""
        if self._holds(optimizer):
            return True
        self.refresh()  # some may be new
        return self._holds(optimizer)

    def _holds(self, optimizer: Optimizer) -> bool:
        return any(id(held) in self._model_parameters for group in optimizer.param_groups for held in group["params"])

    def _is_member(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer takes part in the open step; not by equality, which its class may define."""
        return any(optimizer is member for member in self._members or ())

    def _starts_new_step(self, optimizer: Optimizer | None) -> bool:
        """True if this optimizer cannot be part of the open step."""
        if self._members is None:
            return False
        if optimizer is None or self._is_member(optimizer):
            return True
        before = self._backward_passes
        return before is not None and self._counter.count() > before + 1

    def before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Called before a step of any optimizer."""
        if self._only is None:
            counts = self.holds_model_parameters(optimizer)
        else:
            counts = any(optimizer is one for one in self._only)
        self._saw_model_optimizer |= counts
        if (self._saw_model_optimizer and not counts) or _found_inf(optimizer) or self._is_in_backward(counts):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure) or isinstance(closure, nn.Module):
            if counts or self._is_misdirected(optimizer):
                self._running.append(id(optimizer))
                self.open(optimizer)
            return None
        if not self._running and self._is_member(optimizer):
            self.close()  # now, because what the closure computes belongs to the next step
        self._running.append(id(optimizer))
        wrapped = self._wrap_closure(closure, optimizer, counts)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _wrap_closure(self, closure: Callable[..., Any], optimizer: Optimizer, counts: bool) -> Callable[..., Any]:
        """A closure that opens the step after its first evaluation."""
        has_opened = False

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal has_opened
            outer, self._is_in_closure = self._is_in_closure, True
            try:
                loss = closure(*args, **kwargs)
            except BaseException:  # torch does not call the post hook then
                self._running = []
                raise
            finally:
                self._is_in_closure = outer
            if not has_opened and (counts or self._is_misdirected(optimizer)):
                has_opened = True
                self.open(optimizer)
                self._listener.on_closure_loss(loss)
            return loss

        self._guard("the name of a closure", _imitate, wrapped, closure)
        return wrapped

    def _is_in_backward(self, counts: bool) -> bool:
        """True inside a backward pass, with a warning if the optimizer counts."""
        if is_in_backward_pass() and counts:
            self.stepped_in_backward = True
            self._guard.warn("gradients", _IN_BACKWARD)
        return is_in_backward_pass()

    def after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Called after a step of any optimizer."""
        if id(optimizer) not in self._running:
            return
        self._running.remove(id(optimizer))
        if self._members is None:
            return
        if not self._running and self._is_complete():
            self.close()
        else:
            self._backward_passes = self._counter.count()

    def _is_complete(self) -> bool:
        """True if every parameter with a gradient is held by an optimizer that has made its step."""
        members = self._members or []
        if self._only is not None and len(members) < len(self._only):
            return False
        held = parameters_of(*members)
        return all(key in held or parameter.grad is None for key, parameter in self._model_parameters.items())

    def _is_misdirected(self, optimizer: Optimizer) -> bool:
        """True if the step follows a training pass of this model, and the optimizer's own parameters have no gradient.

        The optimizer of another network that is trained beside this one, such as a critic, has gradients of its own.
        """
        return bool(self._guard("steps of optimizers of other parameters", self._lacks_gradients, optimizer))

    def _lacks_gradients(self, optimizer: Optimizer) -> bool:
        if not self._listener.has_begun_step or all(parameter.grad is None for parameter in self._parameters()):
            return False
        gradients = [parameter.grad for parameter in parameters_of(optimizer).values() if parameter.grad is not None]
        if any(type(gradient) is not Tensor for gradient in gradients):
            return False  # distributed gradients cannot be read without the other processes
        return not any(bool(gradient.any()) for gradient in gradients)


def _found_inf(optimizer: Optimizer) -> bool:
    """True if a fused optimizer will not update the weights because the gradient scaler found an infinity."""
    found = attributes_of(optimizer).get("found_inf")
    return found is not None and bool(found)


def _imitate(wrapped: Callable[..., Any], closure: Callable[..., Any]) -> None:
    """Give a wrapped closure the name and the attributes of the closure, which an optimizer may read."""
    update_wrapper(wrapped, closure)
    for name in ("__self__", "__func__"):  # of a method
        if hasattr(closure, name):
            setattr(wrapped, name, getattr(closure, name))


# --- gradient scalers -------------------------------------------------------------------------------------------------


def find_calling_scaler() -> GradScaler | None:
    """The gradient scaler whose `step` is on the call stack; nothing else links it to the optimizer."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


def parameter_unscale(optimizers: Sequence[Optimizer]) -> Tensor | None:
    """Factor that unscales the gradients given to a fused optimizer, which unscales them inside its step; or None."""
    scales = [scale for optimizer in optimizers if (scale := attributes_of(optimizer).get("grad_scale")) is not None]
    return 1.0 / scales[0].double() if scales else None


def output_unscale(scaler: Any) -> Tensor | float | None:
    """Factor that unscales gradients of layer outputs, or None; a tensor if that avoids waiting for the device."""
    if scaler is None or not scaler.is_enabled():
        return None
    scale = getattr(scaler, "_scale", None)
    return 1.0 / (scale.double() if isinstance(scale, Tensor) else float(scaler.get_scale()))

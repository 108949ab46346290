"""Layers -> events: what each layer returns in training, and dLoss/d(output) that comes back to it.

The user's modules are not modified. The hooks are torch's global module hooks, which look a module up by its
identity: a watched model can be pickled, saved and deep-copied, and a copy of it sends no events. Gradients are read
by tensor hooks on outputs, which live and die with the graph of one backward pass; they bear operations in place, as
full backward hooks do not. Whatever is handed on is detached, and no hook ever returns anything.

Inside compiled code there are no events: reading a tensor there would break the graph.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from gatdiag.structure.replica import unwrapped

if TYPE_CHECKING:
    from gatdiag.recorder.layers import LayerRecorder
    from gatdiag.recorder.tape import Tape

_COMPILED = r"Using `torch\.compile\(module\)` when there are global hooks on modules"


class Hooks:
    """The hooks of one model, from `attach` until `remove`; both may be called twice."""

    def __init__(self, model: nn.Module, recorder: "LayerRecorder", tape: "Tape | None" = None) -> None:
        self._root = unwrapped(model)
        self._recorder = recorder
        self._tape = tape
        self._layers: dict[int, tuple[str, nn.Module]] = {}
        self._handles: list[Any] = []
        self._filter: Any = None
        self.parts: dict[str, str] = {}

    @property
    def attached(self) -> bool:
        """True if events are sent."""
        return bool(self._handles)

    def listen_to(self, layers: Mapping[str, nn.Module]) -> None:
        """Name the layers whose events are wanted; those named before are forgotten."""
        self._layers = {id(module): (name, module) for name, module in layers.items()}

    def attach(self) -> None:
        """Start listening."""
        if self._handles:
            return
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._before),
            module_hooks.register_module_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]
        # Torch warns at every call of a compiled model that global hooks fire once more for it, which is allowed for.
        warnings.filterwarnings("ignore", message=_COMPILED, category=UserWarning)
        self._filter = warnings.filters[0]

    def remove(self) -> None:
        """Stop listening; gradients still under way are ignored."""
        for handle in self._handles:
            handle.remove()
            # torch forgets to: what stays there makes it believe that there are global hooks
            module_hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles = []
        self._layers = {}
        self._drop_tape()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        self._filter = None

    def _drop_tape(self) -> None:
        if self._tape is not None:
            self._tape.stop()
            self._tape = None

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        if self._tape is not None:
            if self._tape.is_over:
                self._drop_tape()
            else:
                self._tape.enters(module, args)
        known = self._layers.get(id(module))
        if (known is None and module is not self._root) or _is_unheard():
            return
        if module is self._root:
            self._recorder.on_forward_begins()
        if known is not None:
            self._recorder.on_call(known[0], module)

    def _after(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """`rest` is the keyword inputs and the output; after a failed call torch leaves the keyword inputs out."""
        if torch.compiler.is_dynamo_compiling():
            return
        kwargs, output = rest if len(rest) == 2 else (None, None)
        known = self._layers.get(id(module))
        is_model = module is self._root or (known is None and self._is_compiled_model(module))
        if (known is not None or is_model) and not _is_unheard():
            if known is not None:
                self._tell(known[0], (*args, *(kwargs or {}).values()), output)
            if is_model and kwargs is not None:
                self._recorder.on_forward(args, kwargs, output)
        if self._tape is not None:
            self._tape.leaves(module, args, kwargs, output)

    def _tell(self, layer: str, inputs: tuple[Any, ...], returned: Any) -> None:
        output = _first_tensor_if_any(returned)
        if isinstance(returned, Mapping) and layer not in self.parts:
            self._note_part(layer, returned)
        run = self._recorder.on_output(layer, inputs, None if output is None else output.detach())
        # A leaf (the user's own tensor, handed through) would keep its hooks for ever.
        if run is None or output is None or not output.requires_grad or output.is_leaf:
            return

        def backward(gradient: Tensor) -> None:
            if self._handles:
                self._recorder.on_gradient(layer, run, gradient.detach())

        output.register_hook(backward)

    def _is_compiled_model(self, module: nn.Module) -> bool:
        """True if this is the model compiled, whose own call cannot be seen; by name: the class is slow to import."""
        return type(module).__name__ == "OptimizedModule" and getattr(module, "_orig_mod", None) is self._root

    def _note_part(self, layer: str, output: Mapping[Any, Any]) -> None:
        try:
            found = [repr(key) for key, item in output.items() if first_tensor(item) is not None]
        except Exception:  # one that cannot be looked into is the user's, and so are its exceptions
            return
        if len(found) > 1:
            self.parts[layer] = f"{layer} returns {', '.join(found)}: its output is recorded for {found[0]} alone"


def first_tensor(output: Any) -> Tensor | None:
    """The floating tensor a layer returns: itself, or the first in a tuple, a list or a dict; None without one."""
    if isinstance(output, Tensor):
        is_plain = type(output) in (Tensor, nn.Parameter) and output.layout == torch.strided
        return output if is_plain and output.is_floating_point() else None
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for item in items if (found := first_tensor(item)) is not None), None)


def _first_tensor_if_any(output: Any) -> Tensor | None:
    """None also for containers that cannot be looked into: they are the user's, and so are their exceptions."""
    try:
        return first_tensor(output)
    except Exception:
        return None


def _is_unheard() -> bool:
    """True if nothing is trained by this call, or a tracer sees it, which as a compiler must see nothing of ours."""
    is_traced = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return is_traced or not torch.is_grad_enabled()


def in_backward_pass() -> bool:
    """True if this runs inside a backward pass, as the forward passes that activation checkpointing repeats do."""
    return torch._C._current_graph_task_id() != -1

"""Calls of a model and its layers, noticed by torch's global module hooks.

The user's modules are not modified: global hooks look a module up by its identity, so a watched model can be pickled,
saved and deep-copied, and its copies are not recorded. Gradients are read by tensor hooks on outputs, which live as
long as the graph of one backward pass and, unlike full backward hooks, allow in-place operations. No hook ever returns
anything. Inside compiled code nothing is noticed: reading a tensor there would break the graph.
"""

import sys
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag.laws.live import ForwardTrace
from gatdiag.recorder.hooks.backward import is_in_backward_pass
from gatdiag.recorder.hooks.listener import Listener
from gatdiag.recorder.hooks.outside import Outside, is_measurable_call, run_as_is
from gatdiag.recorder.hooks.registry import listen_to_modules, stop_listening
from gatdiag.recorder.normalization import find_batch_norms
from gatdiag.recorder.shards import distributed_parameters
from gatdiag.structure import Layer, Structure
from gatdiag.structure.modules import children_of, is_training, modules_of, named_modules
from gatdiag.structure.tensors import first_tensor

_COMPILE_WARNING: Final = r"Using `torch\.compile\(module\)` when there are global hooks on modules"


class ModuleHooks:
    """Reports calls of a model and its layers.

    Args:
        root: The model.
        listener: Its methods are called.

    Attributes:
        is_attached: Between `attach` and `detach`.
        trace: Traces the first calls; None afterwards.
    """

    def __init__(self, root: nn.Module, listener: Listener) -> None:
        self._root, self._listener = root, listener
        self._layers: dict[int, tuple[str, nn.Module]] = {}  # id -> name and module
        self._batch_norms: dict[int, str] = {}  # id -> name
        self._warning_filter: Any = None
        self._is_waiting = False
        self.trace: ForwardTrace | None = None
        self._was_traced_in_training = False
        self._traced: frozenset[int] = frozenset()  # ids of the model's modules

    @property
    def is_attached(self) -> bool:
        """True between `attach` and `detach`."""
        return self._warning_filter is not None

    def set_layers(self, layers: Iterable[Layer]) -> None:
        """Report these layers from now on, instead of those set before."""
        modules = {name or Structure.ROOT: module for name, module in named_modules(self._root)}
        named = {layer.name: modules[layer.name] for layer in layers if layer.name in modules}
        self._layers = {id(module): (name, module) for name, module in named.items()}
        self._batch_norms = find_batch_norms(self._root)

    def attach(self) -> None:
        """Register the hooks."""
        # torch warns at every call of a compiled model that global hooks fire once more for it; we allow for that
        warnings.filterwarnings("ignore", message=_COMPILE_WARNING, category=UserWarning)
        self._warning_filter = warnings.filters[0]
        self.listen()

    def detach(self) -> None:
        """Remove the hooks. May be called twice."""
        stop_listening(self)
        self._layers, self._batch_norms = {}, {}
        self.end_trace()
        if self._warning_filter in warnings.filters:
            warnings.filters.remove(self._warning_filter)  # type: ignore[attr-defined]
        self._warning_filter = None

    def start_trace(self) -> None:
        """Trace the coming calls, unless parameters are distributed: what reads them takes the other processes."""
        self.end_trace()
        if not distributed_parameters(self._root):
            self.trace, self._traced = ForwardTrace(self._root), frozenset(map(id, modules_of(self._root)))

    def end_trace(self) -> None:
        """Trace no further calls."""
        if self.trace is not None:
            self.trace.abandon()
            self.trace = None

    def listen(self) -> None:
        """Report all calls: the coming step is recorded."""
        self._is_waiting = False
        listen_to_modules(self)

    def wait(self) -> None:
        """Report the next training pass only, by which logged values are assigned to steps.

        Once something has been compiled all calls are reported, because removing the hooks would compile it again.
        """
        if self.is_attached and self.trace is None and not has_compiled():
            self._is_waiting = True
            listen_to_modules(self)

    def _is_own(self, module: nn.Module) -> bool:
        return self.is_attached and (module is self._root or id(module) in self._layers)

    def on_module_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before the forward pass of any module."""
        if self._is_evaluation(module):
            self._listener.on_evaluation_start()
        is_traced = self._is_to_trace(module)
        is_own = self._is_own(module) and not _should_ignore_call()
        if self._is_waiting:
            if is_own:
                self._end_waiting(module, args)
            return
        if is_own:
            self._start_own(module)
        if is_traced and self.trace is not None:
            self.trace.enter(module)

    def _start_own(self, module: nn.Module) -> None:
        if not is_in_backward_pass():
            self._listener.on_training()
            if module is self._root:
                self._listener.on_model_start()
        elif module is self._root:  # activation checkpointing repeats forward passes there
            self._listener.on_repeated_model()
        if (layer := self._layers.get(id(module))) is not None:
            self._listener.on_layer_start(*layer)

    def _is_evaluation(self, module: nn.Module) -> bool:
        """True for a call of the model without gradients, if such calls are still of interest."""
        is_of_interest = module is self._root and self.is_attached and self._listener.counts_evaluations
        return is_of_interest and not torch.is_grad_enabled() and is_measurable_call()

    def _is_to_trace(self, module: nn.Module) -> bool:
        if self.trace is None or id(module) not in self._traced or _should_ignore_call():
            return False
        if is_training(self._root) and not self._was_traced_in_training and not self.trace.is_in_call:
            self._was_traced_in_training = True  # what an evaluation with gradients enabled has shown does not count
            with Outside():
                self.start_trace()
        return self.trace is not None

    def _end_waiting(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not is_in_backward_pass():
            self._listener.on_training()
        if self._is_waiting and self._listener.has_begun_step:
            stop_listening(self)
        else:  # a recorded step has begun, or only a gradient can show that this is training
            self.listen()
            self.on_module_start(module, args)

    def on_module_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Called after the forward pass of any module; `rest` is keyword arguments and output, or None if it failed."""
        has_failed = len(rest) != 2
        kwargs, output = ({}, None) if has_failed else rest
        if self.trace is not None and id(module) in self._traced:
            self.trace.leave(module, output)
        if not has_failed and self._is_evaluation(module):
            self._listener.on_evaluation_end(args, kwargs)
        if self._is_waiting or not self.is_attached or _should_ignore_call():
            return
        if (layer := self._layers.get(id(module))) is not None:
            self._end_layer(*layer, args, kwargs, output)
        if (norm := self._batch_norms.get(id(module))) is not None and not has_failed:
            self._listener.on_batch_norm(norm, module, (*args, *kwargs.values()))
        if not has_failed and (module is self._root or (layer is None and self._is_compiled_root(module))):
            self._listener.on_model_end(args, kwargs, output)

    def _is_compiled_root(self, module: nn.Module) -> bool:
        """True for the compiled model, whose own call cannot be seen; by name, because its class is slow to import."""
        return type(module).__name__ == "OptimizedModule" and children_of(module).get("_orig_mod") is self._root

    def _end_layer(
        self, layer: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any
    ) -> None:
        run = self._listener.on_layer_end(layer, module, args, kwargs, returned)
        output = None if run is None else first_tensor(returned)
        # a leaf (the user's own tensor, returned as it is) would keep its hooks forever
        if output is not None and output.requires_grad and not output.is_leaf:
            output.register_hook(partial(self._gradient_hook, layer, run))

    @run_as_is
    def _gradient_hook(self, layer: str, run: Any, gradient: Tensor) -> None:
        """Called by autograd with the gradient of a layer output."""
        if self.is_attached:  # otherwise the graph has outlived the recording
            self._listener.on_output_gradient(layer, run, gradient)


def _should_ignore_call() -> bool:
    return not (torch.is_grad_enabled() and is_measurable_call())


def has_compiled() -> bool:
    """True if anything was compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.utils.counters["frames"])

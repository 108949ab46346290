"""A copy of the user's model that can be run without changing the model or the process."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gatdiag.errors import GatdiagError, InputError, ModelError
from gatdiag.structure.copying import duplicate, map_tensors
from gatdiag.structure.inputs import perturb
from gatdiag.structure.isolation import disable_fast_paths, preserve_random_state, working_precision
from gatdiag.structure.modules import (
    children_of,
    named_buffers,
    named_modules,
    named_parameters,
    own_buffers,
    own_parameters,
)
from gatdiag.structure.tensors import all_tensors

T = TypeVar("T")
Caller: TypeAlias = Callable[[], Any]


class Replica:
    """A copy of a model, with inputs to run it on. Made by `replicate`.

    Attributes:
        model: The copy. Shared parameters are shared in it. It has only the forward hooks of torch and PyG, of which
            weight normalization, pruning and lazy initialization consist. The user's hooks are removed, because they
            may write to other objects; so a hook that changes the model's output is not analyzed.
        parameters: Name -> parameter of the copy, named and ordered as in `initialized_parameters` of the user's model.
        args: Positional inputs, detached. They share memory with the user's until they are converted.
        kwargs: Keyword inputs, likewise.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Of a model that is a copy already; use `replicate` to make one."""
        self.model = model
        self.parameters: dict[str, nn.Parameter] = initialized_parameters(model)
        self.args = args
        self.kwargs = dict(kwargs)
        self._dtype: torch.dtype | None = None

    def run(self) -> Any:
        """Call the copy on fresh copies of the inputs, and return its output.

        Random states, buffers and the attributes of modules are restored afterwards, so that a dropout layer drops the
        same entries each time; the contents of lists and objects, classes and globals are not. Compilation, fused
        attention and the transformer encoder's fast path are off, so that a dispatch mode sees plain operations.
        Gradients are recorded as outside.

        Raises:
            ModelError: The forward pass failed. The message names the innermost layer that was running.
        """
        with self.isolated() as call:
            return call()

    @contextmanager
    def isolated(self) -> Iterator[Caller]:
        """As `run`, for several calls in a row, between which random states and the model's state are not restored."""
        devices = {tensor.device for tensor in [*self.parameters.values(), *all_tensors((self.args, self.kwargs))]}

        def call() -> Any:
            args, kwargs = map_tensors((self.args, self.kwargs), Tensor.clone)
            try:
                return self.model(*args, **kwargs)
            except GatdiagError:
                raise
            except Exception as error:
                raise ModelError(_failure_message(self.model, error)) from error

        with (
            preserve_random_state(devices),
            disable_fast_paths(),
            working_precision(self._dtype),
            _preserve_state(self.model),
        ):
            yield call

    def run_no_grad(self) -> Any:
        """As `run`, without recording gradients, unless the forward pass itself differentiates (forces, penalties)."""
        return self.no_grad(lambda call: call())

    def no_grad(self, body: Callable[[Caller], T]) -> T:
        """Call `body` with the function that `isolated` yields, without recording gradients as in `run_no_grad`."""
        try:
            with torch.no_grad(), self.isolated() as call:
                return body(call)
        except ModelError:
            with torch.enable_grad(), self.isolated() as call:
                return body(call)

    def to(self, dtype: torch.dtype) -> Self:
        """Convert floating-point parameters, buffers, inputs, and tensors in attributes and caches.

        From then on, floating dtypes that the forward pass names (`x.float()`) are replaced by `dtype`, too.
        """
        for tensor in all_tensors(self.model):
            tensor.data = _convert(tensor.data, dtype)
        self._change_inputs(lambda tensor: _convert(tensor, dtype))
        self._dtype = dtype
        return self

    def perturb_inputs(self, generator: torch.Generator) -> Self:
        """Add noise to the floating-point inputs; see `gatdiag.structure.inputs.perturb`."""
        self._change_inputs(lambda tensor: perturb(tensor, generator))
        return self

    def _change_inputs(self, change: Callable[[Tensor], Tensor]) -> None:
        self.args, self.kwargs = map_tensors((self.args, self.kwargs), change)


@contextmanager
def _preserve_state(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of a model's modules, and the values of buffers and other tensors that they are."""
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    held = [vars(module) for module in modules] + [module._buffers for module in modules]
    before = [dict(attributes) for attributes in held]
    tensors = [value for values in before for value in values.values() if isinstance(value, Tensor)]
    dense = [tensor for tensor in tensors if tensor.layout == torch.strided and not tensor.is_inference()]
    copies = [tensor.detach().clone() for tensor in dense]
    try:
        yield
    finally:
        for attributes, values in zip(held, before, strict=True):
            attributes.clear()
            attributes.update(values)
        for tensor, copied in zip(dense, copies, strict=True):
            if tensor.shape != copied.shape:
                tensor.data = copied
            elif not torch.equal(tensor, copied):  # without a new version, as a backward pass may have saved it
                tensor.data.copy_(copied)


def replicate(model: nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Replica:
    """Copy a model so that it can be run and converted without changing the user's model.

    Args:
        model: Any module. Wrappers of `torch.compile` and data parallelism are removed, so that names are those of the
            model inside.
        args: Positional inputs of the forward pass: tensors, sparse tensors, graphs (`Data`, `HeteroData`, `Batch`),
            and containers of them.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        The replica. The model is copied now, the inputs at each run.

    Raises:
        ModelError: A layer is lazy and not yet initialized, or the model cannot be copied.
        InputError: The inputs cannot be copied.

    Example:
        >>> layer = nn.BatchNorm1d(2)
        >>> replica = replicate(layer, (torch.randn(5, 2),))
        >>> output = replica.run()
        >>> output.shape, int(layer.num_batches_tracked)
        (torch.Size([5, 2]), 0)
    """
    model = unwrap(model)
    check_initialized(model, args, kwargs)
    copied, _ = _copy(model, None)
    with torch.no_grad():
        try:
            args, named = map_tensors((args, dict(kwargs or {})), _detach)
        except Exception as error:
            raise InputError(
                f"The inputs must be copied before the model is run on them, but copying failed with {_reason(error)}. "
                "Give tensors, graphs, or containers of them."
            ) from error
    return Replica(copied, args, named)


def copy_model(model: nn.Module, others: T, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[nn.Module, T]:
    """Copy a model without the user's hooks, and other objects that hold its parameters, such as optimizer states.

    Raises:
        ModelError: A layer that is used on these inputs is lazy and not yet initialized, or the model cannot be copied.
    """
    check_initialized(model, args, kwargs)
    return _copy(model, others)


def _copy(model: nn.Module, others: T) -> tuple[nn.Module, T]:
    with torch.no_grad():
        try:
            copied, copied_others = duplicate((model, others), list(_backward_hooks(model)), list(model.modules()))
            _remove_user_hooks(copied)
        except Exception as error:
            raise ModelError(
                f"The model ({type(model).__name__}) must be copied before it is run, but copying it failed with "
                f"{_reason(error)}. Remove what cannot be copied (open files, locks, generators) from its attributes."
            ) from error
        for original, twin in zip(model.parameters(), copied.parameters(), strict=True):
            twin.requires_grad = original.requires_grad  # scripted modules lose it
    return copied, copied_others


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of `torch.compile` and of (distributed) data parallelism."""
    while True:
        is_parallel = issubclass(type(model), nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = children_of(model).get("module" if is_parallel else "_orig_mod")
        if inner is None:
            return model
        model = inner


def initialized_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter that has a shape, as in `named_parameters()`."""
    return {name: parameter for name, parameter in named_parameters(model) if not is_lazy(parameter)}


def check_initialized(model: nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
    """Raise `ModelError` if a parameter or buffer of the model is lazy; with inputs, only if a call initializes it.

    A layer that is never called stays lazy: that of the edge features in a `GATConv` on a graph that has none.
    """
    lazy = _lazy_layers(model)
    has_lazy_buffer = any(is_lazy(buffer) for _, buffer in named_buffers(model))  # which cannot be copied
    if lazy and (args or kwargs) and not has_lazy_buffer:
        trial = Replica(_copy(model, None)[0], args, kwargs or {})
        trial.run_no_grad()
        unused = _lazy_layers(trial.model)
        lazy = {path: names for path, names in lazy.items() if path not in unused}
    for path, names in lazy.items():
        layer = _describe_layer(path, dict(named_modules(model))[path])
        raise ModelError(
            f"Expected an initialized model, but {layer} is lazy: {', '.join(names)} has no shape yet. First "
            "run it once on the data: model(x, edge_index). If it stays lazy, it is never called: leave it out, as by "
            "edge_dim=None."
        )


def _lazy_layers(model: nn.Module) -> dict[str, list[str]]:
    """Path of a lazy layer -> names of its tensors without a shape."""
    found: dict[str, list[str]] = {}
    for path, module in named_modules(model):
        own = {**own_parameters(module), **own_buffers(module)}
        if names := [name for name, tensor in own.items() if is_lazy(tensor)]:
            found[path] = names
    return found


def _remove_user_hooks(model: nn.Module) -> None:
    """Remove all forward hooks but those of torch and PyG."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if not _is_of_library(hook)]:
                del hooks[key]


def _is_of_library(hook: object) -> bool:
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.partition(".")[0] in ("torch", "torch_geometric")


def _backward_hooks(model: nn.Module) -> Iterator[object]:
    for module in model.modules():
        yield module._backward_hooks
        yield module._backward_pre_hooks


def _detach(tensor: Tensor) -> Tensor:
    keeps_class = type(tensor) is not Tensor and not tensor.requires_grad  # EdgeIndex.detach() is a bare tensor
    return tensor if keeps_class else tensor.detach()


def _convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _failure_message(model: nn.Module, error: Exception) -> str:
    paths = {id(module): path for path, module in model.named_modules()}
    running = model
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        running = module if id(module) in paths and isinstance(module, nn.Module) else running
    return (
        f"The forward pass failed in {_describe_layer(paths[id(running)], running)} with {_reason(error)}. "
        "Give the inputs that the training loop gives the model."
    )


def _describe_layer(path: str, module: nn.Module) -> str:
    return f"layer '{path}' ({type(module).__name__})" if path else f"the model itself ({type(module).__name__})"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

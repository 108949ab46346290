"""A replica of the user's model: it runs so that nothing about the model, nor about the process, changes."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gatdiag.errors import GatdiagError, InputError, ModelError
from gatdiag.structure.copying import duplicate, map_tensors, reachable_tensors
from gatdiag.structure.inputs import perturb
from gatdiag.structure.isolation import disable_fast_paths, preserve_random_state, working_precision
from gatdiag.structure.program import Program
from gatdiag.structure.state import preserve_state

T = TypeVar("T")
Caller: TypeAlias = Callable[[Callable[[Any], Any]], Any]


class Replica:
    """A copy of a model together with inputs to run it on. Made by `replicate`.

    Attributes:
        model: The copy. Parameters that were one tensor are one tensor. Forward hooks of torch are kept (weight
            normalization, pruning and lazy initialization are made of them); other hooks are not, for they may write
            elsewhere. A hook that changes what the model computes is therefore not part of what is analyzed.
        parameters: Name -> parameter of the copy, named and ordered as `named_parameters()` of the user's model: each
            tensor once.
        args: Positional inputs, detached. They share memory with what the user gave until they are converted.
        kwargs: Keyword inputs, likewise.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Takes a model that is a copy already; `replicate` is the way to get one."""
        self.model = model
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.args = args
        self.kwargs = dict(kwargs)
        self._dtype: torch.dtype | None = None

    def run(self, read: Callable[[Any], Any] = lambda output: output) -> Any:
        """Calls the copy on fresh copies of the inputs and returns what `read` makes of the output.

        The random state at the start is that of the process, and it is given back afterwards: run twice, a dropout
        layer drops the same entries. Compilation, fused attention and the transformer encoder's fast path are off, so
        that a dispatch mode sees plain operations. Buffers, caches and hidden states that the forward pass keeps on its
        modules are put back, so that every run starts alike. Whether gradients are recorded is the caller's choice.

        Args:
            read: Runs under the same conditions, as the output may be an iterator that has computed nothing yet.

        Raises:
            ModelError: The forward pass raised; the message names the innermost layer that was running.
        """
        with self.isolated() as call:
            return call(read)

    @contextmanager
    def isolated(self) -> Iterator[Caller]:
        """The conditions of `run` for many calls in a row, between which random and model state go on."""
        devices = {
            tensor.device for tensor in [*self.parameters.values(), *reachable_tensors((self.args, self.kwargs))]
        }

        def call(read: Callable[[Any], Any]) -> Any:
            args, kwargs = map_tensors((self.args, self.kwargs), Tensor.clone)
            try:
                is_program = len(args) == 1 and isinstance(args[0], Program)
                return read(args[0].run(self.model) if is_program else self.model(*args, **kwargs))
            except GatdiagError:
                raise
            except Exception as error:
                raise ModelError(_failure(self.model, error)) from error

        with ExitStack() as stack:
            stack.enter_context(preserve_random_state(devices))
            stack.enter_context(disable_fast_paths())
            stack.enter_context(working_precision(self._dtype))
            stack.enter_context(preserve_state(self.model))
            yield call

    def run_no_grad(self, read: Callable[[Any], Any] = lambda output: output) -> Any:
        """As `run`, without recording gradients unless the forward pass itself differentiates (forces, penalties)."""
        return self.no_grad(lambda call: call(read))

    def no_grad(self, body: Callable[[Caller], T]) -> T:
        """The result of `body` on the function that `isolated` yields, without gradients as in `run_no_grad`."""
        try:
            with torch.no_grad(), self.isolated() as call:
                return body(call)
        except ModelError:
            with torch.enable_grad(), self.isolated() as call:
                return body(call)

    def to(self, dtype: torch.dtype) -> Self:
        """Converts all that is floating: parameters, buffers, inputs, and tensors held in attributes and caches.

        From then on the forward pass also gets `dtype` when it asks for a floating dtype by name (`x.float()`).
        """
        for tensor in reachable_tensors(self.model):
            tensor.data = _converted(tensor.data, dtype)
        self._change_inputs(lambda tensor: _converted(tensor, dtype))
        self._dtype = dtype
        return self

    def perturb_inputs(self, generator: torch.Generator) -> Self:
        """Moves the floating inputs into general position; see `gatdiag.structure.inputs.perturb`."""
        self._change_inputs(lambda tensor: perturb(tensor, generator))
        return self

    def _change_inputs(self, change: Callable[[Tensor], Tensor]) -> None:
        self.args, self.kwargs = map_tensors((self.args, self.kwargs), change)


def replicate(model: nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Replica:
    """Copies a model so that it can be run, converted and perturbed while the user's own stays as it is.

    Args:
        model: Any module. A compiled model and one wrapped for data parallelism are unwrapped, so that names are
            those of the model inside.
        args: Positional inputs of its forward pass: tensors, sparse tensors, graphs (`Data`, `HeteroData`, `Batch`),
            and containers of them. Or one `Program`, which is replayed in place of the forward pass.
        kwargs: Its keyword inputs.

    Returns:
        The replica. The model is copied at once, the inputs at each run.

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
    copied, _ = copy_model(model, None)
    with torch.no_grad():
        try:
            args, named = map_tensors((args, dict(kwargs or {})), _detached)
        except Exception as error:
            raise InputError(
                f"The inputs must be copied before the model is run on them, and copying failed with {_reason(error)}. "
                "Give tensors, graphs, or containers of them."
            ) from error
    return Replica(copied, args, named)


def copy_model(model: nn.Module, beside: T) -> tuple[nn.Module, T]:
    """Copies of a model and of what holds the same parameters, such as its optimizers, without the user's hooks.

    Raises:
        ModelError: A layer is lazy and not yet initialized, or the model cannot be copied.
    """
    check_initialized(model)
    with torch.no_grad():
        try:
            copied, others = duplicate((model, beside), omit=list(_backward_hooks(model)))
            _drop_foreign_hooks(copied)
        except Exception as error:
            raise ModelError(
                f"The model ({type(model).__name__}) must be copied before it is run, and copying it failed with "
                f"{_reason(error)}. Remove what cannot be copied (open files, locks, generators) from its attributes."
            ) from error
        for original, twin in zip(model.parameters(), copied.parameters(), strict=True):
            twin.requires_grad_(original.requires_grad)  # scripted modules lose it
    return copied, others


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of `torch.compile` and of (distributed) data parallelism."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def check_initialized(model: nn.Module) -> None:
    """Raises `ModelError`, naming the layer, if a parameter or buffer of the model has no shape yet."""
    for path, module in model.named_modules():
        held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        lazy = [name for name, tensor in held if is_lazy(tensor)]
        if lazy:
            raise ModelError(
                f"{_described(path, module)} is lazy: {', '.join(lazy)} has no shape yet. Expected an initialized "
                "model; run it once on the data, model(x, edge_index), and then call gatdiag."
            )


def _drop_foreign_hooks(copied: nn.Module) -> None:
    """Only the forward hooks of torch and PyG stay: the user's must not see what a copy of the model does."""
    for module in copied.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if not _is_of_torch(hook)]:
                del hooks[key]


def _is_of_torch(hook: object) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.partition(".")[0] in ("torch", "torch_geometric")


def _backward_hooks(model: nn.Module) -> Iterator[object]:
    for module in model.modules():
        yield module._backward_hooks
        yield module._backward_pre_hooks


def _detached(tensor: Tensor) -> Tensor:
    keeps_class = type(tensor) is not Tensor and not tensor.requires_grad  # EdgeIndex.detach() is a bare tensor
    return tensor if keeps_class else tensor.detach()


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _failure(model: nn.Module, error: Exception) -> str:
    paths = {id(module): path for path, module in model.named_modules()}
    running = model
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        running = module if id(module) in paths and isinstance(module, nn.Module) else running
    return (
        f"The forward pass failed in {_described(paths[id(running)], running)} with {_reason(error)}. "
        "Give the inputs that the training loop gives the model."
    )


def _described(path: str, module: nn.Module) -> str:
    return f"layer '{path}' ({type(module).__name__})" if path else f"the model itself ({type(module).__name__})"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

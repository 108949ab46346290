"""Deep copies in which every tensor is replaced by a function of it.

`copy.deepcopy` walks any Python object (modules, graphs, dictionaries, dataclasses) and preserves identities. It calls
`Tensor.__deepcopy__` for each tensor, which a torch function mode can override. With one such mode, gatdiag copies
models that torch refuses to copy (`torch.nn.utils.weight_norm` leaves a non-leaf `weight` behind), and detaches,
converts and perturbs inputs.
"""

import copy
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gatdiag.structure.isolation import preserve_random_state

T = TypeVar("T")
Memo: TypeAlias = dict[int, Any]
TensorFunction: TypeAlias = Callable[[Tensor], Any]


class _DeepcopyMode(TorchFunctionMode):
    """Replaces the result of `Tensor.__deepcopy__` by `function(tensor)`."""

    def __init__(self, function: TensorFunction) -> None:
        super().__init__()
        self.function = function

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = self.function(tensor)
        return memo[id(tensor)]


def duplicate(value: T, omit: Sequence[object] = (), modules: Sequence[Module] = ()) -> T:
    """A deep copy without gradients, also of non-leaf tensors. Tensors that share memory do so in the copy.

    Args:
        value: Any object.
        omit: Mappings inside it (of backward hooks) that are empty in the copy.
        modules: Modules inside it whose attributes may hold compiled functions; the copy holds plain ones.
    """
    memo: Memo = {id(mapping): type(mapping)() for mapping in omit}
    compiled = [leaf for module in modules for leaf in tree_leaves(vars(module)) if isinstance(leaf, FunctionType)]
    plain = {id(leaf): _Plain(_uncompiled(leaf)) for leaf in compiled if hasattr(leaf, _ORIGINAL)}
    memo |= plain

    def function(tensor: Tensor) -> Any:
        return _duplicate_tensor(tensor, memo)

    copied = deepcopy_with(value, memo, function)
    for stand_in in plain.values():
        stand_in.function = deepcopy_with(stand_in.function, memo, function)
    return copied


_ORIGINAL = "_torchdynamo_orig_callable"  # of a function that torch.compile returned: what it was given


def _uncompiled(function: FunctionType) -> Callable[..., Any]:
    """What torch.compile was given; it wraps methods of torch's own layers once more."""
    original: Callable[..., Any] = getattr(function, _ORIGINAL)
    module = getattr(original, "__globals__", {}).get("__name__")
    return getattr(original, "__wrapped__", original) if module == "torch._dynamo.external_utils" else original


class _Plain:
    """Stands for a compiled function; copying a function does nothing, so a method would stay that of the original."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def map_tensors(value: T, function: TensorFunction) -> T:
    """A deep copy of inputs in which each tensor is `function(tensor)`.

    A `Parameter` among the inputs remains one, but no longer requires a gradient.
    """
    memo: Memo = {}
    result = deepcopy_with(value, memo, function)
    for parameter in {id(copied): copied for copied in memo.values() if isinstance(copied, Parameter)}.values():
        parameter.requires_grad_(False)
        parameter.data = function(parameter.data)
    return result


def deepcopy_with(value: T, memo: Memo, function: TensorFunction) -> T:
    """`copy.deepcopy(value, memo)`, in which each tensor that is no `Parameter` is `function(tensor)`.

    Random states are restored afterwards: copying PyG's `Sequential` draws random numbers.
    """
    with preserve_random_state(set()), _DeepcopyMode(function):
        return copy.deepcopy(value, memo)


def _duplicate_tensor(tensor: Tensor, memo: Memo) -> Tensor:
    if type(tensor) is not Tensor:
        return tensor.clone()
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    return copy.deepcopy(tensor.detach(), memo).requires_grad_(tensor.requires_grad and tensor.is_leaf)

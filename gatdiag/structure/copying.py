"""Deep copies in which every tensor is replaced by what a function makes of it.

`copy.deepcopy` knows how to walk any Python object (modules, graphs, dictionaries, dataclasses) and keeps identities: what is
one object stays one object. It asks each tensor to copy itself through `Tensor.__deepcopy__`, which torch lets a function mode
answer. So one small mode serves to copy models whose attributes torch would refuse to copy (the non-leaf `weight` that
`torch.nn.utils.weight_norm` leaves behind), to detach inputs, to convert them and to perturb them.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

T = TypeVar("T")
Memo: TypeAlias = dict[int, Any]
Change: TypeAlias = Callable[[Tensor, Memo], Tensor]


class _Copying(TorchFunctionMode):
    """Answers `Tensor.__deepcopy__` with `change(tensor, memo)`."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = self.change(tensor, memo)
        return memo[id(tensor)]


def duplicate(value: T, omit: Sequence[object] = ()) -> tuple[T, list[Tensor]]:
    """A deep copy without gradients, and every tensor in it; tensors that shared memory share it in the copy.

    Args:
        value: Anything that `copy.deepcopy` accepts; tensors in it may also be non-leaf.
        omit: Mappings inside `value` that are empty in the copy (backward hooks).

    Returns:
        The copy, and the tensors (parameters included) it is made of, each once.
    """
    memo: Memo = {id(mapping): type(mapping)() for mapping in omit}
    with _Copying(_duplicate_tensor):
        result = copy.deepcopy(value, memo)
    return result, _tensors(memo)


def changed(value: T, change: Callable[[Tensor], Tensor]) -> tuple[T, list[Tensor]]:
    """A deep copy of inputs in which each tensor is `change(tensor)`, and the tensors of the copy.

    A `Parameter` among the inputs stays one (its class belongs to it) but no longer asks for a gradient.
    """
    memo: Memo = {}
    with _Copying(lambda tensor, _: change(tensor)):
        result = copy.deepcopy(value, memo)
    tensors = _tensors(memo)
    for tensor in tensors:
        if isinstance(tensor, Parameter):
            tensor.requires_grad_(False)
            tensor.data = change(tensor.data)
    return result, tensors


def _tensors(memo: Memo) -> list[Tensor]:
    return list({id(value): value for value in memo.values() if isinstance(value, Tensor)}.values())


def _duplicate_tensor(tensor: Tensor, memo: Memo) -> Tensor:
    if type(tensor) is not Tensor or tensor.layout is not torch.strided:
        return tensor.clone() if type(tensor) is not Tensor else tensor.detach().clone()
    detached = tensor.detach()
    result: Tensor = Tensor.__deepcopy__(detached, memo)
    del memo[id(detached)]  # the alias dies here, and its id may be given to another object
    return result.requires_grad_(tensor.requires_grad and tensor.is_leaf)

"""Deep copies in which every tensor is replaced by what a function makes of it.

`copy.deepcopy` knows how to walk any Python object (modules, graphs, dictionaries, dataclasses) and keeps identities:
what is one object stays one object. It asks each tensor to copy itself through `Tensor.__deepcopy__`, which torch
lets a function mode answer. So one small mode serves to copy models whose attributes torch would refuse to copy (the
non-leaf `weight` that `torch.nn.utils.weight_norm` leaves behind), to detach inputs, to convert them and to perturb
them.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode

from gatdiag.structure.isolation import preserve_random_state

T = TypeVar("T")
Memo: TypeAlias = dict[int, Any]
Change: TypeAlias = Callable[[Tensor], Any]


class _Copying(TorchFunctionMode):
    """Answers `Tensor.__deepcopy__` with `change(tensor)`."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = self.change(tensor)
        return memo[id(tensor)]


def duplicate(value: T, omit: Sequence[object] = ()) -> T:
    """A deep copy without gradients, also of non-leaf tensors; mappings to omit (backward hooks) are empty in it.

    Tensors that share memory share it in the copy.
    """
    memo: Memo = {id(mapping): type(mapping)() for mapping in omit}
    return deepcopy_with(value, memo, lambda tensor: _duplicate_tensor(tensor, memo))


def map_tensors(value: T, change: Change) -> T:
    """A deep copy of inputs in which each tensor is `change(tensor)`.

    A `Parameter` among the inputs stays one (its class belongs to it) but no longer asks for a gradient.
    """
    memo: Memo = {}
    result = deepcopy_with(value, memo, change)
    for parameter in {id(copied): copied for copied in memo.values() if isinstance(copied, Parameter)}.values():
        parameter.requires_grad_(False)
        parameter.data = change(parameter.data)
    return result


def reachable_tensors(value: object) -> list[Tensor]:
    """Every tensor that can be reached from an object, each once; none is copied but the parameters outside modules."""
    parameters = list(value.parameters()) if isinstance(value, Module) else []
    memo: Memo = {id(parameter): parameter for parameter in parameters}
    deepcopy_with(value, memo, lambda tensor: tensor)
    copied = memo.get(id(memo), [])  # what deepcopy keeps alive: the originals of all that it copied
    found = [original for original in [*memo.values(), *copied] if isinstance(original, Tensor)]
    originals = {id(original): original for original in found}
    return [originals[key] for key in memo if key in originals]


def deepcopy_with(value: T, memo: Memo, change: Change) -> T:
    """A deep copy with this memo, in which each tensor is `change(tensor)`; parameters copy themselves.

    Copying may draw random numbers, as it does for PyG's `Sequential`; it gives them back.
    """
    with preserve_random_state(set()), _Copying(change):
        return copy.deepcopy(value, memo)


def _duplicate_tensor(tensor: Tensor, memo: Memo) -> Tensor:
    if type(tensor) is not Tensor:
        return tensor.clone()
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    return copy.deepcopy(tensor.detach(), memo).requires_grad_(tensor.requires_grad and tensor.is_leaf)


def tensor_arguments(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Tensor]:
    """The tensors among the arguments of an operation, those in its lists too; faster than a walk of any tree."""
    found: list[Tensor] = []
    for value in (*args, *(kwargs or {}).values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensor_arguments(value, None)
    return found

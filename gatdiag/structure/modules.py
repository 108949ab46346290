"""The modules of a model and what they hold, from the tables in which torch keeps them.

A class may override `named_parameters`, `children`, `__getattr__`, `__hash__` or the property `training`, and such code
may print, count or draw random numbers. Nothing here calls it: that of scripted modules is torch's own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

_NOTHING: Final[Mapping[str, Any]] = {}


def attributes_of(thing: object) -> Mapping[str, Any]:
    """The attributes that an object has itself, without those of its class: no property is read.

    Example:
        >>> attributes_of(nn.Dropout(0.3))["p"]
        0.3
    """
    found: Mapping[str, Any] = object.__getattribute__(thing, "__dict__")
    return found


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """Name -> submodule, as in `named_children()`, but with those that have several names.

    Example:
        >>> children_of(nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))
        {'0': ReLU(), '1': Linear(in_features=2, out_features=1, bias=True)}
    """
    return {name: child for name, child in _table(module, "_modules").items() if child is not None}


def named_modules(model: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Module]]:
    """Paths and modules, as `Module.named_modules`.

    Example:
        >>> [path for path, _ in named_modules(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())))]
        ['', '0', '1', '1.0']
    """
    waiting, seen = [("", model, frozenset[int]())], set[int]()
    while waiting:
        path, module, above = waiting.pop()
        if id(module) in (seen if remove_duplicate else above):  # above: a module may hold what holds it
            continue
        seen.add(id(module))
        yield path, module
        inside, children = above | {id(module)}, children_of(module).items()
        waiting += [(f"{path}.{name}" if path else name, child, inside) for name, child in reversed(children)]


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The model and all modules inside, once."""
    return [module for _, module in named_modules(model)]


def named_parameters(model: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters, as `Module.named_parameters`.

    Example:
        >>> [name for name, _ in named_parameters(nn.Sequential(nn.Linear(2, 1)))]
        ['0.weight', '0.bias']
    """
    return _named_tensors(model, "_parameters", remove_duplicate)


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and buffers, as `Module.named_buffers`."""
    return _named_tensors(model, "_buffers", remove_duplicate=True)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter that a module holds itself."""
    return {name: one for name, one in _table(module, "_parameters").items() if one is not None}


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Name -> buffer that a module holds itself."""
    return {name: one for name, one in _table(module, "_buffers").items() if one is not None}


def is_training(module: nn.Module) -> bool:
    """Whether a module is in training mode; if its class computes that, whether one of its submodules is.

    Example:
        >>> is_training(nn.ReLU().eval())
        False
    """
    mode = attributes_of(module).get("training")
    if mode is None and issubclass(type(module), torch.jit.ScriptModule):
        mode = module.training
    if mode is not None:
        return bool(mode)
    children = children_of(module).values()
    return not children or any(map(is_training, children))


def _table(module: nn.Module, name: str) -> Mapping[str, Any]:
    if issubclass(type(module), torch.jit.ScriptModule):
        return dict(getattr(module, name).items())
    table: Mapping[str, Any] = attributes_of(module).get(name, _NOTHING)
    return table


def _named_tensors(model: nn.Module, table: str, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
    seen = set[int]()
    for path, module in named_modules(model, remove_duplicate=remove_duplicate):
        for name, tensor in _table(module, table).items():
            if tensor is not None and not (remove_duplicate and id(tensor) in seen):
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

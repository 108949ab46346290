"""The plain objects that a pickle of torch.save may make, with what they are made of checked first."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

from gatdiag.checkpoint.formats.budget import Budget
from gatdiag.checkpoint.formats.machine import check_key
from gatdiag.checkpoint.formats.torch_tensors import RANK, Made, shape_of
from gatdiag.checkpoint.naming import shown
from gatdiag.errors import InputError


def ordered(budget: Budget, pairs: Any = ()) -> OrderedDict[Any, Any]:
    """An ordered dictionary."""
    if type(pairs) not in (list, tuple):
        raise InputError("an ordered dictionary is not made of pairs")
    return OrderedDict((check_key(key), value) for key, value in budget.copy(pairs))


def counter(budget: Budget, counts: Any = None) -> Counter[Any]:
    """A counter, as learning rate schedulers have them."""
    if type(counts) not in (dict, type(None)):
        raise InputError("a counter is not made of counts")
    return Counter(budget.copy(counts or {}))


def elements(budget: Budget, items: Any = ()) -> Made:
    """A set."""
    if type(items) not in (list, tuple):
        raise InputError("a set is not made of a list")
    for item in budget.copy(items):
        check_key(item)
    return Made("other")


def size(budget: Budget, sizes: Any) -> Made:
    """A torch.Size."""
    return Made("size", shape_of(sizes if type(sizes) is not list else tuple(sizes[: RANK + 1])))


def layout(budget: Budget, name: Any) -> Made:
    """A torch.layout."""
    if type(name) is not str:
        raise InputError("a layout has no name")
    return Made("layout")


def device(budget: Budget, kind: Any, index: Any = 0) -> Made:
    """A torch.device."""
    if type(kind) is not str or len(kind) > RANK or type(index) is not int:
        raise InputError("a device has no name")
    return Made("other")


def number(budget: Budget, real: Any, imaginary: Any) -> complex:
    """A complex number."""
    if type(real) is not float or type(imaginary) is not float:
        raise InputError("a complex number is not made of two numbers")
    return complex(real, imaginary)


def binary(budget: Budget, data: Any = b"", encoding: Any = "latin1") -> bytes:
    """Bytes, which protocol 2 writes as text."""
    if type(data) not in (str, bytes) or encoding not in ("latin1", "latin-1"):
        raise InputError("it makes bytes of what is no text")
    budget.copy(data)
    return data.encode(encoding) if isinstance(data, str) else bytes(data)


def check_attributes(budget: Budget, state: Any, kind: type) -> None:
    """Attributes that an object is given, none of which may stand in the way of its class's own."""
    if not isinstance(state, Mapping):
        raise InputError("it sets the state of an object to what is no dictionary")
    for name in budget.copy(state):
        if type(name) is not str or hasattr(kind, name):
            raise InputError(f"it replaces the attribute {shown(name)} of an object")

"""What a pickle of torch.save may ask for: a part of what torch's weights-only loader allows, and sizes that are true.

Beyond the names, each call is checked, because the loader would allocate whatever a file claims: a tensor of a
terabyte, `bytearray(10**12)`, a storage larger than what the file holds of it.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from gatdiag.checkpoint.formats import torch_tensors as tensors
from gatdiag.checkpoint.formats import torch_values as values
from gatdiag.checkpoint.formats.budget import Budget
from gatdiag.checkpoint.formats.machine import Global, Rules
from gatdiag.checkpoint.naming import shown
from gatdiag.errors import InputError

_ELEMENTS = {
    16: ("ComplexDouble",),
    8: ("Double", "Long", "ComplexFloat"),
    4: ("Float", "Int", "QInt32"),
    2: ("Half", "BFloat16", "Short"),
    1: ("Char", "Byte", "Bool", "QInt8", "QUInt8", "QUInt4x2", "QUInt2x4"),
}
_STORAGES = {f"torch.{name}Storage": size for size, names in _ELEMENTS.items() for name in names}
_STORAGES["torch.storage.UntypedStorage"] = 1
_CLASSES = {"torch.Tensor", "torch.nn.parameter.Parameter"}
_WITH_STATE = "torch._utils._rebuild_parameter_with_state"
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": values.ordered,
    "collections.Counter": values.counter,
    "builtins.set": values.elements,
    "builtins.complex": values.number,
    "builtins.bytearray": values.binary,
    "_codecs.encode": values.binary,
    "torch.Size": values.size,
    "torch.device": values.device,
    "torch.serialization._get_layout": values.layout,
    "torch._utils._rebuild_tensor": tensors.dense,
    "torch._utils._rebuild_tensor_v2": tensors.dense,
    "torch._utils._rebuild_tensor_v3": tensors.of_dtype,
    "torch._utils._rebuild_qtensor": tensors.quantized,
    "torch._utils._rebuild_sparse_tensor": tensors.sparse,
    "torch._utils._rebuild_meta_tensor_no_storage": tensors.meta,
    "torch._utils._rebuild_parameter": tensors.parameter,
}
_NAMES = {*_CALLS, *_STORAGES, *_CLASSES, *tensors.DTYPES, *tensors.SCHEMES, _WITH_STATE, _WITH_ATTRIBUTES}


class TorchRules(Rules):
    """The rules for one file.

    Attributes:
        claimed: Key -> bytes of each storage that the pickle speaks of, in order.
    """

    protocols = (2,)

    def __init__(self, stored: Callable[[str], int | None], size: int, length: int) -> None:
        """Rules for a pickle of `length` bytes in a file of `size`.

        Args:
            stored: Bytes that the file holds of the storage of a key; None if of none. A legacy file holds its
                storages behind the pickle: there it is what the file could hold at most.
            size: Of the file.
            length: Of the pickle.
        """
        self.claimed: dict[str, int] = {}
        self._stored, self._budget = stored, Budget(size, length)

    def allows(self, name: str) -> bool:
        """Whether a global may stand in the file."""
        return _modern(name) in _NAMES

    def call(self, function: str, arguments: tuple[Any, ...]) -> Any:
        """What stands for the result of a call."""
        self._budget.make()
        name = _modern(function)
        if name == _WITH_STATE:
            *given, state = arguments
            values.check_attributes(self._budget, state, torch.nn.Parameter)
            return tensors.parameter(self._budget, *given)
        if name == _WITH_ATTRIBUTES:
            return self._with_attributes(*arguments)
        if name not in _CALLS:
            raise InputError(f"it calls {shown(function)}, which a saved tensor never does")
        return _CALLS[name](self._budget, *arguments)

    def build(self, target: Any, state: Any) -> None:
        """Allows attributes of an ordered dictionary (`_metadata` of a state dict)."""
        if type(target) is not OrderedDict:
            raise InputError("it sets the state of what is no ordered dictionary")
        values.check_attributes(self._budget, state, OrderedDict)

    def persistent(self, identifier: Any) -> Any:
        """A storage, if the file holds as much of it as is claimed."""
        kind, storage, key, location, count, *view = identifier
        known = type(storage) is Global and storage.name in _STORAGES and tensors.is_size(count)
        if kind != "storage" or type(key) is not str or type(location) is not str or not known:
            raise InputError("it refers to what is no storage of tensors")
        if view and view != [None]:
            raise InputError("its storages are views of each other, as torch wrote them before 0.4: save it again")
        element = _STORAGES[storage.name]
        held, claimed = self._stored(key), count * element
        if held is None or claimed > held:
            raise InputError(f"the storage {shown(key)} claims {claimed:,} bytes, and the file holds {held or 0:,}")
        if self.claimed.setdefault(key, claimed) != claimed:
            raise InputError(f"the storage {shown(key)} claims two sizes")
        return tensors.Stored(claimed, element)

    def _with_attributes(self, function: Any, kind: Any, arguments: Any, state: Any) -> tensors.Made:
        """A tensor with attributes of its own, made by another function."""
        if type(function) is not Global or type(kind) is not Global or kind.name not in _CLASSES:
            raise InputError("a tensor is of a class that is not torch's")
        if function.name == _WITH_ATTRIBUTES or type(arguments) is not tuple:
            raise InputError("a tensor has attributes twice")
        made = self.call(function.name, arguments)
        if type(made) is not tensors.Made or made.kind not in ("dense", "sparse", "meta"):
            raise InputError(f"it makes a tensor by {shown(function.name)}")
        values.check_attributes(self._budget, state, torch.nn.Parameter)
        return made


def _modern(name: str) -> str:
    """A name of Python 2, in which protocol 2 speaks, as it is today."""
    return name.replace("__builtin__.", "builtins.", 1) if name.startswith("__builtin__.") else name

"""Reads a pickle as data: what it would import and call is noted down, nothing of it is imported or called.

What the harmless instructions can do is bounded too: their number, and (by the rules) the size of what is used over and
over, and the keys of dictionaries, whose hash would take for ever on a tuple of tuples of tuples.
"""

import pickletools
import struct
from itertools import islice
from typing import Any

from gatdiag.checkpoint.formats.contents import NoModelError
from gatdiag.checkpoint.formats.machine import Data, Machine, NotAllowedError, Rules
from gatdiag.checkpoint.formats.operations import OPERATIONS
from gatdiag.checkpoint.naming import shown
from gatdiag.errors import InputError

_INSTRUCTIONS = 5_000_000  # about 120,000 tensors
_NAMED = 5  # globals that a refusal names


def read_pickle(data: Data, rules: Rules, start: int = 0) -> tuple[Any, int]:
    """Reads one pickle.

    Args:
        data: The bytes.
        rules: What may stand in it.
        start: Where it begins.

    Returns:
        What it holds, with stand-ins for objects as `rules` made them, and where it ends.

    Raises:
        InputError: It is damaged or too long.
        NoModelError: It asks for what the rules do not allow; the message names that.

    Example:
        >>> import pickle
        >>> class Nothing(Rules):
        ...     protocols = (2,)
        ...     allows = call = build = persistent = lambda self, *given: False
        >>> read_pickle(pickle.dumps({"a": [1, 2.5]}, protocol=2), Nothing())[0]
        {'a': [1, 2.5]}
        >>> read_pickle(pickle.dumps(print, protocol=2), Nothing())
        Traceback (most recent call last):
        gatdiag...NoModelError: it asks for '__builtin__.print', and only tensors and plain values are read: ...
    """
    machine = Machine(data, start, rules)
    try:
        _run(machine)
        return machine.stack.pop(), machine.position
    except NotAllowedError:
        asked = _asked_for(data, rules, start)
        raise NoModelError(
            f"it asks for {asked}, and only tensors and plain values are read: save the model's state_dict() by itself"
        ) from None
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise InputError(f"its description of the objects is damaged near byte {machine.position}") from error


def _run(machine: Machine) -> None:
    data, operations = machine.data, OPERATIONS
    for _ in range(_INSTRUCTIONS):
        code = data[machine.position]
        machine.position += 1
        operation = operations.get(code)
        if operation is None:
            raise InputError(f"it holds the instruction {bytes([code])!a}, which torch's weights-only loader refuses")
        operation(machine)
        if machine.ended:
            return
    raise InputError(f"its description of the objects is longer than {_INSTRUCTIONS:,} instructions")


def _asked_for(data: Data, rules: Rules, start: int) -> str:
    """The globals that the rules do not allow, in the order of the file."""
    names: dict[str, None] = {}
    texts: list[str] = []
    try:
        for operation, argument, _ in islice(pickletools.genops(bytes(data[start:])), _INSTRUCTIONS):
            if isinstance(argument, str) and operation.name != "GLOBAL":
                texts.append(argument)
            name = _global_name(operation.name, argument, texts)
            if name is not None and not rules.allows(name):
                names[name] = None
    except ValueError:
        pass  # the rest is damaged; what came before has been named
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(shown(name) for name in islice(names, _NAMED)) + more


def _global_name(operation: str, argument: Any, texts: list[str]) -> str | None:
    if operation in ("GLOBAL", "INST"):
        return ".".join(str(argument).split(" ", 1))
    return ".".join(texts[-2:]) if operation == "STACK_GLOBAL" else None

"""The stack machine that a pickle is a program for, without its dangerous half: nothing is imported or called.

A name to import stays a `Global`, and what calling it would give is decided by `Rules`.
"""

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from gatdiag.errors import InputError

Data = bytes | memoryview

_PLAIN = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True)
class Global:
    """A name that the pickle would import, such as `collections.OrderedDict`."""

    name: str


class Rules(ABC):
    """What a kind of file may hold."""

    protocols: tuple[int, ...]

    @abstractmethod
    def allows(self, name: str) -> bool:
        """Whether a global of this name may stand in the file."""

    @abstractmethod
    def call(self, function: str, arguments: tuple[Any, ...]) -> Any:
        """What stands for the result of a call of a global; raises InputError if the file may not ask for it."""

    @abstractmethod
    def build(self, target: Any, state: Any) -> None:
        """Notes the state that the pickle gives to an object."""

    @abstractmethod
    def persistent(self, identifier: Any) -> Any:
        """What stands for an object kept outside the pickle."""

    def key(self, key: Any) -> Any:
        """A dictionary's key, if it may be one."""
        return check_key(key)


def check_key(key: Any) -> Any:
    """A key or an element of a set, if hashing and comparing it is quick.

    Raises:
        InputError: It is not plain: the hash of tuples within tuples may take for ever, and large integers can be
            chosen so that all of them collide.
    """
    for part in key if type(key) is tuple else (key,):
        if type(part) not in _PLAIN or (type(part) is int and not -(2**63) <= part < 2**63):
            raise InputError(f"a dictionary has a key of type {type(part).__name__}, or a number too large for one")
    return key


class NotAllowedError(Exception):
    """The pickle asks for a global that the rules do not allow."""


class Machine:
    """The state of the machine, and how it reads its program."""

    def __init__(self, data: Data, position: int, rules: Rules) -> None:
        """Ready for the instruction at `position`."""
        self.data, self.position, self.rules = data, position, rules
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.ended = False

    def take(self, count: int) -> Data:
        """The next bytes."""
        start, self.position = self.position, self.position + count
        if self.position > len(self.data):
            raise InputError("it ends in the middle of a value")
        return self.data[start : self.position]

    def number(self, form: struct.Struct) -> Any:
        """The next number."""
        value = form.unpack_from(self.data, self.position)[0]
        self.position += form.size
        return value

    def line(self) -> str:
        """The text up to the end of the line."""
        for end in range(self.position, min(len(self.data), self.position + 1000)):
            if self.data[end] == 10:
                return str(self.take(end + 1 - self.position)[:-1], "utf-8")
        raise InputError("it names something to import that has no end")

    def since_mark(self) -> list[Any]:
        """Takes what was pushed since the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def byte(self) -> int:
        """The next byte."""
        value = self.data[self.position]
        self.position += 1
        return value

    def push_global(self, module: str, name: str) -> None:
        """Pushes a name; raises NotAllowedError where the rules do not allow it."""
        full = f"{module}.{name}"
        if not self.rules.allows(full):
            raise NotAllowedError(full)
        self.stack.append(Global(full))

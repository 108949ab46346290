"""How much a small file may make of what it holds: a pickle can use the same bytes over and over."""

from collections.abc import Sized
from typing import TypeVar

from gatdiag.errors import InputError

EXPANDED = 1 << 20  # bytes up to which a tensor may repeat what its storage holds
_OBJECTS = 500_000  # a saved tensor takes two or three
_VIEWS = 8  # how many times as large as the file all tensors together may be
S = TypeVar("S", bound=Sized)


class Budget:
    """What is left for one pickle. Each method raises InputError once it is used up."""

    def __init__(self, size: int, length: int) -> None:
        """For a pickle of `length` bytes in a file of `size`."""
        self._bytes = _VIEWS * size + EXPANDED
        self._copies = length
        self._objects = _OBJECTS

    def make(self) -> None:
        """One more object."""
        self._objects -= 1
        if self._objects < 0:
            raise InputError(f"it makes more than {_OBJECTS:,} objects")

    def copy(self, items: S) -> S:
        """Items copied into another object: a pickle that uses each of its values once copies less than its length."""
        self._copies -= len(items)
        if self._copies < 0:
            raise InputError("it copies its own contents over and over")
        return items

    def view(self, size: int) -> None:
        """A tensor of so many bytes."""
        self._bytes -= size
        if self._bytes < 0:
            raise InputError(f"its tensors repeat each other's data to more than {_VIEWS} times the size of the file")

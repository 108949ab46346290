"""Values of objects by their identity."""

import weakref
from typing import Generic, TypeVar

V = TypeVar("V")


class IdentityTable(Generic[V]):
    """A table whose keys are objects as such: it neither keeps them alive nor asks them for `==` or a hash.

    Example:
        >>> class Odd:
        ...     __hash__ = None
        >>> thing, table = Odd(), IdentityTable[str]()
        >>> table[thing] = "known"
        >>> table.get(thing), len(table)
        ('known', 1)
        >>> del thing
        >>> len(table)
        0
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[object], V]] = {}

    def __setitem__(self, thing: object, value: V) -> None:
        """Set the value of an object."""
        key, entries = id(thing), self._entries
        entries[key] = weakref.ref(thing, lambda _: entries.pop(key, None)), value

    def get(self, thing: object) -> V | None:
        """The value of an object; None if it has none."""
        entry = self._entries.get(id(thing))
        return None if entry is None else entry[1]

    def pop(self, thing: object) -> None:
        """Remove an object, if it is there."""
        self._entries.pop(id(thing), None)

    def __contains__(self, thing: object) -> bool:
        """Whether an object has a value."""
        return id(thing) in self._entries

    def __len__(self) -> int:
        """How many of the objects are alive."""
        return len(self._entries)

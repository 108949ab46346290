"""Goes through a pickle before anything loads it: what it would import, and whether it could keep its reader busy."""

import pickletools
from collections.abc import Sequence
from typing import IO, Any

from gatdiag.checkpoint.formats.contents import NoModelError
from gatdiag.errors import InputError
from gatdiag.names import listed, quoted

_INSTRUCTIONS = 5_000_000  # about 120,000 tensors
_LONG_NUMBERS = 1_000  # of more than 64 bits, which can be chosen so that all of them collide as keys
_WORK = 50  # elements of tuples per byte
_NAMED = 5  # names in a refusal
_LONG = ("LONG", "LONG1", "LONG4", "INT")
_HASHED_WITH_CONTENTS = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "DUP")


def scan(file: IO[bytes], length: int) -> list[str]:
    """Reads one pickle instruction by instruction, executes none, and leaves the file behind it.

    Loaders that restrict what a pickle imports execute no code; yet the hash of a tuple is that of all it holds, and
    tuples of the same tuples, sixty deep, would be hashed for ever when one of them is a key.

    Args:
        file: At the beginning of the pickle.
        length: Bytes of the pickle, or more.

    Returns:
        What it imports by name, such as "collections.OrderedDict", in order. (Names that protocols from 4 on put
        together while they are executed are not among them; the loader has to ask.)

    Raises:
        InputError: It is damaged, too long, or made to take for ever.
    """
    names: dict[str, None] = {}
    work = _Work(_WORK * length + 1_000_000)
    try:
        for number, (code, argument, _) in enumerate(pickletools.genops(file)):
            if number == _INSTRUCTIONS:
                raise InputError(f"its description of the objects is longer than {_INSTRUCTIONS:,} instructions")
            work.follow(code, argument)
            if code.name in ("GLOBAL", "INST"):
                names[str(argument).replace(" ", ".", 1)] = None
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(f"its description of the objects is damaged ({quoted(error)})") from error
    return list(names)


def refusal(names: Sequence[str]) -> NoModelError:
    """The error for a pickle that asks for names that are not allowed."""
    return NoModelError(
        f"it asks for {listed(map(quoted, names), _NAMED)}, and only tensors and plain values are read: "
        "save the model's state_dict() by itself"
    )


class _Work:
    """Follows how many elements each tuple has, those of the tuples within it included."""

    def __init__(self, allowed: int) -> None:
        self._left, self._long_numbers = allowed, _LONG_NUMBERS
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[Any, int] = {}

    def follow(self, code: pickletools.OpcodeInfo, argument: Any) -> None:
        """One instruction; raises InputError once what it makes takes too long to hash."""
        if code.name == "MARK":
            self._marks.append(len(self._stack))
            return
        if code.name.endswith("PUT") or code.name == "MEMOIZE":
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
            return
        if code.name in _LONG and not -(2**63) <= argument < 2**63:
            self._long_numbers -= 1
        taken = self._taken([kind.name for kind in code.stack_before])
        weight = self._memo[argument] if code.name.endswith("GET") else 1
        weight += sum(taken) if code.name in _HASHED_WITH_CONTENTS else 0
        self._left -= weight
        self._stack.extend(weight for _ in code.stack_after)
        if self._left < 0 or self._long_numbers < 0:
            raise InputError("it uses the same values over and over, or keys that were chosen to collide")

    def _taken(self, before: list[str]) -> list[int]:
        """What an instruction takes from the stack: all down to the last mark, if it takes one."""
        start = self._marks.pop() - before.index("mark") if "mark" in before else len(self._stack) - len(before)
        if start < 0 or (self._marks and start < self._marks[-1]):
            raise InputError("its description of the objects is damaged (it takes what is not there)")
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

"""What every format gives: the objects in a file, with tensors among them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatdiag.errors import InputError
from gatdiag.names import quoted


@dataclass(frozen=True)
class Contents:
    """The objects in a file.

    Attributes:
        format: As in `Checkpoint`.
        data: The object that was saved, usually a dictionary.
        notes: What the format has to say.
    """

    format: str
    data: Any
    notes: tuple[str, ...] = ()


class NoModelError(InputError):
    """A file is whole, but holds no model that is read: an optimizer's state alone, say, or objects of Python's."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Names the file in whatever goes wrong while it is read, on one line.

    Raises:
        InputError: In place of any other error. The libraries that read files promise no kinds of errors: what a
            damaged file makes them raise is whatever it happened to hit.
    """
    try:
        yield
    except InputError as error:
        raise type(error)(f"Cannot read {shown_path(path)}: {error}") from error
    except OSError as error:
        raise InputError(f"Cannot read {shown_path(path)}: {error.strerror or quoted(error)}") from error
    except MemoryError as error:
        raise InputError(f"Cannot read {shown_path(path)}: it does not fit into memory") from error
    except Exception as error:
        line = quoted(str(error).partition("\n")[0])
        raise InputError(f"Cannot read {shown_path(path)}: it is damaged ({type(error).__name__}: {line})") from error


def shown_path(path: Path) -> str:
    """A path as a message shows it."""
    return ascii(str(path))

"""A saved checkpoint, whatever its format; and whatever goes wrong while one is read, as one line."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gatdiag.errors import InputError
from gatdiag.names import quoted


@dataclass(frozen=True)
class OptimizerState:
    """The state of the first optimizer in a checkpoint.

    Attributes:
        moments: Parameter's name -> {"exp_avg", "exp_avg_sq", "momentum_buffer", "step", ...} -> tensor; empty where
            the file does not tell which state belongs to which parameter.
        groups: The settings of each parameter group (lr, betas, ...), without the parameters.
        matched: Whether the file tells which state belongs to which parameter.
        others: How many other optimizers in the file hold moments, too.
    """

    moments: Mapping[str, Mapping[str, Tensor]]
    groups: Sequence[Mapping[str, Any]]
    matched: bool = True
    others: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A saved checkpoint.

    Attributes:
        path: The file, or the folder where the format is one.
        format: "torch", "torch (legacy)", "safetensors", "safetensors (sharded)" or "distributed".
        tensors: Name -> tensor, on the CPU, in the order of the file (safetensors keep none: there numbers within names
            order it). Memory-mapped where the format allows, so the file must not change while they are used. Any
            dtype; quantized and sparse ones too.
        keys: Name -> key in the file, which differs where a wrapper left its prefix.
        within: Keys that lead to the state dict: ("state_dict",), or () where the file is one.
        step: Optimizer steps taken, as the file says it, else its optimizer, else its name; None if nothing does.
        epoch: As the file or its name says it.
        optimizer: None if there is none.
        notes: What a reader should know: prefixes taken off, entries left out, what else could have been meant.
    """

    path: Path
    format: str
    tensors: Mapping[str, Tensor]
    keys: Mapping[str, str]
    within: tuple[str, ...]
    step: int | None
    epoch: int | None
    optimizer: OptimizerState | None
    notes: tuple[str, ...]


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

"""Snapshots of the parameters: safetensors files, which hold tensors by name and nothing that could be executed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gatdiag.errors import InputError
from gatdiag.run.layout import SNAPSHOTS, replacing, snapshot

Arrays = dict[str, np.ndarray[Any, Any]]


def check_name(name: str) -> None:
    """Refuses a name that is not a snapshot's.

    Raises:
        InputError: It is not.
    """
    if name not in SNAPSHOTS:
        raise InputError(f"A snapshot is one of {', '.join(SNAPSHOTS)}, got {name!a}")


def write(folder: Path, name: str, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes a snapshot whole, or leaves the one that is there.

    Raises:
        OSError: It could not be written.
    """
    check_name(name)
    with replacing(snapshot(folder, name)) as path:
        try:
            save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, path)
        except SafetensorError as error:
            raise OSError(f"{snapshot(folder, name)} could not be written: {error}") from error


def read(folder: Path, name: str) -> Arrays | None:
    """The tensors of a snapshot by parameter name; None if there is no such snapshot.

    Raises:
        InputError: The file is damaged.
    """
    check_name(name)
    path = snapshot(folder, name)
    if not path.is_file():
        return None
    try:
        tensors: Arrays = load_file(path)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, MemoryError) as error:
        raise InputError(f"{path} is damaged: expected tensors in the safetensors format ({error})") from error
    return tensors

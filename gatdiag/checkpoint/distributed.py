"""Folders of torch.distributed.checkpoint, read without a process group.

The folder's `.metadata` is a pickle of dataclasses, of which only stand-ins are made. It says at which
bytes of which file each part of each tensor was written by torch.save.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gatdiag.checkpoint.torch_file import read_bytes, refusal, scan
from gatdiag.errors import InputError
from gatdiag.names import quoted

Part: TypeAlias = tuple[tuple[int, ...], Callable[[], Any]]  # where it begins in a tensor, and what reads it

METADATA = ".metadata"
_LARGEST = 256 << 20  # bytes of .metadata
_DESCRIBING = ("torch.distributed.checkpoint.metadata.", "torch.distributed.checkpoint.filesystem.")
_PLAIN = {
    *("torch.Size", "torch.serialization._get_layout", "collections.OrderedDict"),
    *(f"{module}.{system}Path" for module in ("pathlib", "pathlib._local") for system in ("Posix", "Windows")),
    *(f"torch.{name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
}


class _Object:
    """Stands for an object of any class: nothing but what the pickle says of it, and None for all else."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})

    def __getattr__(self, name: str) -> Any:  # not __getitem__, by which tuple(...) would iterate without end
        return None


class _Unpickler(pickle._Unpickler):  # the one in Python, which allocates nothing that a file merely claims
    """Makes stand-ins for the classes that may be named, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if not full.startswith(_DESCRIBING) and full not in _PLAIN:
            raise refusal([full])
        return {"torch.Size": tuple, "collections.OrderedDict": OrderedDict}.get(full) or type(name, (_Object,), {})


def read_distributed(folder: Path) -> dict[Any, Any]:
    """Reads all tensors and other objects of a folder, the optimizer's too, into memory.

    Raises:
        InputError: The description or a part is damaged or missing, or needs more than weights-only loading.
    """
    described = _metadata(folder / METADATA)
    entries, paths, parts = described.state_dict_metadata, described.planner_data, _parts(folder, described)
    if not isinstance(entries, dict):
        raise InputError("its .metadata lists no tensors")
    data: dict[Any, Any] = {}
    for name, entry in entries.items():
        path = paths.get(name) if isinstance(paths, dict) else None
        value = _value(name, entry, parts.get(name, []))
        _put(data, path if isinstance(path, tuple) and path else (name,), value)
    return data


def _metadata(path: Path) -> _Object:
    if path.stat().st_size > _LARGEST:
        raise InputError(f"expected a .metadata of at most {_LARGEST:,} bytes")
    data = path.read_bytes()
    scan(io.BytesIO(data), len(data))
    described = _Unpickler(io.BytesIO(data)).load()
    if not isinstance(described, _Object) or type(described).__name__ != "Metadata":
        raise InputError("its .metadata does not describe a distributed checkpoint")
    return described


def _read(file: Path, offset: int, length: int) -> Any:
    with file.open("rb") as opened:
        opened.seek(offset)
        return read_bytes(opened.read(length))


def _parts(folder: Path, described: _Object) -> dict[str, list[Part]]:
    """Name -> its parts, which lie in files of the folder, and together take no more bytes than these have."""
    parts: dict[str, list[Part]] = {}
    taken = 0
    for index, place in described.storage_data.items():
        if not isinstance(index, _Object) or not isinstance(place, _Object) or not isinstance(index.fqn, str):
            raise InputError("its .metadata does not say where the tensors are")
        name, offset, length = place.relative_path, place.offset, place.length
        if type(name) is not str or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
            raise InputError(f"its .metadata names {quoted(name)}: expected a file in the same folder")
        if place.transform_descriptors:
            raise InputError("its tensors are compressed: save them without extensions")
        file = folder / name
        if not file.is_file():
            raise InputError(f"its file {quoted(name)} is missing")
        if not (type(offset) is type(length) is int and 0 <= offset <= offset + length <= file.stat().st_size):
            raise InputError(f"its file {quoted(name)} was cut off: a part of it is missing")
        parts.setdefault(index.fqn, []).append((index.offset or (), partial(_read, file, offset, length)))
        taken += length
    if taken > sum(file.stat().st_size for file in folder.iterdir() if file.is_file()):
        raise InputError("its .metadata puts several tensors at the same place")
    return parts


def _value(name: Any, entry: Any, parts: list[Part]) -> Any:
    kind = type(entry).__name__
    if kind == "BytesStorageMetadata" and len(parts) == 1:
        return parts[0][1]()
    if kind != "TensorStorageMetadata" or not parts:
        raise InputError(f"{quoted(name)} is nowhere in its files")
    size, pieces = entry.size, {begins: read() for begins, read in parts}
    if not all(isinstance(piece, Tensor) for piece in pieces.values()):
        raise InputError(f"{quoted(name)} is not a tensor where it should be one")
    first, held = next(iter(pieces.values())), sum(piece.numel() for piece in pieces.values())
    if len(parts) == 1 and tuple(first.shape) == size:
        return first.detach()
    if prod(size) != held or len(pieces) < len(parts):
        raise InputError(f"the parts of {quoted(name)} hold {held:,} numbers: expected those of shape {quoted(size)}")
    whole = torch.zeros(size, dtype=first.dtype)
    for begins, piece in pieces.items():
        place = tuple(slice(begin, begin + length) for begin, length in zip(begins, piece.shape, strict=True))
        whole[place].copy_(piece.detach())
    return whole


def _put(data: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Puts a value where its path leads; positions in lists become keys."""
    for key in path[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise InputError(f"its .metadata puts {quoted(path)} into what is no dictionary")
    data[path[-1]] = value

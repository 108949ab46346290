"""Folders of torch.distributed.checkpoint, read without a process group.

The folder's `.metadata` is a pickle of dataclasses, of which only stand-ins are made. It says at which
bytes of which file each part of each tensor was written by torch.save.
"""

import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatdiag.checkpoint.torch_file import read_bytes, refusal, scan
from gatdiag.errors import InputError
from gatdiag.names import quote

METADATA = ".metadata"
_LARGEST = 256 << 20  # bytes of .metadata
_MODULE = "torch.distributed.checkpoint"
_CLASSES = {
    *(f"{_MODULE}.metadata.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *(f"{_MODULE}.metadata.{name}" for name in ("TensorStorageMetadata", "BytesStorageMetadata")),
    *(f"{_MODULE}.metadata.{name}" for name in ("ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    *(f"{_MODULE}.filesystem.{name}" for name in ("_StorageInfo", "_StoragePrefix")),
    *("torch.Size", "torch.serialization._get_layout", "pathlib.PosixPath", "pathlib.WindowsPath"),
    *("pathlib._local.PosixPath", "pathlib._local.WindowsPath", "collections.OrderedDict"),
}
_DTYPES = {f"torch.{name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


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
        if full not in _CLASSES and full not in _DTYPES:
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


@dataclass(frozen=True)
class _Part:
    """A part of a tensor: where it begins in that, and where it is."""

    begins: tuple[int, ...]
    file: Path
    offset: int
    length: int

    def read(self) -> Any:
        with self.file.open("rb") as file:
            file.seek(self.offset)
            return read_bytes(file.read(self.length))


def _parts(folder: Path, described: _Object) -> dict[str, list[_Part]]:
    """Name -> its parts, which lie in files of the folder, and together take no more bytes than these have."""
    parts: dict[str, list[_Part]] = {}
    for index, place in described.storage_data.items():
        if not isinstance(index, _Object) or not isinstance(place, _Object) or not isinstance(index.fqn, str):
            raise InputError("its .metadata does not say where the tensors are")
        name, offset, length = place.relative_path, place.offset, place.length
        if type(name) is not str or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
            raise InputError(f"its .metadata names {quote(name)}: expected a file in the same folder")
        if place.transform_descriptors:
            raise InputError("its tensors are compressed: save them without extensions")
        file = folder / name
        if not file.is_file():
            raise InputError(f"its file {quote(name)} is missing")
        if not (type(offset) is type(length) is int and 0 <= offset <= offset + length <= file.stat().st_size):
            raise InputError(f"its file {quote(name)} was cut off: a part of it is missing")
        parts.setdefault(index.fqn, []).append(_Part(index.offset or (), file, offset, length))
    held = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    if sum(part.length for found in parts.values() for part in found) > held:
        raise InputError("its .metadata puts several tensors at the same place")
    return parts


def _value(name: Any, entry: Any, parts: list[_Part]) -> Any:
    kind = type(entry).__name__
    if kind == "BytesStorageMetadata" and len(parts) == 1:
        return parts[0].read()
    if kind != "TensorStorageMetadata" or not parts:
        raise InputError(f"{quote(name)} is nowhere in its files")
    size, pieces = entry.size, [part.read() for part in parts]
    if not all(isinstance(piece, Tensor) for piece in pieces):
        raise InputError(f"{quote(name)} is not a tensor where it should be one")
    if len(pieces) == 1 and tuple(pieces[0].shape) == size:
        return pieces[0].detach()
    held = sum(piece.numel() for piece in pieces)
    if prod(size) != held or len({part.begins for part in parts}) < len(parts):
        raise InputError(f"the parts of {quote(name)} hold {held:,} numbers: expected those of shape {quote(size)}")
    whole = torch.zeros(size, dtype=pieces[0].dtype)
    for part, piece in zip(parts, pieces, strict=True):
        place = tuple(slice(begin, begin + length) for begin, length in zip(part.begins, piece.shape, strict=True))
        whole[place].copy_(piece.detach())
    return whole


def _put(data: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Puts a value where its path leads; positions in lists become keys."""
    for key in path[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise InputError(f"its .metadata puts {quote(path)} into what is no dictionary")
    data[path[-1]] = value

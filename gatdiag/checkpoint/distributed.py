"""Folders of torch.distributed.checkpoint, read without a process group.

The folder's `.metadata` is a pickle of dataclasses, of which only stand-ins are made. It says at which
bytes of which file each part of each tensor was written by torch.save.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatdiag.checkpoint.torch_file import read_bytes, refusal, scan
from gatdiag.errors import InputError
from gatdiag.names import quoted

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
    """Stands for an object of any class: nothing but what the pickle says of it."""

    def __init__(self, *_: Any) -> None:
        self.state: Mapping[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {}

    def get(self, name: str) -> Any:  # no __getitem__, by which tuple(...) would iterate without end
        return self.__dict__.get("state", {}).get(name)

    @property
    def kind(self) -> str:
        return type(self).__name__


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
    entries, paths = described.get("state_dict_metadata"), described.get("planner_data")
    parts = _parts(described.get("storage_data"))
    if not isinstance(entries, dict):
        raise InputError("its .metadata lists no tensors")
    reader = _Reader(folder)
    data: dict[Any, Any] = {}
    for name, entry in entries.items():
        value = _value(reader, name, entry, parts.get(name, []))
        path = paths.get(name) if isinstance(paths, dict) else None
        _place(data, path if isinstance(path, tuple) and path else (name,), value)
    return data


def _metadata(path: Path) -> _Object:
    if path.stat().st_size > _LARGEST:
        raise InputError(f"expected a .metadata of at most {_LARGEST:,} bytes")
    data = path.read_bytes()
    scan(io.BytesIO(data), len(data))
    described = _Unpickler(io.BytesIO(data)).load()
    if not isinstance(described, _Object) or described.kind != "Metadata":
        raise InputError("its .metadata does not describe a distributed checkpoint")
    return described


def _parts(stored: Any) -> dict[str, list[tuple[_Object, _Object]]]:
    """Name -> (index, place) of each of its parts."""
    parts: dict[str, list[tuple[_Object, _Object]]] = {}
    for index, place in stored.items():
        if not isinstance(index, _Object) or not isinstance(place, _Object) or not isinstance(index.get("fqn"), str):
            raise InputError("its .metadata does not say where the tensors are")
        parts.setdefault(index.get("fqn"), []).append((index, place))
    return parts


class _Reader:
    """Reads parts of the folder's files, no more bytes of them in all than they have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())

    def read(self, place: _Object) -> Any:
        name, offset, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if type(name) is not str or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
            raise InputError(f"its .metadata names {quoted(name)}: expected a file in the same folder")
        if place.get("transform_descriptors"):
            raise InputError("its tensors are compressed: save them without extensions")
        path = self._folder / name
        if not path.is_file():
            raise InputError(f"its file {quoted(name)} is missing")
        if not (type(offset) is type(length) is int and 0 <= offset <= offset + length <= path.stat().st_size):
            raise InputError(f"its file {quoted(name)} was cut off: a part of it is missing")
        self._left -= length
        if self._left < 0:
            raise InputError("its .metadata puts several tensors at the same place")
        with path.open("rb") as file:
            file.seek(offset)
            return read_bytes(file.read(length))


def _value(reader: _Reader, name: Any, entry: Any, parts: list[tuple[_Object, _Object]]) -> Any:
    kind = entry.kind if isinstance(entry, _Object) else None
    if kind == "BytesStorageMetadata" and len(parts) == 1:
        return reader.read(parts[0][1])
    if kind != "TensorStorageMetadata" or not parts:
        raise InputError(f"{quoted(name)} is nowhere in its files")
    return _tensor(reader, name, entry.get("size"), parts)


def _tensor(reader: _Reader, name: Any, size: Any, parts: list[tuple[_Object, _Object]]) -> Tensor:
    pieces = [(index.get("offset") or (), reader.read(place)) for index, place in parts]
    if not all(isinstance(piece, Tensor) for _, piece in pieces):
        raise InputError(f"{quoted(name)} is not a tensor where it should be one")
    first: Tensor = pieces[0][1].detach()
    if len(pieces) == 1 and tuple(first.shape) == size:
        return first
    held = sum(piece.numel() for _, piece in pieces)
    if prod(size) != held or len({offset for offset, _ in pieces}) < len(pieces):
        raise InputError(f"the parts of {quoted(name)} hold {held:,} numbers: expected those of shape {quoted(size)}")
    whole = torch.zeros(size, dtype=first.dtype)
    for offset, piece in pieces:
        place = tuple(slice(begin, begin + length) for begin, length in zip(offset, piece.shape, strict=True))
        whole[place].copy_(piece.detach())
    return whole


def _place(data: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Puts a value where its path leads; positions in lists become keys."""
    for key in path[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise InputError(f"its .metadata puts {quoted(path)} into what is no dictionary")
    data[path[-1]] = value

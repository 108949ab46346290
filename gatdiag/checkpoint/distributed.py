"""Read folders of torch.distributed.checkpoint without a process group.

The folder's `.metadata` is a pickle of dataclasses, for which only stand-ins are created. It gives the file and the
bytes of each chunk of each tensor, as torch.save wrote it.
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

from gatdiag.checkpoint.torch_file import forbidden_names_error, read_bytes, scan_pickle
from gatdiag.errors import InputError
from gatdiag.names import quote

METADATA = ".metadata"
_MAX_METADATA = 256 << 20  # bytes
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


class _StandIn:
    """Takes the place of any class: holds the attributes in the pickle; all others are None."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})

    def __getattr__(self, name: str) -> Any:  # not __getitem__, by which tuple(...) would iterate without end
        return None


class _Unpickler(pickle._Unpickler):  # the Python one does not allocate sizes that a file merely claims
    """Creates stand-ins for the allowed classes, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in _CLASSES and full not in _DTYPES:
            raise forbidden_names_error([full])
        return {"torch.Size": tuple, "collections.OrderedDict": OrderedDict}.get(full) or type(name, (_StandIn,), {})


def read_distributed(folder: Path) -> dict[Any, Any]:
    """Read all tensors and other objects in a folder, the optimizer state included, into memory.

    Raises:
        InputError: The metadata or a chunk is damaged or missing, or needs more than weights-only loading.
    """
    metadata = _read_metadata(folder / METADATA)
    entries, paths, chunks = metadata.state_dict_metadata, metadata.planner_data, _read_chunks(folder, metadata)
    if not isinstance(entries, dict):
        raise InputError("its .metadata lists no tensors")
    data: dict[Any, Any] = {}
    for name, entry in entries.items():
        path = paths.get(name) if isinstance(paths, dict) else None
        value = _load_entry(name, entry, chunks.get(name, []))
        _set_nested(data, path if isinstance(path, tuple) and path else (name,), value)
    return data


def _read_metadata(path: Path) -> _StandIn:
    if path.stat().st_size > _MAX_METADATA:
        raise InputError(f"expected a .metadata of at most {_MAX_METADATA:,} bytes")
    data = path.read_bytes()
    scan_pickle(io.BytesIO(data), len(data))
    metadata = _Unpickler(io.BytesIO(data)).load()
    if not isinstance(metadata, _StandIn) or type(metadata).__name__ != "Metadata":
        raise InputError("its .metadata does not describe a distributed checkpoint")
    return metadata


@dataclass(frozen=True)
class _Chunk:
    """Part of a tensor: its first index in the tensor, and its bytes in a file."""

    start: tuple[int, ...]
    file: Path
    offset: int
    length: int

    def load(self) -> Any:
        with self.file.open("rb") as file:
            file.seek(self.offset)
            return read_bytes(file.read(self.length))


def _read_chunks(folder: Path, metadata: _StandIn) -> dict[str, list[_Chunk]]:
    """The chunks of each tensor: in files of the folder, and together no larger than these."""
    chunks: dict[str, list[_Chunk]] = {}
    for index, place in metadata.storage_data.items():
        if not isinstance(index, _StandIn) or not isinstance(place, _StandIn) or not isinstance(index.fqn, str):
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
            raise InputError(f"its file {quote(name)} is truncated: a chunk is missing")
        chunks.setdefault(index.fqn, []).append(_Chunk(index.offset or (), file, offset, length))
    available = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    if sum(chunk.length for listed in chunks.values() for chunk in listed) > available:
        raise InputError("its .metadata places several tensors at the same bytes")
    return chunks


def _load_entry(name: Any, entry: Any, chunks: list[_Chunk]) -> Any:
    kind = type(entry).__name__
    if kind == "BytesStorageMetadata" and len(chunks) == 1:
        return chunks[0].load()
    if kind != "TensorStorageMetadata" or not chunks:
        raise InputError(f"{quote(name)} is in none of its files")
    size, tensors = entry.size, [chunk.load() for chunk in chunks]
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise InputError(f"expected {quote(name)} to be a tensor")
    if len(tensors) == 1 and tuple(tensors[0].shape) == size:
        return tensors[0].detach()
    count = sum(tensor.numel() for tensor in tensors)
    if prod(size) != count or len({chunk.start for chunk in chunks}) < len(chunks):
        raise InputError(f"expected {quote(name)} of shape {quote(size)}, but its chunks hold {count:,} elements")
    whole = torch.zeros(size, dtype=tensors[0].dtype)
    for chunk, tensor in zip(chunks, tensors, strict=True):
        place = tuple(slice(begin, begin + length) for begin, length in zip(chunk.start, tensor.shape, strict=True))
        whole[place].copy_(tensor.detach())
    return whole


def _set_nested(data: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Set a value in nested dictionaries; list positions become keys."""
    for key in path[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise InputError(f"its .metadata places {quote(path)} inside a value that is not a dictionary")
    data[path[-1]] = value

"""Read folders of torch.distributed.checkpoint without a process group.

The folder's `.metadata` is a pickle of dataclasses, for which only stand-ins are created. It gives the file and the
bytes of each chunk of each tensor, as torch.save wrote it.
"""

import io
import pickle
from collections import OrderedDict
from math import prod
from pathlib import Path
from typing import Any

import torch

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
    chunks, paths = _read_chunks(folder, metadata), metadata.planner_data or {}
    data: dict[Any, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        _set_nested(data, paths.get(name) or (name,), _join_chunks(name, entry, chunks.pop(name, [])))
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


def _read_chunks(folder: Path, metadata: _StandIn) -> dict[str, list[tuple[Any, Any]]]:
    """The chunks of each tensor, with their first indices in it: from files of the folder, each byte read once."""
    chunks: dict[str, list[tuple[Any, Any]]] = {}
    left = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    for index, place in metadata.storage_data.items():
        name, offset, length = place.relative_path, place.offset, place.length
        file = folder / name
        if Path(name).name != name or not file.is_file():
            raise InputError(f"its file {quote(name)} is missing: expected it in the same folder")
        if not (type(offset) is type(length) is int and 0 <= offset <= offset + length <= file.stat().st_size):
            raise InputError(f"its file {quote(name)} is truncated: a chunk is missing")
        left -= length
        if left < 0:
            raise InputError("its .metadata places several tensors at the same bytes")
        with file.open("rb") as opened:
            opened.seek(offset)
            chunks.setdefault(index.fqn, []).append((index.offset or (), read_bytes(opened.read(length))))
    return chunks


def _join_chunks(name: Any, entry: Any, chunks: list[tuple[Any, Any]]) -> Any:
    if not chunks:
        raise InputError(f"{quote(name)} is in none of its files")
    ((start, first), *others) = chunks
    if type(entry).__name__ == "BytesStorageMetadata" or (not others and tuple(first.shape) == entry.size):
        return first
    count = sum(tensor.numel() for _, tensor in chunks)
    if prod(entry.size) != count or len({start for start, _ in chunks}) < len(chunks):
        raise InputError(f"expected {quote(name)} of shape {quote(entry.size)}, but its chunks hold {count:,} elements")
    whole = torch.zeros(entry.size, dtype=first.dtype)
    for start, tensor in chunks:
        whole[tuple(slice(begin, begin + length) for begin, length in zip(start, tensor.shape, strict=True))] = tensor
    return whole


def _set_nested(data: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Set a value in nested dictionaries; list positions become keys."""
    for key in path[:-1]:
        data = data.setdefault(key, {})
    data[path[-1]] = value

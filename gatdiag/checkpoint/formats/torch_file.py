"""Files of torch.save: the zip archive of today, and the sequence of pickles and bytes from before 1.6.

The pickle is read as data first, and only then by torch's weights-only loader, which then finds nothing to allocate
that the file does not hold.
"""

import io
import mmap
import struct
import warnings
from pathlib import Path
from typing import IO, Any

import torch

from gatdiag.checkpoint.formats.archive import read_archive
from gatdiag.checkpoint.formats.contents import Contents
from gatdiag.checkpoint.formats.pickled import read_pickle
from gatdiag.checkpoint.formats.torch_rules import TorchRules
from gatdiag.errors import InputError

ZIP = b"PK\3\4"
LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # torch's magic number, pickled
_COUNT = struct.Struct("<q")


def read_torch(path: Path, *, mapped: bool = True) -> Contents:
    """Reads a file of torch.save.

    Args:
        path: The file.
        mapped: Leave the tensors on disk until they are used; their memory is then not the reader's own.

    Raises:
        InputError: It is damaged, or needs more than weights-only loading.
    """
    with path.open("rb") as file:
        check_zip(file, _bytes_of(file))
        file.seek(0)
        by_path = mapped and not str(path).endswith(".safetensors")  # by which torch would take it for another format
        return Contents("torch", load(str(path) if by_path else file, mmap=by_path))


def read_legacy(path: Path, *, mapped: bool = True) -> Contents:
    """Reads a file of torch.save as it was before version 1.6; it cannot be memory-mapped.

    Raises:
        InputError: It is damaged, or needs more than weights-only loading.
    """
    with path.open("rb") as file:
        _check_legacy(_bytes_of(file))
        file.seek(0)
        return Contents("torch (legacy)", load(file))


def read_bytes(data: bytes) -> Any:
    """Reads what torch.save wrote to memory.

    Raises:
        InputError: It is damaged, or needs more than weights-only loading.
    """
    if not data.startswith(ZIP):
        raise InputError("a part of it is not as torch.save writes it")
    check_zip(io.BytesIO(data), memoryview(data))
    return load(io.BytesIO(data))


def load(source: str | IO[bytes], *, mmap: bool = False) -> Any:
    """Loads what has been checked; sparse tensors are checked here."""
    with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(True):
        warnings.simplefilter("ignore")  # about typed storages and quantisation, which the file's writer chose
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)


def check_zip(file: IO[bytes], data: memoryview) -> None:
    """Raises InputError where loading the archive would need more than the weights-only loader, or more memory."""
    archive = read_archive(file, data)
    start, end = archive.pickle
    read_pickle(bytes(data[start:end]), TorchRules(archive.stored, len(data), end - start))


def _check_legacy(data: memoryview) -> None:
    """Five pickles (magic number, version, system, objects, keys of storages), then the storages in that order."""
    rules = TorchRules(lambda key: len(data), len(data), len(data))
    position = 0
    read: list[Any] = []
    for _ in range(5):
        value, position = read_pickle(data, rules, position)
        read.append(value)
    keys = read[-1]
    if type(keys) is not list or len(keys) != len(set(keys)) or set(keys) != set(rules.claimed):
        raise InputError("the storages that follow are not those that its objects refer to")
    for key in keys:
        if position + _COUNT.size > len(data):
            raise InputError("it was cut off before its last tensor")
        position += _COUNT.size + rules.claimed[key]
    if position > len(data):
        raise InputError("it was cut off before its last tensor")


def _bytes_of(file: IO[bytes]) -> memoryview:
    """Unmapped with its last view: closing it by hand fails while an error still refers to one."""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

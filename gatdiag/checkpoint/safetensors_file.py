"""safetensors: one file, or several shards with an index that says which tensor is in which."""

import json
import struct
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from gatdiag.errors import InputError
from gatdiag.names import quote
from gatdiag.structure.from_names import natural_sort_key

_LENGTH = struct.Struct("<Q")
_HEADER = 64 << 20  # bytes; about half a million tensors


def looks_like(head: bytes) -> bool:
    """True where a file begins with the length of a header and a JSON object."""
    return len(head) > _LENGTH.size and head[_LENGTH.size :].lstrip(b" ")[:1] == b"{"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Reads one file; its tensors are memory-mapped, and copied when they are written to."""
    return _in_order(_tensors(path))


def read_sharded(index: Path) -> dict[str, Tensor]:
    """Reads the shards that an index names, all of which lie in its folder."""
    tensors: dict[str, Tensor] = {}
    names = weight_map(index)
    for shard in sorted(set(names.values())):
        if not (index.parent / shard).is_file():
            raise InputError(f"its shard {quote(shard)} is missing: expected it in the same folder")
        tensors |= {name: tensor for name, tensor in _tensors(index.parent / shard).items() if names.get(name) == shard}
    missing = names.keys() - tensors.keys()
    if missing:
        raise InputError(f"{len(missing)} tensors of the index are in no shard, {quote(min(missing))} first")
    return _in_order(tensors)


def weight_map(index: Path) -> dict[str, str]:
    """Tensor's name -> name of the shard that holds it, a file in the folder of the index."""
    if index.stat().st_size > _HEADER:
        raise InputError(f"expected an index of at most {_HEADER:,} bytes")
    try:
        names = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError("its index is damaged: expected a JSON object with a weight_map") from error
    if not isinstance(names, dict) or not all(isinstance(shard, str) for shard in names.values()):
        raise InputError("its index is damaged: expected a weight_map from names to files")
    for shard in set(names.values()):
        if shard in ("", ".", "..") or "\0" in shard or Path(shard).name != shard or "\\" in shard:
            raise InputError(f"its index names {quote(shard)}: expected a file in the same folder")
    return names


def positions(path: Path) -> dict[str, int]:
    """Where each tensor's bytes begin in a file that has been read without an error."""
    with path.open("rb") as file:
        length = _LENGTH.unpack(file.read(_LENGTH.size))[0]
        header: dict[str, Any] = json.loads(file.read(length))
    start = _LENGTH.size + length
    return {name: start + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def _tensors(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size or _LENGTH.unpack(head)[0] > _HEADER:
        raise InputError(f"expected a safetensors header of at most {_HEADER:,} bytes")
    with safe_open(path, framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary


def _in_order(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """convs.2 before convs.10: the format keeps no order of its own."""
    return dict(sorted(tensors.items(), key=lambda item: natural_sort_key(item[0])))

"""Read safetensors files: one file, or several shards with an index."""

import json
import struct
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor

from gatdiag.checkpoint.torch_file import is_utf8
from gatdiag.errors import InputError
from gatdiag.names import quote
from gatdiag.structure.from_names import natural_sort_key

_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 64 << 20  # bytes; about half a million tensors


def is_safetensors(head: bytes) -> bool:
    """True if a file begins with a length and a JSON object."""
    return len(head) > _LENGTH.size and head[_LENGTH.size :].lstrip(b" ")[:1] == b"{"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read one file; tensors are memory-mapped, copy-on-write."""
    return _sort_by_name(_load(path))


def read_sharded(index: Path) -> dict[str, Tensor]:
    """Read all shards of an index, from the same folder."""
    tensors: dict[str, Tensor] = {}
    shards = read_weight_map(index)
    for shard in sorted(set(shards.values())):
        if not (index.parent / shard).is_file():
            raise InputError(f"its shard {quote(shard)} is missing: expected it in the same folder")
        tensors |= {name: tensor for name, tensor in _load(index.parent / shard).items() if shards.get(name) == shard}
    missing = shards.keys() - tensors.keys()
    if missing:
        raise InputError(f"{len(missing)} tensors of the index are in no shard, such as {quote(min(missing))}")
    return _sort_by_name(tensors)


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name of its shard, in the folder of the index."""
    if index.stat().st_size > _MAX_HEADER:
        raise InputError(f"expected an index of at most {_MAX_HEADER:,} bytes")
    try:
        shards = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError("its index is damaged: expected a JSON object with a weight_map") from error
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise InputError("its index is damaged: expected a weight_map from names to files")
    for shard in set(shards.values()):
        if shard in ("", ".", "..") or "\0" in shard or Path(shard).name != shard or "\\" in shard:
            raise InputError(f"its index names {quote(shard)}: expected a file in the same folder")
    return shards


def read_offsets(path: Path) -> dict[str, int]:
    """Byte offset of each tensor in a valid file."""
    with path.open("rb") as file:
        length = _LENGTH.unpack(file.read(_LENGTH.size))[0]
        header: dict[str, Any] = json.loads(file.read(length))
    start = _LENGTH.size + length
    return {name: start + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def _load(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size or _LENGTH.unpack(head)[0] > _MAX_HEADER:
        raise InputError(f"expected a safetensors header of at most {_MAX_HEADER:,} bytes")
    if not is_utf8(path):  # which safe_open refuses
        tensors: dict[str, Tensor] = load(path.read_bytes())
        return tensors
    with safe_open(path, framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary


def _sort_by_name(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sort by name, convs.2 before convs.10, as the format has no order."""
    return dict(sorted(tensors.items(), key=lambda item: natural_sort_key(item[0])))

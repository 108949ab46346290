"""Read safetensors files: one file, or several shards with an index."""

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


def is_safetensors(head: bytes) -> bool:
    """True if a file begins with a length and a JSON object."""
    return len(head) > _LENGTH.size and head[_LENGTH.size :].lstrip(b" ")[:1] == b"{"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read one file; tensors are memory-mapped, copy-on-write."""
    return _sort_by_name(_load(path))


def read_sharded(index: Path) -> dict[str, Tensor]:
    """Read all shards of an index, from the same folder."""
    shards: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard or not (index.parent / shard).is_file():
            raise InputError(f"its shard {quote(shard)} is missing: expected it in the same folder")
        tensors |= {name: tensor for name, tensor in _load(index.parent / shard).items() if shards.get(name) == shard}
    if missing := shards.keys() - tensors.keys():
        raise InputError(f"{len(missing)} tensors of the index are in no shard, such as {quote(min(missing))}")
    return _sort_by_name(tensors)


def read_offsets(path: Path) -> dict[str, int]:
    """Byte offset of each tensor in a valid file."""
    with path.open("rb") as file:
        length = _LENGTH.unpack(file.read(_LENGTH.size))[0]
        header: dict[str, Any] = json.loads(file.read(length))
    start = _LENGTH.size + length
    return {name: start + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def _load(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary


def _sort_by_name(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sort by name, convs.2 before convs.10, as the format has no order."""
    return dict(sorted(tensors.items(), key=lambda item: natural_sort_key(item[0])))

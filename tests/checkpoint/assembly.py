"""Writes files of torch.save instruction by instruction, so that they can say what torch.save never would."""

import io
import pickle
import zipfile
from collections.abc import Mapping

MAGIC = 0x1950A86A20F9469CFC6C


def value(plain: object) -> bytes:
    """Instructions that push plain data."""
    if isinstance(plain, tuple):
        return b"(" + b"".join(map(value, plain)) + b"t"
    return plain if isinstance(plain, bytes) else pickle.dumps(plain, 2)[2:-1]


def name(full: str) -> bytes:
    """Imports a name."""
    module, _, attribute = full.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def call(function: str, *arguments: object) -> bytes:
    """Calls a name; arguments are plain, or instructions as bytes."""
    return name(function) + value(arguments) + b"R"


def mapping(items: Mapping[bytes | str, bytes]) -> bytes:
    return b"}(" + b"".join(value(key) + entry for key, entry in items.items()) + b"u"


def storage(count: int, key: str = "0", kind: str = "torch.FloatStorage") -> bytes:
    return value(("storage", name(kind), key, "cpu", count)) + b"Q"


def tensor(held: bytes, size: tuple, stride: tuple, offset: int = 0) -> bytes:
    hooks = call("collections.OrderedDict")
    return call("torch._utils._rebuild_tensor_v2", held, offset, size, stride, b"\x89", hooks)


def program(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def archive(body: bytes, storages: Mapping[str, bytes] | None = None, **options: int) -> bytes:
    """A file of torch.save whose objects are what the instructions make."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as file:
        file.writestr("archive/data.pkl", program(body))
        file.writestr("archive/byteorder", "little")
        for key, data in (storages or {"0": bytes(16)}).items():
            file.writestr(f"archive/data/{key}", data)
        file.writestr("archive/version", "3\n")
    return out.getvalue()


def legacy(body: bytes) -> bytes:
    """The same as torch wrote it before 1.6."""
    parts = [pickle.dumps(part, 2) for part in (MAGIC, 1001, {"little_endian": True})]
    return b"".join([*parts, program(body), pickle.dumps([], 2)])

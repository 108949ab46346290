"""Read files of torch.save: zip archives, and the sequence of pickles and storages that it wrote before version 1.6.

They are loaded with `weights_only=True`, so nothing in a file is ever executed. Checks before that refuse what torch
does not: archives that unpack to more than their size, and pickles made to use unbounded time or memory.
"""

import io
import pickletools
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch._weights_only_unpickler import _get_allowed_globals

from gatdiag.checkpoint.state_dict import NoModelError
from gatdiag.errors import InputError
from gatdiag.names import join_names, quote

ZIP_MAGIC = b"PK\3\4"
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # torch's magic number, pickled
_REFUSED = {  # torch allows them, but they allocate what a file claims or create no plain tensors; not in state dicts
    "builtins.bytearray",
    "torch._utils._rebuild_wrapper_subclass",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
}
_LEGACY_PICKLES = 5  # magic number, protocol version, system, objects, keys of the storages that follow

_MAX_INSTRUCTIONS = 5_000_000  # about 120,000 tensors
_MAX_LONG_NUMBERS = 1_000  # of more than 64 bits: as keys, they can be chosen so that all hashes collide
_HASHED_PER_BYTE = 50  # elements of tuples that may be hashed per byte of the pickle
_MAX_NAMES = 5  # in an error message
_HASHED_WITH_CONTENTS = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "DUP")
# Instruction -> (values popped below the last mark, None if it uses no mark; values popped; values pushed)
_STACK_EFFECTS = {
    code.name: (
        next((at for at, kind in enumerate(code.stack_before) if kind.name == "mark"), None),
        len(code.stack_before),
        len(code.stack_after),
    )
    for code in pickletools.opcodes
}


def read_torch(path: Path) -> Any:
    """Read a file of torch.save; its tensors are memory-mapped.

    Raises:
        InputError: It is damaged, or needs more than weights-only loading.
    """
    with path.open("rb") as file:
        _check_archive(file, path.stat().st_size)
        if path.suffix == ".safetensors":  # which torch.load, given a path, takes for another format
            return _load(file)
        return _load(str(path), mmap=True)


def read_legacy(path: Path) -> Any:
    """Read a file of torch.save from before version 1.6, which cannot be memory-mapped."""
    with path.open("rb") as file:
        for _ in range(_LEGACY_PICKLES):
            _check_pickle(file, path.stat().st_size)
        file.seek(0)
        return _load(file)


def read_bytes(data: bytes) -> Any:
    """Read bytes written by torch.save."""
    if not data.startswith(ZIP_MAGIC):
        raise InputError("a chunk of it was not written by torch.save")
    _check_archive(io.BytesIO(data), len(data))
    return _load(io.BytesIO(data))


def _load(source: str | IO[bytes], *, mmap: bool = False) -> Any:
    with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(True):
        warnings.simplefilter("ignore")  # about typed storages and quantization in the file
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)


def _is_allowed(name: str) -> bool:
    """Stricter than torch."""
    name = name.replace("__builtin__.", "builtins.", 1)  # pickle protocol 2 uses the names of Python 2
    is_typed_tensor = name.endswith("Tensor") and name != "torch.Tensor"  # FloatTensor(10**12) allocates
    return name in _get_allowed_globals() and name not in _REFUSED and not is_typed_tensor


def _check_archive(file: IO[bytes], size: int) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            records, comment = archive.infolist(), archive.comment
            _refuse_other_archives({record.filename for record in records})
            for record in records:
                archive.open(record).close()  # raises if the record's own header disagrees with the directory
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"its zip directory is damaged: truncated or still being written ({quote(error)})") from error
    _check_records(records, size)
    if comment:
        raise InputError("expected an archive without a comment, as torch.save writes it")
    file.seek(0)
    pickle = torch._C.PyTorchFileReader(file).get_record("data.pkl")  # the one that torch.load will find
    file.seek(0)
    _check_pickle(io.BytesIO(pickle), len(pickle))


def _refuse_other_archives(names: set[str]) -> None:
    if any(name.endswith("/constants.pkl") for name in names):
        raise InputError("it is a TorchScript archive, which contains code: save the model's state_dict() instead")
    if not any(name.endswith("/data.pkl") for name in names):
        raise InputError("it is a zip archive without data.pkl: not written by torch.save")


def _check_records(records: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Check that records are stored once each, one after the other and uncompressed, as torch.save writes them."""
    ordered = sorted(records, key=lambda record: record.header_offset)
    if len({record.filename for record in records}) < len(records):
        raise InputError("it has two records of the same name")
    for record, end in zip(ordered, [*(later.header_offset for later in ordered[1:]), size], strict=True):
        name = quote(record.filename)
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise InputError(f"its record {name} is compressed, unlike those of torch.save")
        if record.header_offset + record.file_size > end:
            raise InputError(f"its record {name} overlaps another or extends beyond the file")


def _check_pickle(file: IO[bytes], length: int) -> None:
    if forbidden := [name for name in scan_pickle(file, length) if not _is_allowed(name)]:
        raise forbidden_names_error(forbidden)


def scan_pickle(file: IO[bytes], length: int) -> list[str]:
    """Read one pickle instruction by instruction without executing any; the file is left at its end.

    A loader that restricts imports executes no code, but hashing a tuple hashes all its elements: tuples of the same
    tuple, nested sixty deep, would take forever as a key. Pickles that hash too much are refused.

    Returns:
        The names that it imports, such as "collections.OrderedDict", in order. Names that protocols 4 and later
        assemble during execution are not included; the loader has to check them.
    """
    names: dict[str, None] = {}
    cost = _HashCost(_HASHED_PER_BYTE * length + 1_000_000)
    try:
        for number, (code, argument, _) in enumerate(pickletools.genops(file)):
            if number == _MAX_INSTRUCTIONS:
                raise InputError(f"its pickle is longer than {_MAX_INSTRUCTIONS:,} instructions")
            cost.add(code.name, argument)
            if code.name in ("GLOBAL", "INST"):
                names[str(argument).replace(" ", ".", 1)] = None
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(f"its pickle is damaged ({quote(error)})") from error
    return list(names)


def forbidden_names_error(names: Sequence[str]) -> NoModelError:
    """The error for a pickle that imports names that are not allowed."""
    return NoModelError(
        f"it imports {join_names(map(quote, names), _MAX_NAMES)}, but only tensors and plain values are read: "
        "save the model's state_dict() by itself"
    )


class _HashCost:
    """Counts the elements of each tuple, nested ones included, that unpickling may hash."""

    def __init__(self, allowed: int) -> None:
        self._left, self._long_numbers_left = allowed, _MAX_LONG_NUMBERS
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[Any, int] = {}

    def add(self, name: str, argument: Any) -> None:
        """Add one instruction; raises InputError if hashing takes too long."""
        if name == "MARK":
            self._marks.append(len(self._stack))
            return
        if name.endswith("PUT") or name == "MEMOIZE":
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
            return
        if isinstance(argument, int) and not -(2**63) <= argument < 2**63:
            self._long_numbers_left -= 1
        below, pops, pushes = _STACK_EFFECTS[name]
        start = len(self._stack) - pops if below is None else self._marks.pop() - below
        if start < 0 or (self._marks and start < self._marks[-1]):
            raise InputError("its pickle is damaged (it pops from an empty stack)")
        weight = self._memo[argument] if name.endswith("GET") else 1
        if name in _HASHED_WITH_CONTENTS:
            weight += sum(self._stack[start:])
        self._stack[start:] = [weight] * pushes
        self._left -= weight
        if self._left < 0 or self._long_numbers_left < 0:
            raise InputError("it nests the same values over and over, or uses keys chosen to collide")

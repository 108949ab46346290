"""Files of torch.save: the zip archive of today, and the sequence of pickles and storages from before version 1.6.

torch's weights-only loader reads them, so nothing in a file is ever executed. What it leaves open is refused before:
archives that unpack to more than they weigh, and pickles that would keep it busy.
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

ZIP = b"PK\3\4"
LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # torch's magic number, pickled
_REFUSED = {  # what torch allows, and no state dict needs: they allocate what a file claims, or make no plain tensors
    "builtins.bytearray",
    "torch._utils._rebuild_wrapper_subclass",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
}
_LEGACY_PICKLES = 5  # magic number, version, system, objects, keys of the storages that follow

_INSTRUCTIONS = 5_000_000  # about 120,000 tensors
_LONG_NUMBERS = 1_000  # of more than 64 bits, which can be chosen so that all of them collide as keys
_WORK = 50  # elements of tuples per byte
_NAMED = 5  # names in a refusal
_LONG = ("LONG", "LONG1", "LONG4", "INT")
_HASHED_WITH_CONTENTS = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "DUP")
# Instruction -> values taken below the last mark (None: there is none), or else from the stack; values put there.
_EFFECTS = {
    code.name: (
        next((at for at, kind in enumerate(code.stack_before) if kind.name == "mark"), None),
        len(code.stack_before),
        len(code.stack_after),
    )
    for code in pickletools.opcodes
}


def read_torch(path: Path, *, mapped: bool = True) -> Any:
    """Reads a file of torch.save.

    Args:
        path: The file.
        mapped: Leave the tensors on disk until they are used; their memory is then not the reader's own.

    Raises:
        InputError: It is damaged, or needs more than weights-only loading.
    """
    with path.open("rb") as file:
        _check_archive(file, path.stat().st_size)
        by_path = mapped and not str(path).endswith(".safetensors")  # by which torch would take it for another format
        return _load(str(path) if by_path else file, mmap=by_path)


def read_legacy(path: Path) -> Any:
    """Reads a file of torch.save as it was before version 1.6; it cannot be memory-mapped."""
    with path.open("rb") as file:
        for _ in range(_LEGACY_PICKLES):
            _check_pickle(file, path.stat().st_size)
        file.seek(0)
        return _load(file)


def read_bytes(data: bytes) -> Any:
    """Reads what torch.save wrote to memory."""
    if not data.startswith(ZIP):
        raise InputError("a part of it is not as torch.save writes it")
    _check_archive(io.BytesIO(data), len(data))
    return _load(io.BytesIO(data))


def _load(source: str | IO[bytes], *, mmap: bool = False) -> Any:
    with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(True):
        warnings.simplefilter("ignore")  # about typed storages and quantization, which the file's writer chose
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)


def _allows(name: str) -> bool:
    """A part of what torch allows."""
    modern = name.replace("__builtin__.", "builtins.", 1)  # the names of Python 2, in which protocol 2 speaks
    is_typed_tensor = modern.endswith("Tensor") and modern != "torch.Tensor"  # FloatTensor(10**12) allocates
    return modern in _get_allowed_globals() and modern not in _REFUSED and not is_typed_tensor


def _check_archive(file: IO[bytes], size: int) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            records, comment = archive.infolist(), archive.comment
            _refuse_other_archives({record.filename for record in records})
            for record in records:
                archive.open(record).close()  # the record's own header says the same as the directory
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"its zip directory is damaged: cut off, or still being written ({quote(error)})") from error
    _check_records(records, size)
    if comment:
        raise InputError("expected an archive with no comment: torch.save writes none")
    file.seek(0)
    pickle = torch._C.PyTorchFileReader(file).get_record("data.pkl")  # as the loader will find it
    file.seek(0)
    _check_pickle(io.BytesIO(pickle), len(pickle))


def _refuse_other_archives(names: set[str]) -> None:
    if any(name.endswith("/constants.pkl") for name in names):
        raise InputError("it is a TorchScript archive, which holds code: save the model's state_dict() instead")
    if names and all(name.endswith(".npy") for name in names):
        raise InputError("it is an archive of NumPy (.npz): save its arrays as tensors, with torch.save or safetensors")
    if not any(name.endswith("/data.pkl") for name in names):
        raise InputError("it is a zip archive without data.pkl, so not a checkpoint of torch.save")


def _check_records(records: Sequence[zipfile.ZipInfo], size: int) -> None:
    """torch.save stores each record once, one after the other, and never compresses."""
    ordered = sorted(records, key=lambda record: record.header_offset)
    if len({record.filename for record in records}) < len(records):
        raise InputError("one of its records is there twice")
    for record, end in zip(ordered, [*(later.header_offset for later in ordered[1:]), size], strict=True):
        name = quote(record.filename)
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise InputError(f"its record {name} is compressed, which torch.save never does")
        if record.header_offset + record.file_size > end:
            raise InputError(f"its record {name} overlaps another, or lies outside the file")


def _check_pickle(file: IO[bytes], length: int) -> None:
    if refused := [name for name in scan(file, length) if not _allows(name)]:
        raise refusal(refused)


def scan(file: IO[bytes], length: int) -> list[str]:
    """Reads one pickle instruction by instruction, executes none, and leaves the file behind it.

    Loaders that restrict what a pickle imports execute no code; yet the hash of a tuple is that of all it holds, and
    tuples of the same tuples, sixty deep, would be hashed for ever when one of them is a key.

    Args:
        file: At the beginning of the pickle.
        length: Bytes of the pickle, or more.

    Returns:
        What it imports by name, such as "collections.OrderedDict", in order. (Names that protocols from 4 on put
        together while they are executed are not among them; the loader has to ask.)

    Raises:
        InputError: It is damaged, too long, or made to take for ever.
    """
    names: dict[str, None] = {}
    work = _Work(_WORK * length + 1_000_000)
    try:
        for number, (code, argument, _) in enumerate(pickletools.genops(file)):
            if number == _INSTRUCTIONS:
                raise InputError(f"its description of the objects is longer than {_INSTRUCTIONS:,} instructions")
            work.follow(code.name, argument)
            if code.name in ("GLOBAL", "INST"):
                names[str(argument).replace(" ", ".", 1)] = None
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(f"its description of the objects is damaged ({quote(error)})") from error
    return list(names)


def refusal(names: Sequence[str]) -> NoModelError:
    """The error for a pickle that asks for names that are not allowed."""
    return NoModelError(
        f"it asks for {join_names(map(quote, names), _NAMED)}, and only tensors and plain values are read: "
        "save the model's state_dict() by itself"
    )


class _Work:
    """Follows how many elements each tuple has, those of the tuples within it included."""

    def __init__(self, allowed: int) -> None:
        self._left, self._long_numbers = allowed, _LONG_NUMBERS
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[Any, int] = {}

    def follow(self, name: str, argument: Any) -> None:
        """One instruction; raises InputError once what it makes takes too long to hash."""
        if name == "MARK":
            self._marks.append(len(self._stack))
            return
        if name.endswith("PUT") or name == "MEMOIZE":
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
            return
        if name in _LONG and not -(2**63) <= argument < 2**63:
            self._long_numbers -= 1
        below, takes, gives = _EFFECTS[name]
        start = len(self._stack) - takes if below is None else self._marks.pop() - below
        if start < 0 or (self._marks and start < self._marks[-1]):
            raise InputError("its description of the objects is damaged (it takes what is not there)")
        weight = self._memo[argument] if name.endswith("GET") else 1
        if name in _HASHED_WITH_CONTENTS:
            weight += sum(self._stack[start:])
        self._stack[start:] = [weight] * gives
        self._left -= weight
        if self._left < 0 or self._long_numbers < 0:
            raise InputError("it uses the same values over and over, or keys that were chosen to collide")

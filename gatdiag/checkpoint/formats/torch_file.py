"""Files of torch.save: the zip archive of today, and the sequence of pickles and storages from before version 1.6.

torch's weights-only loader reads them, so nothing in a file is ever executed. What it leaves open is refused before:
archives that unpack to more than they weigh, and pickles that would keep it busy.
"""

import io
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch._weights_only_unpickler import _get_allowed_globals

from gatdiag.checkpoint.formats.contents import Contents
from gatdiag.checkpoint.formats.pickle_scan import refusal, scan
from gatdiag.errors import InputError
from gatdiag.names import quoted

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


def read_torch(path: Path, *, mapped: bool = True) -> Contents:
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
        return Contents("torch", _load(str(path) if by_path else file, mmap=by_path))


def read_legacy(path: Path, *, mapped: bool = True) -> Contents:
    """Reads a file of torch.save as it was before version 1.6; it cannot be memory-mapped.

    Raises:
        InputError: It is damaged, or needs more than weights-only loading.
    """
    with path.open("rb") as file:
        for _ in range(_LEGACY_PICKLES):
            _check_pickle(file, path.stat().st_size)
        file.seek(0)
        return Contents("torch (legacy)", _load(file))


def read_bytes(data: bytes) -> Any:
    """Reads what torch.save wrote to memory.

    Raises:
        InputError: It is damaged, or needs more than weights-only loading.
    """
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
        raise InputError(f"its zip directory is damaged: cut off, or still being written ({quoted(error)})") from error
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
        name = quoted(record.filename)
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise InputError(f"its record {name} is compressed, which torch.save never does")
        if record.header_offset + record.file_size > end:
            raise InputError(f"its record {name} overlaps another, or lies outside the file")


def _check_pickle(file: IO[bytes], length: int) -> None:
    if refused := [name for name in scan(file, length) if not _allows(name)]:
        raise refusal(refused)
